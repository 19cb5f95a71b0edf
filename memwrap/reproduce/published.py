"""The paper as data: every number of its tables, as printed (La Rosa et al. 2021).

Tables have the ids of `memwrap reproduce`. The tables on explanations in the body and in the appendix are one here, and
so are those on counterfactuals. `cost` is no table of the paper: it holds the numbers that its text gives.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, total_ordering
from importlib.resources import files

from memwrap.errors import SettingsError

FILE = "published.csv"

# Counted, not measured: ours is the same number or another.
EXACT = ("parameters", "encoding_size")


@total_ordering
@dataclass(frozen=True)
class Cell:
    """Which number it is. Cells are in order of their fields; the full data set comes after its parts."""

    metric: (
        str  # accuracy, explanation_accuracy, counterfactual_accuracy, parameters, encoding_size, epoch_seconds, ...
    )
    data: str  # svhn, cifar10 or cinic10; empty where the number does not hang on it, or the paper does not say
    samples: int | None  # to train on; None: the full data set, or as with an empty `data`
    encoder: str  # a name that memwrap.encoders knows; empty where the paper does not say
    variant: str  # standard, only_memory or memory_wrap
    memory_size: int  # 0 for standard

    def __lt__(self, other: "Cell") -> bool:
        return self._key() < other._key()

    def _key(self) -> tuple[str, str, float, str, str, int]:
        samples = float("inf") if self.samples is None else self.samples
        return self.metric, self.data, samples, self.encoder, self.variant, self.memory_size


@dataclass(frozen=True)
class Published:
    """What the paper says: accuracies in percent, spread as its standard deviation over the runs (ddof = 0)."""

    mean: float
    spread: float | None  # None where the paper gives none
    runs: int  # 1 where the paper does not say
    exact: bool = False  # counted, so no run can give another
    note: str = ""  # what a reader of this number should know


@dataclass(frozen=True)
class About:
    """What stands around a table."""

    title: str
    notes: tuple[str, ...] = ()  # slips of the paper that do not change its numbers


_TABLES = {
    "svhn-reduced": About("Reduced SVHN: accuracy, %"),
    "cifar10-reduced": About("Reduced CIFAR10: accuracy, %"),
    "cinic10-reduced": About(
        "Reduced CINIC10: accuracy, %",
        ("The paper's caption says SVHN; the head of its table and the text say CINIC10.",),
    ),
    "svhn-more": About("Reduced SVHN, additional architectures: accuracy, %"),
    "cifar10-more": About(
        "Reduced CIFAR10, additional architectures: accuracy, %",
        ("The paper's bold type misses the best of ShuffleNet at 5000 samples, Only Memory.",),
    ),
    "cinic10-more": About("Reduced CINIC10, additional architectures: accuracy, %"),
    "full": About(
        "Full data sets: accuracy, %", ("The paper's caption names SVHN and CIFAR10; its table has CINIC10, too.",)
    ),
    "explanations": About("Explanation accuracy, %"),
    "counterfactuals": About(
        "Accuracy where the strongest memory sample is a counterfactual, %",
        ("One of the paper's two tables of this is headed 'explanation accuracy'; its caption says what it is.",),
    ),
    "parameters": About("Number of parameters"),
    "memory-size": About(
        "Impact of the memory's size on reduced SVHN: accuracy, %",
        ("The paper heads the column of memory sizes 'samples'.",),
    ),
    "cost": About("Computational cost"),
}


def tables() -> list[str]:
    """The ids of all tables."""
    return list(_TABLES)


def about(table: str) -> About:
    """A table's title, and notes on it."""
    if table not in _TABLES:
        raise SettingsError(f"table {table!r} is not known; known are {', '.join(_TABLES)}")
    return _TABLES[table]


def published(table: str) -> dict[Cell, Published]:
    """Every number of a table, in the order of the paper."""
    about(table)
    return dict(_all()[table])


@cache
def _all() -> dict[str, dict[Cell, Published]]:
    found: dict[str, dict[Cell, Published]] = {table: {} for table in _TABLES}
    for table, cell, number in _lines():
        found[table][cell] = number
    return found


def _lines() -> Iterator[tuple[str, Cell, Published]]:
    text = files("memwrap.reproduce").joinpath(FILE).read_text(encoding="utf-8")
    for line in csv.DictReader(text.splitlines()):
        yield line["table"], _cell(line), _number(line)


def _cell(line: dict[str, str]) -> Cell:
    return Cell(
        metric=line["metric"],
        data=line["data"],
        samples=int(line["samples"]) if line["samples"] else None,
        encoder=line["encoder"],
        variant=line["variant"],
        memory_size=int(line["memory_size"]),
    )


def _number(line: dict[str, str]) -> Published:
    return Published(
        mean=float(line["mean"]),
        spread=float(line["spread"]) if line["spread"] else None,
        runs=int(line["runs"]),
        exact=line["metric"] in EXACT,
        note=line["note"],
    )
