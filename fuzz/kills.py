"""Kill training with SIGKILL, resume it, and repeat until it is finished: nothing may be lost, changed or left over.

    python -m fuzz.kills --kills 1000

A small run is trained again and again in forks of this process, which save after every step. Half of the kills come at
random moments. The others come at exact points: the fork counts its calls that change the disk and kills itself before,
after or in the middle of one. After every kill the folder must not exist or hold a run that loads. Every finished run
must be bit-identical to one that was never killed, with no other file in its folder or next to it.
"""

import argparse
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import memwrap
from memwrap.data import DataSet, digits
from memwrap.errors import RunError
from memwrap.runs.run import open_run
from memwrap.runs.training import begin, resume
from memwrap.storage import checkpoint, log
from memwrap.training.settings import Settings

SETTINGS = Settings(
    encoder="tiny",
    samples=32,
    test=0.5,
    validation=20,
    epochs=3,
    batch_size=16,
    memory="queue",
    memory_size=20,
    contrast=0.5,
    remember=10,
)
TIMES = ("seconds", "images_per_second")
HANG_SECONDS = 60.0
EXPECTED = re.compile(r"run\.json|splits\.json|model\.json|metrics\.jsonl|[a-z]+\.[0-9a-f]{16}\.safetensors")
CALLS = ("open", "fsync", "replace", "rename", "unlink", "remove", "mkdir", "rmdir", "truncate", "ftruncate", "link")
FAILED = 3  # exit code of a fork in which something was raised


class Failure(Exception):
    """What the kills have found."""


def train(path: Path, data: DataSet) -> None:
    """Begin a run, or resume it, and save after every step."""
    training = resume(open_run(path), data) if path.exists() else begin(path, data, SETTINGS, "default")
    training.checkpoint_seconds = 0
    training.train()


