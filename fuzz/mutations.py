"""Random changes to JSON values and to files of tensors. All take the generator that decides."""

import copy
import json
import struct
from collections.abc import Iterator
from random import Random
from typing import Any

from tests.data.hostile import mutate

Path = tuple[str | int, ...]  # of a value within nested JSON

DEEPEST = 50  # levels of JSON that is changed

_NAMES = (
    "",
    " ",
    "\0",
    "a\nb",
    "../../outside",
    "/etc/passwd",
    "/dev/zero",
    "~",
    "‮gnp.exe",
    "\ud800",
    "é" * 300,
    "a/" * 400,
    "<img src=x onerror=alert(1)>",
    "{{ 7 * 7 }}",
    "%s%n",
    "x" * 100_000,
    "hf-hub:timm/resnet18.a1_in1k",
    "local-dir:/etc",
    "timm:hf-hub:timm/resnet18.a1_in1k",
)
_NUMBERS = (
    *(0, 1, -1, 2, 3, 255, 1000, 65536, 10**6, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 10**30, -(2**63)),
    *(0.0, -0.0, 0.5, 1e-9, 1e9, 1e38, 1e308, -1e308, float("inf"), float("-inf"), float("nan")),
)


def places(value: Any, start: Path = ()) -> Iterator[Path]:
    """The paths of all values in JSON, its own included, down to some depth."""
    yield start
    if len(start) > DEEPEST:
        return
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*start, key))
    elif isinstance(value, list):
        for index in range(len(value)):
            yield from places(value[index], (*start, index))


def is_deep(value: Any) -> bool:
    """Whether JSON is nested deeper than DEEPEST, so that copying it could fail."""
    level = [value]
    for _ in range(DEEPEST):
        groups = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [child for group in groups for child in group]
    return bool(level)


def at(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value


def change_json(draw: Random, value: Any, bait: str = "") -> Any:
    """A copy of JSON with one to four values removed, swapped, retyped or made huge. bait: the path of a file."""
    changed = copy.deepcopy(value)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        found = [path for path in places(changed) if path]
        if not found:
            return odd_value(draw, bait)
        # A list of a thousand numbers should not be drawn a thousand times as often as the number next to it.
        depth = draw.choice(sorted({len(path) for path in found}))
        path = draw.choice([path for path in found if len(path) == depth])
        _change_at(draw, changed, path, found, bait)
    return changed


def _change_at(draw: Random, changed: Any, path: Path, found: list[Path], bait: str) -> None:
    parent, last = at(changed, path[:-1]), path[-1]
    value = parent[last]
    match draw.randrange(8):
        case 0 | 1 | 2:
            parent[last] = odd_value(draw, bait)
        case 3:
            del parent[last]
        case 4:
            parent[last] = copy.deepcopy(at(changed, draw.choice(found)))
        case 5 if isinstance(parent, dict):
            parent[draw.choice(_NAMES)] = parent.pop(last)
        case 6 if isinstance(value, int | float):
            parent[last] = value + draw.choice((1, -1, value, 1e-6, 0.1))
        case 6 | 5 if isinstance(value, str):
            parent[last] = draw.choice((value + draw.choice(_NAMES), value.upper(), value[::-1], value[:-1]))
        case 7 if isinstance(value, list) and value:
            draw.shuffle(value)
        case 7 if isinstance(value, dict) and len(value) > 1:
            one, other = draw.sample(sorted(value), 2)
            value[one], value[other] = value[other], value[one]
        case _:
            parent[last] = [value]


def nudge_json(draw: Random, value: Any) -> Any:
    """A copy of JSON in which one number, label, name or option is a little different, as a liar would want it."""
    changed = json.loads(json.dumps(value))
    leaves = [path for path in places(changed) if path and not isinstance(at(changed, path), dict | list)]
    kinds = sorted({tuple(part for part in path if isinstance(part, str)) for path in leaves})
    kind = draw.choice(kinds)
    path = draw.choice([path for path in leaves if tuple(part for part in path if isinstance(part, str)) == kind])
    parent, last = at(changed, path[:-1]), path[-1]
    old = parent[last]
    if isinstance(old, bool):
        parent[last] = not old
    elif isinstance(old, int):
        parent[last] = draw.choice((old + 1, old - 1, 0, 1 << 20, 1 << 40))
    elif isinstance(old, float):
        parent[last] = draw.choice((old * (1 + 1e-7), old + 9e-6, old + 1e-3, 1 - old, 0.0, -old, 1e300))
    elif isinstance(old, str):
        parent[last] = draw.choice((f"{old} ", f"{old}\u202e", f"{old}\u200b", old[::-1], "other", old.upper(), ""))
    else:
        parent[last] = draw.choice((0, 0.5, "x"))
    return changed


def odd_value(draw: Random, bait: str = "") -> Any:
    """A value that nobody expects."""
    match draw.randrange(10):
        case 0:
            return draw.choice((None, True, False, [], {}, [[]], [None]))
        case 1 | 2 | 3:
            return draw.choice(_NUMBERS)
        case 4 | 5:
            return draw.choice(_NAMES)
        case 6:
            return [draw.choice(_NUMBERS)] * draw.choice((1, 3, 1000, 100_000))
        case 7:
            return nested(draw.choice((10, 150)), draw.choice(("list", "object")))
        case 8:
            return {str(draw.choice(_NAMES)): draw.choice(_NUMBERS) for _ in range(draw.choice((1, 20)))}
        case _:
            return bait


def nested(depth: int, kind: str) -> Any:
    """A value of this depth."""
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    return value


def dump_json(draw: Random, value: Any) -> bytes:
    """JSON as text, sometimes in a form that parsers disagree about."""
    text = json.dumps(value)
    match draw.randrange(40):
        case 0:
            return text.encode("utf-16")
        case 1:
            return b"\xef\xbb\xbf" + text.encode()
        case 2:
            return text.replace("{", '{"format": "other", ', 1).encode()  # a key twice
        case 3:
            return mutate(text.encode(), draw)
        case 4:
            return text.encode() + b" " * draw.choice((1, 1 << 20, 40 << 20))
        case 5:
            depth = draw.choice((900, 100_000, 3_000_000))
            return text[:-1].encode() + b', "more": ' + b"[" * depth + b"]" * depth + b"}"
        case 6:
            return text.replace("1", "1" * draw.choice((20, 5000, 1_000_000)), 1).encode()
    return text.encode()


def change_tensors(draw: Random, content: bytes) -> bytes:
    """A safetensors file with another header, other numbers, or damage."""
    if draw.random() < 0.2:
        return mutate(content, draw)
    try:
        return _change_header_or_numbers(draw, content)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, struct.error):  # it was changed before
        return mutate(content, draw)


