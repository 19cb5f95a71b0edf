"""Image files to pixels: decoding, upright orientation, colour conversion and fitting to one shape.

A file that cannot be decoded raises a DataError whose message is a short reason: "empty file", "not an image",
"truncated or damaged: ..." or "decompression bomb: ...". Before training, `scan` decodes every file of a folder and
collects these reasons: `read_folder` then raises one DataError that lists the files, or with `skip_bad` leaves them out
and records them. `read_image_files`, for prediction, returns them next to the images that could be read.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from memwrap.data import FITS
from memwrap.errors import DataError, brief

MODES = {1: "L", 3: "RGB"}  # Pillow's mode by number of channels
BOMB = "decompression bomb"  # begins the reason if an image has more pixels than Pillow considers safe
UNCHANGED = "as they were"  # the adjustment of an image that has the target size; runs store this value

# The transposition that turns an image upright, by its EXIF orientation; 1 is upright.
_TRANSPOSITIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = (5, 6, 7, 8)

# Formats that Pillow passes to another program: EPS is code, and Ghostscript would run it.
_UNSAFE_FORMATS = ("EPS", "WMF")
_HEIC_BRANDS = (b"heic", b"heix", b"mif1", b"msf1")


@dataclass(frozen=True)
class DecodedImage:
    """The pixels of an image file, with what was done to get them."""

    pixels: Tensor  # uint8 (C, H, W)
    mode: str  # Pillow's mode of the file
    adjustment: str  # see `describe_fit`


def decode_image(content: bytes, shape: tuple[int, int, int], fit: str) -> Tensor:
    """Decode an image file's content to pixels, uint8 (C, H, W); see `fit_image` for `fit`."""
    return decode(content, shape, fit).pixels


def decode(content: bytes, shape: tuple[int, int, int], fit: str) -> DecodedImage:
    """Decode an image file's content; a DataError gives the reason if that is not possible."""
    _, height, width = shape
    with _open_image(content) as image:
        mode, size = image.mode, image.size
        # A large JPEG is decoded at a fraction of its size, never below twice the target, which is much faster.
        image.draft(None, _swap_if_sideways((2 * width, 2 * height), _orientation(image, header_only=True)))
        pixels = to_pixels(image, shape, fit)
        size = _swap_if_sideways(size, _orientation(image))  # only now: a PNG may store EXIF data after the pixels
    return DecodedImage(pixels, mode, describe_fit(*size, height, width, fit))


def to_pixels(image: Image.Image, shape: tuple[int, int, int], fit: str) -> Tensor:
    """Convert and fit a Pillow image: pixels uint8 (C, H, W)."""
    channels, height, width = shape
    rows = np.array(fit_image(convert_image(image, channels), height, width, fit))  # (H, W) or (H, W, C)
    return torch.from_numpy(rows).reshape(height, width, channels).permute(2, 0, 1).contiguous()


def image_size(content: bytes) -> tuple[int, int]:
    """Width and height of the upright image, from the file's header alone."""
    with _open_image(content) as image:
        if image.format == "TIFF":  # Pillow reports its size after the rotation, and rotates the pixels itself
            return image.size
        return _swap_if_sideways(image.size, _orientation(image, header_only=True))


def convert_image(image: Image.Image, channels: int) -> Image.Image:
    """Turn an image upright and convert it to RGB (3 channels) or L (1), on white where it is transparent.

    Integers of 16 bits or more are scaled from 0..65535; floats from 0..1 if none exceeds 1, else from 0..255.
    """
    if channels not in MODES:
        raise DataError(f"channels is {channels}; expected 3 (colour) or 1 (gray)")
    image.load()
    transposition = _TRANSPOSITIONS.get(_orientation(image))
    upright = image if transposition is None else image.transpose(transposition)
    if upright.mode == "F" or upright.mode.startswith("I"):
        upright = _to_eight_bits(upright)
    return _flatten_on_white(upright).convert(MODES[channels])


def fit_image(image: Image.Image, height: int, width: int, fit: str) -> Image.Image:
    """Resize an image in mode RGB or L to this size.

    fit: "crop" covers the target and cuts off two sides, "pad" keeps the whole image between black borders, "stretch"
    scales each side independently.
    """
    adjustment = describe_fit(*image.size, height, width, fit)
    if adjustment == UNCHANGED:
        return image
    if adjustment == "cropped":
        # Resamples the middle only: scaled as a whole, a strip of 1 by a million pixels would fill the memory.
        return ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    if adjustment == "padded":
        return _pad(image, height, width)
    return image.resize((width, height), Image.Resampling.BILINEAR)


