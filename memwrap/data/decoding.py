"""Pictures as people keep them, made pixels of one shape: turned upright, laid on white, converted and fitted."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from PIL import ExifTags, Image, UnidentifiedImageError
from torch import Tensor

from memwrap.data import FITS
from memwrap.errors import DataError, brief

MODES = {1: "L", 3: "RGB"}  # by channels
BOMB = "decompression bomb"  # how the reason begins where a picture claims more pixels than Pillow deems safe

# How to turn a picture upright, by what a camera wrote into its EXIF data; 1 is upright.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = (5, 6, 7, 8)

# Formats that Pillow hands to another program: EPS is code, and Ghostscript would run it.
_FOREIGN = ("EPS", "WMF")


@dataclass(frozen=True)
class Decoded:
    """A picture's pixels, uint8 (C, H, W), and what was done to come by them."""

    pixels: Tensor
    mode: str  # Pillow's name for how the file keeps colours
    adjustment: str  # see `adjustment`


def decode_image(content: bytes, shape: tuple[int, int, int], how: str) -> Tensor:
    """The pixels, uint8 (C, H, W), of an image file's content; a DataError says in short why there are none."""
    return decoded(content, shape, how).pixels


def decoded(content: bytes, shape: tuple[int, int, int], how: str) -> Decoded:
    """As `decode_image`, with what a record says about the picture."""
    _, height, width = shape
    with _opened(content) as picture:
        mode, size = picture.mode, picture.size
        _read_smaller(picture, height, width)
        pixels = to_pixels(picture, shape, how)
        size = _turned(size, _orientation(picture))  # only now: a PNG file may keep its EXIF data behind the pixels
    return Decoded(pixels, mode, adjustment(*size, height, width, how))


def to_pixels(picture: Image.Image, shape: tuple[int, int, int], how: str) -> Tensor:
    """A Pillow picture, converted and fitted -> its pixels, uint8 (C, H, W)"""
    channels, height, width = shape
    rows = np.array(fitted(converted(picture, channels), height, width, how))  # (H, W) or (H, W, C)
    return torch.from_numpy(rows).reshape(height, width, channels).permute(2, 0, 1).contiguous()


def image_size(content: bytes) -> tuple[int, int]:
    """Width and height of a picture held upright, from its header alone."""
    with _opened(content) as picture:
        return _header_size(picture)


def converted(picture: Image.Image, channels: int) -> Image.Image:
    """The picture upright in mode RGB (3 channels) or L (1 channel), laid on white where it is transparent.

    Numbers of 16 bits or more count as 0..65535; floats as 0..1 if none exceeds 1, else as 0..255.
    """
    if channels not in MODES:
        raise DataError(f"channels is {channels}; expected 3 (colour) or 1 (gray)")
    picture.load()
    turn = _TURNS.get(_orientation(picture))
    upright = picture if turn is None else picture.transpose(turn)
    if upright.mode == "F" or upright.mode.startswith("I"):
        upright = _eight_bits(upright)
    return _on_white(upright).convert(MODES[channels])


def fitted(picture: Image.Image, height: int, width: int, how: str) -> Image.Image:
    """The picture, in mode RGB or L, at this size.

    how: "crop" covers the size and loses what juts out on two sides; "pad" keeps all of it between black borders;
    "stretch" scales each side by itself.
    """
    done = adjustment(*picture.size, height, width, how)
    if done == "as they were":
        return picture
    if done == "cropped":
        box = _middle(*picture.size, height, width)
        return picture.resize((width, height), Image.Resampling.BILINEAR, box=box)
    if done == "padded":
        return _padded(picture, height, width)
    return picture.resize((width, height), Image.Resampling.BILINEAR)


def adjustment(width: int, height: int, target_height: int, target_width: int, how: str) -> str:
    """What `fitted` does to a picture: "as they were", "scaled" (same shape), "cropped", "padded" or "stretched"."""
    if how not in FITS:
        raise DataError(f"fit is {how!r}; expected one of {', '.join(FITS)}")
    target = (target_width, target_height)
    if (width, height) == target:
        return "as they were"
    if _scaled(width, height, target_height, target_width, inside=how == "pad") == target:
        return "scaled"
    return {"crop": "cropped", "pad": "padded", "stretch": "stretched"}[how]


def _scaled(width: int, height: int, target_height: int, target_width: int, inside: bool) -> tuple[int, int]:
    """The size in the same shape that lies just inside the target, or just covers it."""
    ratios = target_width / width, target_height / height
    ratio = min(ratios) if inside else max(ratios)
    return max(1, round(width * ratio)), max(1, round(height * ratio))


