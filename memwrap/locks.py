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
    lock = path.with_name(f".{path.name}.lock")
    file = _locked(lock, waiting)
    try:
        yield
    finally:
        with suppress(OSError):  # Windows removes no open file: there the empty lock stays
            lock.unlink()
        file.close()


def _locked(lock: Path, waiting: Callable[[], None]) -> IO[bytes]:
    """The lock's file, open and held."""
    while True:
        file = lock.open("ab")
        try:
            if try_lock(file) and _is_named(file, lock):
                return file
            waiting()
        except BaseException:
            file.close()
            raise
        file.close()
        time.sleep(POLL_SECONDS)


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