def describe_fit(width: int, height: int, target_height: int, target_width: int, fit: str) -> str:
    """What `fit_image` does: UNCHANGED, "scaled" (aspect ratio kept), "cropped", "padded" or "stretched"."""
    if fit not in FITS:
        raise DataError(f"fit is {fit!r}; expected one of {', '.join(FITS)}")
    target = (target_width, target_height)
    if (width, height) == target:
        return UNCHANGED
    if _scale_size(width, height, target_height, target_width, inside=fit == "pad") == target:
        return "scaled"
    return {"crop": "cropped", "pad": "padded", "stretch": "stretched"}[fit]


def _scale_size(width: int, height: int, target_height: int, target_width: int, inside: bool) -> tuple[int, int]:
    """The size of the same aspect ratio that fits inside the target, or else covers it."""
    ratios = target_width / width, target_height / height
    ratio = min(ratios) if inside else max(ratios)
    return max(1, round(width * ratio)), max(1, round(height * ratio))


def _pad(image: Image.Image, height: int, width: int) -> Image.Image:
    inner = _scale_size(*image.size, height, width, inside=True)
    canvas = Image.new(image.mode, (width, height))
    left, upper = (width - inner[0]) // 2, (height - inner[1]) // 2
    canvas.paste(image.resize(inner, Image.Resampling.BILINEAR), (left, upper))
    return canvas


def _to_eight_bits(image: Image.Image) -> Image.Image:
    """Scale an image of wide integers or floats to mode L; Pillow itself would clip all values above 255."""
    values = np.asarray(image)
    if image.mode == "F":
        known = np.where(np.isnan(values), np.float32(0), values)
        top = 1 if known.max() <= 1 else 255
        levels = np.clip(known, 0, top) * np.float32(255 / top)
    else:
        levels = np.clip(values, 0, 65535).astype(np.float32) / 257
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        levels[values == transparent] = 255
    return Image.fromarray(np.rint(levels).astype(np.uint8))


def _flatten_on_white(image: Image.Image) -> Image.Image:
    """An opaque image in a mode that converts to RGB and L."""
    if image.mode == "La":  # converts to LA only
        image = image.convert("LA")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return image.convert("RGB") if image.mode in ("RGBA", "LAB") else image


def _swap_if_sideways(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    return (size[1], size[0]) if orientation in _SIDEWAYS else size


def _orientation(image: Image.Image, header_only: bool = False) -> int:
    """The EXIF orientation. header_only: do not decode the pixels of a PNG in search of it."""
    try:
        exif = Image.Image.getexif(image) if header_only else image.getexif()
        return int(exif.get(ExifTags.Base.Orientation, 1))
    except Exception:  # damaged EXIF data raises nearly anything; viewers ignore it too
        return 1


@contextmanager
def _open_image(content: bytes) -> Iterator[Image.Image]:
    """Open an image; whatever fails within the context becomes a DataError with a short reason."""
    if not content:
        raise DataError("empty file")
    try:
        with Image.open(io.BytesIO(content), formats=_allowed_formats()) as image:
            pixels = image.width * image.height
            # Pillow itself only warns up to twice its limit.
            if Image.MAX_IMAGE_PIXELS is not None and pixels > Image.MAX_IMAGE_PIXELS:
                raise DataError(f"{BOMB}: {pixels} pixels")
            yield image
    except (DataError, MemoryError):  # too little memory is not the image's fault
        raise
    except UnidentifiedImageError:
        is_heic = content[4:8] == b"ftyp" and content[8:12] in _HEIC_BRANDS
        hint = " that Pillow opens (HEIC: convert it to JPEG)" if is_heic else ""
        raise DataError(f"not an image{hint}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        count = re.search(r"\d+", str(error))
        raise DataError(f"{BOMB}: {count[0] if count else 'too many'} pixels") from None
    except Exception as error:  # Pillow's decoders raise nearly anything on damaged data
        raise DataError(f"truncated or damaged: {brief(error)}") from error


def _allowed_formats() -> list[str]:
    Image.preinit()  # the common formats, so that they are tried first
    Image.init()
    return [name for name in Image.ID if name not in _UNSAFE_FORMATS]
