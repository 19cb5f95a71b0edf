"""A trained run for all tests that only read one, and data for those that train."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli import QUICK, photos, picture, succeeds
from tests.photographs import photographs


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


@pytest.fixture(scope="session")
def photographed(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run on 12 photographs of each of 3 classes; small ones, for the sake of time."""
    path = tmp_path_factory.mktemp("photographed")
    data = photographs(path / "photos")
    succeeds("train", data, "--out", path / "run", "--size", 64, "--fit", "crop")
    return Trained(path / "run", data)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder of 10 cats and 10 dogs."""
    return photos(tmp_path / "photos")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where a run may be made."""
    return tmp_path / "run"


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    """A folder of good and bad files, in none of the classes' folders."""
    folder = tmp_path / "mixture"
    picture(folder / "a.png", 0, seed=70)
    picture(folder / "deep" / "b.png", 180, seed=71, size=20)
    (folder / "empty.png").touch()
    (folder / "letter.jpg").write_text("Dear Sir or Madam")
    return folder
