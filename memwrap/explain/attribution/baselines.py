"""Baselines: images that show nothing, relative to which pixels are attributed."""

import math

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from memwrap.data import normalize
from memwrap.errors import InputError
from memwrap.explain.model import ExplainableModel

BASELINES = ("white", "black", "mean", "blur")

BLUR = 1 / 8  # the deviation of the blur, as a part of the shorter side


def make_baseline(name: str, images: Tensor, model: ExplainableModel) -> Tensor:
    """images (..., C, H, W) as the model takes them -> the baseline of each, of the same shape.

    "white" and "black" are those colours, as the model's transform normalises them; the published code takes 1.0 for
    white, which normalised is a light grey. "mean" is the mean colour, which normalised is zero. "blur" is the image
    itself, blurred.
    """
    check_baseline(name)
    if name == "mean":
        return torch.zeros_like(images)
    if name == "blur":
        return _blur(images)
    return _colour(255 if name == "white" else 0, images, model)


def check_baseline(name: str) -> None:
    """An InputError for an unknown baseline."""
    if name not in BASELINES:
        raise InputError(f"baseline is {name!r}; expected one of {', '.join(BASELINES)}")


def _colour(pixel: int, images: Tensor, model: ExplainableModel) -> Tensor:
    """Images of one colour, given as a pixel's value from 0 to 255 in each channel."""
    transform = model.get_transform()
    return normalize(torch.full_like(images, pixel), transform.mean, transform.std).to(images.dtype)


def _blur(images: Tensor) -> Tensor:
    """(..., H, W) -> the same after a Gaussian blur, with images that go on beyond their borders as in a mirror"""
    side = min(images.shape[-2:])
    deviation = BLUR * side
    reach = min(math.ceil(3 * deviation), side - 1)  # a mirror holds no more than the image
    distances = torch.arange(-reach, reach + 1, dtype=images.dtype, device=images.device)
    kernel = (-distances.square() / (2 * deviation**2)).exp()
    kernel /= kernel.sum()
    planes = pad(images.reshape(-1, 1, *images.shape[-2:]), (reach,) * 4, mode="reflect")
    return conv2d(conv2d(planes, kernel.view(1, 1, 1, -1)), kernel.view(1, 1, -1, 1)).reshape(images.shape)
