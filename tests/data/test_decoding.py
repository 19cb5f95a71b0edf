"""Image files to pixels: every mode, orientation and fit, and short reasons for files that are no images."""

import io
import struct
import warnings
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile, ImageOps, JpegImagePlugin
from torch import Tensor

from memwrap.data import decoding
from memwrap.data.decoding import convert_image, decode, decode_image, describe_fit, fit_image, image_size, to_pixels
from memwrap.errors import DataError


def file_of(picture: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    content = io.BytesIO()
    picture.save(content, kind, **options)
    return content.getvalue()


def png(width: int, height: int, depth: int, colours: int, rows: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG file written by hand, with more chunks before the pixels."""
    header = struct.pack(">IIBBBBB", width, height, depth, colours, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    written = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)


def gray(rows: list[list[int]]) -> Image.Image:
    return Image.fromarray(np.array(rows, dtype=np.uint8))


def levels(picture: Image.Image) -> list[list[int]]:
    assert picture.mode == "L"
    return np.asarray(picture).tolist()


def noise(width: int, height: int, grain: int = 8) -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (height // grain, width // grain, 3), dtype=np.uint8)
    return Image.fromarray(values).resize((width, height), Image.Resampling.BICUBIC)


def with_orientation(number: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = number
    return exif


RED = (255, 0, 0)
CASES = {
    "1": (Image.new("1", (1, 1), 1), (255, 255, 255)),
    "L": (Image.new("L", (1, 1), 77), (77, 77, 77)),
    "RGB": (Image.new("RGB", (1, 1), (1, 2, 3)), (1, 2, 3)),
    "RGBX": (Image.new("RGBX", (1, 1), (1, 2, 3, 0)), (1, 2, 3)),
    "CMYK": (Image.new("CMYK", (1, 1), (0, 255, 255, 0)), RED),
    "YCbCr": (Image.new("RGB", (1, 1), (90, 90, 90)).convert("YCbCr"), (90, 90, 90)),
    "HSV": (Image.new("HSV", (1, 1), (0, 255, 255)), RED),
    "LAB white": (Image.new("LAB", (1, 1), (255, 128, 128)), (255, 255, 255)),
    "P": (Image.new("RGB", (1, 1), RED).quantize(2), RED),
    "LA, half black": (Image.new("LA", (1, 1), (0, 128)), (127, 127, 127)),
    "La, clear": (Image.new("La", (1, 1), (0, 0)), (255, 255, 255)),
    "RGBA, clear": (Image.new("RGBA", (1, 1), (255, 0, 0, 0)), (255, 255, 255)),
    "RGBA, opaque": (Image.new("RGBA", (1, 1), (255, 0, 0, 255)), RED),
    "RGBa, clear": (Image.new("RGBa", (1, 1), (0, 0, 0, 0)), (255, 255, 255)),
    "PA, clear": (Image.new("PA", (1, 1), (0, 0)), (255, 255, 255)),
    "I;16": (Image.new("I;16", (1, 1), 77 * 257), (77, 77, 77)),
    "I;16L": (Image.new("I;16L", (1, 1), 77 * 257), (77, 77, 77)),
    "I;16B": (Image.new("I;16B", (1, 1), 77 * 257), (77, 77, 77)),
    "I;16N": (Image.new("I;16N", (1, 1), 77 * 257), (77, 77, 77)),
    "I": (Image.new("I", (1, 1), 77 * 257), (77, 77, 77)),
    "I, too large": (Image.new("I", (1, 1), 70000), (255, 255, 255)),
    "I, negative": (Image.new("I", (1, 1), -5), (0, 0, 0)),
    "F, to 1": (Image.new("F", (1, 1), 0.2), (51, 51, 51)),
    "F, to 255": (Image.new("F", (1, 1), 200.4), (200, 200, 200)),
    "F, too large": (Image.new("F", (1, 1), 1e9), (255, 255, 255)),
    "F, infinite": (Image.new("F", (1, 1), float("inf")), (255, 255, 255)),
    "F, negative": (Image.new("F", (1, 1), -1e38), (0, 0, 0)),
    "F, not a number": (Image.new("F", (1, 1), float("nan")), (0, 0, 0)),
}


@pytest.mark.parametrize("case", CASES)
def test_every_mode_becomes_rgb_and_gray(case: str) -> None:
    picture, expected = CASES[case]
    colour, bright = convert_image(picture, 3), convert_image(picture, 1)
    assert (colour.mode, bright.mode) == ("RGB", "L")
    assert colour.getpixel((0, 0)) == pytest.approx(expected, abs=1 if case.startswith("LAB") else 0)
    assert bright.getpixel((0, 0)) == convert_image(Image.new("RGB", (1, 1), colour.getpixel((0, 0))), 1).getpixel(
        (0, 0)
    )


def test_floats_are_read_as_0_to_1_only_if_none_exceeds_1() -> None:
    assert levels(convert_image(Image.fromarray(np.array([[0, 0.5, 1]], dtype=np.float32)), 1)) == [[0, 128, 255]]
    assert levels(convert_image(Image.fromarray(np.array([[0, 0.5, 2]], dtype=np.float32)), 1)) == [[0, 0, 2]]


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bits_keep_their_brightness_in_files(kind: str) -> None:
    content = file_of(Image.fromarray(np.array([[0, 128, 32768, 65535]], dtype=np.uint16)), kind)
    assert decode_image(content, (1, 1, 4), "crop").tolist() == [[[0, 0, 128, 255]]]


def test_a_transparent_palette_colour_is_white() -> None:
    picture = Image.fromarray(np.array([[0, 1]], dtype=np.uint8), "P")
    picture.putpalette([10, 10, 10, 20, 20, 20])
    for transparency in (1, b"\xff\x00"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            content = file_of(picture, transparency=transparency)
            assert decode_image(content, (1, 1, 2), "crop").tolist() == [[[10, 255]]]


@pytest.mark.parametrize(
    "content",
    [
        png(2, 1, 16, 0, b"\0" + struct.pack(">2H", 40000, 0), (b"tRNS", struct.pack(">H", 40000))),
        png(2, 1, 8, 0, b"\0\x64\x00", (b"tRNS", struct.pack(">H", 0x64))),
        png(2, 1, 8, 2, b"\0\1\2\3\0\0\0", (b"tRNS", struct.pack(">3H", 1, 2, 3))),
        png(2, 1, 1, 0, b"\0\x40", (b"tRNS", struct.pack(">H", 0)))
    ],
    ids=["16 bits", "gray", "rgb", "1 bit"],
)  # fmt: skip
def test_a_transparent_colour_outside_of_palettes_is_white(content: bytes) -> None:
    first = decode_image(content, (3, 1, 2), "crop")[:, 0, 0]
    assert first.tolist() == [255, 255, 255]


def test_the_first_frame_of_an_animation_is_used() -> None:
    frames = [gray([[50]]), gray([[200]])]
    content = file_of(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode_image(content, (1, 1, 1), "crop").item() == 50


UPRIGHT = {
    1: [[10, 20, 30], [40, 50, 60]],
    2: [[30, 20, 10], [60, 50, 40]],
    3: [[60, 50, 40], [30, 20, 10]],
    4: [[40, 50, 60], [10, 20, 30]],
    5: [[10, 40], [20, 50], [30, 60]],
    6: [[40, 10], [50, 20], [60, 30]],
    7: [[60, 30], [50, 20], [40, 10]],
    8: [[30, 60], [20, 50], [10, 40]],
}


@pytest.mark.parametrize("number", UPRIGHT)
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_pictures_are_turned_as_the_camera_was_held(number: int, kind: str) -> None:
    content = file_of(gray(UPRIGHT[1]), kind, exif=with_orientation(number))
    with Image.open(io.BytesIO(content)) as picture:
        assert levels(convert_image(picture, 1)) == UPRIGHT[number]
    with Image.open(io.BytesIO(content)) as picture:
        assert levels(ImageOps.exif_transpose(picture)) == UPRIGHT[number]
    height, width = len(UPRIGHT[number]), len(UPRIGHT[number][0])
    assert image_size(content) == (width, height)
    assert decode(content, (1, height, width), "crop").adjustment == "as they were"


def test_damaged_exif_data_leave_the_picture_as_it_lies() -> None:
    content = file_of(gray(UPRIGHT[1]), exif=b"Exif\0\0nonsense that is no TIFF header")
    assert decode_image(content, (1, 2, 3), "crop").tolist() == [UPRIGHT[1]]
    assert image_size(content) == (3, 2)


def test_size_needs_no_more_than_the_header() -> None:
    content = file_of(noise(640, 480))
    assert image_size(content[:200]) == (640, 480)


def test_crop_covers_and_keeps_the_middle() -> None:
    wide = gray([[1, 10, 20, 2], [3, 30, 40, 4]])
    assert levels(fit_image(wide, 2, 2, "crop")) == [[10, 20], [30, 40]]
    # The middle halved to one pixel; bilinear with antialias weighs the four rows 1, 3, 3, 1 of 8.
    tall = gray([[0, 0], [80, 80], [160, 160], [8, 8]])
    assert levels(fit_image(tall, 1, 1, "crop")) == [[91]]


def test_crop_of_a_long_strip_scales_no_more_than_its_middle() -> None:
    assert fit_image(Image.new("L", (1, 5_000_000), 9), 64, 64, "crop").getextrema() == (9, 9)


def test_pad_keeps_all_between_black_borders() -> None:
    assert levels(fit_image(gray([[50, 60]]), 4, 2, "pad")) == [[0, 0], [50, 60], [0, 0], [0, 0]]
    assert levels(fit_image(gray([[50], [50]]), 4, 4, "pad")) == [[0, 50, 50, 0]] * 4


def test_stretch_scales_each_side_by_itself() -> None:
    assert levels(fit_image(gray([[50, 90]]), 2, 2, "stretch")) == [[50, 90], [50, 90]]
    # Halving in bilinear with antialias: weights 3, 3, 1 of 7 at the border.
    assert levels(fit_image(gray([[0, 70, 140, 210]]), 1, 2, "stretch")) == [[50, 160]]


@pytest.mark.parametrize("how", ["crop", "pad", "stretch"])
def test_a_picture_of_the_right_size_stays_as_it_is(how: str) -> None:
    picture = noise(16, 8)
    assert fit_image(picture, 8, 16, how) is picture


@pytest.mark.parametrize(
    ("size", "how", "expected"),
    [
        ((8, 8), "crop", "as they were"),
        ((16, 16), "crop", "scaled"),
        ((4, 4), "pad", "scaled"),
        ((400, 401), "stretch", "scaled"),
        ((16, 12), "crop", "cropped"),
        ((16, 12), "pad", "padded"),
        ((16, 12), "stretch", "stretched"),
        ((1, 1000), "pad", "padded"),
        ((1000, 1064), "crop", "cropped"),  # 8 by 8.51 covers the target
        ((1000, 1064), "pad", "scaled"),  # 7.52 by 8 lies inside
    ],
)
def test_what_is_done_to_an_image_is_described(size: tuple[int, int], how: str, expected: str) -> None:
    assert describe_fit(*size, 8, 8, how) == expected
    assert fit_image(Image.new("L", size), 8, 8, how).size == (8, 8)


def test_adjustment_does_not_confuse_height_and_width() -> None:
    assert describe_fit(20, 10, 5, 10, "crop") == "scaled"
    assert describe_fit(20, 10, 10, 5, "crop") == "cropped"


def test_unknown_ways_are_refused_by_name() -> None:
    with pytest.raises(DataError, match="fit is 'zoom'; expected one of crop, pad, stretch"):
        fit_image(gray([[1]]), 1, 1, "zoom")
    with pytest.raises(DataError, match="channels is 4; expected 3"):
        convert_image(gray([[1]]), 4)


def test_pixels_are_channels_first() -> None:
    picture = Image.fromarray(np.arange(24, dtype=np.uint8).reshape(2, 4, 3))
    pixels = decode_image(file_of(picture), (3, 2, 4), "crop")
    assert pixels.dtype == torch.uint8
    assert pixels.is_contiguous()
    assert pixels.tolist() == np.arange(24).reshape(2, 4, 3).transpose(2, 0, 1).tolist()


@pytest.mark.parametrize("channels", [1, 3])
def test_an_opened_picture_gives_the_pixels_of_its_file(channels: int) -> None:
    content = file_of(noise(32, 16).convert("RGBA"), exif=with_orientation(6))
    with Image.open(io.BytesIO(content)) as picture:
        assert torch.equal(to_pixels(picture, (channels, 9, 9), "pad"), decode_image(content, (channels, 9, 9), "pad"))


@pytest.mark.parametrize("number", [1, 6])
def test_large_jpegs_are_decoded_small_and_look_the_same(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    content = file_of(noise(1600, 640, grain=64), "JPEG", exif=with_orientation(number), quality=95)
    sizes = []
    load = JpegImagePlugin.JpegImageFile.load
    monkeypatch.setattr(JpegImagePlugin.JpegImageFile, "load", lambda self: sizes.append(self.size) or load(self))
    shape = (3, 40, 100) if number == 1 else (3, 100, 40)
    small = decode(content, shape, "crop")
    assert sizes[0] == (200, 80)  # an eighth: twice the target
    monkeypatch.setattr(JpegImagePlugin.JpegImageFile, "draft", lambda *_: None)
    whole = decode(content, shape, "crop")
    assert small.adjustment == whole.adjustment == "scaled"
    assert difference(small.pixels, whole.pixels) < 1  # of 255; turned the wrong way it is 50


@pytest.mark.parametrize("shape", [(3, 33, 33), (3, 64, 20), (3, 20, 64), (3, 300, 300)])
@pytest.mark.parametrize("number", [1, 6])
def test_jpegs_are_never_decoded_below_the_target(
    shape: tuple[int, int, int], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = file_of(noise(256, 128), "JPEG", exif=with_orientation(number))
    sizes = []
    load = JpegImagePlugin.JpegImageFile.load
    monkeypatch.setattr(JpegImagePlugin.JpegImageFile, "load", lambda self: sizes.append(self.size) or load(self))
    decode_image(content, shape, "crop")
    width, height = sizes[0] if number == 1 else sizes[0][::-1]
    full = (256, 128) if number == 1 else (128, 256)
    assert (width, height) == full or (width >= 2 * shape[2] and height >= 2 * shape[1])


def difference(one: Tensor, other: Tensor) -> float:
    return (one.float() - other.float()).abs().mean().item()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
@pytest.mark.parametrize("part", [0.5, 0.9])
def test_a_truncated_file_is_refused(kind: str, part: float) -> None:
    content = file_of(noise(320, 240), kind)
    assert decode_image(content, (3, 8, 8), "crop").shape == (3, 8, 8)
    with pytest.raises(DataError, match=r"^truncated or damaged: \w+: ."):
        decode_image(content[: int(len(content) * part)], (3, 8, 8), "crop")


def test_a_damaged_png_is_refused() -> None:
    content = bytearray(file_of(noise(64, 64)))
    content[len(content) // 2] ^= 255
    with pytest.raises(DataError, match=r"^truncated or damaged: "):
        decode_image(bytes(content), (3, 8, 8), "crop")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "^empty file$"),
        (b"\0", "^not an image$"),
        (b"these are my notes\n" * 100, "^not an image$"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "^not an image of a format that is read .HEIC"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "^not an image$"),  # would be run
    ],
)
def test_what_is_no_image_is_refused_in_short(content: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        decode_image(content, (3, 8, 8), "crop")
    with pytest.raises(DataError, match=reason):
        image_size(content)


@pytest.mark.parametrize(("side", "count"), [(60000, 3600000000), (10000, 100000000)])
def test_a_picture_that_claims_too_many_pixels_is_refused_before_it_is_decoded(
    side: int, count: int, recwarn: pytest.WarningsRecorder
) -> None:
    with pytest.raises(DataError, match=f"^decompression bomb: {count} pixels$"):
        decode_image(png(side, side, 8, 2, b""), (3, 8, 8), "crop")


def test_the_limit_is_pillows_own(monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder) -> None:
    content = file_of(noise(16, 16))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 256)
    decode_image(content, (3, 8, 8), "crop")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 255)
    with pytest.raises(DataError, match=r"^decompression bomb: 256 pixels$"):
        decode_image(content, (3, 8, 8), "crop")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    decode_image(content, (3, 8, 8), "crop")


def test_a_bomb_is_refused_where_warnings_are_errors() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match=r"^decompression bomb: 100000000 pixels$"):
            decode_image(png(10000, 10000, 8, 2, b""), (3, 8, 8), "crop")


def test_short_memory_is_not_blamed_on_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(picture: Image.Image) -> None:
        raise MemoryError

    monkeypatch.setattr(ImageFile.ImageFile, "load", full)
    with pytest.raises(MemoryError):
        decode_image(file_of(noise(8, 8), "BMP"), (3, 8, 8), "crop")


@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("case", ["RGB", "P", "LA", "I;16", "F", "F to 1", "1"])
def test_large_pictures_are_converted_in_strips_to_the_same_pixels(
    case: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(1).integers(0, 256, (13, 9)).astype(np.uint8)
    match case:
        case "I;16":
            picture = Image.fromarray(values.astype(np.uint16) * 257)
        case "F" | "F to 1":
            picture = Image.fromarray(values.astype(np.float32) / (255 if case == "F to 1" else 1))
        case "LA":
            picture = Image.merge("LA", (Image.fromarray(values), Image.fromarray(values.T.copy().reshape(13, 9))))
        case _:
            picture = noise(16, 24).resize((9, 13)).convert(case)
    picture.getexif()[0x0112] = number
    whole = {channels: np.asarray(convert_image(picture, channels)) for channels in (1, 3)}
    assert whole[3].shape == ((9, 13, 3) if number > 4 else (13, 9, 3))
    for strip in (1, 18, 50):
        monkeypatch.setattr(decoding, "STRIP", strip)
        for channels, expected in whole.items():
            assert np.array_equal(np.asarray(convert_image(picture, channels)), expected)
