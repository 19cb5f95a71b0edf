"""The numbers printed in the paper's tables (La Rosa et al. 2021), from `published.csv`.

Tables carry the ids of `memwrap reproduce`. The tables on explanations in the body and in the appendix are one table
here, and so are those on counterfactuals. `cost` holds numbers that the paper's text gives.
"""

import csv
from dataclasses import dataclass
from functools import cache, total_ordering
from importlib.resources import files

from memwrap.errors import SettingsError

# Counted, not measured: ours is either the same number or not.
EXACT = ("parameters", "encoding_size")


@total_ordering
@dataclass(frozen=True)
class Cell:
    """Identifies one number of a table. Cells sort by their fields, the full data set after its subsets."""

    metric: str  # accuracy, explanation_accuracy, counterfactual_accuracy, parameters, encoding_size, epoch_seconds...
    data: str  # svhn, cifar10 or cinic10; empty where it does not matter or the paper does not say
    samples: int | None  # training images; None: the full data set, or as for an empty `data`
    encoder: str  # a name known to memwrap.encoders; empty where the paper does not say
    variant: str  # standard, only_memory or memory_wrap
    memory_size: int  # 0 for standard

    def __lt__(self, other: "Cell") -> bool:
        return self._key() < other._key()

    def _key(self) -> tuple[str, str, float, str, str, int]:
        samples = float("inf") if self.samples is None else self.samples
        return self.metric, self.data, samples, self.encoder, self.variant, self.memory_size


@dataclass(frozen=True)
class Published:
    """A number of the paper: accuracies in percent, spread as its standard deviation over the runs (ddof = 0)."""

    mean: float
    spread: float | None  # None where the paper gives none
    runs: int  # 1 where the paper does not say
    exact: bool = False  # counted, not measured
    note: str = ""  # what a reader should know about this number


@dataclass(frozen=True)
class TableInfo:
    """Title and remarks of a table."""

    title: str
    notes: tuple[str, ...] = ()  # slips of the paper that do not change its numbers


_TABLES = {
    "svhn-reduced": TableInfo("Reduced SVHN: accuracy, %"),
    "cifar10-reduced": TableInfo("Reduced CIFAR10: accuracy, %"),
    "cinic10-reduced": TableInfo(
        "Reduced CINIC10: accuracy, %",
        ("The paper's caption says SVHN; the head of its table and the text say CINIC10.",),
    ),
    "svhn-more": TableInfo("Reduced SVHN, additional architectures: accuracy, %"),
    "cifar10-more": TableInfo(
        "Reduced CIFAR10, additional architectures: accuracy, %",
        ("The paper's bold type misses the best of ShuffleNet at 5000 samples, Only Memory.",),
    ),
    "cinic10-more": TableInfo("Reduced CINIC10, additional architectures: accuracy, %"),
    "full": TableInfo(
        "Full data sets: accuracy, %", ("The paper's caption names SVHN and CIFAR10; its table also has CINIC10.",)
    ),
    "explanations": TableInfo("Explanation accuracy, %"),
    "counterfactuals": TableInfo(
        "Accuracy where the strongest memory sample is a counterfactual, %",
        ("One of the paper's two tables of this is headed 'explanation accuracy'; its caption is right.",),
    ),
    "parameters": TableInfo("Number of parameters"),
    "memory-size": TableInfo(
        "Impact of the memory's size on reduced SVHN: accuracy, %",
        ("The paper heads the column of memory sizes 'samples'.",),
    ),
    "cost": TableInfo("Computational cost"),
}


def table_names() -> list[str]:
    """The ids of all tables."""
    return list(_TABLES)


def table_info(table: str) -> TableInfo:
    """Title and remarks of a table."""
    if table not in _TABLES:
        raise SettingsError(f"table {table!r} is not known; known are {', '.join(_TABLES)}")
    return _TABLES[table]


def published_table(table: str) -> dict[Cell, Published]:
    """Every number of a table, in the paper's order."""
    table_info(table)
    return dict(_read_all()[table])


@cache
def _read_all() -> dict[str, dict[Cell, Published]]:
    text = files("memwrap.reproduce").joinpath("published.csv").read_text(encoding="utf-8")
    numbers: dict[str, dict[Cell, Published]] = {table: {} for table in _TABLES}
    for line in csv.DictReader(text.splitlines()):
        cell = Cell(
            metric=line["metric"],
            data=line["data"],
            samples=int(line["samples"]) if line["samples"] else None,
            encoder=line["encoder"],
            variant=line["variant"],
            memory_size=int(line["memory_size"]),
        )
        numbers[line["table"]][cell] = Published(
            mean=float(line["mean"]),
            spread=float(line["spread"]) if line["spread"] else None,
            runs=int(line["runs"]),
            exact=cell.metric in EXACT,
            note=line["note"],
        )
    return numbers
