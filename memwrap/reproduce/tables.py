"""Tables from records alone: which runs give which cell, what stands below them, and the files that they become."""

import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from memwrap import encoders
from memwrap.errors import DataError, SaveError
from memwrap.models.wrapping import wrap
from memwrap.report.durations import duration
from memwrap.reproduce.grid import BATCH, MEASURED, RANDOM, check_is_of_runs, task_for
from memwrap.reproduce.picture import picture
from memwrap.reproduce.published import Cell, about, published
from memwrap.reproduce.records import SHARE, Failure, Record, score
from memwrap.reproduce.rendering import as_csv, as_html, as_markdown
from memwrap.reproduce.rows import DATA, PUBLISHED_SHARE, SUBSET, WHOLE_SET, Row, rows_for
from memwrap.reproduce.verdict import ENOUGH_RUNS, Verdict
from memwrap.runs import drawn
from memwrap.storage import checkpoint

CLASSES = 10  # in each data set of the paper
FILES = ("table.md", "table.csv", "table.html", "table.png")

# What rows and metrics call the places that memories are drawn from; the nearest to the paper's first.
_SOURCES = {PUBLISHED_SHARE: SHARE, WHOLE_SET: drawn.WHOLE, SUBSET: drawn.SUBSET}


def rows_of(table: str, cells: Sequence[Cell], records: Iterable[Record], memory: str = RANDOM) -> list[Row]:
    """The rows of those cells of a table, with what the records say; those of other runs are passed over.

    Each is judged among all cells of the table that the records have runs of, whichever are asked for.
    Explanation metrics have rows for each source of memory samples, and only what is like the paper's is judged;
    what is less like it than another source has the verdict that it would have had.
    memory: how the runs were trained.
    """
    check_is_of_runs(table)
    found = by_cell(published(table), records, memory)
    check_one_data_set([record for some in found.values() for record in some])
    if not any(cell.metric in MEASURED for cell in cells):
        return _of(cells, rows_for(table, {cell: [float(counted(cell))] for cell in cells}))
    if all(cell.metric == "accuracy" for cell in cells):
        return _of(cells, rows_for(table, _values(found, drawn.SUBSET)))
    values = {source: _values(found, name) for source, name in _SOURCES.items()}
    likest = {cell: _likest_source(runs) for cell, runs in found.items()}
    judged = _verdicts(table, {cell: values[source][cell] for cell, source in likest.items()})
    otherwise = {cell: verdict for cell, verdict in _verdicts(table, values[WHOLE_SET]).items()
                 if likest.get(cell) == PUBLISHED_SHARE}  # fmt: skip
    return [
        replace(
            row,
            verdict=judged[row.cell] if likest.get(row.cell) == source else None,
            otherwise=otherwise.get(row.cell) if source == WHOLE_SET else None,
        )
        for source, ours in values.items()
        for row in _of(cells, rows_for(table, ours, source=source, judged=False))
        if source != PUBLISHED_SHARE or row.comparison is not None
    ]


def by_cell(cells: Iterable[Cell], records: Iterable[Record], memory: str = RANDOM) -> dict[Cell, list[Record]]:
    """The runs that each cell is measured with, in the order of their seeds."""
    by_group: dict[str, list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda record: record.task):
        by_group[record.task.group].append(record)
    return {cell: by_group[task_for(cell, 0, memory).group] for cell in cells if cell.metric in MEASURED}


def check_one_data_set(records: Iterable[Record]) -> None:
    """A DataError if runs of one data set had different images."""
    first: dict[str, Record] = {}
    for record in records:
        other = first.setdefault(record.task.data, record)
        if other.images.fingerprint != record.images.fingerprint:
            raise DataError(
                f"{record.task.data}: the records are of different images: {other.task.name} of {_images(other)}, "
                f"{record.task.name} of {_images(record)}; a table mixes no two, so give --records of one of them; "
                "if both are in one file, put the lines of one into another"
            )


def counted(cell: Cell) -> int:
    """A number that needs no training: of parameters, or of an encoding's dimensions."""
    if cell.metric == "encoding_size":
        return int(wrap(encoders.create(cell.encoder, CLASSES)).layer.in_features)
    model = wrap(encoders.create(cell.encoder, CLASSES), cell.variant)
    return sum(parameter.numel() for parameter in model.parameters())


def title_of(table: str, memory: str = RANDOM) -> str:
    """The table's, and how its runs were trained if that is not the paper's way."""
    trained = any(cell.metric in MEASURED for cell in published(table))
    return about(table).title + (" (trained with the batch as memory)" if trained and memory == BATCH else "")


