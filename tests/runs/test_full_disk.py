"""No room left, for real: the system refuses to let files grow. What was saved stays, and is gone on with later."""

import resource
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

import memwrap
from memwrap.data import digits
from memwrap.errors import SaveError, TrainingError
from memwrap.runs.run import open_run
from memwrap.runs.training import begin, resume
from memwrap.storage import log
from memwrap.training.settings import Settings
from tests.runs.test_kill import outcome, processes

SETTINGS = Settings(
    encoder="tiny", samples=48, test=0.5, validation=20, epochs=3, batch_size=16, memory_size=8, remember=10
)


def allow(size: int) -> None:
    """From now on this process writes no file larger than this; it is told so by an OSError."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def begin_with(path: Path, size: int) -> None:
    data = digits()
    allow(size)
    begin(path, data, SETTINGS, "default")


class FullAfter:
    """A callback: after so many steps the disk is full."""

    def __init__(self, path: Path, step: int, size: Callable[[Path], int]) -> None:
        self.path, self.at, self.size = path, step, size

    def on_step(self, metrics: object, rate: float) -> None:
        if metrics.step == self.at:  # type: ignore[attr-defined]
            allow(self.size(self.path))

    def on_epoch(self, line: dict[str, object]) -> None: ...


def room_for_no_weights(path: Path) -> int:
    return 100_000


def room_for_half_a_line(path: Path) -> int:
    return (path / "metrics.jsonl").stat().st_size + 30


def train_with(path: Path, step: int, size: Callable[[Path], int], checkpoint_seconds: float) -> None:
    begun = begin(path, digits(), SETTINGS, "default")
    begun.checkpoint_seconds = checkpoint_seconds
    begun.callbacks.append(FullAfter(path, step, size))
    begun.train()


def answer(there: Connection, act: Callable[..., None], arguments: tuple[object, ...]) -> None:
    torch.set_num_threads(1)  # as here: with more, sums come out otherwise in their last bits
    try:
        act(*arguments)
    except Exception as error:
        there.send((type(error), str(error)))
    else:
        there.send((None, ""))


def in_another_process(act: Callable[..., None], *arguments: object) -> tuple[type[Exception] | None, str]:
    """The error that it ends with: a limit is best set where nobody else has to live with it."""
    here, there = processes.Pipe()
    process = processes.Process(target=answer, args=(there, act, arguments))
    process.start()
    there.close()
    kind, message = here.recv()
    process.join()
    return kind, message


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What a run comes to that never lacked room."""
    path = tmp_path_factory.mktemp("whole") / "run"
    begin(path, digits(), SETTINGS, "default").train()
    return outcome(path)


@pytest.mark.parametrize("size", [0, 1000, 5000, 100_000])  # less than run.json, splits.json, the weights
def test_a_run_that_cannot_begin_leaves_nothing(size: int, tmp_path: Path, expected: dict[str, object]) -> None:
    path = tmp_path / "run"
    kind, message = in_another_process(begin_with, path, size)
    assert kind is SaveError
    assert "File too large" in message
    assert str(tmp_path) in message
    assert list(tmp_path.iterdir()) == []
    begin(path, digits(), SETTINGS, "default").train()
    assert outcome(path) == expected


@pytest.mark.parametrize(
    ("step", "size", "checkpoint_seconds", "saved"),
    [
        (1, room_for_no_weights, 0, 0),
        (5, room_for_no_weights, 0, 4),
        (9, room_for_no_weights, 0, 8),  # the last: the finished model cannot be saved
        (9, room_for_no_weights, 1000, 0),
        (6, room_for_half_a_line, 1000, 0),
        (9, room_for_half_a_line, 0, 8),
    ],
)
def test_a_run_whose_disk_fills_up_keeps_its_last_state_and_is_resumed(
    step: int,
    size: Callable[[Path], int],
    checkpoint_seconds: float,
    saved: int,
    tmp_path: Path,
    expected: dict[str, object],
) -> None:
    path = tmp_path / "run"
    kind, message = in_another_process(train_with, path, step, size, checkpoint_seconds)
    assert kind is TrainingError
    assert "the run cannot be saved" in message
    assert "File too large" in message
    assert "with --resume" in message
    memwrap.load(path)
    assert resume(open_run(path), digits()).trainer.progress.step == saved
    assert not list(path.glob(".*.partial"))
    assert resume(open_run(path), digits()).train()
    assert outcome(path) == expected


def test_a_line_that_was_cut_off_is_really_there(tmp_path: Path) -> None:
    path = tmp_path / "run"
    in_another_process(train_with, path, 6, room_for_half_a_line, 1000)
    content = (path / "metrics.jsonl").read_text()
    assert not content.endswith("\n")
    assert [line["epoch"] for line in log.read(path / "metrics.jsonl")] == [1]


def resume_with(path: Path, size: int) -> None:
    begun = resume(open_run(path), digits())
    allow(size)
    begun.train()


def test_a_disk_that_is_still_full_is_named_again(tmp_path: Path, expected: dict[str, object]) -> None:
    path = tmp_path / "run"
    in_another_process(train_with, path, 5, room_for_no_weights, 0)
    for size in (10, 100_000):  # too little for what metrics.jsonl holds already; for the weights
        kind, message = in_another_process(resume_with, path, size)
        assert kind is TrainingError
        assert "Free some space" in message
    assert resume(open_run(path), digits()).train()
    assert outcome(path) == expected
