"""Hostile image files: refused before they take much time or memory, and honest ones of the same kinds are read."""

import contextlib
import io
import itertools
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from PIL import Image, TiffImagePlugin

from memwrap.data import opening
from memwrap.data.decoding import decode_image, image_size
from memwrap.errors import DataError
from tests.data import hostile

SHAPE = (3, 32, 32)


def file_of(picture: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def gradient() -> Image.Image:
    return Image.radial_gradient("L").resize((40, 30)).convert("RGB")


@pytest.mark.parametrize("name", sorted(set(hostile.honest_images()) - {"PCX", "JPEG2000"}))
def test_honest_files_of_all_formats_are_read(name: str) -> None:
    content = hostile.honest_images()[name]
    pixels = decode_image(content, SHAPE, "stretch")
    assert pixels.float().std() > 10  # a gradient, not a plain colour


@pytest.mark.parametrize("kind", ["PCX", "SGI", "XBM", "IM", "SPIDER", "MSP", "DDS", "ICNS", "EPS", "QOI"])
def test_formats_that_nobody_has_are_no_images(kind: str) -> None:
    modes = {"XBM": "1", "MSP": "1", "SPIDER": "F"}
    size = (64, 64)
    try:
        content = file_of(Image.new(modes.get(kind, "RGB"), size), kind)
    except (KeyError, OSError, ValueError):
        pytest.skip(f"this Pillow does not write {kind}")
    with pytest.raises(DataError, match=r"^not an image"):
        decode_image(content, SHAPE, "crop")


@pytest.mark.parametrize(
    "content",
    [*hostile.jpeg_2000_of_blocks(2000), hostile.honest_images().get("JPEG2000", b"")],
    ids=("bare", "boxes", "honest"),
)
def test_jpeg_2000_is_refused_with_a_hint(content: bytes) -> None:
    if not content:
        pytest.skip("this Pillow does not write JPEG 2000")
    for inner in (content, hostile.icon(content)):
        with pytest.raises(DataError):
            decode_image(inner, SHAPE, "crop")
    with pytest.raises(DataError, match=r"^not an image .*JPEG 2000: convert it to PNG or JPEG"):
        decode_image(content, SHAPE, "crop")


@pytest.mark.parametrize("progressive", [True, False])
def test_a_jpeg_of_many_scans_is_refused_at_once(progressive: bool) -> None:
    content = hostile.jpeg_of_scans(4000, 4000, 5000, progressive)
    started = time.process_time()
    with pytest.raises(DataError, match="bomb: more than 100 scans"):
        decode_image(content, SHAPE, "crop")
    assert time.process_time() - started < 10  # all scans would take minutes


def test_a_jpeg_of_as_many_scans_as_allowed_is_read() -> None:
    assert decode_image(hostile.jpeg_of_scans(64, 64, 100), SHAPE, "crop").shape == SHAPE


def jpeg_with(before: bytes = b"", after: bytes = b"") -> bytes:
    """An honest JPEG with a segment of this content in its head, and with more after its end."""
    content = file_of(gradient(), "JPEG")
    segment = b"\xff\xe1" + (len(before) + 2).to_bytes(2, "big") + before
    return content[:2] + segment + content[2:] + after


@pytest.mark.parametrize(
    "content",
    [
        jpeg_with(after=Random(0).randbytes(1 << 20) + b"\xff\xda" * 200),  # as phones append a short film
        jpeg_with(after=file_of(Image.effect_noise((64, 64), 90), "JPEG") * 150),
        jpeg_with(before=b"Exif\0\0" + b"\xff\xda" * 200),  # as of a small picture in the head
    ],
)
def test_only_the_scans_of_the_image_itself_count(content: bytes) -> None:
    assert decode_image(content, SHAPE, "stretch").float().std() > 10


@pytest.mark.parametrize(
    "hidden",
    [
        b"\xff" * 9,  # fill bytes before a marker
        b"\xff\0",  # a stuffed byte of the data
        b"\xff\xd0",  # a restart
        b"\xff\x01",  # a marker without a length
        b"\x12\x34\xfe",  # data of the scan before
        b"\xff\xfe\0\x04\xff\xd9",  # a comment that holds the marker of the end
    ],
)
def test_scans_count_whatever_is_between_them(hidden: bytes) -> None:
    content = hostile.jpeg_of_scans(64, 64, 2).partition(b"\xff\xda")
    first, scan = content[0], content[1] + content[2][:8]
    with pytest.raises(DataError, match="scans"):
        decode_image(first + (scan + hidden) * 500 + b"\xff\xd9", SHAPE, "crop")


@pytest.mark.parametrize("part", [b"\xff\xfe\0\2", b"\xff\xd0", b"\xff\0"])
def test_a_jpeg_of_many_small_parts_takes_little_time(part: bytes) -> None:
    content = hostile.jpeg_of_scans(64, 64, 1).removesuffix(b"\xff\xd9") + part * (32 << 20)
    started = time.process_time()
    with contextlib.suppress(DataError):
        decode_image(content, SHAPE, "crop")
    assert time.process_time() - started < 10


def test_tiles_that_are_larger_than_the_image_count_as_a_whole() -> None:
    content = hostile.tiff_of_tiles(1, 16, 8192)
    with pytest.raises(DataError, match="truncated or damaged"):  # within the limit, but its data are none
        decode_image(content, SHAPE, "crop")
    with pytest.raises(DataError, match=rf"bomb: {16384**2} pixels"):
        decode_image(hostile.tiff_of_tiles(1, 16, 16384), SHAPE, "crop")


def test_a_tiled_tiff_is_read() -> None:
    """Which Pillow does not write."""
    pixels = Image.radial_gradient("L").resize((48, 32))
    corners = [(left, upper, left + 16, upper + 16) for upper in (0, 16) for left in (0, 16, 32)]
    tiles = [zlib.compress(pixels.crop(corner).tobytes()) for corner in corners]
    start = 10 + 12 * 10 + 4 + 2 * 4 * len(tiles)
    offsets = [start + sum(map(len, tiles[:number])) for number in range(len(tiles))]
    tags = {256: 48, 257: 32, 258: 8, 259: 8, 262: 1, 277: 1, 322: 16, 323: 16}
    entries = [(tag, 4, 1, value) for tag, value in tags.items()]
    entries += [(324, 4, len(tiles), start - 8 * len(tiles)), (325, 4, len(tiles), start - 4 * len(tiles))]
    content = hostile.tiff(entries, struct.pack("<12I", *offsets, *map(len, tiles)) + b"".join(tiles))
    assert torch.equal(decode_image(content, (1, 32, 48), "stretch")[0], torch.from_numpy(np.array(pixels)))


@pytest.mark.parametrize("orientation", [1, 6])
def test_tiles_count_as_they_are_stored(orientation: int) -> None:
    """And not as they lie in the upright image, of which these have one column."""
    tags = {
        256: 1,
        257: 8000,
        258: 8,
        259: 8,
        262: 1,
        274: orientation,
        277: 1,
        322: 500_000,
        323: 16,
        324: 160,
        325: 8,
    }
    content = hostile.tiff([(tag, 4, 1, value) for tag, value in tags.items()], bytes(200))
    with pytest.raises(DataError, match="bomb: 4000000000 pixels"):
        decode_image(content, SHAPE, "crop")


NOTHING = b"\x80" * (1 << 14)  # as a strip in PackBits: bytes that give no pixel
EMPTY = b"\x78\x9c" + b"\0\0\0\xff\xff" * (1 << 12)  # and in deflate


@pytest.mark.parametrize(
    "content",
    [
        hostile.tiff_of_strips(50_000, NOTHING + b"\0\7"),
        hostile.tiff_of_strips(50_000, EMPTY + b"\1\1\0\xfe\xff\7" + zlib.adler32(b"\7").to_bytes(4, "big"), 8),
        hostile.tiff_of_strips(50_000, NOTHING + b"\0\7", kind=3),
        hostile.tiff_of_strips(50_000, NOTHING + b"\0\7", kind=16),
        hostile.tiff_of_strips(50_000, NOTHING + b"\0\7", kind=9),  # signed numbers
        hostile.tiff_of_strips(50_000, NOTHING + b"\0\7", kind=17),  # a type that Pillow does not know
        hostile.tiff_of_strips(
            50_000, NOTHING + b"\0\7", more=[(270, 7, 300_000, 0)]
        ),  # Pillow leaves out what follows
        hostile.tiff_of_strips(50_000, NOTHING + b"\0\7", more=[(270, 7, 300_000, 0), (279, 4, 50_001, 8)]),
        hostile.tiff_of_strips(50_000, NOTHING + b"\0\7", counts=325),  # the lengths of tiles
        hostile.tiff_of_strips(50_000, bytes(1 << 14), 6),  # a length of 0 would mean the rest of the file
        hostile.tiff_of_tags(4000, 1 << 20, 8),
        hostile.tiff([(273, 4, 2_000_000, 200), (256, 4, 1, 1), (257, 4, 1, 1)], bytes(8_000_000)),
        b"MM\0+" + bytes(1000),
    ],
)
def test_a_tiff_whose_parts_share_bytes_is_refused_at_once(content: bytes) -> None:
    started = time.process_time()
    with pytest.raises(DataError, match=r"file has|occurs twice|old kind|numbers in a tag|BigTIFF"):
        decode_image(content, SHAPE, "crop")
    assert time.process_time() - started < 1  # libtiff would read every strip


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "CMYK", "I;16", "F"])
def test_an_honest_tiff_of_every_compression_is_read(mode: str) -> None:
    picture, read = gradient().convert(mode), set()
    for name, is_big, pages in itertools.product(TiffImagePlugin.COMPRESSION_INFO.values(), (False, True), (0, 3)):
        options = {"big_tiff": is_big, "save_all": bool(pages), "append_images": [picture] * pages}
        try:
            content = file_of(picture, "TIFF", compression=name, **{key: each for key, each in options.items() if each})
            with Image.open(io.BytesIO(content)) as image:
                image.load()
        except (OSError, ValueError, KeyError, RuntimeError):  # Pillow does not write it, or not read
            continue
        assert decode_image(content, SHAPE, "stretch").float().std() > 0.1
        read.add(name)
    assert {"raw", "tiff_lzw", "tiff_adobe_deflate", "packbits"} <= read


