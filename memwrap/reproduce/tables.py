"""Rows of a table from records: which runs belong to which cell, and how each cell compares with the paper."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from memwrap import encoders
from memwrap.errors import DataError, InputError
from memwrap.models.wrapping import wrap
from memwrap.reproduce.comparison import ENOUGH_RUNS, LEVEL, Verdict, compare, decide
from memwrap.reproduce.layout import Row
from memwrap.reproduce.published import Cell, published_table
from memwrap.reproduce.records import SHARE, RunRecord, score
from memwrap.reproduce.tasks import MEASURED, RANDOM, check_has_runs, task_for_cell
from memwrap.runs import drawn

CLASSES = 10  # in each data set of the paper

# Sources of memory samples for explanation metrics, which matter a lot: the names in tables, and those in records. The
# closest to the paper's comes first.
PUBLISHED_SHARE = "published share"  # as small a share of training images as in the paper, which had more images
WHOLE_SET = "whole training set"  # as published
SUBSET = "training subset"  # the images that the model was trained on
SOURCES = {PUBLISHED_SHARE: SHARE, WHOLE_SET: drawn.WHOLE, SUBSET: drawn.SUBSET}


def make_rows(
    table: str, ours: Mapping[Cell, Sequence[float]], level: float = LEVEL, source: str = "", tested: bool = True
) -> list[Row]:
    """A row for each number of a table, in the paper's order. ours: values of our runs, in its units.

    tested: False where ours was measured in another way than the paper's, so that a difference means nothing.
    """
    numbers = published_table(table)
    if unknown := [cell for cell in ours if cell not in numbers]:
        raise InputError(f"table {table!r} has no number for {unknown[0]}; give values for cells of the table")
    compared = {cell: compare(ours[cell], number) for cell, number in numbers.items() if ours.get(cell)}
    verdicts = dict(zip(compared, decide(list(compared.values()), level), strict=True)) if tested else {}
    return [
        Row(table, cell, number, compared.get(cell), verdicts.get(cell), source=source)
        for cell, number in numbers.items()
    ]


def rows_from_records(
    table: str, cells: Sequence[Cell], records: Iterable[RunRecord], memory: str = RANDOM
) -> list[Row]:
    """The rows of some cells of a table. memory: the source of the memory in training.

    Each is tested among all cells of the table that have runs, whichever are selected. Explanation metrics have a row
    for each source of memory samples. Only the source closest to the paper's is tested; the next one carries the
    verdict that it would have had.
    """
    check_has_runs(table)
    runs = runs_by_cell(published_table(table), records, memory)
    check_same_images([record for group in runs.values() for record in group])
    wanted = set(cells)
    if not any(cell.metric in MEASURED for cell in cells):
        rows = make_rows(table, {cell: [float(count(cell))] for cell in cells})
    elif all(cell.metric == "accuracy" for cell in cells):
        rows = make_rows(table, _percentages(runs, drawn.SUBSET))
    else:
        rows = _rows_by_source(table, runs)
    return [row for row in rows if row.cell in wanted]


def _rows_by_source(table: str, runs: Mapping[Cell, Sequence[RunRecord]]) -> list[Row]:
    values = {source: _percentages(runs, name) for source, name in SOURCES.items()}
    closest = {cell: _closest_source(group) for cell, group in runs.items()}
    verdicts = _verdicts(table, {cell: values[source][cell] for cell, source in closest.items()})
    alternatives = _verdicts(table, values[WHOLE_SET])
    rows = []
    for source, ours in values.items():
        for row in make_rows(table, ours, source=source, tested=False):
            if source == PUBLISHED_SHARE and row.comparison is None:
                continue
            if closest.get(row.cell) == source:
                row = replace(row, verdict=verdicts[row.cell])
            elif source == WHOLE_SET and row.cell in closest:
                row = replace(row, alternative=alternatives[row.cell])
            rows.append(row)
    return rows


def _verdicts(table: str, values: Mapping[Cell, Sequence[float]]) -> dict[Cell, Verdict | None]:
    return {row.cell: row.verdict for row in make_rows(table, values)}


def _closest_source(runs: Sequence[RunRecord]) -> str:
    """The source that a cell is tested with: the paper's share of training images if enough runs have it.

    This looks at which runs have it, not at what they found: otherwise the verdict would depend on itself.
    """
    having = sum(SHARE in run.metrics.get("drawn", {}) for run in runs)
    return PUBLISHED_SHARE if having and having >= min(len(runs), ENOUGH_RUNS) else WHOLE_SET


def _percentages(runs: Mapping[Cell, Sequence[RunRecord]], source: str) -> dict[Cell, list[float]]:
    """Without runs that have no value, such as one in which no counterfactual was ever on top."""
    values = {}
    for cell, records in runs.items():
        scores = [score(record.metrics, cell.metric, source) for record in records]
        values[cell] = [100 * each for each in scores if each is not None]
    return values


def runs_by_cell(
    cells: Iterable[Cell], records: Iterable[RunRecord], memory: str = RANDOM
) -> dict[Cell, list[RunRecord]]:
    """The runs that each cell is measured with, ordered by seed."""
    by_group: dict[str, list[RunRecord]] = defaultdict(list)
    for record in sorted(records, key=lambda record: record.task):
        by_group[record.task.group].append(record)
    return {cell: by_group[task_for_cell(cell, 0, memory).group] for cell in cells if cell.metric in MEASURED}


def check_same_images(records: Iterable[RunRecord]) -> None:
    """Raise a DataError if runs on one data set had different images."""
    first: dict[str, RunRecord] = {}
    for record in records:
        other = first.setdefault(record.task.data, record)
        if other.images.fingerprint != record.images.fingerprint:
            one, two = (
                f"{each.task.name} ({each.images.source}, {each.images.training:,} training images)"
                for each in (other, record)
            )
            raise DataError(
                f"{record.task.data}: the records are of different images: {one} and {two}. Give --records with runs "
                "on one of them"
            )


def count(cell: Cell) -> int:
    """A number that needs no training: of parameters, or of an encoding's dimensions."""
    if cell.metric == "encoding_size":
        return int(wrap(encoders.create(cell.encoder, CLASSES)).layer.in_features)
    model = wrap(encoders.create(cell.encoder, CLASSES), cell.variant)
    return sum(parameter.numel() for parameter in model.parameters())
