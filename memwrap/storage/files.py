"""Files read with a bound on their size, and written in one step."""

import errno
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO


def read_file(path: Path, limit: int, follow_links: bool = False) -> bytes:
    """The content of a regular file of at most `limit` bytes; an OSError says why it is not read."""
    with open_file(path, follow_links) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise OSError(errno.EFBIG, f"too large: {size} bytes where at most {limit} are read", str(path))
        return read_exactly(file, size)


def open_file(path: Path, follow_links: bool = False) -> IO[bytes]:
    """Open a regular file to read; an OSError for anything else.

    Pipes and devices may never end, and a link may lead to one of them or out of the folder: neither is opened.
    """
    look = os.stat if follow_links else os.lstat
    _check_regular(path, look(path).st_mode)
    # Whatever has taken the file's place in the meantime: no link is followed, and no pipe waited for.
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    file = os.fdopen(os.open(path, flags if follow_links else flags | getattr(os, "O_NOFOLLOW", 0)), "rb")
    try:
        _check_regular(path, os.fstat(file.fileno()).st_mode)
    except BaseException:
        file.close()
        raise
    return file


def read_exactly(file: IO[bytes], size: int) -> bytes:
    """The rest of a file, which must be of this size."""
    content = file.read(size + 1)
    if len(content) != size:
        raise OSError(errno.EIO, "its size changed while it was read", file.name)
    return content


def write_file(path: Path, content: bytes) -> None:
    """Write a file in one step: readers see the old content or the new one. Its permissions are as the umask says."""
    # Unique among processes and threads; and short, as the file's own name may have the maximum length.
    partial = path.with_name(f".memwrap.{secrets.token_hex(8)}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, where they are missing."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync_folder(each.parent)


def sync_folder(folder: Path) -> None:
    """Let what was created or renamed in a folder survive a power failure, where the system can."""
    with suppress(OSError):  # Windows opens no folders
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _check_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        kind = kinds.get(stat.S_IFMT(mode), "a device")
        hint = ": copy the folder with its links followed, as cp -rL does" if stat.S_ISLNK(mode) else ""
        raise OSError(errno.EINVAL, f"is {kind}; expected a regular file{hint}", str(path))
