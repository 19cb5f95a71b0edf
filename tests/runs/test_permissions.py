"""Everything that is written for a run, a report or a record has the permissions that the umask leaves."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli import QUICK, photos, succeeds


@pytest.fixture(params=[0o077, 0o027, 0o022], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


def test_files_with_training_images_are_written_as_the_umask_says(umask: int, tmp_path: Path) -> None:
    data, place = photos(tmp_path / "photos"), tmp_path / "made"
    place.mkdir()
    run = place / "runs" / "deep" / "run"
    succeeds("train", data, "--out", run, *QUICK, "--tensorboard", "--validation", 4)
    succeeds("evaluate", run, "--split", "validation")
    succeeds("explain", run, data / "cat", "--html", place / "report.html", "--figure", place / "figure.png")
    found = modes(place)
    assert {"runs/deep/run/run.json", "runs/deep/run/metrics.jsonl", "report.html", "figure.png"} <= found.keys()
    assert {"runs/deep/run/evaluation.json", "runs/deep/run/evaluation-validation.json"} <= found.keys()
    assert any(name.endswith(".safetensors") for name in found)
    for name, mode in found.items():
        whole = 0o777 if (place / name).is_dir() else 0o666
        assert mode == whole & ~umask, name
