"""Holds runs of Memory Wrap trained with the batch as memory against those of two passes, as the paper has them."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from memwrap.errors import DataError
from memwrap.reproduce import records, tables
from memwrap.reproduce.grid import BATCH, RANDOM, Task
from memwrap.reproduce.records import Record
from memwrap.reproduce.rendering import plain_text
from memwrap.reproduce.rows import DATA
from summary_parts.markdown import markdown_table
from summary_parts.wording import NOTHING, encoder_name, span, where

FILE = "reproduce/batch-as-memory.md"
FAR = 2  # standard errors, beyond which a difference is marked


@dataclass(frozen=True)
class Sides:
    """Runs of Memory Wrap in pairs of one seed, which differ only in where training took its memory from."""

    batch: tuple[Record, ...]
    two_passes: tuple[Record, ...]  # in the same order of seeds

    @property
    def task(self) -> Task:
        return self.batch[0].task

    @property
    def runs(self) -> tuple[Record, ...]:
        return *self.batch, *self.two_passes

    @property
    def name(self) -> str:
        task = self.task
        return f"{DATA[task.data]}, {encoder_name(task.encoder)}, {_samples_name(task)}, memory of {task.memory_size}"


@dataclass(frozen=True)
class Difference:
    """Of the two of a pair, the first less the second, in the mean. None: there is no spread to hold it against."""

    points: float
    standard_error: float | None

    @property
    def in_errors(self) -> float | None:
        return self.points / self.standard_error if self.standard_error else None

    @property
    def is_far(self) -> bool:
        return self.in_errors is not None and abs(self.in_errors) > FAR


def difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Pair by pair: two runs of a seed have the same training images, which much of the scatter comes from."""
    found = [one - other for one, other in zip(first, second, strict=True)]
    error = statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else None
    return Difference(statistics.fmean(found), error)


def sides_of(known: Iterable[Record]) -> list[Sides]:
    """For each data set, encoder, number of samples and size of the memory, if there are runs of both kinds."""
    found: dict[tuple[Any, ...], dict[str, dict[int, Record]]] = defaultdict(lambda: defaultdict(dict))
    for record in known:
        task = record.task
        if task.variant == "memory_wrap":
            key = task.data, task.encoder, task.samples or math.inf, task.memory_size
            found[key][task.memory][task.seed] = record
    sides = []
    for _, ways in sorted(found.items()):
        if seeds := sorted(ways[BATCH].keys() & ways[RANDOM].keys()):
            sides.append(Sides(*(tuple(ways[way][seed] for seed in seeds) for way in (BATCH, RANDOM))))
    for one, other in ((one, other) for each in sides for one, other in zip(each.batch, each.two_passes, strict=True)):
        if one.subset != other.subset:
            raise DataError(f"{one.task.name} and {other.task.name} were trained on different images, so are no pair")
    tables.check_one_data_set([run for each in sides for run in each.runs])
    return sides


def files(sides: Sequence[Sides]) -> dict[str, str]:
    """The text of the table, by its file's name in results/."""
    if not sides:
        return {}
    heads = ["Data set", "Encoder", "Samples", "Memory", "batch as memory", "median", "two passes", "median",
             "difference", "its standard error", "in standard errors"]  # fmt: skip
    parts = [
        "### Memory Wrap trained with the batch as memory, against two passes: accuracy, %",
        markdown_table(heads, map(_cells, sides), right_from=4),
        "Mean ± standard deviation with n − 1 (n runs). Difference: batch as memory less two passes, seed by seed, as "
        "two runs of a seed have the same training images; its standard error is s/√n of these differences. "
        f"**Bold**: beyond {FAR} standard errors. With equal true means, chance alone puts one cell in nine there if "
        "there are five seeds, one in fifteen if there are fifteen.",
        plain_text(tables.caption_of([run for each in sides for run in each.runs])),
    ]
    return {FILE: "\n\n".join(parts) + "\n"}


def paragraphs(sides: Sequence[Sides]) -> list[str]:
    """How many differ by little, and which do not."""
    found = [(each, difference(_accuracies(each.batch), _accuracies(each.two_passes))) for each in sides]
    judged = [(each, gap) for each, gap in found if gap.in_errors is not None]
    if not judged:
        return []
    far = [f"{each.name} ({_signed(gap.points, 2)} points, {_signed(gap.in_errors or 0, 1)} standard errors)"
           for each, gap in judged if gap.is_far]  # fmt: skip
    runs = [run for each, _ in judged for run in each.runs]
    sizes = [len(each.batch) for each, _ in judged]
    return [
        f"**The batch as memory** instead of the paper's second pass: in {len(judged) - len(far)} of {len(judged)} "
        f"[cells](results/{FILE}) the accuracy of Memory Wrap differs by at most {FAR} standard errors"
        + (f", and by more for {'; '.join(far)}" if far else "")
        + f". n = {span(sizes)} seeds, each trained both ways, {where(runs)}."
    ]


def _cells(sides: Sides) -> list[str]:
    task, both = sides.task, [_accuracies(runs) for runs in (sides.batch, sides.two_passes)]
    found = difference(*both)
    told = [text for values in both for text in (_mean_with_spread(values), f"{statistics.median(values):.2f}")]
    error = NOTHING if found.standard_error is None else f"{found.standard_error:.2f}"
    in_errors = NOTHING if found.in_errors is None else _signed(found.in_errors, 1)
    return [
        DATA[task.data],
        encoder_name(task.encoder),
        _samples_name(task),
        str(task.memory_size),
        *told,
        _signed(found.points, 2),
        error,
        f"**{in_errors}**" if found.is_far else in_errors,
    ]


def _accuracies(runs: Iterable[Record]) -> list[float]:
    """In per cent."""
    found = [records.score(run.metrics, "accuracy") for run in runs]
    return [100 * each for each in found if each is not None]


def _samples_name(task: Task) -> str:
    return "all samples" if task.samples is None else f"{task.samples} samples"


def _mean_with_spread(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread} ({len(values)})"


def _signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")
