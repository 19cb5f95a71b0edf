"""kill -9 at any moment: what is there can be loaded, and gone on with as if nothing had happened."""

import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

import memwrap
from memwrap.data import digits
from memwrap.runs.run import open_run
from memwrap.runs.training import begin, resume
from memwrap.storage import checkpoint, log
from memwrap.training.settings import Settings

KILLS = 20

SETTINGS = Settings(
    encoder="tiny", samples=48, test=0.5, validation=20, epochs=3, batch_size=16, memory_size=8, remember=10
)

# A new process that has to load torch first takes seconds; a fork of one that has, milliseconds.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload([__name__, "sklearn.datasets", "torch._dynamo"])


def train(path: Path, settings: Settings = SETTINGS) -> None:
    """Begin a run, or go on with it, and save after every step."""
    torch.set_num_threads(1)
    data = digits()
    begun = resume(open_run(path), data) if path.exists() else begin(path, data, settings, "default")
    begun.checkpoint_seconds = 0
    begun.train()


def is_finished(path: Path) -> bool:
    return bool(path.exists() and checkpoint.read(path)[0]["training"]["finished"])


def outcome(path: Path) -> dict[str, Any]:
    """All that a finished run holds, but for names and times."""
    settings, _ = checkpoint.read(path)
    files = json.loads((path / "model.json").read_text())["files"]
    lines = log.read(path / "metrics.jsonl")
    timeless = [{key: line[key] for key in line if key not in ("seconds", "images_per_second")} for line in lines]
    raw = (path / "metrics.jsonl").read_text().splitlines()
    assert len(raw) == len(lines)
    assert all("seconds" in json.loads(text) for text in raw)
    return {
        "settings": {key: value for key, value in settings.items() if key not in ("files", "training")},
        "state": {key: value for key, value in settings["training"].items() if key != "seconds"},
        "metrics": timeless,
        "splits": json.loads((path / "splits.json").read_text()),
        "tensors": {part: file["sha256"] for part, file in files.items()},
    }


def check_what_a_kill_left(path: Path) -> None:
    """Either nothing or a run that can be loaded, and gone on with unless it is finished."""
    if not path.exists():
        return
    memwrap.load(path)
    run = open_run(path)
    if not is_finished(path):
        resume(run, digits())


# At random moments


def train_when_told(path: Path, ready: Connection) -> None:
    ready.send(True)
    train(path)


class Child:
    """A process that trains; it exists since `begun`."""

    def __init__(self, path: Path) -> None:
        here, there = processes.Pipe()
        self.process = processes.Process(target=train_when_told, args=(path, there))
        self.process.start()
        there.close()
        here.recv()
        self.begun = time.monotonic()

    def kill_after(self, seconds: float) -> bool:
        """Whether the kill came before its end."""
        self.process.join(None if math.isinf(seconds) else seconds)
        if self.process.is_alive():
            os.kill(self.process.pid, signal.SIGKILL)  # type: ignore[arg-type]
        self.process.join()
        assert self.process.exitcode in (0, -signal.SIGKILL)
        return bool(self.process.exitcode)

    def seconds_to_its_end(self) -> float:
        self.process.join()
        assert self.process.exitcode == 0
        return time.monotonic() - self.begun


def test_a_run_killed_at_random_moments_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    life = Child(tmp_path / "whole").seconds_to_its_end()
    expected = outcome(tmp_path / "whole")
    moments, kills, number = random.Random(0), 0, 0
    while kills < KILLS:
        number += 1
        path = tmp_path / f"run {number}"
        while not is_finished(path):
            # Early moments are more likely, as a run that is gone on with has less left to do.
            moment = life * moments.random() ** 2 if kills < KILLS else math.inf
            kills += Child(path).kill_after(moment)
            check_what_a_kill_left(path)
        assert outcome(path) == expected


# At every moment that changes the disk

SHORT = SETTINGS.replace(samples=16, epochs=2)  # two steps, each the last of an epoch

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir")


def train_with_copies(place: Path, copies: Path) -> None:
    """Train, and at every change to the disk make a copy of all: what a kill at this moment would leave."""
    count, copying = 0, False

    def copy(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count, copying
        opens = event == "open" and arguments[2] & WRITES
        path = Path(str(arguments[0])) if opens or event in CHANGES else None
        if copying or path is None or not path.is_relative_to(place):
            return
        copying = True
        kept = Path(shutil.copytree(place, copies / str(count)))
        if opens and arguments[2] & os.O_TRUNC:
            (kept / path.relative_to(place)).write_bytes(b"")  # as it is until something is written
        count, copying = count + 1, False

    sys.addaudithook(copy)  # for as long as the process lives
    train(place / "run", SHORT)


def test_whichever_change_to_the_disk_was_the_last_the_run_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    place, copies = tmp_path / "place", tmp_path / "copies"
    place.mkdir()
    process = processes.Process(target=train_with_copies, args=(place, copies))
    process.start()
    process.join()
    expected, steps, states = outcome(place / "run"), [], set()
    for number in range(len(list(copies.iterdir()))):
        path = copies / str(number) / "run"
        check_what_a_kill_left(path)
        steps.append(checkpoint.read(path)[0]["training"]["progress"]["step"] if path.exists() else -1)
        state = tuple(text.read_bytes() for text in (path / "model.json", path / "metrics.jsonl") if text.exists())
        if state not in states and not is_finished(path):  # to the end, once from each state
            train(path, SHORT)
            assert outcome(path) == expected
        states.add(state)
    assert steps == sorted(steps)
    assert set(steps) == {-1, 0, 1, 2}


@pytest.mark.parametrize("name", [".run.0123456789abcdef.partial", ".run.partial"])
def test_what_a_killed_start_has_left_is_not_in_the_way(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "run.json").write_text("{")
    train(tmp_path / "run", SHORT)
    assert is_finished(tmp_path / "run")
