"""Checks that a picture's file holds pixels alone, so that a browser shows what Pillow reads.

A palette, transparency, a gamma, a colour profile, an orientation or a second frame would change what a browser shows.
So only the parts that a report writes are allowed.
"""

import struct
import zlib
from collections.abc import Iterator

PNG_START = b"\x89PNG\r\n\x1a\n"
PNG_PARTS = ("IHDR", "IDAT", "IEND")
PNG_COLOURS = {0: "grey", 2: "RGB"}
PNG_BITS = 8
WEBP_PARTS = ("VP8 ",)  # pixels with loss; no alpha, no frames, no colour profile


def check_png(content: bytes) -> None:
    """Raise a ValueError for a PNG with anything that reports do not write."""
    if not content.startswith(PNG_START):
        raise ValueError("it is not a PNG, though it claims to be one")
    parts = list(_png_parts(content))
    names = [name for name, _ in parts]
    _check_names(names, PNG_PARTS, "PNG")
    if [names[0], names[-1], names.count("IHDR"), names.count("IEND")] != ["IHDR", "IEND", 1, 1]:
        raise ValueError(f"its parts are {', '.join(names)[:80]}; expected IHDR first and IEND last")
    bits, colours = _exactly(parts[0][1], 8, 2)
    if bits != PNG_BITS or colours not in PNG_COLOURS:
        raise ValueError(
            f"its pixels are of PNG colour type {colours} with {bits} bits; expected 0 (grey) or 2 (RGB) with "
            f"{PNG_BITS} bits"
        )


def check_webp(content: bytes) -> None:
    """Raise a ValueError for a WebP with anything that reports do not write."""
    if content[:4] != b"RIFF" or content[8:12] != b"WEBP":
        raise ValueError("it is not a WebP, though it claims to be one")
    names, place = [], 12
    while place < len(content):
        names.append(_name(content[place : place + 4]))
        (size,) = struct.unpack("<I", _exactly(content, place + 4, 4))
        place += 8 + size + size % 2
    _check_names(names, WEBP_PARTS, "WebP")
    if len(names) != 1 or struct.unpack("<I", content[4:8])[0] != len(content) - 8:
        raise ValueError("it does not hold exactly one picture")


def _png_parts(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Name and content of each part, up to the end of the file."""
    place = len(PNG_START)
    while place < len(content):
        (size,) = struct.unpack(">I", _exactly(content, place, 4))
        name, data = _exactly(content, place + 4, 4), _exactly(content, place + 8, size)
        (stated,) = struct.unpack(">I", _exactly(content, place + 8 + size, 4))
        if stated != zlib.crc32(name + data):  # which Pillow does not check for all parts, and browsers do
            raise ValueError(f"the check sum of its part {_name(name)} is wrong")
        yield _name(name), data
        place += 12 + size


def _check_names(names: list[str], known: tuple[str, ...], kind: str) -> None:
    if others := [name for name in names if name not in known]:
        raise ValueError(
            f"it is a {kind} with a part {others[0]}, which may change how a browser shows it; expected only "
            f"{', '.join(known).strip()}"
        )
    if not names:
        raise ValueError("it is empty")


def _name(four: bytes) -> str:
    return four.decode("ascii", errors="backslashreplace")


def _exactly(content: bytes, place: int, size: int) -> bytes:
    if place + size > len(content):
        raise ValueError("it is cut")
    return content[place : place + size]
