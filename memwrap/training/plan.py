"""What every step of a run is given, as indices: drawn by seed and epoch, so that any step can be drawn again."""

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
    """indices (B + M,) of training images, the inputs first; numbers (B + M, K) for their random changes."""

    indices: Tensor
    numbers: Tensor
    inputs: int


@dataclass(frozen=True)
class Plan:
    """All steps of a run: batches without replacement, the last incomplete one of an epoch dropped, and memories."""

    labels: Tensor  # (N,)
    batch_size: int
    sampler: MemorySampler | None  # None: a step has no memory of its own
    seed: int

    def __post_init__(self) -> None:
        if self.batch_size > len(self.labels):
            raise SettingsError(
                f"batch_size is {self.batch_size}, but there are {len(self.labels)} training images; "
                f"expected 2 to {len(self.labels)}"
            )

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
        # Two, so that the inputs' changes do not depend on the memory.
        changes, memory_changes = (generator(self.seed, f"{name}augmentation", epoch) for name in ("", "memory "))
        for batch in torch.split(order, self.batch_size)[: self.steps_per_epoch]:
            memory = batch[:0] if self.sampler is None else self.sampler.draw(self.labels, batch, memories)
            numbers = [augmentation.draw(len(batch), changes), augmentation.draw(len(memory), memory_changes)]
            yield PlannedStep(torch.cat([batch, memory]), torch.cat(numbers), len(batch))
