"""Hostile image files: refused before they take much time or memory, and honest ones of the same kinds are read."""

import io
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
from PIL import Image

from memwrap.data import opening
from memwrap.data.decoding import decode_image, image_size
from memwrap.errors import DataError
from tests.data import hostile

SHAPE = (3, 32, 32)


def file_of(picture: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("name", sorted(set(hostile.honest_images()) - {"PCX"}))
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


@pytest.mark.parametrize("progressive", [True, False])
def test_a_jpeg_of_many_scans_is_refused_at_once(progressive: bool) -> None:
    content = hostile.jpeg_of_scans(4000, 4000, 5000, progressive)
    started = time.process_time()
    with pytest.raises(DataError, match="bomb: 5000 scans"):
        decode_image(content, SHAPE, "crop")
    assert time.process_time() - started < 1


def test_a_jpeg_of_as_many_scans_as_allowed_is_read() -> None:
    assert decode_image(hostile.jpeg_of_scans(64, 64, 100), SHAPE, "crop").shape == SHAPE


def test_tiles_that_are_larger_than_the_image_count_as_a_whole() -> None:
    content = hostile.tiff_of_tiles(1, 16, 8192)
    with pytest.raises(DataError, match="truncated or damaged"):  # within the limit, but its data are none
        decode_image(content, SHAPE, "crop")
    with pytest.raises(DataError, match=rf"bomb: {16384**2} pixels"):
        decode_image(hostile.tiff_of_tiles(1, 16, 16384), SHAPE, "crop")


def test_a_tiled_tiff_is_read() -> None:
    content = file_of(gradient(), "TIFF", compression="tiff_lzw", tile=(16, 16))
    assert decode_image(content, SHAPE, "stretch").float().std() > 10


def gradient() -> Image.Image:
    return Image.radial_gradient("L").resize((40, 30)).convert("RGB")


def test_a_large_image_in_an_icon_is_refused_before_it_is_decoded() -> None:
    content = hostile.icon(hostile.png_of_size(13000, 7000, 0))
    started = time.process_time()
    for look in (image_size, lambda content: decode_image(content, SHAPE, "crop")):
        with pytest.raises(DataError, match="bomb: 91000000 pixels in an icon"):
            look(content)
    assert time.process_time() - started < 0.5


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
