"""Whether a page shows what its run gives, decided without the verification that is attacked.

The report is made again from what a page may choose freely (images, names, labels, options, the run's path and the
date) and compared as text: everything but numbers and pictures must be equal to the letter, numbers within a
tolerance, pictures as other decoders than Pillow see them.
"""

import base64
import json
import re
import struct
import warnings
import zlib
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.io import decode_webp

from memwrap.report.create import Inputs, Source, create_report
from memwrap.report.page import render
from memwrap.report.pictures import pixels_in
from memwrap.report.record import HeatmapOptions

# Written down again, not imported: a tolerance that is loosened there should be found here.
NUMBERS, HEATMAP_NUMBERS = 1e-5, 1e-3
SQUARE = 8
HEATMAP_PIXEL, HEATMAP_SQUARE, HEATMAP_MEAN = 16, 2, 0.5
LOSSY_PIXEL, LOSSY_MEAN = 56, 8.5
FLAT_PIXEL, PIXEL_SHARE = 10, 0.6
OWN_LOSS = 10  # levels by which the range of our own encoding may be below that of the pixels before the loss

_RECORD = re.compile(r'(<script type="application/json" id="record">)(.*?)(</script>)', re.DOTALL)
_PICTURE = re.compile(r'<image id="([^"]*)"[^>]* href="([^"]*)"')
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)")
_FREE = ("created", "run")


def differences(page: str, source: Source) -> list[str]:
    """In what a page is not the report of this source; empty if it shows nothing else."""
    parts = list(_RECORD.finditer(page))
    if len(parts) != 1:
        return [f"the page has {len(parts)} records"]
    record, pictures = json.loads(parts[0][2]), pictures_in(page)
    expected, expected_page = _again(record, pictures, source)
    found = [
        *_compare_json(record, expected, "record", NUMBERS),
        *_compare_text(_without_data(page), _without_data(expected_page)),
        *_compare_pictures(pictures, pictures_in(expected_page)),
    ]
    return found[:20]


def pictures_in(page: str) -> dict[str, str]:
    """The data URLs of a page's pictures by name."""
    return dict(_PICTURE.findall(page))


def _again(record: dict[str, Any], pictures: dict[str, str], source: Source) -> tuple[dict[str, Any], str]:
    """The record and the page that the source gives for the inputs and options of a record."""
    explanations = record["explanations"]
    pixels = torch.stack([_decode(pictures[f"input-{number + 1}"]) for number in range(len(explanations))])
    labels = [each["label"] for each in explanations]
    inputs = Inputs(pixels, [each["path"] for each in explanations], None if None in labels else labels)
    options = None if record["heatmaps"] is None else HeatmapOptions(**record["heatmaps"])
    made = create_report(source, inputs, shown=record["shown"], heatmaps=options)
    made = made.model_copy(update={name: record[name] for name in _FREE})
    page = render(made)
    (found,) = _RECORD.finditer(page)
    return json.loads(found[2]), page