def _change_header_or_numbers(draw: Random, content: bytes) -> bytes:
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), bytearray(content[8 + length :])
    names = [name for name in sorted(header) if name != "__metadata__"]
    entry = header[draw.choice(names)]
    match draw.randrange(12):
        case 0:
            entry["dtype"] = draw.choice(
                ("F64", "F32", "F16", "BF16", "I64", "I32", "U8", "BOOL", "F8_E4M3", "C64", "X")
            )
        case 1:
            entry["shape"] = draw.choice(
                ([], [0], [-1], [1 << 62], [1 << 31, 1 << 31], [1] * 5000, entry["shape"][::-1], [*entry["shape"], 1])
            )
        case 2:
            entry["data_offsets"] = draw.choice(([0, 0], [0, 1 << 62], entry["data_offsets"][::-1], [0, len(data)]))
        case 3 | 4:  # the same bytes as another type of the same size, in another shape
            begin, end = entry["data_offsets"]
            kind, size = draw.choice(
                (("F64", 8), ("I64", 8), ("F32", 4), ("I32", 4), ("F16", 2), ("I16", 2), ("U8", 1))
            )
            count = (end - begin) // size
            if count * size == end - begin:
                entry |= {"dtype": kind, "shape": draw.choice(([count], [1, count], [count, 1], [count, 1, 1, 1]))}
        case 5 | 6:  # two tensors that change places
            one, other = header[draw.choice(names)], header[draw.choice(names)]
            for key in ("dtype", "shape", "data_offsets"):
                one[key], other[key] = other[key], one[key]
        case 7:
            header[draw.choice(_NAMES)] = header.pop(draw.choice(names))
        case 8:
            header["__metadata__"] = draw.choice(({"a": "b"}, {"a": 1}, [], "x" * 10_000))
        case _:  # other numbers: NaN, infinity, denormal, or noise
            for _ in range(draw.choice((1, 10, 1000))):
                if len(data) >= 4:
                    place = draw.randrange(len(data) // 4) * 4
                    data[place : place + 4] = draw.choice(
                        (struct.pack("<f", float("nan")), struct.pack("<f", 1e38), b"\1\0\0\0", draw.randbytes(4))
                    )
    text = json.dumps(header).encode()
    if draw.random() < 0.05:
        text += b" " * draw.choice((7, 1 << 20))
    size = len(text) if draw.random() > 0.05 else draw.choice((0, 1 << 40, (1 << 63) - 1, len(text) - 1))
    return struct.pack("<Q", size) + text + bytes(data)
