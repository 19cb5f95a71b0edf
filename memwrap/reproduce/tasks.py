"""A table of the paper as a list of tasks: the models to train so that its numbers can be measured."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import total_ordering
from itertools import groupby
from typing import Any, ClassVar, TypeVar

from pydantic import ConfigDict

from memwrap.errors import SettingsError
from memwrap.reproduce.published import Cell, published_table
from memwrap.training.recipes import recipe
from memwrap.training.settings import PAPER_VARIANTS, Settings, with_changes

# Metrics of a trained model; the paper's other numbers are counted or timed.
MEASURED = ("accuracy", "explanation_accuracy", "counterfactual_accuracy")

STANDARD = "standard"
RANDOM = "random"  # the paper's training: a second pass over a memory drawn for each step
BATCH = "batch"  # each half of a batch is the memory of the other half
NO_MEMORY = "none"  # of Standard, which is the same run for both
TRAINING_MEMORIES = (RANDOM, BATCH)

# Sizes of the paper's training sets, without validation images.
TRAINING_IMAGES = {"svhn": 67_257, "cifar10": 44_000, "cinic10": 89_990}

_T = TypeVar("_T")


@total_ordering
@dataclass(frozen=True)
class Task:
    """One run. Tasks that differ in their seed alone form a group, and are adjacent when sorted."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)  # for records

    data: str
    samples: int | None  # training images; None: all
    encoder: str
    variant: str
    memory_size: int  # images; 0 for Standard
    seed: int
    memory: str = RANDOM  # the source of the memory in training; set to NO_MEMORY for Standard

    def __post_init__(self) -> None:
        if self.variant not in PAPER_VARIANTS:
            raise SettingsError(f"variant is {self.variant!r}; expected one of {', '.join(PAPER_VARIANTS)}")
        if (self.memory_size == 0) != (self.variant == STANDARD) or self.memory_size < 0:
            raise SettingsError(
                f"memory_size is {self.memory_size} for variant {self.variant}; "
                "expected 0 for standard and a positive number for the others"
            )
        if self.variant == STANDARD:
            object.__setattr__(self, "memory", NO_MEMORY)
        elif self.memory not in TRAINING_MEMORIES:
            raise SettingsError(f"memory is {self.memory!r}; expected {' or '.join(TRAINING_MEMORIES)}")

    @property
    def model(self) -> tuple[str, str, str, int, str]:
        """What is trained, without the number of samples and the seed."""
        return self.data, self.encoder, self.variant, self.memory_size, self.memory

    @property
    def group(self) -> str:
        """The common name of all tasks that differ from this one in their seed alone."""
        parts: list[Any] = [self.data, self.samples or "all", self.encoder, self.variant]
        if self.variant != STANDARD:
            parts += [self.memory_size, self.memory]
        return "-".join(map(str, parts))

    @property
    def name(self) -> str:
        """As "svhn-1000-mobilenet_v2-memory_wrap-100-random-seed3"."""
        return f"{self.group}-seed{self.seed}"

    def settings(self) -> Settings:
        """The settings of `memwrap train` for this task: the paper's recipe for the data, with the task's changes."""
        changes: dict[str, Any] = {
            "encoder": self.encoder,
            "variant": self.variant,
            "samples": self.samples,
            "seed": self.seed,
        }
        if self.variant != STANDARD:
            changes |= {"memory_size": self.memory_size, "remember": self.memory_size, "memory": self.memory}
        return with_changes(recipe(self.data), changes, self.name)

    def __lt__(self, other: "Task") -> bool:
        return self._key() < other._key()

    def _key(self) -> tuple[Any, ...]:
        samples = float("inf") if self.samples is None else self.samples
        return self.data, samples, self.encoder, self.variant, self.memory_size, self.memory, self.seed


