"""From the pixels of training images to what the encoder sees, changed at random.

All randomness comes in as uniform numbers, drawn ahead: the changes are then plain functions of tensors, the same on
every device, in one process or in many, and can be part of a captured graph.
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

# Which of the numbers each change uses: a change draws the same whatever others there are.
_FLIP, _SHIFT, _AFFINE, _COLOUR, _ERASE = 0, slice(1, 3), slice(3, 6), slice(6, 9), slice(9, 13)


def draw(count: int, generator: torch.Generator) -> Tensor:
    """Numbers for so many images, (count, NUMBERS), from 0 to 1."""
    return torch.rand(count, NUMBERS, generator=generator)


def prepare(
    pixels: Tensor,
    numbers: Tensor,
    changes: Sequence[str],
    mean: Sequence[float] | Tensor,
    std: Sequence[float] | Tensor,
) -> Tensor:
    """pixels uint8 (n, C, H, W), numbers (n, NUMBERS) -> normalised images (n, C, H, W), changed at random

    mean, std: as `memwrap.data.normalize` takes them.
    What comes in from outside an image, and what is erased of it, is zero: the mean colour. In full precision always:
    rounded to bf16, the places that pixels come from would be off by a good part of a pixel.
    """
    with without_autocast(pixels):
        return _changed(pixels.float(), numbers, changes, mean, std)


def _changed(
    images: Tensor,
    numbers: Tensor,
    changes: Sequence[str],
    mean: Sequence[float] | Tensor,
    std: Sequence[float] | Tensor,
) -> Tensor:
    if "colour" in changes:
        images = _recoloured(images, numbers[:, _COLOUR])
    images = normalize(images, mean, std)
    if "affine" in changes:
        images = _warped(images, numbers, changes)
    elif "shift" in changes or "flip" in changes:
        images = _moved(images, numbers, changes)
    return _erased(images, numbers[:, _ERASE]) if "erase" in changes else images


def _signed(numbers: Tensor) -> Tensor:
    """From 0..1 to -1..1."""
    return 2 * numbers - 1


def _recoloured(images: Tensor, numbers: Tensor) -> Tensor:
    """Saturation, contrast and brightness; images from 0 to 255, numbers (n, 3)"""
    saturation, contrast, brightness = (column.reshape(-1, 1, 1, 1) for column in _signed(numbers).unbind(dim=1))
    grey = images.mean(dim=1, keepdim=True)
    images = grey + (images - grey) * (1 + SATURATION * saturation)
    level = images.mean(dim=(1, 2, 3), keepdim=True)
    images = level + (images - level) * (1 + CONTRAST * contrast) + 255 * BRIGHTNESS * brightness
    return images.clamp(0, 255)


def _moved(images: Tensor, numbers: Tensor, changes: Sequence[str]) -> Tensor:
    """Mirrored, and shifted by whole pixels: no value is interpolated."""
    count, channels, height, width = images.shape
    if "flip" in changes:
        images = torch.where(_mirrored(numbers).reshape(-1, 1, 1, 1), images.flip(-1), images)
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


def _warped(images: Tensor, numbers: Tensor, changes: Sequence[str]) -> Tensor:
    """Rotated, scaled, sheared, and all that is asked for of mirrored and shifted, with one interpolation."""
    turn, scale, shear = _signed(numbers[:, _AFFINE]).unbind(dim=1)
    angle, zoom = ROTATION * turn, 1 + SCALE * scale
    cosine, sine = angle.cos() / zoom, angle.sin() / zoom
    mirror = torch.where(_mirrored(numbers), -1.0, 1.0) if "flip" in changes else torch.ones_like(turn)
    # grid_sample's unit is half a side.
    shift = 2 * SHIFT * _signed(numbers[:, _SHIFT]) if "shift" in changes else torch.zeros_like(numbers[:, _SHIFT])
    down, right = shift.unbind(dim=1)
    # From places in the changed image to places in the original, so mirroring, which comes first, is the last factor.
    top = torch.stack([cosine * mirror, (-sine + SHEAR * shear) * mirror, right * mirror], dim=1)
    bottom = torch.stack([sine, cosine, down], dim=1)
    grid = functional.affine_grid(torch.stack([top, bottom], dim=1), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="zeros", align_corners=False)


def _mirrored(numbers: Tensor) -> Tensor:
    return numbers[:, _FLIP] < 0.5


def _erased(images: Tensor, numbers: Tensor) -> Tensor:
    """A rectangle of half of the images set to zero; numbers (n, 4)"""
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
