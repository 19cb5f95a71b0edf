"""metrics.jsonl: a line of JSON for each epoch."""

import json
import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from memwrap.errors import RunError, SaveError
from memwrap.storage.files import write_file
from memwrap.storage.validation import Record


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
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(_encode(line))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise SaveError(f"{path}: cannot be written ({error})") from error


def read(path: Path) -> list[dict[str, Any]]:
    """The complete lines; a stop may have cut the last one off."""
    try:
        texts = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error}); the run is damaged") from error
    lines = []
    for text in texts:
        try:
            lines.append(MetricsLine.model_validate_json(text).model_dump(exclude_unset=True))
        except ValidationError:
            break
    return lines


def cut(path: Path, step: int) -> None:
    """Keep the epochs that had ended by this step: later ones are run again."""
    kept = [line for line in read(path) if line["step"] <= step]
    try:
        write_file(path, "".join(map(_encode, kept)).encode())
    except OSError as error:
        raise SaveError(f"{path}: cannot be written ({error})") from error


def _encode(line: dict[str, Any]) -> str:
    return json.dumps(MetricsLine(**line).model_dump(exclude_unset=True)) + "\n"