@dataclass(frozen=True)
class Selection:
    """A table of the paper, or a part of it. What is empty selects everything."""

    table: str
    data: Sequence[str] = ()
    encoders: Sequence[str] = ()
    samples: Sequence[int] = ()
    variants: Sequence[str] = ()
    memory: str = RANDOM  # the source of the memory in training

    def __post_init__(self) -> None:
        check_has_runs(self.table)
        if self.memory not in TRAINING_MEMORIES:
            raise SettingsError(f"memory is {self.memory!r}; expected {' or '.join(TRAINING_MEMORIES)}")

    def cells(self) -> list[Cell]:
        """The selected cells, in the paper's order."""
        return select_cells(self.table, self.encoders, self.samples, self.variants, self.data)

    def tasks(self, seeds: Sequence[int]) -> list[Task]:
        """The runs that the selected cells need."""
        return tasks_for_cells(self.cells(), seeds, self.memory)

    def filter(self, tasks: Iterable[Task], seeds: Sequence[int] | None = None) -> set[Task]:
        """Those of the given tasks that belong to the selection. seeds: None keeps all."""
        groups = {task.group for task in self.tasks([0])}
        return {task for task in tasks if task.group in groups and (seeds is None or task.seed in seeds)}

    def whole(self) -> "Selection":
        """The whole table."""
        return Selection(self.table, memory=self.memory)

    @property
    def name(self) -> str:
        """The table's id, followed by what narrows it, in the table's order: as "svhn-reduced-resnet18-1000"."""
        given = {"data": self.data, "encoder": self.encoders, "samples": self.samples, "variant": self.variants}
        cells = self.cells()
        chosen = [str(value) for name in given if given[name] for value in unique(getattr(c, name) for c in cells)]
        return "-".join([self.table, *chosen, *([self.memory] if self.memory != RANDOM else [])])


def has_runs(table: str) -> bool:
    """Whether a table is made from runs or by counting; `cost` needs a stopwatch."""
    return table != "cost"


def check_has_runs(table: str) -> None:
    """Raise a SettingsError for a table of times."""
    if not has_runs(table):
        raise SettingsError("table 'cost' is of times, not of runs; measure them with memwrap bench --only sizes")


def select_cells(
    table: str,
    encoders: Sequence[str] = (),
    samples: Sequence[int] = (),
    variants: Sequence[str] = (),
    data: Sequence[str] = (),
) -> list[Cell]:
    """The cells of a table, in the paper's order, narrowed by what is not empty.

    Raises a SettingsError for a value that none of the cells has.
    """
    cells = list(published_table(table))
    given = {"data": data, "encoder": encoders, "samples": samples, "variant": variants}
    wanted: dict[str, Sequence[Any]] = {name: values for name, values in given.items() if values}
    for name, values in wanted.items():
        known = unique(getattr(cell, name) for cell in cells)
        if unknown := [value for value in values if value not in known]:
            listed = ", ".join("all" if each is None else str(each) or "not named" for each in known)
            raise SettingsError(f"table {table!r} has no {name} {unknown[0]!r}; it has {listed}")
    chosen = [cell for cell in cells if all(getattr(cell, name) in values for name, values in wanted.items())]
    for name, values in wanted.items():
        if absent := [value for value in values if not any(getattr(cell, name) == value for cell in chosen)]:
            others = ", ".join(f"{each} {' or '.join(map(str, wanted[each]))}" for each in wanted if each != name)
            raise SettingsError(f"table {table!r} has no {name} {absent[0]!r} with {others}; select less at once")
    return chosen


def tasks_for_cells(cells: Iterable[Cell], seeds: Sequence[int], memory: str = RANDOM) -> list[Task]:
    """The runs that cells are measured with, each once, the seeds of a group next to each other.

    Groups of one model are adjacent, the one with most samples first: what an engine has allocated for it has room for
    the others.
    """
    groups = unique(task_for_cell(cell, 0, memory) for cell in cells if cell.metric in MEASURED)
    order = {model: position for position, model in enumerate(unique(group.model for group in groups))}
    groups.sort(key=lambda group: (order[group.model], -(group.samples or math.inf)))
    return [replace(group, seed=seed) for group in groups for seed in seeds]


def task_for_cell(cell: Cell, seed: int, memory: str = RANDOM) -> Task:
    """The run with which a cell is measured, for one seed."""
    return Task(cell.data, cell.samples, cell.encoder, cell.variant, cell.memory_size, seed, memory)


def split_groups(tasks: Iterable[Task], size: int) -> list[list[Task]]:
    """Consecutive tasks of one group, at most `size` at a time, in the given order."""
    parts = []
    for _, group in groupby(tasks, lambda task: task.group):
        same = list(group)
        parts += [same[start : start + size] for start in range(0, len(same), size)]
    return parts


def unique(values: Iterable[_T]) -> list[_T]:
    """The values without repeats, in order."""
    return list(dict.fromkeys(values))