def _decode(uri: str) -> Tensor:
    """The pixels uint8 (C, H, W) of a picture, not by Pillow."""
    start, _, text = uri.partition(",")
    content = base64.b64decode(text)
    if "png" in start:
        return _decode_png(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torchvision may stop reading images one day
        return decode_webp(torch.frombuffer(bytearray(content), dtype=torch.uint8))


def _decode_png(content: bytes) -> Tensor:
    """The pixels of a PNG of the one kind that all viewers show alike; a ValueError for any other."""
    parts, place = [], 8
    while place < len(content):
        (size,) = struct.unpack(">I", content[place : place + 4])
        name, data = content[place + 4 : place + 8], content[place + 8 : place + 8 + size]
        if content[place + 8 + size : place + 12 + size] != struct.pack(">I", zlib.crc32(name + data)):
            raise ValueError("a check sum is wrong")
        parts.append((name, data))
        place += 12 + size
    names = [name for name, _ in parts]
    if names != [b"IHDR", *[b"IDAT"] * (len(names) - 2), b"IEND"] or len(parts[0][1]) != 13 or parts[-1][1]:
        raise ValueError(f"its parts are {names}")
    width, height, bits, colour, compression, filtering, interlacing = struct.unpack(">IIBBBBB", parts[0][1])
    if (bits, compression, filtering, interlacing) != (8, 0, 0, 0) or colour not in (0, 2):
        raise ValueError(f"its header is {parts[0][1]!r}")
    stream = zlib.decompressobj()
    channels = 3 if colour == 2 else 1
    expected = height * (1 + width * channels)
    rows = stream.decompress(b"".join(data for _, data in parts[1:-1]), expected + 1)
    if len(rows) != expected or not stream.eof or stream.unused_data:
        raise ValueError("its pixels are more or fewer than its size says")
    lines = np.frombuffer(rows, np.uint8).reshape(height, 1 + width * channels)
    return torch.from_numpy(_without_filters(lines, channels).reshape(height, width, channels)).permute(2, 0, 1)


def _without_filters(lines: np.ndarray, step: int) -> np.ndarray:
    """Each line (H, 1 + W) begins with its filter: none, left, above, mean of both, or Paeth's choice."""
    found = np.zeros((lines.shape[0] + 1, lines.shape[1] - 1 + step), np.int64)  # a line above, a pixel to the left
    for row, (kind, *values) in enumerate(lines.tolist(), start=1):
        for place, value in enumerate(values, start=step):
            left, above, corner = found[row, place - step], found[row - 1, place], found[row - 1, place - step]
            near = sorted((left, above, corner), key=lambda each: abs(left + above - corner - each))
            added = {0: 0, 1: left, 2: above, 3: (left + above) // 2, 4: near[0]}[kind]
            found[row, place] = (value + added) % 256
    return found[1:, step:].astype(np.uint8)


def _without_data(page: str) -> str:
    """The page without its record and the data of its pictures, which are compared apart."""
    page = _RECORD.sub(r"\1\3", page)
    return re.sub(r'(<image id="[^"]*"[^>]* href=)"[^"]*"', r"\1", page)


def _compare_text(page: str, expected: str) -> Iterator[str]:
    """Equal to the letter between the numbers; of numbers the last decimal may be off by one."""
    for one, other in zip_longest(_NUMBER.split(page), _NUMBER.split(expected), fillvalue=""):
        if one == other:
            continue
        decimals = len(other.partition(".")[2])
        if not (_NUMBER.fullmatch(one) and _NUMBER.fullmatch(other) and "." in one and "." in other) or (
            abs(float(one) - float(other)) > 1.01 * 10.0**-decimals
        ):
            yield f"the page has {one[:100]!r}; expected {other[:100]!r}"
            return


def _compare_json(given: Any, expected: Any, where: str, tolerance: float) -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(given, dict) and given.keys() == expected.keys():
        for key in expected:
            within = HEATMAP_NUMBERS if key == "heatmap" else tolerance
            yield from _compare_json(given[key], expected[key], f"{where}.{key}", within)
    elif isinstance(expected, list) and isinstance(given, list) and len(given) == len(expected):
        for place, (one, other) in enumerate(zip(given, expected, strict=True)):
            yield from _compare_json(one, other, f"{where}[{place}]", tolerance)
    elif type(expected) is float and type(given) in (int, float):
        if not abs(given - expected) <= 1.01 * tolerance * max(1.0, abs(expected)):
            yield f"{where} is {given!r}; expected {expected!r}"
    elif given != expected or type(given) is not type(expected):
        yield f"{where} is {str(given)[:100]!r}; expected {str(expected)[:100]!r}"


def _compare_pictures(given: dict[str, str], expected: dict[str, str]) -> Iterator[str]:
    if given.keys() != expected.keys():
        yield f"the pictures are {sorted(given)}; expected {sorted(expected)}"
        return
    for name, uri in expected.items():
        if given[name] == uri:
            continue
        try:
            one, other = _decode(given[name]), pixels_in(uri)
            same_elsewhere = torch.equal(one, pixels_in(given[name]))
        except (RuntimeError, ValueError, KeyError, zlib.error) as error:
            yield f"picture {name} is read by one decoder alone ({error})"
            continue
        if not same_elsewhere:
            yield f"picture {name} looks different in another decoder"
        elif one.shape != other.shape or not _alike(one.float().numpy(), other.float().numpy(), name, uri):
            yield f"picture {name} is another picture"


def _alike(one: np.ndarray, other: np.ndarray, name: str, uri: str) -> bool:
    """one, other (C, H, W)"""
    apart = one - other
    squares = [
        apart[channel, row : row + SQUARE, column : column + SQUARE]
        for channel in range(apart.shape[0])
        for row in range(0, apart.shape[1], SQUARE)
        for column in range(0, apart.shape[2], SQUARE)
    ]
    is_heatmap, largest = name.startswith("heatmap"), np.abs(apart).max()
    if not uri.startswith("data:image/png"):
        slack = HEATMAP_SQUARE if is_heatmap else 0
        means = max(abs(square.mean()) for square in squares)
        most = FLAT_PIXEL + PIXEL_SHARE * (_range_around(other) + OWN_LOSS) + (HEATMAP_PIXEL if is_heatmap else 0)
        flat = bool((np.abs(apart) <= most).all())
        return bool(flat and largest <= LOSSY_PIXEL + slack and means <= LOSSY_MEAN + slack)
    if not is_heatmap:
        return bool(largest == 0)
    means = max(np.abs(square).mean() for square in squares)
    return bool(largest <= HEATMAP_PIXEL and means <= HEATMAP_SQUARE and np.abs(apart).mean() <= HEATMAP_MEAN)


def _range_around(pixels: np.ndarray) -> np.ndarray:
    """Of levels in the square of each pixel (C, H, W) and the squares around it, in any channel: (H, W)."""
    _, height, width = pixels.shape
    found = np.zeros((height, width))
    for row in range(0, height, SQUARE):
        for column in range(0, width, SQUARE):
            near = pixels[:, max(0, row - SQUARE) : row + 2 * SQUARE, max(0, column - SQUARE) : column + 2 * SQUARE]
            found[row : row + SQUARE, column : column + SQUARE] = np.ptp(near, axis=(1, 2)).max()
    return found
