"""Real signals to real processes: training stops cleanly, says how to go on, and loses nothing."""

import fcntl
import os
import pty
import shlex
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli import environment, photos, program, record, same_weights, succeeds

EPOCHS = 80
LONG = ("--encoder", "tiny", "--epochs", EPOCHS, "--batch-size", 8, "--no-evaluate")

Process = subprocess.Popen[str]


@contextmanager
def process(*arguments: object, before: str = "") -> Iterator[Process]:
    """A command in a process group of its own, as a shell runs it; nothing of it outlives the test."""
    command = program(*arguments, before=before)
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True
    ) as running:
        try:
            yield running
        finally:
            if running.poll() is None:
                running.kill()


def wait_for(running: Process, words: str) -> None:
    assert running.stderr is not None
    seen = []
    for line in running.stderr:
        seen.append(line)
        if words in line:
            return
    raise AssertionError("".join(seen))


def rest(running: Process) -> str:
    assert running.stderr is not None
    return running.stderr.read()


def workers(running: Process) -> list[int]:
    return [int(child) for child in Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"  # a dead one that nobody has asked about
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Data, and the run that comes of it where nobody interferes."""
    path = tmp_path_factory.mktemp("signals")
    data = photos(path / "photos")
    succeeds("train", data, "--out", path / "run", *LONG)
    return data, path / "run"


def goes_on_as_it_says(message: str, out: Path, never_stopped: Path) -> None:
    """The last line of the message is a command that ends the run as if it had never been stopped."""
    step = record(out, "model.json")["training"]["progress"]["step"]
    assert 0 < step < 2 * EPOCHS
    assert f"stopped after step {step} of {2 * EPOCHS}; everything is saved. Continue with:\n  memwrap train" in message
    assert "Traceback" not in message
    name, *words = shlex.split(message.splitlines()[-1])
    assert name == "memwrap"
    result = succeeds(*words, "--no-evaluate")
    assert f"continuing from step {step} of {2 * EPOCHS}" in result.err
    assert same_weights(out, never_stopped)
    lines = (out / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == EPOCHS, "each epoch is logged once"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_training_and_nothing_is_lost(
    never_stopped: tuple[Path, Path], out: Path, number: signal.Signals
) -> None:
    data, other = never_stopped
    with process("train", data, "--out", out, *LONG) as running:
        wait_for(running, "epoch 1/")
        running.send_signal(number)
        message = rest(running)
    assert running.returncode == 130
    assert "stopping after this step" in message
    goes_on_as_it_says(message, out, other)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_all_processes_leaves_no_worker_behind(
    never_stopped: tuple[Path, Path], out: Path, number: signal.Signals
) -> None:
    """As a terminal sends Ctrl-C, and many a batch system its kill."""
    data, other = never_stopped
    with process("train", data, "--out", out, *LONG, "--hold-mb", 0, "--workers", 2) as running:
        wait_for(running, "epoch 1/")
        children = workers(running)
        assert len(children) == 2
        os.killpg(running.pid, number)
        message = rest(running)
    assert running.returncode == 130
    assert until(lambda: not any(map(lives, children)))
    assert message.count("stopping after this step") == 1, "workers have nothing to say"
    goes_on_as_it_says(message, out, other)


def test_a_run_under_nohup_continues_when_the_terminal_is_closed(never_stopped: tuple[Path, Path], out: Path) -> None:
    data, other = never_stopped
    ignoring = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)"  # as nohup does
    flags = (*LONG, "--hold-mb", 0, "--workers", 2)
    with process("train", data, "--out", out, *flags, before=ignoring) as running:
        wait_for(running, "epoch 1/")
        os.killpg(running.pid, signal.SIGHUP)
        message = rest(running)
    assert running.returncode == 0, message
    assert same_weights(out, other)


def close_terminal_of(*arguments: object) -> int:
    """Run a command on a terminal of its own, close that when the progress bar is shown, and return the exit code."""
    master, slave = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    with subprocess.Popen(
        program(*arguments), stdin=slave, stdout=slave, stderr=slave, env=environment(), preexec_fn=take_terminal
    ) as running:
        os.close(slave)
        seen = b""
        while b"images/s" not in seen:
            seen += os.read(master, 4096)
        os.close(master)
        try:
            return running.wait(60)
        finally:
            running.kill()


def test_a_closed_terminal_stops_training_and_nothing_is_lost(never_stopped: tuple[Path, Path], out: Path) -> None:
    """Nothing can be printed any more."""
    data, other = never_stopped
    assert close_terminal_of("train", data, "--out", out, *LONG) == 130
    assert 0 < record(out, "model.json")["training"]["progress"]["step"] < 2 * EPOCHS
    succeeds("train", "--resume", "--out", out, "--no-evaluate")
    assert same_weights(out, other)


# A line is printed after every epoch.
OFTEN = "import memwrap.cli.callbacks as callbacks; callbacks.LOG_SECONDS = 0"


def test_training_continues_when_nobody_reads_its_messages(never_stopped: tuple[Path, Path], out: Path) -> None:
    """As with `memwrap train ... 2>&1 | head -1`."""
    data, other = never_stopped
    command = program("train", data, "--out", out, *LONG, before=OFTEN)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as running:
        wait_for(running, "epoch 1/")
        assert running.stderr is not None
        running.stderr.close()
        assert running.wait(60) == 0
    assert same_weights(out, other)


def test_without_standard_streams_no_file_of_the_run_takes_their_place(
    never_stopped: tuple[Path, Path], out: Path
) -> None:
    """A message to descriptor 2 would otherwise be written into whichever file was opened next."""
    data, other = never_stopped
    words = shlex.join(program("train", data, "--out", out, *LONG, "--checkpoint-seconds", 0))
    with subprocess.Popen(["sh", "-c", f"exec {words} <&- >&- 2>&-"], env=environment()) as running:
        assert until(lambda: (out / "metrics.jsonl").exists())
        numbers = {name: str(Path(f"/proc/{running.pid}/fd/{name}").readlink()) for name in range(3)}
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 130
    assert set(numbers.values()) == {os.devnull}
    succeeds("train", "--resume", "--out", out, "--no-evaluate")
    assert same_weights(out, other)


def test_workers_end_with_a_process_that_is_killed(never_stopped: tuple[Path, Path], out: Path) -> None:
    data, _ = never_stopped
    with process("train", data, "--out", out, *LONG, "--hold-mb", 0, "--workers", 2) as running:
        wait_for(running, "epoch 1/")
        children = workers(running)
        running.kill()
    assert len(children) == 2
    assert until(lambda: not any(map(lives, children)))


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.05, 0.1])
def test_a_killed_worker_ends_training_with_the_run_saved(
    never_stopped: tuple[Path, Path], out: Path, delay: float
) -> None:
    """As the kernel does when memory runs out. Whatever training does at that moment, it saves between two steps."""
    data, other = never_stopped
    flags = (*LONG, "--hold-mb", 0, "--workers", 2, "--checkpoint-seconds", 1000)
    with process("train", data, "--out", out, *flags) as running:
        wait_for(running, "epoch 1/")
        time.sleep(delay)
        os.kill(workers(running)[0], signal.SIGKILL)
        message = rest(running)
    assert running.returncode == 3, message
    assert "Traceback" not in message
    assert "worker" in message
    step = record(out, "model.json")["training"]["progress"]["step"]
    assert 0 < step < 2 * EPOCHS
    assert f"step {step} of {2 * EPOCHS}" in message
    command = next(line for line in message.splitlines() if line.strip().startswith("memwrap train"))
    succeeds(*shlex.split(command)[1:], "--no-evaluate")
    assert same_weights(out, other)
    assert len((out / "metrics.jsonl").read_text().splitlines()) == EPOCHS


# Each step takes so long that a second signal comes within it.
SLOW = """
import time
from memwrap.training.trainer import Trainer
advance = Trainer._advance
Trainer._advance = lambda self, batch: (time.sleep(30) if self.progress.step == 3 else None, advance(self, batch))[1]
"""


def test_a_second_ctrl_c_stops_at_once(never_stopped: tuple[Path, Path], out: Path) -> None:
    data, other = never_stopped
    command = ("train", data, "--out", out, *LONG, "--checkpoint-seconds", 0)
    with process(*command, before=SLOW) as running:
        wait_for(running, "epoch 1/")
        assert until(lambda: record(out, "model.json")["training"]["progress"]["step"] == 3)
        begun = time.monotonic()
        running.send_signal(signal.SIGINT)
        wait_for(running, "stopping after this step; once more stops at once")
        running.send_signal(signal.SIGINT)
        message = rest(running)
    assert time.monotonic() - begun < 15
    assert running.returncode == 130
    assert "stopped at once. Continue from the last saved step with:\n  memwrap train" in message
    assert "Traceback" not in message
    succeeds(*shlex.split(message.splitlines()[-1])[1:], "--no-evaluate")
    assert same_weights(out, other)


SLOW_READING = """
import os, time
from memwrap.data import scan
def look(*_):
    os.write(2, b"looking\\n")  # whole, whatever the other threads write
    time.sleep(1)
scan._scan_image = look
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_images_are_read_leaves_nothing(tmp_path: Path, out: Path, number: signal.Signals) -> None:
    data = photos(tmp_path / "photos", count=3)
    with process("train", data, "--out", out, *LONG, before=SLOW_READING) as running:
        wait_for(running, "looking")
        running.send_signal(number)
        message = rest(running)
    assert running.returncode == 130
    assert message.replace("looking\n", "") == "memwrap: stopped\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]


def test_a_signal_to_the_demo_leaves_nothing(tmp_path: Path) -> None:
    with process("demo", "--out", tmp_path / "demo") as running:
        wait_for(running, "training 3 variants")
        assert until(lambda: any(tmp_path.glob(".demo.*.partial/*")))
        running.send_signal(signal.SIGTERM)
        message = rest(running)
    assert running.returncode == 130
    assert message == "memwrap: stopped\n"
    assert list(tmp_path.iterdir()) == []
