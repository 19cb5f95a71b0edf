"""Image files to pixels: decoding, upright orientation, colour conversion and fitting to one shape.

A file that cannot be decoded raises a DataError whose message is a short reason: "empty file", "not an image",
"truncated or damaged: ..." or "decompression bomb: ...". Before training, `scan` decodes every file of a folder and
collects these reasons: `read_folder` then raises one DataError that lists the files, or with `skip_bad` leaves them out
and records them. `read_image_files`, for prediction, returns them next to the images that could be read.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps
from torch import Tensor

from memwrap.data import FITS
from memwrap.data.opening import EXIF_LIMIT, MEMORY, decoding_bytes, open_image
from memwrap.errors import DataError

MODES = {1: "L", 3: "RGB"}  # Pillow's mode by number of channels
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

_TO_THE_SIDE = (
    Image.Transpose.TRANSPOSE,
    Image.Transpose.ROTATE_90,
    Image.Transpose.ROTATE_270,
    Image.Transpose.TRANSVERSE,
)
_FROM_THE_END = (
    Image.Transpose.ROTATE_180,
    Image.Transpose.FLIP_TOP_BOTTOM,
    Image.Transpose.ROTATE_270,
    Image.Transpose.TRANSVERSE,
)

FITTED_BYTES = 10  # for each pixel of the target: Pillow's four, and two copies in three channels
STRIP = 1 << 22  # pixels that are converted at once: a conversion may take several copies


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
    with open_image(content) as image:
        mode, size = image.mode, image.size
        # A large JPEG is decoded at a fraction of its size, never below twice the target, which is much faster.
        image.draft(None, _swap_if_sideways((2 * width, 2 * height), _orientation(image, header_only=True)))
        with MEMORY.take(decoding_bytes(image, *size) + FITTED_BYTES * width * height):
            pixels = to_pixels(image, shape, fit)
            size = _swap_if_sideways(size, _orientation(image))  # only now: a PNG may store EXIF data after the pixels
            image.close()
    return DecodedImage(pixels, mode, describe_fit(*size, height, width, fit))


def to_pixels(image: Image.Image, shape: tuple[int, int, int], fit: str) -> Tensor:
    """Convert and fit a Pillow image: pixels uint8 (C, H, W)."""
    channels, height, width = shape
    rows = np.array(fit_image(convert_image(image, channels), height, width, fit))  # (H, W) or (H, W, C)
    return torch.from_numpy(rows).reshape(height, width, channels).permute(2, 0, 1).contiguous()


def image_size(content: bytes) -> tuple[int, int]:
    """Width and height of the upright image, from the file's header alone."""
    with open_image(content) as image:
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
    top = _float_top(image) if image.mode == "F" else 65535
    strips = list(_strips(image))
    if len(strips) == 1:
        return _convert_strip(image, channels, transposition, top)
    is_turned, is_reversed = transposition in _TO_THE_SIDE, transposition in _FROM_THE_END
    width, height = image.size
    upright = Image.new(MODES[channels], (height, width) if is_turned else (width, height))
    for first, last in strips:
        part = _convert_strip(image.crop((0, first, width, last)), channels, transposition, top)
        place = height - last if is_reversed else first
        upright.paste(part, (place, 0) if is_turned else (0, place))
    return upright


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
    # Pillow scales rows before columns: those of a strip of 1 by a million pixels would become as wide as the target.
    if image.height * width > STRIP > image.width * height:
        image = image.resize((image.width, height), Image.Resampling.BILINEAR)
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


def _strips(image: Image.Image) -> Iterator[tuple[int, int]]:
    """The first row and the one after the last of parts of an image, each of about STRIP pixels."""
    rows = max(1, STRIP // image.width)
    return ((first, min(first + rows, image.height)) for first in range(0, image.height, rows))


def _convert_strip(image: Image.Image, channels: int, transposition: Image.Transpose | None, top: int) -> Image.Image:
    """An image, or some of its rows, upright in mode RGB or L. top: the value of white if pixels are not of 8 bits."""
    upright = image if transposition is None else image.transpose(transposition)
    if upright.mode == "F" or upright.mode.startswith("I"):
        upright = _to_eight_bits(upright, top)
    return _flatten_on_white(upright).convert(MODES[channels])


def _float_top(image: Image.Image) -> int:
    """1 if no value of an image of floats exceeds it, else 255."""
    parts = (np.asarray(image.crop((0, first, image.width, last))) for first, last in _strips(image))
    return 255 if any((part > 1).any() for part in parts) else 1


def _to_eight_bits(image: Image.Image, top: int) -> Image.Image:
    """Scale an image of wide integers or floats from 0..top to mode L; Pillow itself would clip all above 255."""
    values = np.asarray(image)
    if image.mode == "F":
        known = np.where(np.isnan(values), np.float32(0), values)
        levels = np.clip(known, 0, top) * np.float32(255 / top)
    else:
        levels = np.clip(values, 0, top).astype(np.float32) / (top / 255)
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
    if len(image.info.get("exif", b"")) > EXIF_LIMIT:
        return 1
    try:
        exif = Image.Image.getexif(image) if header_only else image.getexif()
        return int(exif.get(ExifTags.Base.Orientation, 1))
    except Exception:  # damaged EXIF data raises nearly anything; viewers ignore it too
        return 1
