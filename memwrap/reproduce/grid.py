"""A table of the paper as a list of runs: which models have to be trained so that its numbers can be measured."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import total_ordering
from itertools import groupby
from typing import Any

from memwrap.errors import SettingsError
from memwrap.reproduce.published import Cell, published
from memwrap.training.recipes import recipe
from memwrap.training.settings import VARIANTS, Settings, with_changes

# What a trained model is measured by; other numbers of the paper need no training, or a stopwatch.
MEASURED = ("accuracy", "explanation_accuracy", "counterfactual_accuracy")

STANDARD = "standard"
RANDOM = "random"  # the paper's training: a second pass, over a memory that is drawn for each step
BATCH = "batch"  # each half of a batch is the memory of the other
NO_MEMORY = "none"  # of Standard, for which the two are the same
TRAINED_WITH = (RANDOM, BATCH)

# What the paper's training sets hold, without validation images.
TRAINING_IMAGES = {"svhn": 67_257, "cifar10": 44_000, "cinic10": 89_990}


@total_ordering
@dataclass(frozen=True)
class Task:
    """One run. Tasks that differ only in their seeds are of one group, and stand together when tasks are sorted."""

    data: str
    samples: int | None  # to train on; None: all
    encoder: str
    variant: str
    memory_size: int  # images; 0 for Standard
    seed: int
    memory: str = RANDOM  # where a training step takes its memory from, whatever is given for Standard

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise SettingsError(f"variant is {self.variant!r}; expected one of {', '.join(VARIANTS)}")
        if (self.memory_size == 0) != (self.variant == STANDARD) or self.memory_size < 0:
            raise SettingsError(
                f"memory_size is {self.memory_size} and the variant {self.variant}; "
                "expected 0 for standard, and a number of images for the others"
            )
        if self.variant == STANDARD:
            object.__setattr__(self, "memory", NO_MEMORY)
        elif self.memory not in TRAINED_WITH:
            raise SettingsError(f"memory is {self.memory!r}; expected {' or '.join(TRAINED_WITH)}")

    @property
    def model(self) -> tuple[str, str, str, int, str]:
        """What is trained, but for the number of samples and the seed."""
        return self.data, self.encoder, self.variant, self.memory_size, self.memory

    @property
    def group(self) -> str:
        """The name of all runs that differ from this one only in their seeds."""
        parts: list[Any] = [self.data, self.samples or "all", self.encoder, self.variant]
        if self.variant != STANDARD:
            parts += [self.memory_size, self.memory]
        return "-".join(map(str, parts))

    @property
    def name(self) -> str:
        """As "svhn-1000-mobilenet_v2-memory_wrap-100-random-seed3"."""
        return f"{self.group}-seed{self.seed}"

    def __lt__(self, other: "Task") -> bool:
        return self._key() < other._key()

    def _key(self) -> tuple[Any, ...]:
        samples = float("inf") if self.samples is None else self.samples
        return self.data, samples, self.encoder, self.variant, self.memory_size, self.memory, self.seed


def is_of_runs(table: str) -> bool:
    """Whether runs, or counting, give a table: one is of times."""
    return table != "cost"


def check_is_of_runs(table: str) -> None:
    """A SettingsError if a table is not."""
    if not is_of_runs(table):
        raise SettingsError("table 'cost' is of times, not of runs; memwrap bench --only sizes measures them")


def cells_of(
    table: str,
    encoders: Sequence[str] = (),
    samples: Sequence[int] = (),
    variants: Sequence[str] = (),
    data: Sequence[str] = (),
) -> list[Cell]:
    """The cells of a table, in the paper's order. The rest narrows them; what is empty leaves them all.

    A SettingsError if something that is asked for is in none of them.
    """
    cells = list(published(table))
    given = {"data": data, "encoder": encoders, "samples": samples, "variant": variants}
    wanted: dict[str, Sequence[Any]] = {name: values for name, values in given.items() if values}
    asked = [(name, value) for name, values in wanted.items() for value in values]
    for name, value in asked:
        known = list(dict.fromkeys(getattr(cell, name) for cell in cells))
        if value not in known:
            words = ", ".join("all" if each is None else str(each) or "none named" for each in known)
            raise SettingsError(f"table {table!r} has nothing with {name} {value!r}; it has {words}")
    left = [cell for cell in cells if all(getattr(cell, name) in values for name, values in wanted.items())]
    for name, value in asked:
        if not any(getattr(cell, name) == value for cell in left):
            rest = ", ".join(
                f"{other} {' or '.join(map(str, values))}" for other, values in wanted.items() if other != name
            )
            raise SettingsError(f"table {table!r} has nothing with {name} {value!r} and {rest}; ask for less at once")
    return left


def tasks_for(cells: Iterable[Cell], seeds: Sequence[int], memory: str = RANDOM) -> list[Task]:
    """The runs that cells are measured with, each once, the seeds of a group one after the other.

    Groups of the same model stand together, the one with most samples first: what an engine has made ready for it has
    room for the others.
    """
    groups = list(dict.fromkeys(task_for(cell, 0, memory) for cell in cells if cell.metric in MEASURED))
    places: dict[tuple[Any, ...], int] = {}
    for group in groups:
        places.setdefault(group.model, len(places))
    groups.sort(key=lambda group: (places[group.model], -(group.samples or math.inf)))
    return [replace(group, seed=seed) for group in groups for seed in seeds]


def task_for(cell: Cell, seed: int, memory: str = RANDOM) -> Task:
    """The run of a seed that a cell is measured with."""
    return Task(cell.data, cell.samples, cell.encoder, cell.variant, cell.memory_size, seed, memory)


def settings_of(task: Task) -> Settings:
    """How `memwrap train` would be told to make this run: the paper's recipe for the data, and what the task says."""
    changes: dict[str, Any] = {
        "encoder": task.encoder,
        "variant": task.variant,
        "samples": task.samples,
        "seed": task.seed,
    }
    if task.variant != STANDARD:
        changes |= {"memory_size": task.memory_size, "remember": task.memory_size, "memory": task.memory}
    return with_changes(recipe(task.data), changes, task.name)


def grouped(tasks: Iterable[Task], size: int) -> list[list[Task]]:
    """Tasks in their order, at most so many at a time, those of a list of one group."""
    found = []
    for _, group in groupby(tasks, lambda task: task.group):
        same = list(group)
        found += [same[start : start + size] for start in range(0, len(same), size)]
    return found