def caption_of(records: Sequence[Record], failures: Sequence[Failure] = (), passed_over: int = 0) -> str:
    """Where, when, by what and on which images runs were made, and which came to nothing; for those of a table.

    passed_over: lines of the records that do not count.
    """
    ending = " ".join(filter(None, [_failed(failures), _passed_over(passed_over)]))
    if not records:
        return ending
    dates = sorted(record.date[:10] for record in records)
    versions = [f"memwrap {each.origin.versions.get('memwrap', '?')}, {_torch(each)}" for each in records]
    commits = [each.origin.commit[:10] + " with changes" * bool(each.origin.dirty)
               for each in records if each.origin.commit]  # fmt: skip
    seconds = sum(each.seconds.training + each.seconds.evaluation for each in records)
    many = "1 run" if len(records) == 1 else f"{len(records)} runs"
    parts = [
        f"{many} on {_all(each.origin.device for each in records)}, {dates[0]}"
        + (f" to {dates[-1]}" if dates[-1] != dates[0] else "")
        + f", {duration(seconds)} together, in {_all(each.settings.precision for each in records)}.",
        f"Made by {' and by '.join(dict.fromkeys(versions))}" + (f", commit {_all(commits)}" if commits else "") + ".",
        f"Engine: {_engines(records)}.",
        f"Images: {_all(_images(each) for each in records)}.",
        ending,
    ]
    return " ".join(part for part in parts if part)


def write(folder: Path, rows: Sequence[Row], title: str, caption: str) -> list[Path]:
    """A table's files, each put into the folder in one step."""
    drawn = picture(rows, title, caption)
    texts = as_markdown(rows, title, caption), as_csv(rows), as_html(rows, title, caption, drawn)
    contents = dict(zip(FILES, [*(text.encode() for text in texts), drawn], strict=True))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            checkpoint.write_file(folder / name, content)
    except OSError as error:
        raise SaveError(
            f"{folder}: the table cannot be written ({error}); what lies there may be of two tables"
        ) from error
    return [folder / name for name in contents]


def check_folder(folder: Path) -> None:
    """A SaveError now, if a table could not be put there later. Nothing is made."""
    try:
        if (folder.exists() or folder.is_symlink()) and not folder.is_dir():
            raise SaveError(f"{folder}: is no folder; name one for the table")
        if taken := [folder / name for name in FILES if (folder / name).is_dir()]:
            raise SaveError(f"{taken[0]}: is a folder, and the table has a file of that name; name another place")
        there = next((place for place in (folder, *folder.absolute().parents) if place.exists()), folder)
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise SaveError(f"{folder}: no table can be written there ({error}); name another folder") from error


def _verdicts(table: str, values: Mapping[Cell, Sequence[float]]) -> dict[Cell, Verdict | None]:
    return {row.cell: row.verdict for row in rows_for(table, values)}


def _of(cells: Sequence[Cell], rows: Sequence[Row]) -> list[Row]:
    wanted = set(cells)
    return [row for row in rows if row.cell in wanted]


def _likest_source(runs: Sequence[Record]) -> str:
    """The source to judge a cell by: the whole training set; but the paper's share of it, if enough runs have that.

    Which runs have it, not what they found: otherwise the verdict would depend on itself.
    """
    having = sum(SHARE in run.metrics.get("drawn", {}) for run in runs)
    return PUBLISHED_SHARE if having and having >= min(len(runs), ENOUGH_RUNS) else WHOLE_SET


def _values(found: Mapping[Cell, Sequence[Record]], source: str) -> dict[Cell, list[float]]:
    """In percent; a run without a value, as one that never had a counterfactual on top, gives none."""
    values = {}
    for cell, records in found.items():
        scores = [score(record.metrics, cell.metric, source) for record in records]
        values[cell] = [100 * each for each in scores if each is not None]
    return values


def _all(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def _torch(record: Record) -> str:
    versions = record.origin.versions
    cuda = f" with CUDA {versions['cuda']}" if "cuda" in versions and record.origin.device != "cpu" else ""
    return f"torch {versions.get('torch', '?')}{cuda}"


def _engines(records: Iterable[Record]) -> str:
    """As "loop; graph, 5 or 15 runs side by side"."""
    counts: dict[str, set[int]] = {}
    for record in records:
        counts.setdefault(record.origin.engine, set()).add(record.origin.side_by_side)
    return "; ".join(
        engine + (f", {' or '.join(map(str, sorted(found)))} runs side by side" if max(found) > 1 else "")
        for engine, found in counts.items()
    )


def _images(record: Record) -> str:
    images = record.images
    published = record.task.data
    place = "" if images.source == published else f" in the place of the published {DATA[published]}"
    return f"{images.source}{place} ({images.training:,} for training, {images.test:,} for the test)"


def _passed_over(lines: int) -> str:
    if not lines:
        return ""
    many = "1 line of the records was" if lines == 1 else f"{lines} lines of the records were"
    return (
        f"{many} passed over: damaged, of other settings, or of runs that are in them twice, with different images or "
        "results."
    )


def _failed(failures: Sequence[Failure]) -> str:
    if not failures:
        return ""
    names = [failure.task.name for failure in failures]
    many = "1 run failed and is" if len(names) == 1 else f"{len(names)} runs failed and are"
    return f"{many} not counted: {_all(names[:5])}{' and more' if len(names) > 5 else ''}."
