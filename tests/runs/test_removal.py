"""A run's folder that is removed, moved, emptied or replaced in the middle of training: an error, and no half run."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memwrap.data import DataSet, digits
from memwrap.errors import RunError, TrainingError
from memwrap.runs.run import open_run
from memwrap.runs.training import begin, resume
from tests.runs.test_kill import outcome
from tests.runs.test_training import SETTINGS, STEPS, after, changed


@pytest.fixture(scope="module")
def data() -> DataSet:
    return digits()


class At:
    """A callback that acts once, after a step or after the epoch that ends with it."""

    def __init__(self, step: int, act: Callable[[], object], epoch: bool) -> None:
        self.step, self.act, self.epoch = step, act, epoch

    def on_step(self, metrics: Any, rate: float) -> None:
        if not self.epoch and metrics.step == self.step:
            self.act()

    def on_epoch(self, line: dict[str, Any]) -> None:
        if self.epoch and line["step"] == self.step:
            self.act()


def train(path: Path, data: DataSet, act: Callable[[], object], step: int, epoch: bool, seconds: float) -> None:
    training = begin(path, data, SETTINGS, "default")
    training.checkpoint_seconds = seconds
    training.callbacks.append(At(step, act, epoch))
    training.train()


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# After a step in the middle, the last of an epoch, before and after its line is logged, and the last of all.
MOMENTS = [(1, False), (2, False), (2, True), (STEPS, False), (STEPS, True)]


@pytest.mark.parametrize("seconds", [0.0, 1000.0])
@pytest.mark.parametrize(("step", "epoch"), MOMENTS)
def test_a_removed_folder_is_an_error_and_does_not_return(
    data: DataSet, tmp_path: Path, step: int, epoch: bool, seconds: float
) -> None:
    path = tmp_path / "runs" / "run"
    with pytest.raises((RunError, TrainingError), match="removed"):
        train(path, data, lambda: shutil.rmtree(path.parent), step, epoch, seconds)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("step", "epoch"), MOMENTS)
def test_an_emptied_folder_stays_empty(data: DataSet, tmp_path: Path, step: int, epoch: bool) -> None:
    path = tmp_path / "run"

    def clear() -> None:
        for file in path.iterdir():
            file.unlink()

    with pytest.raises((RunError, TrainingError), match=r"no model\.json"):
        train(path, data, clear, step, epoch, 0)
    assert list(path.iterdir()) == []


@pytest.mark.parametrize(("step", "epoch"), MOMENTS)
def test_a_moved_folder_is_an_error_and_can_be_resumed_where_it_is(
    data: DataSet, tmp_path: Path, step: int, epoch: bool
) -> None:
    begin(tmp_path / "whole", data, SETTINGS, "default").train()
    path, moved = tmp_path / "run", tmp_path / "moved"
    with pytest.raises((RunError, TrainingError), match="moved or"):
        train(path, data, lambda: path.rename(moved), step, epoch, 0)
    assert not path.exists()
    resume(open_run(moved), data).train()
    assert outcome(moved) == outcome(tmp_path / "whole")


@pytest.mark.parametrize(("step", "epoch"), MOMENTS)
def test_another_run_in_the_same_place_is_not_touched(data: DataSet, tmp_path: Path, step: int, epoch: bool) -> None:
    path, other = tmp_path / "run", tmp_path / "other"
    begin(other, data, changed(seed=1), "default").train(after(step) if step < STEPS else lambda: False)
    before = files(other)

    def replace() -> None:
        shutil.rmtree(path)
        other.rename(path)

    with pytest.raises((RunError, TrainingError), match="or replaced"):
        train(path, data, replace, step, epoch, 0)
    assert files(path) == before


def test_another_checkpoint_in_the_same_folder_is_not_replaced(data: DataSet, tmp_path: Path) -> None:
    path, other = tmp_path / "run", tmp_path / "other"
    begin(other, data, SETTINGS, "default").train(after(4))

    def replace() -> None:
        shutil.copytree(other, path, dirs_exist_ok=True)

    with pytest.raises((RunError, TrainingError), match="another process"):
        train(path, data, replace, 2, False, 1000)
    resume(open_run(path), data).train()
