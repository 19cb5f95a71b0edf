"""Images of one shape with their labels, in memory or read on demand."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor


class Images(Protocol):
    """N images of one shape, in memory or read on demand."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""

    def __len__(self) -> int: ...

    def batches(self, indices: Iterable[Tensor]) -> Iterator[Tensor]:
        """For each tensor of indices (n,) the images, uint8 (n, C, H, W)."""

    def at(self, indices: Tensor) -> "Images":
        """The images at these indices (n,), in this order."""


class InMemoryImages:
    """Images in the memory of a CPU or GPU: pixels uint8 (N, C, H, W)."""

    def __init__(self, pixels: Tensor) -> None:
        self.pixels = pixels

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.pixels.shape[1:]
        return channels, height, width

    def __len__(self) -> int:
        return len(self.pixels)

    def batches(self, indices: Iterable[Tensor]) -> Iterator[Tensor]:
        for rows in indices:
            yield self.pixels[rows.to(self.pixels.device)]

    def at(self, indices: Tensor) -> "InMemoryImages":
        return InMemoryImages(self.pixels[indices.to(self.pixels.device)])

    def to(self, device: torch.device) -> "InMemoryImages":
        return InMemoryImages(self.pixels.to(device))


@dataclass(frozen=True)
class LabelledImages:
    """Images with their labels (N,), int64, on the CPU. names: the name of each image in its source."""

    images: Images
    labels: Tensor
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def at(self, indices: Tensor) -> "LabelledImages":
        """The images at these indices (n,), in this order."""
        names = tuple(self.names[index] for index in indices.tolist())
        return LabelledImages(self.images.at(indices), self.labels[indices], names)


@dataclass(frozen=True)
class DataSet:
    """A source's classes, training images and test images. Labels index the classes."""

    name: str  # "digits", "svhn", ..., or the path of a folder or zip
    classes: tuple[str, ...]
    train: LabelledImages
    test: LabelledImages | None  # None: the source has no test split
    fingerprint: str  # changes with the images and their order
    record: dict[str, Any] = field(default_factory=dict)  # JSON: how images were converted, what was left out
    warnings: tuple[str, ...] = ()  # reasons to doubt a result on these data


def find_shared(images: Images, others: Images) -> list[int]:
    """The indices of the images that equal one of the others, pixel for pixel."""
    known = set(_digests(others))
    return [index for index, digest in enumerate(_digests(images)) if digest in known]


def _digests(images: Images) -> Iterator[bytes]:
    for pixels in images.batches(torch.split(torch.arange(len(images)), 256)):
        for image in pixels.cpu().numpy():
            yield hashlib.sha256(image.tobytes()).digest()
