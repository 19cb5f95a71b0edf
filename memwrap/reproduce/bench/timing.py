"""Timing of several candidates against a base.

Each is timed once in every round, in random order, so that a machine that slows down slows all of them; ratios are
taken within a round.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as stored

from memwrap.reproduce.provenance import STORED

Clock = Callable[[], float]  # seconds, after all pending work


@dataclass(frozen=True)
class Cudnn:
    """Settings of torch.backends.cudnn for a candidate. These are torch's defaults."""

    benchmark: bool = False
    deterministic: bool = False

    @contextmanager
    def set(self) -> Iterator[None]:
        backend = torch.backends.cudnn
        before = backend.benchmark, backend.deterministic
        backend.benchmark, backend.deterministic = self.benchmark, self.deterministic
        try:
            yield
        finally:
            backend.benchmark, backend.deterministic = before


@dataclass(frozen=True)
class Candidate:
    """Something to be timed.

    run: one turn, of `units` units. ready: called before each turn, not timed. warm_up: replaces `run` in rounds that
    do not count, if that is quicker. facts: the conditions, as JSON values.
    """

    name: str
    run: Callable[[], object]
    units: int = 1
    ready: Callable[[], object] = lambda: None
    warm_up: Callable[[], object] | None = None
    cudnn: Cudnn = Cudnn()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def conditions(self) -> dict[str, Any]:
        """Its facts and cuDNN settings."""
        return {
            **self.facts,
            "cudnn_benchmark": self.cudnn.benchmark,
            "cudnn_deterministic": self.cudnn.deterministic,
        }


_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@stored(frozen=True, config=STORED)
class Spread:
    """Median and quartiles of some rounds."""

    median: _Positive
    lower: _Positive
    upper: _Positive


@dataclass(frozen=True)
class Timing:
    """Seconds per unit of a candidate and a base, and the ratio of the two within a round."""

    candidate: Candidate
    base: Candidate
    seconds: Spread
    base_seconds: Spread
    ratio: Spread
    rounds: int


@dataclass(frozen=True)
class Stopwatch:
    """Times candidates in random order."""

    clock: Clock
    order: random.Random

    def compare(self, base: Candidate, others: Sequence[Candidate], rounds: int, warm_up: int = 1) -> list[Timing]:
        """Compare each of the others with the base. warm_up: rounds before, which do not count."""
        times = self.times([base, *others], rounds, warm_up)
        return [
            Timing(
                candidate=other,
                base=base,
                seconds=spread(times[other.name]),
                base_seconds=spread(times[base.name]),
                ratio=spread([a / b for a, b in zip(times[other.name], times[base.name], strict=True)]),
                rounds=rounds,
            )
            for other in others
        ]

    def times(self, candidates: Sequence[Candidate], rounds: int, warm_up: int = 1) -> dict[str, list[float]]:
        """Seconds per unit of each counted round, by name."""
        found: dict[str, list[float]] = {each.name: [] for each in candidates}
        for number in range(warm_up + rounds):
            for each in self.order.sample(list(candidates), len(candidates)):
                if number < warm_up:
                    self._seconds(each, each.warm_up or each.run)
                else:
                    found[each.name].append(self._seconds(each, each.run) / each.units)
        return found

    def _seconds(self, candidate: Candidate, run: Callable[[], object]) -> float:
        with candidate.cudnn.set():
            candidate.ready()
            begun = self.clock()
            run()
            return self.clock() - begun


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles, within the measured range."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, lower, upper)


def clock_for(device: torch.device) -> Clock:
    """Wall clock, read after the device has finished."""

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    return now
