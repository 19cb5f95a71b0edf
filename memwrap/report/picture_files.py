"""Picture files that hold pixels alone, so that a browser shows what is read from them.

A palette, transparency, a gamma, a colour profile, an orientation, a second frame, interlaced or missing rows would
change what a browser shows; there are even compressed streams that zlib reads and Chromium does not. So a PNG is
written without compression, and is read only if its pixels give the same file again.
"""

import struct
import zlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

PNG_START = b"\x89PNG\r\n\x1a\n"
PNG_PARTS = ("IHDR", "IDAT", "IEND")
PNG_COLOURS = {0: 1, 2: 3}  # grey and RGB: how many channels they have
PNG_BITS = 8
PNG_METHODS = (0, 0, 0)  # of compression, filters and interlacing
STORED = 0xFFFF  # bytes of a block that is not compressed, at most
WEBP_PARTS = ("VP8 ",)  # pixels with loss; no alpha, no frames, no colour profile
VP8_START = b"\x9d\x01\x2a"
MOST_VALUES = 1 << 27  # of a picture: more take too much memory

Shape = tuple[int, ...]  # (C, H, W)


def largest_file(shape: Shape) -> int:
    """Bytes that a file of pixels (C, H, W) may have: some more than the pixels themselves."""
    channels, height, width = shape
    size = height * (1 + width * channels)
    return size + size // 50 + 1024


def png_size(shape: Shape) -> int:
    """Bytes of what `encode_png` makes of pixels (C, H, W)."""
    channels, height, width = shape
    size = height * (1 + width * channels)
    parts = len(PNG_START) + 3 * 12 + 13  # a length, a name and a check sum for each part; the head's content
    return parts + 2 + 5 * -(-size // STORED) + size + 4


def encode_png(pixels: Tensor) -> bytes:
    """A PNG of pixels uint8 (1, H, W) or (3, H, W), without compression: the same bytes on every machine."""
    channels, height, width = pixels.shape
    rows = pixels.permute(1, 2, 0).reshape(height, width * channels)
    lines = torch.cat([rows.new_zeros(height, 1), rows], dim=1).numpy().tobytes()  # each starts with its filter: none
    stored = []
    for start in range(0, len(lines), STORED):
        block = lines[start : start + STORED]
        is_last = start + STORED >= len(lines)
        stored += [struct.pack("<BHH", is_last, len(block), STORED - len(block)), block]
    colours = next(colours for colours, count in PNG_COLOURS.items() if count == channels)
    header = struct.pack(">IIBBBBB", width, height, PNG_BITS, colours, *PNG_METHODS)
    stream = b"".join([b"\x78\x01", *stored, struct.pack(">I", zlib.adler32(lines))])
    return PNG_START + _png_part(b"IHDR", header) + _png_part(b"IDAT", stream) + _png_part(b"IEND", b"")


def decode_png(content: bytes, expected: Shape | None = None) -> Tensor:
    """Pixels uint8 (C, H, W); a ValueError for a file that `encode_png` does not write, or of another shape."""
    if not content.startswith(PNG_START):
        raise ValueError("it is not a PNG, though it claims to be one")
    parts = list(_png_parts(content))
    names = [name for name, _ in parts]
    _check_names(names, PNG_PARTS, "PNG")
    if names != ["IHDR", *["IDAT"] * (len(names) - 2), "IEND"]:
        raise ValueError(f"its parts are {', '.join(names)[:80]}; expected IHDR first and IEND last")
    shape = channels, height, width = _png_shape(parts[0][1])
    _check_shape(shape, expected)
    row = 1 + width * channels
    try:
        lines = zlib.decompressobj().decompress(b"".join(data for _, data in parts[1:-1]), height * row + 1)
    except zlib.error as error:
        raise ValueError(f"its pixels cannot be read ({error})") from error
    if len(lines) != height * row:
        raise ValueError(f"it holds more or less than the {height} rows that it claims to have")
    rows = torch.from_numpy(np.frombuffer(lines, dtype=np.uint8).reshape(height, row)[:, 1:].copy())
    pixels = rows.reshape(height, width, channels).permute(2, 0, 1)
    if encode_png(pixels) != content:
        raise ValueError("its pixels are not stored as reports store them, and a browser may show others")
    return pixels


def check_webp(content: bytes, expected: Shape | None = None) -> None:
    """Raise a ValueError for a WebP with anything that reports do not write, or of another shape (3, H, W)."""
    if content[:4] != b"RIFF" or content[8:12] != b"WEBP":
        raise ValueError("it is not a WebP, though it claims to be one")
    names, place = [], 12
    while place < len(content):
        names.append(_name(content[place : place + 4]))
        (size,) = struct.unpack("<I", _exactly(content, place + 4, 4))
        place += 8 + size + size % 2
    _check_names(names, WEBP_PARTS, "WebP")
    if len(names) != 1 or place != len(content) or struct.unpack("<I", content[4:8])[0] != len(content) - 8:
        raise ValueError("it does not hold exactly one picture, or is cut")
    _check_shape(_webp_shape(_exactly(content, 20, 10)), expected)


def _png_shape(header: bytes) -> Shape:
    if len(header) != 13:
        raise ValueError(f"it is cut, or its head has {len(header)} bytes; expected 13")
    width, height, bits, colours, *methods = struct.unpack(">IIBBBBB", header)
    if bits != PNG_BITS or colours not in PNG_COLOURS:
        raise ValueError(
            f"its pixels are of PNG colour type {colours} with {bits} bits; expected 0 (grey) or 2 (RGB) with "
            f"{PNG_BITS} bits"
        )
    if tuple(methods) != PNG_METHODS:
        raise ValueError(f"its compression, filters and interlacing are {methods}; expected 0, as browsers differ here")
    return PNG_COLOURS[colours], height, width


def _webp_shape(header: bytes) -> Shape:
    tag, width, height = int.from_bytes(header[:3], "little"), *struct.unpack("<HH", header[6:])
    if tag & 1 or not tag & 16 or header[3:6] != VP8_START or max(width, height) >= 1 << 14:
        raise ValueError("its head asks for another frame, no frame or another scale; expected one whole frame")
    return 3, height, width


def _check_shape(shape: Shape, expected: Shape | None) -> None:
    if expected is not None and shape != expected:
        raise ValueError(f"it has shape {shape}; expected {tuple(expected)}")
    channels, height, width = shape
    if not 0 < channels * height * width <= MOST_VALUES:
        raise ValueError(f"it has shape {shape}; expected at least one pixel and at most {MOST_VALUES:,} values")


def _png_part(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


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