def test_a_large_image_in_an_icon_is_refused_before_it_is_decoded() -> None:
    content = hostile.icon(hostile.png_of_size(13000, 7000, 0))
    started = time.process_time()
    for look in (image_size, lambda content: decode_image(content, SHAPE, "crop")):
        with pytest.raises(DataError, match="bomb: 91000000 pixels in an icon"):
            look(content)
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("content", "pixels"),
    [
        (hostile.webp_of_size(16383, 16383), 16383**2),
        (hostile.webp_of_size(9400, 9400), 9400**2),  # below Pillow's limit, but WebP takes twice the memory
    ],
)
def test_a_large_webp_is_refused(content: bytes, pixels: int) -> None:
    with pytest.raises(DataError, match=f"bomb: {pixels} pixels"):
        decode_image(content, SHAPE, "crop")


@pytest.mark.parametrize(
    "content", [hostile.png_of_chunks(200), hostile.plain_ppm(300, 300), hostile.gif_of_comments(100)]
)
def test_what_takes_too_long_is_refused(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "SECONDS_LIMIT", -1.0)
    with pytest.raises(DataError, match="bomb: takes more than"):
        decode_image(content, SHAPE, "crop")


MEASURE = """
import sys
from pathlib import Path
from memwrap.data.decoding import decode_image
def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) >> 10
for place in range(1, len(sys.argv), 2):
    content = Path(sys.argv[place]).read_bytes()
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    decode_image(content, (3, 64, 64), sys.argv[place + 1])
    print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of memory is measured by Linux")
def test_memory_is_bounded(tmp_path: Path) -> None:
    cases = [
        (hostile.png_of_size(5000, 5000, 4), "crop", 300),  # with transparency, which is flattened
        (hostile.png_of_size(1, 3_000_000, 0), "stretch", 100),
        (hostile.webp_of_size(4000, 4000), "crop", 300),
        (hostile.png_with_exif(20000, 100_000), "crop", 100),
        (hostile.png_with_long_tag(5_000_000), "crop", 100),
    ]
    arguments: list[str | Path] = []
    for number, (content, fit, _) in enumerate(cases):
        (tmp_path / str(number)).write_bytes(content)
        arguments += [tmp_path / str(number), fit]
    found = subprocess.run([sys.executable, "-c", MEASURE, *arguments], capture_output=True, text=True, check=True)
    grown = [int(line) for line in found.stdout.split()]
    assert all(megabytes < limit for megabytes, (*_, limit) in zip(grown, cases, strict=True)), grown


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_hostile_images_are_read_or_refused() -> None:
    """A small part of what `make fuzz` does."""
    started = time.process_time()
    refused = []
    for seed in range(60):
        try:
            assert decode_image(hostile.hostile_image(Random(seed)), SHAPE, "crop").shape == SHAPE
        except DataError as error:
            refused.append(str(error))
    assert len(refused) > 20
    assert max(map(len, refused)) < 400
    assert time.process_time() - started < 60
