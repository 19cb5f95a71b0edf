"""Stored and sent data as pydantic models, and their validation errors as errors of memwrap."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from memwrap.errors import MemwrapError, short
from memwrap.storage.files import read_file
from memwrap.version import __version__

JSON_LIMIT = 32 << 20  # bytes
MOST_VALUES = 5_000_000  # in the objects and lists of JSON
MOST_GROUPS = 500_000  # objects and lists
MOST_KEYS = 600_000
MOST_TEXTS = 1_500_000  # keys included


class Record(BaseModel):
    """Base of everything that is stored or sent: immutable, and unknown or missing fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=True)


_R = TypeVar("_R", bound=BaseModel)


def parse(kind: type[_R], content: Any, error: type[MemwrapError], where: object) -> _R:
    """Validate JSON content that was read from `where`; what is wrong with it becomes the given kind of error."""
    try:
        # By way of JSON, as its arrays become tuples even in strict mode. pydantic's parser refuses lone surrogates,
        # which stand for bytes of file names that are not UTF-8: they pass as characters of a private plane.
        text = json.dumps(content)
        if "\\ud" not in text:
            return kind.model_validate_json(text)
        escaped = kind.model_validate_json(json.dumps(content, ensure_ascii=False).translate(_TO_PRIVATE))
        restored: _R = _restore(escaped)
        return restored
    except (ValidationError, ValueError, TypeError, RecursionError) as problem:
        detail = describe(problem) if isinstance(problem, ValidationError) else str(problem)
        raise error(f"{where}: is damaged or incomplete: {detail}") from problem


_TO_PRIVATE = {code: 0x100000 + code for code in range(0xD800, 0xE000)}
_FROM_PRIVATE = {private: code for code, private in _TO_PRIVATE.items()}


def _restore(value: Any) -> Any:
    """A value with the surrogates in all strings in it, again."""
    if isinstance(value, str):
        return value if value.isascii() else value.translate(_FROM_PRIVATE)
    if isinstance(value, list | tuple):
        return type(value)(_restore(each) for each in value)
    if isinstance(value, dict):
        return {_restore(key): _restore(each) for key, each in value.items()}
    if isinstance(value, BaseModel):
        return value.model_copy(update={name: _restore(each) for name, each in value})
    return value


def read_json(path: Path, error: type[MemwrapError]) -> dict[str, Any]:
    """The JSON object in a file; FileNotFoundError and NotADirectoryError are left to the caller."""
    try:
        content = parse_json(read_file(path, JSON_LIMIT).decode())
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as problem:
        raise error(f"{path}: cannot be read ({problem.strerror or problem})") from problem
    except (ValueError, RecursionError) as problem:
        raise error(f"{path}: cannot be read ({problem}); the file is damaged") from problem
    if not isinstance(content, dict):
        raise error(f"{path}: holds a {type(content).__name__}; expected a JSON object")
    return content


def parse_json(text: str) -> Any:
    """The content of JSON; a ValueError or RecursionError says why there is none."""
    if reason := too_large(text):
        raise ValueError(f"it {reason}")
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys differ: of two values for one key, readers and hashes would see only the last."""
    content = dict(pairs)
    if len(content) < len(pairs):
        [(double, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"{double[:40]!r} is given twice")
    return content


def too_large(text: str) -> str | None:
    """Why JSON takes too much memory to read: empty objects take thirty times as much as their text."""
    counts = {
        "objects and lists": (text.count("{") + text.count("["), MOST_GROUPS),
        "keys": (text.count(":"), MOST_KEYS),
        "texts": (text.count('"') // 2, MOST_TEXTS),
        "values": (text.count(","), MOST_VALUES),
    }
    wrong = (f"has {found:,} {name}, more than {most:,}" for name, (found, most) in counts.items() if found > most)
    return next(wrong, None)


def check_format(path: Path, content: dict[str, Any], name: str, newest: int, error: type[MemwrapError]) -> None:
    """Raise an error unless the content is of this format, in a version that can be read here."""
    if content.get("format") != name:
        raise error(f"{path}: its field 'format' is {short(content.get('format'))}; expected {name!r}")
    version = content.get("format_version")
    if type(version) is not int or version < 1:
        raise error(f"{path}: has format version {short(version)}; expected a number from 1: the file is damaged")
    if version > newest:
        raise error(
            f"{path}: has format version {version}, written by memwrap {str(content.get('memwrap'))[:40]}; memwrap "
            f"{__version__} reads up to version {newest}: install a newer memwrap"
        )


def describe(error: ValidationError) -> str:
    """What was given and what was expected, for the first field that is wrong."""
    first = error.errors(include_url=False)[0]
    name = _name(first["loc"])
    match first["type"]:
        case "missing":
            return f"{name} is missing"
        case "extra_forbidden" | "unexpected_keyword_argument":
            return f"{name} is unknown"
        case "value_error" | "assertion_error":
            problem = str(first["ctx"]["error"])
            if not name:
                return problem
            return f"{name} {problem}" if problem.startswith(("is ", "are ")) else f"{name}: {problem}"
    expected = first["msg"].removeprefix("Input should be ")
    return f"{name} is {short(first['input'])}; expected {expected}"


def _name(location: tuple[int | str, ...]) -> str:
    """("data", "warnings", 3) -> "data.warnings[3]" """
    name = ""
    for part in location:
        name += f"[{part}]" if isinstance(part, int) else f".{part[:200]}" if name else part[:200]
    return name
