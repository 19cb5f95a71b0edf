"""Locks between processes and threads, next to the file that they protect. They are released however a process ends."""

import errno
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

POLL_SECONDS = 0.2  # between two attempts to take a lock


@contextmanager
def exclusive(path: Path, waiting: Callable[[], None] = lambda: None, seconds: float = math.inf) -> Iterator[None]:
    """Hold the lock of a path; `waiting` is called repeatedly while another process or thread holds it.

    seconds: after which a TimeoutError is raised.
    """
    lock, started = _lock(path), time.monotonic()
    while True:
        try:
            lock.acquire(timeout=POLL_SECONDS, poll_interval=min(POLL_SECONDS, 0.05))
            break
        except Timeout:
            if time.monotonic() - started > seconds:
                raise TimeoutError(f"another process has held {lock.lock_file} for {seconds:.0f} seconds") from None
            waiting()
    try:
        yield
    finally:
        _release(lock)


@contextmanager
def exclusive_if_supported(path: Path, seconds: float) -> Iterator[bool]:
    """`exclusive`, except on file systems without locks; yields whether the lock is held."""
    with ExitStack() as stack:
        try:
            stack.enter_context(exclusive(path, seconds=seconds))
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK):
                raise
            with suppress(OSError):
                _file(path).unlink()
            yield False
            return
        yield True


@contextmanager
def exclusive_if_free(path: Path) -> Iterator[bool]:
    """Hold the lock of a path unless another process or thread does; yields whether it is held."""
    lock = _lock(path)
    try:
        # Not at once: a holder that removes its file just now looks like one that keeps the lock.
        lock.acquire(timeout=0.1, poll_interval=0.02)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        _release(lock)


def remove_abandoned(path: Path) -> None:
    """Remove the lock file of a path, if there is one and the process that made it was killed."""
    with suppress(OSError):
        if _file(path).exists():
            with exclusive_if_free(path):
                pass


def _lock(path: Path) -> FileLock:
    file = _file(path)
    # An OSError now: filelock would wait for ever for a file that cannot be created, and opens links and pipes.
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    os.close(os.open(file, flags, 0o666))
    return FileLock(file, fallback_to_soft=False)  # a soft lock would outlive a killed process


def _file(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _release(lock: FileLock) -> None:
    """Remove the file while the lock is held: whoever locks a removed file notices, and tries again."""
    with suppress(OSError):  # Windows removes no open file
        Path(lock.lock_file).unlink()
    lock.release()
