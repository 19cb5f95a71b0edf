"""Samplers of the memory: which training images each training step compares its batch with."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from memwrap.errors import SettingsError

MANY_IMAGES = 10_000


class MemorySampler(Protocol):
    """Draws memories. Implement `draw` and pass the object to `Trainer` for another scheme."""

    def draw(self, labels: Tensor, batch: Tensor, generator: torch.Generator) -> Tensor:
        """The memory of one step, as indices (M,) of training images; M is the same in every step.

        labels (N,): of all training images. batch (B,): the indices of the step's inputs.
        """


@dataclass(frozen=True)
class RandomMemory:
    """`size` training images drawn uniformly without replacement, as in the paper."""

    size: int

    def draw(self, labels: Tensor, batch: Tensor, generator: torch.Generator) -> Tensor:
        """indices (size,) in random order"""
        count = len(labels)
        check_size(self.size, count)
        # A few of many images are drawn faster one by one, and again in the rare case that one occurs twice.
        while count >= MANY_IMAGES and count > 4 * self.size**2:
            drawn = torch.randint(count, (self.size,), generator=generator)
            if len(set(drawn.tolist())) == self.size:
                return drawn
        return torch.randperm(count, generator=generator)[: self.size]


@dataclass(frozen=True)
class BalancedMemory:
    """`size` training images without replacement, equally many of each class (within one) as far as they suffice."""

    size: int

    def draw(self, labels: Tensor, batch: Tensor, generator: torch.Generator) -> Tensor:
        """indices (size,), in rounds of one image of each class"""
        check_size(self.size, len(labels))
        order = torch.randperm(len(labels), generator=generator)
        shuffled = labels[order]
        # The order of classes in a round is random too, as the last round may be cut short.
        ranks = torch.randperm(int(labels.max()) + 1, generator=generator)[shuffled]
        by_class, sizes = shuffled.argsort(stable=True), shuffled.bincount()
        rounds = torch.empty_like(order)  # the number of images of the same class before each one
        rounds[by_class] = torch.arange(len(labels)) - (sizes.cumsum(0) - sizes)[shuffled[by_class]]
        return order[torch.argsort(rounds * (int(ranks.max()) + 1) + ranks)[: self.size]]


def build_sampler(memory: str, size: int) -> MemorySampler | None:
    """The sampler of this name; None for "batch" and "queue", where the batch is the memory, or a part of it."""
    if memory in ("batch", "queue"):
        return None
    return BalancedMemory(size) if memory == "balanced" else RandomMemory(size)


def check_size(size: int, images: int, name: str = "memory_size") -> None:
    """Refuse a memory that is larger than the training set."""
    if size > images:
        raise SettingsError(
            f"{name} is {size}, but there are {images} training images, and a memory holds each at most once; "
            f"expected 1 to {images}"
        )
