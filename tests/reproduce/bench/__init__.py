"""Measuring, without looking at how long anything took."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from memwrap.reproduce.bench.context import BenchContext
from memwrap.reproduce.bench.record import Measurement, Skipped
from memwrap.reproduce.bench.sizes import QUICK
from memwrap.reproduce.bench.timing import Candidate, Spread, Stopwatch, Timing, clock_for

CPU = torch.device("cpu")


class Watching(Stopwatch):
    """A stopwatch that remembers what it was given."""

    def __init__(self) -> None:
        super().__init__(clock_for(CPU), random.Random(0))
        self.__dict__["seen"] = []

    @property
    def seen(self) -> list[Candidate]:
        found: list[Candidate] = self.__dict__["seen"]
        return found

    def compare(self, base: Candidate, others: Sequence[Candidate], rounds: int, warm_up: int = 1) -> list[Timing]:
        self.seen.extend([base, *others])
        return super().compare(base, others, rounds, warm_up)


class PretendGpu(BenchContext):
    """A CPU on which all is done as on a GPU; runs are trained side by side there, too."""

    @property
    def on_gpu(self) -> bool:
        return True

    @property
    def has_kernels(self) -> bool:
        return True


def make_context(kind: type[BenchContext] = BenchContext, **sizes: Any) -> BenchContext:
    """As little as there can be."""
    usual = {"rounds": 1, "images": 16, "batch": 8, "memory": 4, "inference_batch": 4, "captured_steps": 3}
    return kind(CPU, replace(QUICK, **{**usual, **sizes}), Watching(), side_by_side=2)


def seen(watched: BenchContext) -> dict[str, Candidate]:
    """What was timed, by name."""
    assert isinstance(watched.stopwatch, Watching)
    return {each.name: each for each in watched.stopwatch.seen}


ROW = Measurement(
    part="attention",
    subject="sparsemax",
    encoder=None,
    unit="call",
    name="ours",
    base="entmax",
    seconds=Spread(1.0, 0.5, 2.0),
    base_seconds=Spread(4.0, 3.0, 5.0),
    ratio=Spread(0.25, 0.2, 0.3),
    rounds=3,
    facts={"batch": 1},
    peak=7,
)
SKIPPED = Skipped("memory", "a memory of 10", "too large")
