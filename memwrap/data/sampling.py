"""Which training images are the memory of a step."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from memwrap.errors import SettingsError

MANY_IMAGES = 10_000


class MemorySampler(Protocol):
    """Draws memories. To use one of your own, implement `draw` and give it to `Trainer`."""

    def draw(self, labels: Tensor, batch: Tensor, generator: torch.Generator) -> Tensor:
        """The memory of one step, as indices (M,) of training images; M is the same in every step.

        labels (N,): of all training images. batch (B,): the images that are judged in this step, as indices.
        """


@dataclass(frozen=True)
class RandomMemory:
    """So many training images at random, each at most once: the paper's."""

    size: int

    def draw(self, labels: Tensor, batch: Tensor, generator: torch.Generator) -> Tensor:
        """indices (size,) in random order"""
        count = len(labels)
        check_size(self.size, count)
        # Of many images a few are drawn faster one by one: all again if one comes twice, which is rare then.
        while count >= MANY_IMAGES and count > 4 * self.size**2:
            drawn = torch.randint(count, (self.size,), generator=generator)
            if len(set(drawn.tolist())) == self.size:
                return drawn
        return torch.randperm(count, generator=generator)[: self.size]


@dataclass(frozen=True)
class BalancedMemory:
    """As many of each class as of any other, to one, or all that a small class has; each at most once."""

    size: int

    def draw(self, labels: Tensor, batch: Tensor, generator: torch.Generator) -> Tensor:
        """indices (size,), in rounds of one image of each class"""
        check_size(self.size, len(labels))
        order = torch.randperm(len(labels), generator=generator)
        shuffled = labels[order]
        # The class that comes first in a round is random, too, as the last round may be cut short.
        ranks = torch.randperm(int(labels.max()) + 1, generator=generator)[shuffled]
        by_class, sizes = shuffled.argsort(stable=True), shuffled.bincount()
        turn = torch.empty_like(order)  # how many of its class come before it in this order
        turn[by_class] = torch.arange(len(labels)) - (sizes.cumsum(0) - sizes)[shuffled[by_class]]
        return order[torch.argsort(turn * (int(ranks.max()) + 1) + ranks)[: self.size]]


def build_sampler(memory: str, size: int) -> MemorySampler | None:
    """The sampler of that name; None for the batch as its own memory, which draws nothing."""
    if memory == "batch":
        return None
    return BalancedMemory(size) if memory == "balanced" else RandomMemory(size)


def check_size(size: int, images: int, name: str = "memory_size") -> None:
    """A memory holds each training image at most once."""
    if size > images:
        raise SettingsError(
            f"{name} is {size}, but there are {images} training images, and a memory holds each at most once; "
            f"expected 1 to {images}"
        )
