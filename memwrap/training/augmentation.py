"""Augmentation and normalisation of training images.

The random numbers are drawn ahead, so that augmentations are plain functions of tensors: the same on every device, in
one process or in many, and usable in a CUDA graph.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from memwrap.data import normalize
from memwrap.nn.precision import without_autocast

NUMBERS = 16  # uniform numbers for each image

SHIFT = 1 / 8  # of height and width: 4 pixels of 32
ROTATION = math.radians(12)
SCALE = 0.15
SHEAR = 0.15
BRIGHTNESS = 0.3
CONTRAST = 0.4
SATURATION = 0.5
ERASED = 0.4  # of height and width, at most; half of all images

# The numbers that each augmentation uses, whichever others are active.
_FLIP, _SHIFT, _AFFINE, _COLOUR, _ERASE = 0, slice(1, 3), slice(3, 6), slice(6, 9), slice(9, 13)


def draw(count: int, generator: torch.Generator) -> Tensor:
    """Uniform numbers from 0 to 1 for this many images, (count, NUMBERS)."""
    return torch.rand(count, NUMBERS, generator=generator)


def prepare(
    pixels: Tensor,
    numbers: Tensor,
    changes: Sequence[str],
    mean: Sequence[float] | Tensor,
    std: Sequence[float] | Tensor,
) -> Tensor:
    """pixels uint8 (n, C, H, W), numbers (n, NUMBERS) -> augmented, normalised images (n, C, H, W)

    mean, std: as `memwrap.data.normalize` takes them.
    Erased pixels and those from outside the image are zero, the mean colour. Always in full precision: in bf16,
    coordinates would be off by a good part of a pixel.
    """
    with without_autocast(pixels):
        return _augment(pixels.float(), numbers, changes, mean, std)


def _augment(
    images: Tensor,
    numbers: Tensor,
    changes: Sequence[str],
    mean: Sequence[float] | Tensor,
    std: Sequence[float] | Tensor,
) -> Tensor:
    if "colour" in changes:
        images = _recolour(images, numbers[:, _COLOUR])
    images = normalize(images, mean, std)
    if "affine" in changes:
        images = _warp(images, numbers, changes)
    elif "shift" in changes or "flip" in changes:
        images = _flip_and_shift(images, numbers, changes)
    return _erase(images, numbers[:, _ERASE]) if "erase" in changes else images


def _signed(numbers: Tensor) -> Tensor:
    """From [0, 1] to [-1, 1]."""
    return 2 * numbers - 1


def _recolour(images: Tensor, numbers: Tensor) -> Tensor:
    """Change saturation, contrast and brightness; images from 0 to 255, numbers (n, 3)"""
    saturation, contrast, brightness = (column.reshape(-1, 1, 1, 1) for column in _signed(numbers).unbind(dim=1))
    grey = images.mean(dim=1, keepdim=True)
    images = grey + (images - grey) * (1 + SATURATION * saturation)
    level = images.mean(dim=(1, 2, 3), keepdim=True)
    images = level + (images - level) * (1 + CONTRAST * contrast) + 255 * BRIGHTNESS * brightness
    return images.clamp(0, 255)


def _flip_and_shift(images: Tensor, numbers: Tensor, changes: Sequence[str]) -> Tensor:
    """Flip, and shift by whole pixels, without interpolation."""
    count, channels, height, width = images.shape
    if "flip" in changes:
        images = torch.where(_is_flipped(numbers).reshape(-1, 1, 1, 1), images.flip(-1), images)
    if "shift" not in changes:
        return images
    reach = [round(SHIFT * side) for side in (height, width)]
    padded = functional.pad(images, (reach[1], reach[1], reach[0], reach[0]))
    rows, columns = (
        (numbers[:, _SHIFT][:, axis] * (2 * reach[axis] + 1)).long()[:, None] + torch.arange(side, device=images.device)
        for axis, side in enumerate((height, width))
    )
    image = torch.arange(count, device=images.device).reshape(-1, 1, 1, 1)
    channel = torch.arange(channels, device=images.device).reshape(1, -1, 1, 1)
    return padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]


def _warp(images: Tensor, numbers: Tensor, changes: Sequence[str]) -> Tensor:
    """Rotate, scale and shear, and flip and shift if active, with one interpolation."""
    turn, scale, shear = _signed(numbers[:, _AFFINE]).unbind(dim=1)
    angle, zoom = ROTATION * turn, 1 + SCALE * scale
    cosine, sine = angle.cos() / zoom, angle.sin() / zoom
    mirror = torch.where(_is_flipped(numbers), -1.0, 1.0) if "flip" in changes else torch.ones_like(turn)
    # grid_sample's unit is half a side.
    shift = 2 * SHIFT * _signed(numbers[:, _SHIFT]) if "shift" in changes else torch.zeros_like(numbers[:, _SHIFT])
    down, right = shift.unbind(dim=1)
    # Maps coordinates of the result to those of the original: the flip, which comes first, is the last factor.
    top = torch.stack([cosine * mirror, (-sine + SHEAR * shear) * mirror, right * mirror], dim=1)
    bottom = torch.stack([sine, cosine, down], dim=1)
    grid = functional.affine_grid(torch.stack([top, bottom], dim=1), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="zeros", align_corners=False)


def _is_flipped(numbers: Tensor) -> Tensor:
    return numbers[:, _FLIP] < 0.5


def _erase(images: Tensor, numbers: Tensor) -> Tensor:
    """Set a rectangle to zero, in half of the images; numbers (n, 4)"""
    height, width = images.shape[2:]
    inside = [
        _within(numbers[:, axis], numbers[:, 2], side, images.device) for axis, side in enumerate((height, width))
    ]
    hidden = inside[0][:, :, None] & inside[1][:, None, :] & (numbers[:, 3] < 0.5)[:, None, None]
    return images.masked_fill(hidden[:, None], 0.0)


def _within(centre: Tensor, extent: Tensor, side: int, device: torch.device) -> Tensor:
    """centre, extent (n,) -> (n, side), True within the extent around the centre"""
    positions = (torch.arange(side, device=device) + 0.5) / side
    return (positions - centre[:, None]).abs() < ERASED * extent[:, None] / 2
