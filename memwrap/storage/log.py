"""metrics.jsonl: a line of JSON for each epoch."""

import errno
import json
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from memwrap.errors import RunError, SaveError
from memwrap.storage.files import read_file, write_file
from memwrap.storage.validation import Record

LIMIT = 16 << 20  # bytes of a log that is read
LINE_LIMIT = 1 << 16  # bytes of a line, which has about 200; longer ones are damaged


class MetricsLine(Record, extra="allow"):
    """The metrics of an epoch."""

    step: int
    epoch: int | None = None
    loss: float | None = None  # mean over the inputs of the epoch
    accuracy: float | None = None
    lr: float | None = None
    seconds: float | None = None  # of training since the start of the run
    images_per_second: float | None = None
    validation_accuracy: float | None = None  # after about ten of the epochs


def append(path: Path, line: dict[str, Any]) -> None:
    """Add a line, which is on disk when this returns."""
    # A link or a pipe that has taken the file's place is neither followed nor waited for.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        with os.fdopen(os.open(path, flags, 0o666), "ab") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "is not a regular file", str(path))
            file.write(_encode(line))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise SaveError(f"{path}: cannot be written ({error})") from error


def read(path: Path) -> list[dict[str, Any]]:
    """The lines in the order of their steps, the last one of each step; torn and damaged lines are left out."""
    try:
        content = read_file(path, LIMIT)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error}); move it away to continue without it") from error
    lines = {}
    for text in content.split(b"\n"):
        if len(text) > LINE_LIMIT:
            continue
        with suppress(ValidationError):
            line = MetricsLine.model_validate_json(text)
            lines[line.step] = line.model_dump(exclude_unset=True)
    return [lines[step] for step in sorted(lines)]


def cut(path: Path, step: int) -> None:
    """Keep the epochs that had ended by this step: later ones are run again."""
    kept = [line for line in read(path) if line["step"] <= step]
    try:
        write_file(path, b"".join(map(_encode, kept)))
    except OSError as error:
        raise SaveError(f"{path}: cannot be written ({error})") from error


def _encode(line: dict[str, Any]) -> bytes:
    return json.dumps(MetricsLine(**line).model_dump(exclude_unset=True)).encode() + b"\n"
