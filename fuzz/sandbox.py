"""One case in a process of its own, and what is wrong with how it ended."""

import ctypes
import faulthandler
import io
import json
import os
import resource
import select
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.audit import forbid
from memwrap.errors import MemwrapError

_DIE_WITH_PARENT = 1  # Linux's PR_SET_PDEATHSIG


class WrongError(Exception):
    """Raised by a target whose result is wrong, such as a forged report that was confirmed."""


@dataclass(frozen=True)
class Limits:
    """What a process may use. seconds: of the clock. megabytes: resident at its peak."""

    seconds: float = 60.0
    megabytes: float = 2048.0
    spare_megabytes: int = 6144  # of addresses, above what the process begins with; protects the machine
    making_seconds: float = 300.0  # of the case itself, before the target is called
    file_megabytes: int = 1024  # that one file may grow to


@dataclass(frozen=True)
class Outcome:
    """How a case ended. faults: what must not happen; empty if all is well."""

    words: str  # what the target was given
    accepted: bool
    message: str
    seconds: float
    megabytes: float
    faults: tuple[str, ...]


# What a case calls. True if it accepts its input; it refuses by False or by an error of memwrap.
Target = Callable[[], bool]


@dataclass(frozen=True)
class Case:
    """What is called, and in words what it is given."""

    target: Target
    words: str


def run_case(make: Callable[[], Case], folder: Path, limits: Limits, bait: Sequence[Path] = ()) -> Outcome:
    """Make a case and call its target in a child of this process; the limits begin with the target.

    The target may only change files in `folder`. bait: see `forbid`.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _be_the_child(make, folder, limits, bait, writing)
    os.close(writing)
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        told = _read(pipe, limits.making_seconds)
        words = told.get("words")
        started = time.monotonic()
        status, usage = _wait(child, limits.seconds if words is not None else 0)
        seconds = time.monotonic() - started
        told |= _read(pipe, 0)
    megabytes = usage.ru_maxrss / 1024
    faults = list(told.get("faults", []))
    if words is None:
        faults.append("this harness could not make the case")
    elif status is None:
        faults.append(f"hangs: not done after {limits.seconds:g} s")
    elif os.WIFSIGNALED(status):
        faults.append(f"crashes: killed by {signal.Signals(os.WTERMSIG(status)).name}")
    elif "accepted" not in told:
        faults.append(f"ends the process with code {os.waitstatus_to_exitcode(status)}")
    if megabytes > limits.megabytes:
        faults.append(f"takes {megabytes:.0f} MB; allowed are {limits.megabytes:g}")
    return Outcome(
        words or "?",
        told.get("accepted", False),
        told.get("message", ""),
        told.get("seconds", seconds),
        megabytes,
        tuple(faults),
    )


def _wait(child: int, seconds: float) -> tuple[int | None, resource.struct_rusage]:
    """The child's status, None if it had to be killed, and what it used."""
    descriptor = os.pidfd_open(child)
    try:
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        done = bool(waiting.poll(seconds * 1000))
    finally:
        os.close(descriptor)
    if not done:
        os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    return (status if done else None), usage


def _be_the_child(make: Callable[[], Case], folder: Path, limits: Limits, bait: Sequence[Path], pipe: int) -> None:
    """Make the case, call its target, report to the pipe, and end the process."""
    told: dict[str, Any] = {"faults": []}
    code = 1
    try:
        _write(pipe, {"words": (case := make()).words[:2000]})
        _confine(folder, limits)
        forbid(folder, bait, told["faults"].append)
        started = time.monotonic()
        told |= _call(case.target, told["faults"])
        told["seconds"] = time.monotonic() - started
        code = 0
    except BaseException:
        told["faults"].append(f"this harness failed\n{traceback.format_exc()[-1500:]}")
    finally:
        told["faults"] = [fault[:3000] for fault in told["faults"][:10]]
        _write(pipe, told)
        os._exit(code)


def _call(target: Target, faults: list[str]) -> dict[str, Any]:
    try:
        return {"accepted": target(), "message": ""}
    except MemwrapError as error:
        return {"accepted": False, "message": str(error)[:500]}
    except BaseException as error:  # SystemExit and KeyboardInterrupt would be just as wrong
        where = "".join(traceback.format_exception(error)[-6:])
        faults.append(f"{type(error).__name__}: {str(error)[:300]}\n{where[-1500:]}")
        return {"accepted": False, "message": ""}


def _confine(folder: Path, limits: Limits) -> None:
    """Output and temporary files go to the folder; memory and files have an end, and the peak so far is forgotten."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    with suppress(OSError):  # where it is not allowed, making the case counts too
        Path("/proc/self/clear_refs").write_text("5")
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    faulthandler.enable(2)  # a crash leaves its traceback in the log
    os.chdir(folder)
    scratch = folder / "tmp"
    scratch.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
    addresses = _addresses() + (limits.spare_megabytes << 20)
    resource.setrlimit(resource.RLIMIT_AS, (addresses, addresses))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_megabytes << 20,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _addresses() -> int:
    """Bytes of addresses that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _write(pipe: int, told: dict[str, Any]) -> None:
    """In one piece that a pipe holds, so that nobody waits."""
    os.write(pipe, json.dumps(told).encode() + b"\n")


def _read(pipe: io.RawIOBase, seconds: float) -> dict[str, Any]:
    """What was written, one piece; empty if there is none in time, or all is read."""
    line = b""
    while not line.endswith(b"\n") and select.select([pipe], [], [], seconds)[0] and (more := pipe.read(1)):
        line += more
    told: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {}
    return told
