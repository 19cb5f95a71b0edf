"""The header of a safetensors file: what a file holds, before any of it is read."""

import json
import math
import struct
from typing import IO

LIMIT = 16 << 20  # bytes of a header
SIDES_LIMIT = 64  # of a tensor; torch has fewer

# Bytes of a number, by the name of its type in the header.
_SIZES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "C64": 8,
    "BOOL": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
}


def elements(file: IO[bytes], size: int) -> int:
    """How many numbers a file of `size` bytes holds; a ValueError unless its tensors fill the file exactly."""
    file.seek(0)
    start = file.read(8)
    (length,) = struct.unpack("<Q", start) if len(start) == 8 else (size,)
    if length > min(LIMIT, size - 8):
        raise ValueError(f"a header of {length} bytes in a file of {size}")
    try:
        header = json.loads(file.read(length))
        tensors = [entry for name, entry in header.items() if name != "__metadata__"]
        counts = [(_count(entry["shape"], size), _SIZES[entry["dtype"]]) for entry in tensors]
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError("a header that is none of tensors") from error
    if sum(count * bytes_each for count, bytes_each in counts) != size - 8 - length:
        raise ValueError("a header whose tensors do not fill the file")
    return sum(count for count, _ in counts)


def _count(shape: list[int], most: int) -> int:
    """How many numbers a tensor has, which can be no more than its file has bytes."""
    if len(shape) > SIDES_LIMIT or any(type(side) is not int or not 0 <= side <= most for side in shape):
        raise ValueError("a shape of too many or too large sides, or no whole ones")
    return math.prod(shape)
