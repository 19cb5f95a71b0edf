"""Times of several things beside one another.

Each is timed once in every round, in random order, so that a machine that slows down slows all of them; ratios are
taken within a round.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

Clock = Callable[[], float]  # seconds, once all that was begun is done


@dataclass(frozen=True)
class Cudnn:
    """What a contestant has set of torch.backends.cudnn. These are torch's defaults."""

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

    run: does so many units of what is counted, such as steps. ready: comes before each turn and is not timed. warm_up:
    takes its place in rounds that do not count, if that is quicker. facts: JSON values, under which conditions it runs.
    """

    name: str
    run: Callable[[], object]
    units: int = 1
    ready: Callable[[], object] = lambda: None
    warm_up: Callable[[], object] | None = None
    cudnn: Cudnn = Cudnn()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def conditions(self) -> dict[str, Any]:
        """Its facts, and what it has set."""
        return {
            **self.facts,
            "cudnn_benchmark": self.cudnn.benchmark,
            "cudnn_deterministic": self.cudnn.deterministic,
        }


@dataclass(frozen=True)
class Spread:
    """The median of some rounds, and their quartiles."""

    median: float
    lower: float
    upper: float


@dataclass(frozen=True)
class Compared:
    """One contestant beside another: seconds for each unit of both, and in each round one's over the other's."""

    one: Candidate
    base: Candidate
    seconds: Spread
    base_seconds: Spread
    ratio: Spread
    rounds: int


@dataclass(frozen=True)
class Stopwatch:
    """Takes times by a clock, in an order that its random numbers decide."""

    clock: Clock
    order: random.Random

    def compare(self, base: Candidate, others: Sequence[Candidate], rounds: int, warm_up: int = 1) -> list[Compared]:
        """Each of the others beside the base. warm_up: rounds before, which do not count."""
        times = self.times([base, *others], rounds, warm_up)
        return [
            Compared(
                one=other,
                base=base,
                seconds=spread(times[other.name]),
                base_seconds=spread(times[base.name]),
                ratio=spread([a / b for a, b in zip(times[other.name], times[base.name], strict=True)]),
                rounds=rounds,
            )
            for other in others
        ]

    def times(self, contestants: Sequence[Candidate], rounds: int, warm_up: int = 1) -> dict[str, list[float]]:
        """By name, seconds for each unit in every round that counts."""
        found: dict[str, list[float]] = {each.name: [] for each in contestants}
        for number in range(warm_up + rounds):
            for each in self.order.sample(list(contestants), len(contestants)):
                if number < warm_up:
                    self._seconds(each, each.warm_up or each.run)
                else:
                    found[each.name].append(self._seconds(each, each.run) / each.units)
        return found

    def _seconds(self, contestant: Candidate, run: Callable[[], object]) -> float:
        with contestant.cudnn.set():
            contestant.ready()
            begun = self.clock()
            run()
            return self.clock() - begun


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles, none of them outside of what was measured."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, lower, upper)


def clock_for(device: torch.device) -> Clock:
    """Wall clock, read when the device has done all that it was given."""

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    return now
