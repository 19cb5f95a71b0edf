"""A data set at another image size."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from memwrap.data.dataset import DataSet, Images, InMemoryImages, LabelledImages

_BATCH = 1024  # images resized at once: as floats they take four times their memory


class ResizedImages:
    """Images stored at their original size and resized when they are read."""

    def __init__(self, images: Images, size: int) -> None:
        self.images = images
        self.size = size

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.images.shape[0], self.size, self.size

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, indices: Iterable[Tensor]) -> Iterator[Tensor]:
        for pixels in self.images.batches(indices):
            yield _resize_pixels(pixels, self.size)

    def at(self, indices: Tensor) -> "ResizedImages":
        return ResizedImages(self.images.at(indices), self.size)


def resize(data: DataSet, size: int, hold_bytes: int) -> DataSet:
    """The data set at size x size: resized once if the pixels take at most hold_bytes, else on each read."""
    channels, *original = data.train.images.shape
    if original == [size, size]:
        return data
    count = len(data.train) + len(data.test or ())
    hold = count * channels * size * size <= hold_bytes
    return replace(
        data,
        train=_resize_split(data.train, size, hold),
        test=None if data.test is None else _resize_split(data.test, size, hold),
        fingerprint=hashlib.sha256(f"{data.fingerprint} {size}".encode()).hexdigest(),
        record=data.record | {"size": [size, size], "resized_from": original, "held": hold},
    )


def _resize_split(split: LabelledImages, size: int, hold: bool) -> LabelledImages:
    images = ResizedImages(split.images, size)
    if not hold:
        return replace(split, images=images)
    pixels = torch.empty((len(split), *images.shape), dtype=torch.uint8)
    rows = torch.split(torch.arange(len(split)), _BATCH)
    for indices, batch in zip(rows, images.batches(rows), strict=True):
        pixels[indices] = batch
    return replace(split, images=InMemoryImages(pixels))


def _resize_pixels(pixels: Tensor, size: int) -> Tensor:
    """uint8 (n, C, H, W) -> uint8 (n, C, size, size)"""
    if len(pixels) == 0:  # interpolate refuses an empty batch
        return pixels.new_empty((0, pixels.shape[1], size, size))
    smooth = interpolate(pixels.float(), size=(size, size), mode="bilinear", antialias=True)
    return smooth.round().clamp(0, 255).to(torch.uint8)