def _middle(width: int, height: int, target_height: int, target_width: int) -> tuple[float, float, float, float]:
    """The largest part (left, upper, right, lower) in the middle of a picture that has the target's shape."""
    # Only this part is scaled: a strip of 1 by a million pixels would fill the memory if it were scaled as a whole.
    ratio = max(target_width / width, target_height / height)
    part_width, part_height = min(width, target_width / ratio), min(height, target_height / ratio)
    left, upper = (width - part_width) / 2, (height - part_height) / 2
    return left, upper, left + part_width, upper + part_height


def _padded(picture: Image.Image, height: int, width: int) -> Image.Image:
    inner = _scaled(*picture.size, height, width, inside=True)
    canvas = Image.new(picture.mode, (width, height))
    left, upper = (width - inner[0]) // 2, (height - inner[1]) // 2
    canvas.paste(picture.resize(inner, Image.Resampling.BILINEAR), (left, upper))
    return canvas


def _eight_bits(picture: Image.Image) -> Image.Image:
    """A picture of large or real numbers in mode L; Pillow itself would cut off all above 255."""
    numbers = np.asarray(picture)
    if picture.mode == "F":
        known = np.where(np.isnan(numbers), np.float32(0), numbers)
        top = 1 if known.max() <= 1 else 255
        levels = np.clip(known, 0, top) * np.float32(255 / top)
    else:
        levels = np.clip(numbers, 0, 65535).astype(np.float32) / 257
    transparent = picture.info.get("transparency")
    if isinstance(transparent, int):
        levels[numbers == transparent] = 255
    return Image.fromarray(np.rint(levels).astype(np.uint8))


def _on_white(picture: Image.Image) -> Image.Image:
    """An opaque picture in a mode that converts to RGB and L."""
    if picture.mode == "La":  # has no conversion but to LA
        picture = picture.convert("LA")
    if picture.has_transparency_data:
        layer = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return picture.convert("RGB") if picture.mode in ("RGBA", "LAB") else picture


def _read_smaller(picture: Image.Image, height: int, width: int) -> None:
    """Have a large JPEG file decoded at a fraction of its size, which takes a fraction of the time."""
    # Never below twice what is needed, so that the scaling after it decides how the picture looks.
    picture.draft(None, _turned((2 * width, 2 * height), _header_orientation(picture)))


def _header_size(picture: Image.Image) -> tuple[int, int]:
    # Pillow gives a TIFF file's size as it is after the turn, and turns the pixels itself.
    return picture.size if picture.format == "TIFF" else _turned(picture.size, _header_orientation(picture))


def _turned(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    return (size[1], size[0]) if orientation in _SIDEWAYS else size


def _orientation(picture: Image.Image) -> int:
    try:
        return int(picture.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # EXIF data may be damaged in any way; the pixels are not, and viewers show them as they lie
        return 1


def _header_orientation(picture: Image.Image) -> int:
    """As `_orientation`, but the pixels of a PNG file are not decoded in search of it."""
    try:
        return int(Image.Image.getexif(picture).get(ExifTags.Base.Orientation, 1))
    except Exception:  # as above
        return 1


@contextmanager
def _opened(content: bytes) -> Iterator[Image.Image]:
    """The picture for as long as it is read; whatever goes wrong meanwhile is a DataError with a short reason."""
    if not content:
        raise DataError("empty file")
    try:
        with Image.open(io.BytesIO(content), formats=_formats()) as picture:
            _refuse_bomb(picture.width * picture.height)
            yield picture
    except (DataError, MemoryError):  # that memory is short is no fault of the picture
        raise
    except UnidentifiedImageError:
        raise DataError(_unknown(content)) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        count = re.search(r"\d+", str(error))
        raise DataError(f"{BOMB}: {count[0] if count else 'too many'} pixels") from None
    except Exception as error:  # Pillow's readers raise nearly anything on damaged data
        raise DataError(f"truncated or damaged: {brief(error)}") from error


def _refuse_bomb(pixels: int) -> None:
    # Pillow only warns up to twice its limit.
    if Image.MAX_IMAGE_PIXELS is not None and pixels > Image.MAX_IMAGE_PIXELS:
        raise DataError(f"{BOMB}: {pixels} pixels")


def _unknown(content: bytes) -> str:
    heic = content[4:8] == b"ftyp" and content[8:12] in (b"heic", b"heix", b"mif1", b"msf1")
    return "not an image that Pillow opens (HEIC: convert it to JPEG)" if heic else "not an image"


def _formats() -> list[str]:
    Image.preinit()  # the common formats, so that they are tried first
    Image.init()
    return [name for name in Image.ID if name not in _FOREIGN]
