"""From pictures to what a model takes, and back."""

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
    """Turns a Pillow picture or uint8 pixels into a model's input: size, colours and normalisation.

    shape: channels, height, width. mean, std: for each channel, of pixels from 0 to 1. fit: how a picture of another
    shape comes to that size; "crop" cuts what juts out, "pad" adds black borders, "stretch" distorts.
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
        # Lists, as JSON gives them back, become tuples; numbers of NumPy become Python's.
        for name, kind in (("shape", int), ("mean", float), ("std", float)):
            object.__setattr__(self, name, tuple(kind(value) for value in getattr(self, name)))

    def __call__(self, picture: Image.Image | Tensor) -> Tensor:
        """A Pillow picture, or pixels uint8 (C, H, W) or (N, C, H, W) -> float of the same rank, of the model's size"""
        if isinstance(picture, Tensor):
            return normalize(self._sized(picture), self.mean, self.std)
        if not isinstance(picture, Image.Image):
            raise InputError(
                f"picture is a {type(picture).__name__}; expected a Pillow picture or a uint8 tensor: "
                "PIL.Image.open reads a file"
            )
        return normalize(to_pixels(picture, self.shape, self.fit), self.mean, self.std)

    def invert(self, images: Tensor) -> Tensor:
        """Images as the model takes them, float (..., C, H, W) -> the uint8 pixels that they were made from"""
        mean, std = _columns(self.mean, images), _columns(self.std, images)
        return ((images * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)

    def _sized(self, pixels: Tensor) -> Tensor:
        """uint8 (..., C, H, W) -> the same at the model's size, as pictures come to it"""
        channels, *size = self.shape
        if pixels.dtype != torch.uint8 or pixels.ndim not in (3, 4) or pixels.shape[-3] != channels:
            raise InputError(
                f"pixels have shape {tuple(pixels.shape)} and dtype {pixels.dtype}; expected torch.uint8, "
                f"({channels}, H, W) or (N, {channels}, H, W)"
            )
        if list(pixels.shape[-2:]) == size:
            return pixels
        if pixels.ndim == 3:
            return self._resized(pixels)
        resized = pixels.new_empty(len(pixels), *self.shape)
        for row, image in enumerate(pixels):
            resized[row] = self._resized(image)
        return resized

    def _resized(self, pixels: Tensor) -> Tensor:
        rows = pixels.cpu().permute(1, 2, 0).squeeze(-1).contiguous().numpy()
        return to_pixels(Image.fromarray(rows), self.shape, self.fit).to(pixels.device)


def normalize(pixels: Tensor, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor) -> Tensor:
    """Pixels uint8, or float from 0 to 255, (..., C, H, W) -> (pixels / 255 - mean) / std, by channel

    mean, std: a number for each channel, or, as tensors (..., C, 1, 1), for each channel of each image
    """
    images = pixels.float() / 255
    return (images - _columns(mean, images)) / _columns(std, images)


def _columns(values: Sequence[float] | Tensor, images: Tensor) -> Tensor:
    """One value for each channel, as (C, 1, 1) beside images (..., C, H, W); what has as many dimensions stays"""
    columns = torch.as_tensor(values, dtype=images.dtype, device=images.device)
    return columns.reshape(-1, 1, 1) if columns.ndim == 1 else columns