class Counted:
    """Counts the calls that change the disk; the `last` one is interrupted by SIGKILL, `when` it says."""

    def __init__(self, last: int | None = None, when: str = "before") -> None:
        self.last, self.when, self.count = last, when, 0

    def install(self) -> None:
        """Count from now on, for as long as this process lives."""
        for name in CALLS:
            setattr(os, name, self._wrap(getattr(os, name), name))
        opened = io.open

        def counted_open(file: Any, mode: str = "r", *others: Any, **named: Any) -> Any:
            if not set(mode) & set("wax+"):
                return opened(file, mode, *others, **named)
            stream = self._wrap(opened, "file")(file, mode, *others, **named)
            return _CountedFile(stream, self)

        io.open = counted_open  # type: ignore[assignment]  # what Path.open and os.fdopen call

    def _wrap(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            if name == "open" and not given[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return call(*given, **named)
            is_last = self.counts()
            if is_last and self.when != "after":
                kill_this_process()
            result = call(*given, **named)
            if is_last:
                kill_this_process()
            return result

        return counted

    def counts(self) -> bool:
        """Count a call; whether it is the one to interrupt."""
        self.count += 1
        return self.count == self.last


class _CountedFile:
    """A file whose writes are counted; one that is interrupted leaves nothing, half or all of the bytes."""

    def __init__(self, file: Any, counted: Counted) -> None:
        self._file, self._counted = file, counted

    def write(self, content: Any) -> int:
        if not self._counted.counts():
            return int(self._file.write(content))
        parts = {"before": 0, "within": len(content) // 2, "after": len(content)}
        self._file.write(content[: parts[self._counted.when]])
        self._file.flush()
        kill_this_process()
        raise AssertionError

    def __enter__(self) -> "_CountedFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # it comes at once


def start(act: Callable[[], None], errors: Path) -> int:
    """Run a function in a fork; returns its process id."""
    child = os.fork()
    if child:
        return child
    code = 0
    try:
        act()
    except BaseException:
        code = FAILED
        errors.write_text(traceback.format_exc())
    finally:
        os._exit(code)


def wait(child: int, seconds: float) -> int | None:
    """The exit code of a fork, negative for a signal; None if it still runs after these seconds."""
    end = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            return None
        time.sleep(0.0005)


def outcome(path: Path) -> dict[str, Any]:
    """All that a finished run holds, except for names of files and times."""
    settings, _ = checkpoint.read(path)
    manifest = json.loads((path / "model.json").read_text())
    texts = (path / "metrics.jsonl").read_text().splitlines()
    lines = log.read(path / "metrics.jsonl")
    if len(texts) != len(lines):
        raise Failure(f"metrics.jsonl has {len(texts)} lines, of which {len(lines)} can be read")
    run = json.loads((path / "run.json").read_text())
    return {
        "run": {key: value for key, value in run.items() if key != "created"},
        "documents": sorted(manifest["documents"]),
        "splits": json.loads((path / "splits.json").read_text()),
        "model": {key: settings[key] for key in settings.keys() & {"layer", "classes", "architecture", "transform"}},
        "state": {key: value for key, value in settings["training"].items() if key not in TIMES},
        "tensors": {part: file["sha256"] for part, file in manifest["files"].items()},
        "metrics": [{key: line[key] for key in line if key not in TIMES} for line in lines],
    }


def is_finished(path: Path) -> bool:
    return path.exists() and bool(checkpoint.read_manifest(path).settings["training"]["finished"])


def check_loads(path: Path) -> None:
    """A killed process leaves no folder, or a run that loads."""
    if path.exists():
        open_run(path)
        checkpoint.read(path)  # every file, checked against its hash
        memwrap.load(path)


def check_finished(path: Path, expected: dict[str, Any]) -> None:
    """The run is bit-identical to the expected one, and there is nothing else in its folder or next to it."""
    found = outcome(path)
    if found != expected:
        changed = [key for key in found if found[key] != expected[key]]
        raise Failure(f"differs from a run that was not killed: {', '.join(changed)}")
    names = sorted(each.name for each in path.iterdir())
    listed = {file["name"] for file in json.loads((path / "model.json").read_text())["files"].values()}
    stray = [name for name in names if not EXPECTED.fullmatch(name)]
    stray += [name for name in names if name.endswith(".safetensors") and name not in listed]
    stray += [f"../{each.name}" for each in path.parent.iterdir() if each != path]
    if stray:
        raise Failure(f"left over: {stray}")


class Campaign:
    """Runs in a folder that are killed until they are finished."""

    def __init__(self, place: Path, seed: int) -> None:
        self.place, self.random = place, random.Random(seed)
        self.data = digits()
        self.errors = place / "error.txt"
        self.kinds: Counter[str] = Counter()
        self.runs = 0

    @property
    def kills(self) -> int:
        return self.kinds.total()

    def measure(self) -> None:
        """Train one run undisturbed: what is expected of the others, how long it takes and how many calls it makes."""
        train(self.place / "first", self.data)  # imports what it needs, which takes seconds, once for all forks
        path, counted = self.place / "expected" / "run", self.place / "count"
        path.parent.mkdir()

        def act() -> None:
            counter = Counted()
            counter.install()
            train(path, self.data)
            counted.write_text(str(counter.count))

        begun = time.monotonic()
        self._expect(wait(start(act, self.errors), HANG_SECONDS), 0)
        self.seconds, self.calls = time.monotonic() - begun, int(counted.read_text())
        self.expected = outcome(path)
        check_finished(path, self.expected)

    def one_run(self, most: int) -> None:
        """Kill a run at most so many times, let it finish, and check it."""
        self.runs += 1
        path = self.place / f"run-{self.runs}" / "run"
        path.parent.mkdir()
        most += self.kills
        while not is_finished(path):
            if self.kills >= most:
                self._expect(wait(start(lambda: train(path, self.data), self.errors), HANG_SECONDS), 0)
            else:
                self._kill(path)
            check_loads(path)
        with suppress(RunError):  # a kill may have come after the last save: the next command removes what is left over
            resume(open_run(path), self.data)
        check_finished(path, self.expected)
        shutil.rmtree(path.parent)

    def _kill(self, path: Path) -> None:
        # Early moments are more likely, as less and less is left to do.
        part = self.random.random() ** 2
        if self.random.random() < 0.5:
            child = start(lambda: train(path, self.data), self.errors)
            code = wait(child, part * self.seconds)
            if code is None:
                os.kill(child, signal.SIGKILL)
                code = wait(child, HANG_SECONDS)
            kind = "random"
        else:
            counter = Counted(1 + int(part * self.calls), self.random.choice(["before", "within", "after"]))

            def act() -> None:
                counter.install()
                train(path, self.data)

            code, kind = wait(start(act, self.errors), HANG_SECONDS), counter.when
        self._expect(code, 0, -signal.SIGKILL)
        if code:
            self.kinds[kind] += 1

    def _expect(self, code: int | None, *expected: int) -> None:
        if code == FAILED:
            raise Failure(f"an error while training:\n{self.errors.read_text()}")
        if code not in expected:
            raise Failure(f"ended with {code}" if code is not None else f"hung for {HANG_SECONDS:.0f} seconds")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=60.0, help="end after this time, whatever is left")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)  # forks of a process with other threads would lack them
    place = Path(tempfile.mkdtemp(prefix="kills-"))
    campaign, end = Campaign(place, options.seed), time.monotonic() + 60 * options.minutes
    try:
        campaign.measure()
        while campaign.kills < options.kills and time.monotonic() < end:
            campaign.one_run(options.kills - campaign.kills)
    except Exception as error:
        if not isinstance(error, Failure):
            traceback.print_exc()
        print(f"FAILED after {campaign.kills} kills, run {campaign.runs}, seed {options.seed}: {error}; see {place}")
        return 1
    shutil.rmtree(place)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(campaign.kinds.items()))
    print(f"{campaign.kills} kills ({kinds}), {campaign.runs} runs finished bit-identical, nothing left over")
    return 0


if __name__ == "__main__":
    sys.exit(main())
