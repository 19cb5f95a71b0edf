"""Standard streams that may be closed, or whose reader may go away while a command runs."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from memwrap.cli.failures import UNEXPECTED


class SafeStderr:
    """Stderr, which drops what nobody can read any more: a closed terminal or pipe must not end a training."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def prepare_streams() -> None:
    """Open streams that are closed, escape characters that their encodings lack, and let stderr drop messages."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # Descriptor `number`, the lowest that is free: the next file opened would take it, and messages with it.
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")
    if not isinstance(sys.stderr, SafeStderr):
        sys.stderr = SafeStderr(sys.stderr)


def flush_output() -> int:
    """Write what is left for stdout. 0, or if nobody reads it any more 1; other failures are an OSError."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())  # Python flushes again when it ends
        return UNEXPECTED
    return 0
