"""What a process must not do with a file of a stranger, noticed while it does it."""

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

_NETWORK = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.bind")
_PROGRAMS = ("subprocess.Popen", "os.exec", "os.system", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn")
# Which arguments of these events are paths that change, and which is the folder that each is relative to.
_CHANGES = {
    "os.remove": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.mkdir": ((0, 2),),
    "os.rmdir": ((0, 1),),
    "os.link": ((1, 3),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.utime": ((0, 3),),
    "sqlite3.connect": ((0, None),),
}
_NOT_FOLLOWING = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class ForbiddenError(PermissionError):
    """Raised in the audited code, so that the forbidden thing does not happen."""


def forbid(writable: Path, bait: Iterable[Path], report: Callable[[str], None]) -> None:
    """From now on, stop this process from doing what a file must not make it do, and report it. Cannot be undone.

    writable: the only folder in which files may be changed, and from which no code may run. bait: files that only
    hostile input names, so that reading one means that the input was obeyed.
    """
    inside, named = os.path.realpath(writable), {os.path.realpath(each) for each in bait}

    def within(path: str) -> bool:
        return path == inside or path.startswith(inside + os.sep)

    def find(event: str, arguments: tuple[Any, ...]) -> str | None:
        if event == "open":
            path, mode, flags = arguments
            if isinstance(path, int):
                return None
            place = _absolute(path, None)
            if _writes(mode, flags) and not within(place) and place != os.devnull:
                return f"writes {place}"
            return f"reads {place}, which only its input names" if place in named else None
        if event in _CHANGES:
            for position, base in _CHANGES[event]:
                place = _absolute(
                    arguments[position], None if base is None else arguments[base], event not in _NOT_FOLLOWING
                )
                if not within(place):
                    return f"changes {place} ({event})"
        elif event.startswith(("urllib.", "http.", "ftplib.", "smtplib.")) or event in _NETWORK:
            return f"uses the network: {event} {arguments[1:]!r}"
        elif event in _PROGRAMS:
            return f"starts a program: {event} {arguments[:1]!r}"
        elif event == "pickle.find_class":
            return f"unpickles {arguments!r}"
        elif event == "exec" and within(getattr(arguments[0], "co_filename", "")):
            return f"runs code of its input: {arguments[0].co_filename}"
        elif event == "ctypes.dlopen" and arguments[0] and within(os.path.realpath(arguments[0])):
            return f"loads a library of its input: {arguments[0]}"
        return None

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _SKIPPED:
            return
        if (fault := find(event, arguments)) is not None:
            report(fault)
            raise ForbiddenError(fault)

    sys.addaudithook(hook)


# Events of nearly every line of Python, left out for speed.
_SKIPPED = frozenset({"object.__getattr__", "object.__setattr__", "import", "compile", "os.listdir", "os.scandir"})


def _writes(mode: object, flags: object) -> bool:
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & _WRITING)


def _absolute(path: object, folder: object, follow: bool = True) -> str:
    """A path as the system finds it. folder: a descriptor that it is relative to, or -1 or None.

    follow: whether the last part may be a link; a link that is removed or renamed is not followed.
    """
    if isinstance(path, int):
        return os.path.realpath(f"/proc/self/fd/{path}")
    name = os.fsdecode(path)  # type: ignore[arg-type]
    if isinstance(folder, int) and folder >= 0:
        name = f"/proc/self/fd/{folder}/{name}"
    if follow:
        return os.path.realpath(name)
    parent, last = os.path.split(name.rstrip(os.sep))
    return f"{os.path.realpath(parent)}/{last}"
