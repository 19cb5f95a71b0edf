"""Locks between processes. They fall with the process that holds them, however it ends."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

POLL_SECONDS = 0.2  # how often to look whether another process has finished


@contextmanager
def alone(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Within this, no other process or thread is within it for the same path; `waiting` is called while one is."""
    lock = _lock_of(path)
    while (file := _tried(lock)) is None:
        waiting()
        time.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        _release(lock, file)


@contextmanager
def alone_if_free(path: Path) -> Iterator[bool]:
    """Tells whether one is `alone` within this; False if another process or thread is already, and goes on."""
    lock = _lock_of(path)
    file = _tried(lock)
    try:
        yield file is not None
    finally:
        if file is not None:
            _release(lock, file)


def _lock_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _release(lock: Path, file: IO[bytes]) -> None:
    with suppress(OSError):  # Windows removes no open file: there the empty lock stays
        lock.unlink()
    file.close()


def _tried(lock: Path) -> IO[bytes] | None:
    """The lock's file, open and held; None if somebody else holds it."""
    while True:
        file = lock.open("ab")
        try:
            held = try_lock(file)
            if held and _is_named(file, lock):
                return file
        except BaseException:
            file.close()
            raise
        file.close()
        if not held:
            return None


def _is_named(file: IO[bytes], path: Path) -> bool:
    """Whether the path still leads to this file: who held the lock before has removed it."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False


if sys.platform == "win32":
    import msvcrt

    def try_lock(file: IO[bytes]) -> bool:
        """Take the lock on an open file if nobody holds it, until the file is closed; whether it was taken."""
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except PermissionError:
            return False
        return True

else:
    import fcntl

    def try_lock(file: IO[bytes]) -> bool:
        """Take the lock on an open file if nobody holds it, until the file is closed; whether it was taken."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
