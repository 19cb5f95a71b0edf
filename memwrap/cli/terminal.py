"""What all commands share: consoles, JSON output, devices and paths."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from memwrap.errors import SettingsError
from memwrap.visible import visible


class _VisibleText(Console):
    """A console that escapes control characters, which names of files and classes may hold."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)


def plain_console(stderr: bool = False) -> Console:
    """A console without markup, as a class may be called [red] or :cat:, and without line wrapping."""
    return _VisibleText(stderr=stderr, soft_wrap=True, markup=False, emoji=False, highlight=False)


errors = plain_console(stderr=True)


def warn(*warnings: str) -> None:
    """Print each warning on a line, on stderr."""
    for warning in warnings:
        errors.print(Text("warning:", style="yellow"), warning)


def print_json(content: Any) -> None:
    """Print JSON on stdout, for scripts; records, alone or in a list, as well as plain values."""
    from pydantic_core import to_jsonable_python

    print(json.dumps(to_jsonable_python(content), indent=2))


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Align the columns of a table with a header; empty columns are left out."""
    columns = [column for column in zip(*lines, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in zip(*columns, strict=True)
    ]


def at_home(path: Path) -> Path:
    """Replace ~ by the user's home folder."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise SettingsError(f"{path}: the home folder of ~ is unknown; give the full path") from error


def is_there(path: Path) -> bool:
    """Whether the path exists; False if that cannot be determined, as for a name that is too long."""
    try:
        return path.exists()
    except OSError:
        return False
