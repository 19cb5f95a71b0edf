"""A trained run for all tests that only read one, and data for those that train."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli import QUICK, photos, succeeds


@dataclass(frozen=True)
class Trained:
    """A finished run and its data, not to be changed: copy them for that."""

    run: Path
    data: Path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    path = tmp_path_factory.mktemp("trained")
    data = photos(path / "photos")
    succeeds("train", data, "--out", path / "run", *QUICK)
    return Trained(path / "run", data)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder of 10 cats and 10 dogs."""
    return photos(tmp_path / "photos")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where a run may be made."""
    return tmp_path / "run"
