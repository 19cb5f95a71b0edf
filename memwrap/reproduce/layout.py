"""Rows of a table, and their places: by encoder and variant, or by data set, as in the paper."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memwrap.errors import InputError
from memwrap.reproduce.comparison import Comparison, Verdict
from memwrap.reproduce.published import Cell, Published
from memwrap.reproduce.tasks import unique

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


@dataclass(frozen=True)
class Row:
    """A number of the paper, and ours. A table may hold a cell once for each source of memory samples."""

    table: str
    cell: Cell
    published: Published
    comparison: Comparison | None  # None: no runs of ours
    verdict: Verdict | None  # None: no runs of ours, or they measured something else than the paper did
    alternative: Verdict | None = None  # the verdict if no other source were closer to the paper's
    source: str = ""  # of the memory samples for explanation metrics: one of `tables.SOURCES`


@dataclass(frozen=True)
class Line:
    """A line of a table: two headings and a row for each column."""

    first: str
    second: str
    rows: tuple[Row | None, ...]  # None: the paper has no such number, or it is not selected


@dataclass(frozen=True)
class Block:
    """A table, or the part of it with one source of memory samples."""

    source: str
    heads: tuple[str, str]
    columns: tuple[str, ...]
    lines: tuple[Line, ...]

    def at(self, first: str, second: str, column: str) -> Row | None:
        """The row in a place, or None."""
        for line in self.lines:
            if (line.first, line.second) == (first, second) and column in self.columns:
                return line.rows[self.columns.index(column)]
        return None


def arrange(rows: Sequence[Row]) -> list[Block]:
    """Place the rows of one table, in a block for each source."""
    if not rows:
        raise InputError("rows is empty; expected the rows of a table")
    if len(tables := sorted({row.table for row in rows})) > 1:
        raise InputError(f"rows belong to several tables, {', '.join(tables)}; expected one")
    return [_arrange_block([row for row in rows if row.source == source]) for source in unique(r.source for r in rows)]


def _arrange_block(rows: Sequence[Row]) -> Block:
    (first_head, first), (second_head, second), (_, column) = _AXES.get(rows[0].table, (_ENCODER, _VARIANT, _SAMPLES))
    places: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        place = first(row.cell), second(row.cell), column(row.cell)
        if place in places:
            raise InputError(f"rows has {row.cell} twice; expected each cell once for each source")
        places[place] = row
    columns = tuple(unique(place[2] for place in places))
    lines = tuple(
        Line(*heads, tuple(places.get((*heads, column)) for column in columns))
        for heads in unique((place[0], place[1]) for place in places)
    )
    return Block(rows[0].source, (first_head, second_head), columns, lines)


_Axis = tuple[str, Callable[[Cell], str]]  # heading, label of a cell
_ENCODER: _Axis = ("Encoder", lambda cell: ENCODERS[cell.encoder])
_VARIANT: _Axis = ("Variant", lambda cell: VARIANTS[cell.variant])
_DATA: _Axis = ("Data set", lambda cell: DATA[cell.data])
_SAMPLES: _Axis = ("Samples", lambda cell: "all samples" if cell.samples is None else f"{cell.samples} samples")
_MEMORY: _Axis = ("Memory", lambda cell: str(cell.memory_size))
_MODEL: _Axis = ("Model", lambda cell: f"{ENCODERS[cell.encoder]}, {VARIANTS[cell.variant]}")
_METRIC: _Axis = ("Metric", lambda cell: METRICS[cell.metric])

# What gives a line its two headings, and a column its own. Other tables are by encoder, variant and samples.
_AXES = {
    "full": (_ENCODER, _VARIANT, _DATA),
    "explanations": (_DATA, _SAMPLES, _MODEL),
    "counterfactuals": (_DATA, _SAMPLES, _MODEL),
    "parameters": (_ENCODER, _VARIANT, _METRIC),
    "memory-size": (_ENCODER, _MEMORY, _SAMPLES),
    "cost": (_ENCODER, _MEMORY, _METRIC),
}
