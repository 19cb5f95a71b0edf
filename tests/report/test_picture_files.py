"""Picture files: those that reports write pass; parts added, cut or moved are refused."""

import base64
import struct
import time
import zlib
from collections.abc import Callable

import pytest
import torch

from memwrap import DataError
from memwrap.report.picture_files import PNG_START, check_webp, decode_png, encode_png, png_size
from memwrap.report.pictures import exact_uri, pixels_in, small_uri
from tests.report import noise
from tests.report.forgeries import as_pillow_reads
from tests.report.test_pictures import smooth


def content_of(uri: str) -> bytes:
    return base64.b64decode(uri.partition(",")[2])


def png_part(name: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


PNG = content_of(exact_uri(noise(1)[0]))
WEBP = content_of(small_uri(smooth(96, 80)))


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 4, 4), (3, 32, 32), (3, 33, 47), (1, 60, 60), (3, 224, 224)])
def test_what_a_report_writes_passes(shape: tuple[int, int, int]) -> None:
    (pixels,) = noise(1, shape)
    assert decode_png(content_of(exact_uri(pixels)), shape).equal(pixels)
    assert pixels_in(small_uri(pixels)).shape[1:] == shape[1:]


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (1, 300, 219), (3, 224, 224), (1, 255, 256)])
def test_pillow_reads_what_is_written(shape: tuple[int, int, int]) -> None:
    """With one block and with several, up to their border."""
    (pixels,) = noise(1, shape)
    content = encode_png(pixels)
    assert as_pillow_reads(content).equal(pixels)
    assert len(content) == png_size(shape)


def test_time_to_write_grows_with_the_pixels_and_not_with_their_square() -> None:
    pixels = torch.zeros(3, 4096, 4096, dtype=torch.uint8)
    begun = time.process_time()
    encode_png(pixels)
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (PNG_START, "it is empty"),
        (PNG + png_part(b"IEND"), "expected IHDR first and IEND last"),
        (PNG + PNG, "wrong|cut"),
        (PNG_START + png_part(b"IDAT") + PNG[len(PNG_START) :], "expected IHDR first and IEND last"),
        (PNG[:-12], "expected IHDR first and IEND last"),
        (PNG_START + png_part(b"IHDR") + png_part(b"IEND"), "it is cut"),
        (PNG.replace(b"IDAT", b"IDaT"), "the check sum of its part IDaT is wrong"),
        (PNG[: len(PNG_START)] + png_part(b"\xff\0ab") + PNG[len(PNG_START) :], r"with a part \\xff"),
    ],
    ids=["nothing", "two ends", "two files", "pixels first", "no end", "short head", "name", "odd name"],
)
def test_a_png_that_is_put_together_otherwise_is_refused(content: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decode_png(content)


def riff(*parts: bytes) -> bytes:
    body = b"WEBP" + b"".join(parts)
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (riff(), "it is empty"),
        (riff(WEBP[12:], WEBP[12:]), "exactly one picture"),
        (WEBP[:4] + struct.pack("<I", 4) + WEBP[8:], "exactly one picture"),
        (riff(WEBP[12:], b"EXIF" + struct.pack("<I", 2) + b"ab"), "with a part EXIF"),
        (riff(b"ALPH" + struct.pack("<I", 2) + b"ab", WEBP[12:]), "with a part ALPH"),
        (riff(b"VP8"), "it is cut"),
    ],
    ids=["nothing", "two pictures", "size", "orientation", "alpha", "short name"],
)
def test_a_webp_that_is_put_together_otherwise_is_refused(content: bytes, words: str) -> None:
    assert riff(WEBP[12:]) == WEBP
    with pytest.raises(ValueError, match=words):
        check_webp(content)


@pytest.mark.parametrize(("content", "check"), [(PNG, decode_png), (WEBP, check_webp)], ids=["png", "webp"])
def test_a_file_that_is_cut_anywhere_is_refused(content: bytes, check: Callable[[bytes], None]) -> None:
    for place in range(len(content)):
        with pytest.raises(ValueError, match="it"):
            check(content[:place])


@pytest.mark.parametrize("uri", [exact_uri(noise(1)[0]), small_uri(smooth(96, 80))], ids=["png", "webp"])
def test_a_damaged_byte_is_refused_or_is_one_of_the_pixels(uri: str) -> None:
    """Whatever it is, nothing else than a DataError comes of it."""
    start, _, _ = uri.partition(",")
    content = content_of(uri)
    draws = torch.randint(1, 256, (len(content),), generator=torch.Generator().manual_seed(0)).tolist()
    refused = 0
    for place, change in enumerate(draws):
        damaged = bytearray(content)
        damaged[place] ^= change
        try:
            pixels_in(f"{start},{base64.b64encode(damaged).decode()}")
        except DataError:
            refused += 1
    assert refused == len(content) if start.endswith("png;base64") else refused > 12
