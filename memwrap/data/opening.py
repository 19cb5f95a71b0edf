"""Image files opened so that decoding them takes a bounded time and memory: they may come from a stranger.

Pillow opens many formats, some of them by programs or in Python, and a file of a few bytes can be an image of any size.
"""

import io
import re
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import Image, PngImagePlugin, UnidentifiedImageError

from memwrap.data.budget import Budget
from memwrap.errors import DataError, brief

BOMB = "decompression bomb"  # begins the reason if an image would take too much memory or time
# Those that people have. TGA is the last: it has no signature. JPEG 2000 is none of them: a hundred bytes can ask for
# millions of code blocks, which OpenJPEG allocates.
FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "DIB", "TIFF", "PPM", "AVIF", "ICO", "TGA")
SCANS_LIMIT = 100  # of a JPEG, each a pass over all pixels; progressive ones have about ten
SEGMENTS_LIMIT = 100_000  # of a JPEG: tables, comments and metadata, each up to 64 KiB
EXIF_LIMIT = 1 << 22  # bytes of EXIF data; Pillow makes an object of each number in them
TAG_LIMIT = 1 << 20  # numbers in a tag of a TIFF, such as its strips; Pillow makes an object of each
ICON_LIMIT = 4096 * 4096  # pixels; icons are opened and decoded in one step
SECONDS_LIMIT = 20.0  # of a CPU for one image; 80 megapixels take about two
MEMORY = Budget(1 << 30)  # bytes, for images that are decoded at the same time

# Bytes that decoding takes for each pixel, with the converted image: 8, and more where a library has its own copies.
_PIXEL_BYTES = {"WEBP": 16, "AVIF": 16}
_PIXEL_SHARES = {"WEBP": 0.75, "AVIF": 0.75}  # of Pillow's limit, for the same reason
_ICON = b"\0\0\1\0"
# The signatures of formats that people have, but that are not read.
_UNREAD = {
    "HEIC": re.compile(rb"....ftyp(heic|heix|mif1|msf1)", re.DOTALL),
    "JPEG 2000": re.compile(rb"\xff\x4f\xff\x51|\0\0\0\x0cjP  \r\n\x87\n"),
}
# Tags of a TIFF, the bytes of a value by its type, and the types of sizes in it.
_WIDTH, _LENGTH, _TILE_WIDTH, _TILE_LENGTH, _COMPRESSION, _STRIP_BYTES, _TILE_BYTES = 256, 257, 322, 323, 259, 279, 325
_TAG_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_TAG_SIZES = (3, 4, 16)
_TAG_TEXTS = (1, 2, 7)  # the types that Pillow keeps as bytes
_OLD_JPEG = 6  # a compression
# Markers of a JPEG that end a scan or start a segment; the others (restarts, stuffed and fill bytes) have no length.
_JPEG_MARKER = re.compile(rb"\xff[\xc0-\xcf\xd9-\xfe]")
_JPEG_END, _JPEG_SCAN = 0xD9, 0xDA


