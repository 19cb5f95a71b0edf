"""How training shows itself: a bar on a terminal, lines in a log, curves in TensorBoard."""

import fcntl
import io
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from memwrap.cli import callbacks
from memwrap.cli.callbacks import LogLines, ProgressBar, TensorBoardCurves, reading_bars, training_bar
from memwrap.errors import SettingsError
from memwrap.report.durations import duration
from memwrap.runs.data import data_for
from memwrap.runs.training import begin
from memwrap.training.settings import Settings
from memwrap.training.trainer import EpochMetrics, StepMetrics
from tests.cli import QUICK, environment, fails, photos, program, record, succeeds

STYLE = re.compile(r"\x1b\[[0-9;]*m")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_a_terminal(*arguments: object, columns: int = 80, kind: str = "xterm-256color") -> str:
    """All that a command writes to a terminal, its colours left out."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        program(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, env=environment(TERM=kind)
    )
    os.close(theirs)
    written = b""
    with process:
        while select.select([ours], [], [], 60)[0]:
            try:
                written += os.read(ours, 65536)
            except OSError:  # all is read
                break
    os.close(ours)
    assert process.returncode == 0, written
    return STYLE.sub("", written.decode())


def test_a_terminal_has_one_bar_with_all_that_one_wants_to_know(tmp_path: Path) -> None:
    data = photos(tmp_path / "photos", count=20)
    flags = ("--encoder", "tiny", "--epochs", 40, "--batch-size", 8, "--validation", 8)
    written = on_a_terminal("train", data, "--out", tmp_path / "run", *flags)
    bars = [each for each in re.split(r"\r\x1b\[2K", written) if each.startswith("epoch ")]
    frames = [CONTROL.sub("", bar.split("\r\n")[0]) for bar in bars]
    assert all(len(frame) <= 80 for frame in frames)
    accuracies = r"(accuracy \d+\.\d%  (val \d+\.\d%  )?)"
    for frame in frames:
        known = accuracies + "?" * frame.startswith("epoch 1/")  # an epoch's accuracy is known at its end
        words = rf"epoch \d+/40 [━╸╺ ]+ loss \d\.\d{{3}}  {known}\d+ images/s (\d:\d\d:\d\d|-:--:--)"
        assert re.fullmatch(words, frame), frame
    assert "  val " in frames[-1]
    assert frames[-1].startswith("epoch 40/40 ")
    shown = written[written.index("epoch ") :].split("\x1b[?25h")[0]  # until the cursor is back
    assert shown.count("\n") == 1, "one line, renewed in place"


def test_where_there_is_little_room_only_the_bar_becomes_shorter() -> None:
    screen = io.StringIO()
    with training_bar(Console(file=screen, force_terminal=True, width=80)) as progress:
        callback = ProgressBar(progress, epochs=300)
        callback.on_epoch(a_line(298, accuracy=1.0, validation_accuracy=1.0))
        callback.on_epoch(a_line(299, accuracy=1.0))
        callback.on_step(StepMetrics(2999, 3000, 299.9, 0.5, 0.1, None), 12345.6)
    frame = CONTROL.sub("", screen.getvalue()).rstrip().split("\n")[-1].split("\r")[-1]
    words = "loss 0.500  accuracy 100.0%  val 100.0%  12346 images/s"
    assert re.fullmatch(rf"epoch 300/300 [━╸╺]+ {words} -:--:--", frame), frame


def test_a_terminal_that_cannot_move_its_cursor_has_lines(tmp_path: Path) -> None:
    data = photos(tmp_path / "photos")
    written = on_a_terminal("train", data, "--out", tmp_path / "run", *QUICK, "--json", kind="dumb")
    assert "epoch 1/2  loss" in written
    assert not CONTROL.search(written)


def step_metrics(step: int, finished: bool = False) -> StepMetrics:
    ended = EpochMetrics(step // 10, step, 0.5, 0.5, 0.1) if finished else None
    return StepMetrics(step, 100, step / 10, 0.53219, 0.1, ended)


def a_line(epoch: int, **others: float) -> dict[str, Any]:
    seconds = {"seconds": 30.0 * epoch, "images_per_second": 1234.5}
    figures = {"epoch": epoch, "step": 10 * epoch, "loss": 0.53219, "accuracy": 0.8125, "lr": 0.1}
    return {**figures, **seconds, **others}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What time it is, in its only element."""
    now = [1000.0]
    monkeypatch.setattr(callbacks.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def log() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def lines(clock: list[float], log: io.StringIO) -> LogLines:
    return LogLines(Console(file=log, soft_wrap=True, highlight=False), epochs=10)


def test_a_log_has_a_line_after_the_first_epoch_and_the_last_and_seldom_between(
    lines: LogLines, log: io.StringIO, clock: list[float]
) -> None:
    for epoch in range(1, 11):
        clock[0] += 4
        lines.on_epoch(a_line(epoch))
    assert [line.split()[1] for line in log.getvalue().splitlines()] == ["1/10", "4/10", "7/10", "10/10"]


def test_a_line_of_a_log_shows_how_it_goes(lines: LogLines, log: io.StringIO) -> None:
    lines.on_epoch(a_line(2, validation_accuracy=0.75))
    expected = "epoch 2/10  loss 0.5322  accuracy 81.2%  1234 images/s  4 min 0 s left  validation 75.0%\n"
    assert log.getvalue() == expected


def test_long_epochs_have_lines_within_them(lines: LogLines, log: io.StringIO, clock: list[float]) -> None:
    for step in range(1, 11):
        clock[0] += 25 if step < 10 else 100  # the last is told as an epoch
        lines.on_step(step_metrics(step, finished=step == 10), 16.4)
    assert log.getvalue().splitlines() == [
        f"step {step}/100  epoch 1/10  loss 0.5322  16 images/s" for step in (3, 6, 9)
    ]


def test_short_epochs_have_no_lines_within_them(lines: LogLines, log: io.StringIO, clock: list[float]) -> None:
    for step in range(1, 101):
        clock[0] += 5
        lines.on_step(step_metrics(step, finished=step % 10 == 0), 16.4)
        if step % 10 == 0:
            lines.on_epoch(a_line(step // 10))
    assert not any(line.startswith("step") for line in log.getvalue().splitlines())


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (200, "3 min 20 s"),
        (3599.7, "1 h 0 min"),
        (7530, "2 h 5 min"),
    ],
)
def test_durations_are_reported_as_people_do(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_reading_is_one_line_in_a_log() -> None:
    log = io.StringIO()
    with reading_bars(Console(file=log))("reading images") as report:
        for done in range(100):
            report(done, 100)
    assert log.getvalue() == "reading images ...\n"


# TensorBoard


def curves(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def steps(found: EventAccumulator, name: str) -> list[int]:
    return [event.step for event in found.Scalars(name)]


def test_curves_are_what_tensorboard_reads(data: Path, out: Path) -> None:
    flags = ("--encoder", "tiny", "--epochs", 3, "--batch-size", 6, "--validation", 2, "--no-evaluate")
    succeeds("train", data, "--out", out, *flags, "--tensorboard")
    found = curves(out / "tensorboard")
    assert {"loss", "accuracy", "validation_accuracy", "lr"} <= set(found.Tags()["scalars"])
    assert steps(found, "loss") == [1, 2, 3, 4, 5, 6]
    assert steps(found, "accuracy") == [2, 4, 6]
    logged = [json.loads(line)["accuracy"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [event.value for event in found.Scalars("accuracy")] == pytest.approx(logged)


def test_without_being_asked_for_there_are_no_curves(data: Path, out: Path) -> None:
    succeeds("train", data, "--out", out, *QUICK, "--no-evaluate")
    assert not (out / "tensorboard").exists()


@pytest.mark.parametrize("kind", ["link", "dangling link", "file"])
def test_curves_stay_in_the_folder_of_the_run(data: Path, out: Path, tmp_path: Path, kind: str) -> None:
    begin(out, data_for(str(data), Settings(encoder="tiny", epochs=1)), Settings(encoder="tiny", epochs=1), "default")
    elsewhere = tmp_path / "elsewhere"
    if kind == "file":
        (out / "tensorboard").write_text("precious")
    else:
        (out / "tensorboard").symlink_to(elsewhere)
    if kind == "link":
        elsewhere.mkdir()
    before = record(out, "model.json")
    assert "tensorboard" in fails(4, "train", "--resume", "--out", out, "--tensorboard")
    assert not elsewhere.exists() or not any(elsewhere.iterdir())
    assert record(out, "model.json") == before
    succeeds("train", "--resume", "--out", out, "--no-evaluate")


def test_steps_that_are_run_again_are_drawn_once(tmp_path: Path) -> None:
    """A process that was killed had drawn more steps than it had saved."""
    with TensorBoardCurves(tmp_path, first=1) as before:
        for step in range(1, 6):
            before.on_step(step_metrics(step), 1.0)
    time.sleep(1.1)  # the names of its files tell seconds
    with TensorBoardCurves(tmp_path, first=4) as after:
        for step in range(4, 8):
            after.on_step(step_metrics(step), 1.0)
    assert steps(curves(tmp_path), "loss") == [1, 2, 3, 4, 5, 6, 7]


def test_steps_are_written_though_their_epoch_has_not_ended(tmp_path: Path) -> None:
    with TensorBoardCurves(tmp_path, first=1) as callback:
        callback.on_step(step_metrics(1), 1.0)
    assert steps(curves(tmp_path), "loss") == [1]


def test_without_tensorboard_the_error_names_what_to_install(
    data: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(SettingsError, match=r"pip install 'memwrap\[tensorboard\]'"):
        TensorBoardCurves(out, first=1)
    assert "tensorboard is not installed" in fails(2, "train", data, "--out", out, *QUICK, "--tensorboard")
    assert not out.exists()
