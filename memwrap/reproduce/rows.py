"""A table's numbers beside ours, and where each stands: as the paper has it, by encoder and variant, or by data set."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from memwrap.errors import InputError
from memwrap.reproduce.published import Cell, Published, published
from memwrap.reproduce.verdict import LEVEL, Comparison, Verdict, judge, verdicts

# Where memory samples are drawn from when explanations are scored, which makes for very different numbers.
PUBLISHED_SHARE = "published share"  # as small a share trained on as in the paper, which had more images
WHOLE_SET = "whole training set"  # as published
SUBSET = "training subset"  # what the model has been trained on

ENCODERS = {
    "efficientnet_b0": "EfficientNetB0",
    "mobilenet_v2": "MobileNetV2",
    "resnet18": "ResNet18",
    "googlenet": "GoogLeNet",
    "densenet": "DenseNet",
    "shufflenet_v2": "ShuffleNetV2",
    "": "not named",
}
VARIANTS = {"standard": "Standard", "only_memory": "Only Memory", "memory_wrap": "Memory Wrap"}
DATA = {"svhn": "SVHN", "cifar10": "CIFAR10", "cinic10": "CINIC10", "": "not named"}
METRICS = {
    "accuracy": "accuracy",
    "explanation_accuracy": "explanation accuracy",
    "counterfactual_accuracy": "counterfactual accuracy",
    "parameters": "Parameters",
    "encoding_size": "Dimension of the encoding",
    "epoch_seconds": "Seconds an epoch, SVHN, 5000 samples",
    "training_time_ratio": "Training time, as a multiple of Standard",
}

_T = TypeVar("_T")


@dataclass(frozen=True)
class Row:
    """A number of the paper, and ours. A table may have rows of several sources, with the same cells."""

    table: str
    cell: Cell
    published: Published
    comparison: Comparison | None  # None: no runs of ours
    verdict: Verdict | None  # None: no runs of ours, or what they measured is not what the paper did
    otherwise: Verdict | None = None  # what it would be, if another source were not nearer to the paper's
    source: str = ""  # of the memory that explanations were scored with: PUBLISHED_SHARE, WHOLE_SET or SUBSET
    note: str = ""


@dataclass(frozen=True)
class Line:
    """A line of a table as it is shown: two heads, the first of which lines may share, and a place for each column."""

    first: str
    second: str
    rows: tuple[Row | None, ...]  # None: the paper has no such number, or it was left out


@dataclass(frozen=True)
class Block:
    """A table as it is shown, or that part of it that is from one source."""

    source: str
    heads: tuple[str, str]
    columns: tuple[str, ...]
    lines: tuple[Line, ...]

    def at(self, first: str, second: str, column: str) -> Row | None:
        """The row in a place, which need not be one of this block's."""
        for line in self.lines:
            if (line.first, line.second) == (first, second) and column in self.columns:
                return line.rows[self.columns.index(column)]
        return None


def rows_for(
    table: str,
    ours: Mapping[Cell, Sequence[float]],
    level: float = LEVEL,
    source: str = "",
    judged: bool = True,
) -> list[Row]:
    """A row for each number of a table, in the paper's order; `ours` has the values of our runs, in its units.

    judged: False where ours was measured in another way than the paper's, so that a difference is no surprise.
    """
    numbers = published(table)
    if strange := [cell for cell in ours if cell not in numbers]:
        raise InputError(
            f"table {table!r} has no number for {strange[0]}; give values for cells of published({table!r})"
        )
    compared = {cell: judge(ours[cell], number) for cell, number in numbers.items() if ours.get(cell)}
    found = dict(zip(compared, verdicts(list(compared.values()), level), strict=True)) if judged else {}
    return [
        Row(table, cell, number, compared.get(cell), found.get(cell), source=source, note=number.note)
        for cell, number in numbers.items()
    ]


def blocks(rows: Sequence[Row]) -> list[Block]:
    """Rows of one table in the places where they are shown, a block for each source."""
    if not rows:
        raise InputError("rows is empty; expected those of a table, as rows_for gives them")
    if len(found := sorted({row.table for row in rows})) > 1:
        raise InputError(f"rows are of several tables, {', '.join(found)}; show each by itself")
    return [_block([row for row in rows if row.source == source]) for source in once(row.source for row in rows)]


def _block(rows: Sequence[Row]) -> Block:
    axes = _AXES.get(rows[0].table, (_ENCODER, _VARIANT, _SAMPLES))
    places: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        first, second, column = (axis.label(row.cell) for axis in axes)
        if (first, second, column) in places:
            raise InputError(f"rows has {row.cell} twice; expected each cell once for each source")
        places[first, second, column] = row
    columns = tuple(once(column for _, _, column in places))
    lines = tuple(
        Line(first, second, tuple(places.get((first, second, column)) for column in columns))
        for first, second in once((first, second) for first, second, _ in places)
    )
    return Block(rows[0].source, (axes[0].head, axes[1].head), columns, lines)


def once(values: Iterable[_T]) -> list[_T]:
    return list(dict.fromkeys(values))


@dataclass(frozen=True)
class _Axis:
    head: str
    label: Callable[[Cell], str]


_ENCODER = _Axis("Encoder", lambda cell: ENCODERS[cell.encoder])
_VARIANT = _Axis("Variant", lambda cell: VARIANTS[cell.variant])
_DATA = _Axis("Data set", lambda cell: DATA[cell.data])
_SAMPLES = _Axis("Samples", lambda cell: "all samples" if cell.samples is None else f"{cell.samples} samples")
_MEMORY = _Axis("Memory", lambda cell: str(cell.memory_size))
_MODEL = _Axis("Model", lambda cell: f"{ENCODERS[cell.encoder]}, {VARIANTS[cell.variant]}")
_METRIC = _Axis("Metric", lambda cell: METRICS[cell.metric])

# The two heads of a line, and the head of a column; other tables are by encoder, variant and samples.
_AXES = {
    "full": (_ENCODER, _VARIANT, _DATA),
    "explanations": (_DATA, _SAMPLES, _MODEL),
    "counterfactuals": (_DATA, _SAMPLES, _MODEL),
    "parameters": (_ENCODER, _VARIANT, _METRIC),
    "memory-size": (_ENCODER, _MEMORY, _SAMPLES),
    "cost": (_ENCODER, _MEMORY, _METRIC),
}
