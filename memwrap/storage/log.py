"""metrics.jsonl: a line of JSON for each epoch, whole lines only."""

import json
import os
from pathlib import Path
from typing import Any

from memwrap.errors import RunError, SaveError
from memwrap.storage import checkpoint


def append(path: Path, line: dict[str, Any]) -> None:
    """Add a line, which is on the disk when this returns."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise SaveError(f"{path}: cannot be written ({error})") from error


def read(path: Path) -> list[dict[str, Any]]:
    """The whole lines; the last may have been cut off by a stop."""
    try:
        texts = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error}); the run is damaged") from error
    lines = []
    for text in texts:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            break
        if not isinstance(line, dict) or type(line.get("step")) is not int:
            break
        lines.append(line)
    return lines


def cut(path: Path, step: int) -> None:
    """Leave the epochs that had ended by this step: later ones are run again."""
    kept = [line for line in read(path) if line["step"] <= step]
    try:
        checkpoint.write_file(path, "".join(json.dumps(line) + "\n" for line in kept).encode())
    except OSError as error:
        raise SaveError(f"{path}: cannot be written ({error})") from error
