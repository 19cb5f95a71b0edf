"""`Transform`: images to a model's input, and back."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from memwrap.data import FITS
from memwrap.data.decoding import to_pixels
from memwrap.errors import InputError
from memwrap.nn.checks import check_sizes


@dataclass(frozen=True)
class Transform:
    """Turns a Pillow image or uint8 pixels into a model's input: size, colours and normalization.

    shape: channels, height, width. mean, std: for each channel, of pixels from 0 to 1. fit: how an image of another
    aspect ratio is brought to that size; "crop" cuts two sides off, "pad" adds black borders, "stretch" distorts.
    """

    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fit: str = "crop"

    def __post_init__(self) -> None:
        if len(self.shape) != 3:
            raise InputError(f"shape is {self.shape}; expected channels, height and width")
        channels, height, width = self.shape
        check_sizes(channels=channels, height=height, width=width)
        for name, values in (("mean", self.mean), ("std", self.std)):
            if np.shape(values) != (channels,) or not np.isfinite(values).all():
                raise InputError(f"{name} is {values}; expected {channels} finite numbers, one for each channel")
        if min(self.std) <= 0:
            raise InputError(f"std is {self.std}; expected values above 0")
        if self.fit not in FITS:
            raise InputError(f"fit is {self.fit!r}; expected one of {', '.join(FITS)}")
        # JSON gives lists and callers may give NumPy's numbers.
        for name, kind in (("shape", int), ("mean", float), ("std", float)):
            object.__setattr__(self, name, tuple(kind(value) for value in getattr(self, name)))

    def __call__(self, image: Image.Image | Tensor) -> Tensor:
        """A Pillow image, or pixels uint8 (C, H, W) or (N, C, H, W) -> float of the same rank, of the model's size"""
        if isinstance(image, Tensor):
            return normalize(self.fit_pixels(image), self.mean, self.std)
        if not isinstance(image, Image.Image):
            raise InputError(
                f"image is a {type(image).__name__}; expected a Pillow image or a uint8 tensor: PIL.Image.open reads a "
                "file"
            )
        return normalize(self.fit_image(image), self.mean, self.std)

    def invert(self, images: Tensor) -> Tensor:
        """A model's input, float (..., C, H, W) -> the uint8 pixels it was made from"""
        mean, std = _per_channel(self.mean, images), _per_channel(self.std, images)
        return ((images * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)

    def fit_image(self, image: Image.Image) -> Tensor:
        """A Pillow image -> uint8 (C, H, W) of the model's size"""
        return to_pixels(image, self.shape, self.fit)

    def fit_pixels(self, pixels: Tensor) -> Tensor:
        """uint8 (..., C, H, W) -> the same at the model's size, resized as Pillow images are"""
        channels, *size = self.shape
        if pixels.dtype != torch.uint8 or pixels.ndim not in (3, 4) or pixels.shape[-3] != channels:
            raise InputError(
                f"pixels have shape {tuple(pixels.shape)} and dtype {pixels.dtype}; expected torch.uint8, "
                f"({channels}, H, W) or (N, {channels}, H, W)"
            )
        if list(pixels.shape[-2:]) == size:
            return pixels
        if pixels.ndim == 4:
            resized = pixels.new_empty(len(pixels), *self.shape)
            for row, image in enumerate(pixels):
                resized[row] = self.fit_pixels(image)
            return resized
        rows = pixels.cpu().permute(1, 2, 0).squeeze(-1).contiguous().numpy()
        return to_pixels(Image.fromarray(rows), self.shape, self.fit).to(pixels.device)


def normalize(pixels: Tensor, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor) -> Tensor:
    """Pixels uint8, or float from 0 to 255, (..., C, H, W) -> (pixels / 255 - mean) / std, by channel

    mean, std: a number for each channel, or, as tensors (..., C, 1, 1), for each channel of each image
    """
    images = pixels.float() / 255
    return (images - _per_channel(mean, images)) / _per_channel(std, images)


def _per_channel(values: Sequence[float] | Tensor, images: Tensor) -> Tensor:
    """Values (C,) as (C, 1, 1), to broadcast with images (..., C, H, W); tensors of more dimensions stay as they are"""
    columns = torch.as_tensor(values, dtype=images.dtype, device=images.device)
    return columns.reshape(-1, 1, 1) if columns.ndim == 1 else columns