@contextmanager
def open_image(content: bytes) -> Iterator[Image.Image]:
    """Open an image; whatever fails within the context becomes a DataError with a short reason."""
    if not content:
        raise DataError("empty file")
    try:
        _check_icon(content)
        _check_tiff(content)
        with Image.open(_TimedFile(content), formats=_formats()) as image:
            _check_size(image)
            _check_scans(image, content)
            yield image
    except (DataError, MemoryError):  # too little memory is not the image's fault
        raise
    except UnidentifiedImageError:
        kind = next((name for name, signature in _UNREAD.items() if signature.match(content)), "")
        hint = f" of a format that is read ({kind}: convert it to PNG or JPEG)" if kind else ""
        raise DataError(f"not an image{hint}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        count = re.search(r"\d+", str(error))
        raise DataError(f"{BOMB}: {count[0] if count else 'too many'} pixels") from None
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged data
        raise DataError(f"truncated or damaged: {brief(error)}") from error


def decoding_bytes(image: Image.Image, width: int, height: int) -> int:
    """About the memory that decoding takes. width, height: of the file; the image itself may be set to decode less."""
    needed = image.width * image.height * _PIXEL_BYTES.get(image.format or "", 8)
    if image.info.get("progressive"):  # holds all coefficients, at full size
        needed += 8 * width * height
    return needed


class _TimedFile(io.BytesIO):
    """Ends what takes too long: files of a million small parts, and decoders that are written in Python."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self._end = time.thread_time() + SECONDS_LIMIT

    def read(self, size: int | None = -1, /) -> bytes:
        # Of the CPU, so that a busy machine does not refuse what an idle one accepts.
        if time.thread_time() > self._end:
            raise DataError(f"{BOMB}: takes more than {SECONDS_LIMIT:g} seconds to decode")
        return super().read(size)


def _formats() -> tuple[str, ...]:
    Image.preinit()  # the common formats
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _check_size(image: Image.Image) -> None:
    """Refuse an image with more pixels than Pillow considers safe; Pillow itself only warns up to twice its limit."""
    if Image.MAX_IMAGE_PIXELS is None:
        return
    width, height = image.size
    limit = Image.MAX_IMAGE_PIXELS * _PIXEL_SHARES.get(image.format or "", 1.0)
    tags: Any = getattr(image, "tag_v2", {})
    # Tiles are decoded as a whole, though the image may be a narrow strip of each. Pillow turns its own size upright.
    width, height = tags.get(_WIDTH, width), tags.get(_LENGTH, height)
    tile_width, tile_height = (_positive(tags.get(tag)) for tag in (_TILE_WIDTH, _TILE_LENGTH))
    decoded = -(-width // tile_width) * tile_width * -(-height // tile_height) * tile_height
    if max(width * height, decoded if tile_width * tile_height > 1 else 0) > limit:
        raise DataError(f"{BOMB}: {max(width * height, decoded)} pixels")


def _positive(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 1


def _check_scans(image: Image.Image, content: bytes) -> None:
    """Refuse a JPEG of many scans. Bytes after its end, such as a phone's film, and in its metadata do not count."""
    if image.format not in ("JPEG", "MPO"):
        return
    place, scans = 2, 0  # after the marker of the start
    for _ in range(SEGMENTS_LIMIT):
        found = _JPEG_MARKER.search(content, place)
        if found is None or content[found.end() - 1] == _JPEG_END:
            return
        scans += content[found.end() - 1] == _JPEG_SCAN
        if scans > SCANS_LIMIT:
            raise DataError(f"{BOMB}: more than {SCANS_LIMIT} scans")
        # A length counts itself; libjpeg reads it even where it is too small.
        place = found.end() + max(2, int.from_bytes(content[found.end() : found.end() + 2], "big"))
    raise DataError(f"{BOMB}: more than {SEGMENTS_LIMIT} segments")


def _check_icon(content: bytes) -> None:
    """Refuse an icon that holds a large image: Pillow decodes it when it opens the file, whatever size that has."""
    if not content.startswith(_ICON):
        return
    for entry in range(struct.unpack_from("<H", content, 4)[0]):
        (offset,) = struct.unpack_from("<I", content, 6 + 16 * entry + 12)
        if content.startswith(PngImagePlugin._MAGIC, offset):
            width, height = struct.unpack_from(">II", content, offset + 16)
        else:
            width, height = struct.unpack_from("<ii", content, offset + 4)
        if abs(width * height) > ICON_LIMIT:
            raise DataError(f"{BOMB}: {abs(width * height)} pixels in an icon")


def _check_tiff(content: bytes) -> None:
    """Refuse a TIFF whose tags, strips or tiles claim more bytes than it has, as they can if they share them.

    Reads the file itself: Pillow and libtiff, which decodes it, see different tags where they are odd or occur twice.
    """
    if content[:4] == b"MM\0+":  # which Pillow takes for a plain TIFF, and libtiff does not
        raise DataError("not an image that Pillow opens (a big-endian BigTIFF: convert it to PNG)")
    if content[:4] not in (b"II*\0", b"II\0*", b"MM\0*", b"MM*\0", b"II+\0"):
        return
    order, is_big = "<" if content[:1] == b"I" else ">", content[2] == 43
    head, entry = (
        struct.Struct(order + ("Q" if is_big else "H")),
        struct.Struct(order + ("HHQ8s" if is_big else "HHL4s")),
    )
    place = struct.Struct(order + ("Q" if is_big else "L"))
    (start,) = place.unpack_from(content, 8 if is_big else 4)
    tags = min(head.unpack_from(content, start)[0], 1 << 16)  # libtiff reads no more, of a BigTIFF either
    sizes: dict[int, list[float]] = {}
    claimed = 0
    for number in range(tags):
        value = start + head.size + entry.size * (number + 1) - place.size
        tag, kind, count, _ = entry.unpack_from(content, value + place.size - entry.size)
        length = count * _TAG_BYTES.get(kind, 0)
        if length > place.size:
            claimed += length
            (value,) = place.unpack_from(content, value)
        if claimed > len(content):
            raise DataError(f"truncated or damaged: its tags take {claimed} bytes; the file has {len(content)}")
        if count > TAG_LIMIT and kind not in _TAG_TEXTS:
            raise DataError(f"{BOMB}: {count} numbers in a tag; at most {TAG_LIMIT} are read")
        if tag in (_TILE_WIDTH, _TILE_LENGTH, _COMPRESSION, _STRIP_BYTES, _TILE_BYTES):
            if tag in sizes or kind not in _TAG_SIZES:
                raise DataError(f"truncated or damaged: the tag {tag} occurs twice or is no size")
            sizes[tag] = np.frombuffer(content, f"{order}u{_TAG_BYTES[kind]}", count, value).astype(float).tolist()
    if _OLD_JPEG in sizes.get(_COMPRESSION, ()):
        raise DataError("a TIFF of an old kind of JPEG, which is not read: convert it to PNG")
    parts = sum(sizes.get(_STRIP_BYTES, ())) + sum(sizes.get(_TILE_BYTES, ()))
    if sizes.get(_COMPRESSION, [1]) != [1] and parts > len(content):
        raise DataError(
            f"truncated or damaged: its strips or tiles take {parts:.0f} bytes; the file has {len(content)}"
        )
