"""The images of every training step, as indices: drawn by seed and epoch, so that any step can be drawn again."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from memwrap.data import MemorySampler, generator
from memwrap.errors import SettingsError
from memwrap.training import augmentation


@dataclass(frozen=True)
class PlannedStep:
    """indices (B + M,) of training images, the inputs first; numbers (B + M, K), uniform, for their augmentation."""

    indices: Tensor
    numbers: Tensor
    inputs: int


@dataclass(frozen=True)
class BatchPlan:
    """All steps of a run: shuffled batches, the last incomplete one of an epoch dropped, and a memory for each.

    Each of `world_size` processes gets its part of every batch, and the same memory; batch_size counts all parts.
    """

    labels: Tensor  # (N,)
    batch_size: int
    sampler: MemorySampler | None  # None: draw no memory
    seed: int
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.batch_size > len(self.labels):
            raise SettingsError(
                f"batch_size is {self.batch_size}, but there are {len(self.labels)} training images; "
                f"expected 2 to {len(self.labels)}"
            )
        if not 0 <= self.rank < self.world_size:
            raise SettingsError(f"rank is {self.rank} of world_size {self.world_size}; expected 0 or more, and less")
        if self.batch_size % self.world_size:
            raise SettingsError(f"batch_size is {self.batch_size}; expected a multiple of world_size {self.world_size}")

    @property
    def steps_per_epoch(self) -> int:
        return len(self.labels) // self.batch_size

    def steps(self, start: int, stop: int) -> Iterator[PlannedStep]:
        """Steps start, start + 1, ..., stop - 1 of the run."""
        step = start
        while step < stop:
            epoch, skipped = divmod(step, self.steps_per_epoch)
            for planned in islice(self._epoch(epoch), skipped, skipped + stop - step):
                yield planned
                step += 1

    def _epoch(self, epoch: int) -> Iterator[PlannedStep]:
        order = torch.randperm(len(self.labels), generator=generator(self.seed, "batches", epoch))
        memories = generator(self.seed, "memory", epoch)
        # Two generators, so that the augmentation of the inputs does not depend on the memory.
        changes, memory_changes = (generator(self.seed, f"{name}augmentation", epoch) for name in ("", "memory "))
        own = slice(self.rank, None, self.world_size)
        for batch in torch.split(order, self.batch_size)[: self.steps_per_epoch]:
            # Drawn for the whole batch, whatever part of it this process takes: the draws do not depend on world_size.
            memory = batch[:0] if self.sampler is None else self.sampler.draw(self.labels, batch, memories)
            numbers = [augmentation.draw(len(batch), changes)[own], augmentation.draw(len(memory), memory_changes)]
            yield PlannedStep(torch.cat([batch[own], memory]), torch.cat(numbers), len(batch[own]))
