"""Tables as Markdown and CSV. Markdown follows the paper's layout; CSV has a line for each number."""

import csv
import io
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from memwrap.errors import SaveError
from memwrap.report.durations import duration
from memwrap.reproduce.comparison import ENOUGH_RUNS, POWER
from memwrap.reproduce.figure import draw_figure
from memwrap.reproduce.layout import DATA, Block, Row, arrange
from memwrap.reproduce.published import published_table, table_info
from memwrap.reproduce.records import Failure, RunRecord
from memwrap.reproduce.tables import PUBLISHED_SHARE, SUBSET, WHOLE_SET
from memwrap.reproduce.tasks import BATCH, MEASURED, RANDOM, unique
from memwrap.storage.files import make_folder, write_file

FILES = ("table.md", "table.csv", "table.png")
SOURCE_TITLES = {
    PUBLISHED_SHARE: "Memory samples with the paper's share of training images",
    WHOLE_SET: "Memory samples from the whole training set",
    SUBSET: "Memory samples from the training subset",
}
LARGE_DEVIATION = 3.0  # points, from which the median says more than the mean: a few failed seeds move that
ABSENT = "–"  # not in the paper, not selected, or no runs with this source
NO_RUNS = "no runs"
NOT_TESTED = "not tested"

COLUMNS = (
    "table", "source", "metric", "data", "samples", "encoder", "variant", "memory_size",
    "ours_mean", "ours_deviation", "ours_median", "ours_runs",
    "paper_mean", "paper_deviation", "paper_deviation_as_printed", "paper_runs",
    "difference", "allowed", "noticeable", "verdict", "direction", "reason",
    "t", "degrees_of_freedom", "p", "adjusted_p", "cell_level", "level", "cells_tested", "note",
)  # fmt: skip


@dataclass(frozen=True)
class CellText:
    """The entries of a row, empty where there is nothing to show."""

    ours: str
    runs: str
    median: str
    paper: str
    difference: str
    verdict: str


def format_cell(row: Row) -> CellText:
    """A row in as many digits as the paper gives."""
    paper, found = _with_deviation(row, row.published.mean, row.published.spread), row.comparison
    if found is None:
        return CellText(NO_RUNS, "", "", paper, "", "")
    exact = row.published.exact
    return CellText(
        ours=_with_deviation(row, found.mean, None if exact else found.deviation),
        runs="" if exact else str(found.runs),
        median="" if exact or found.runs == 1 else _number(row, found.median),
        paper=paper,
        difference="" if exact and found.equal else _signed(row, found.difference),
        verdict=_verdict(row),
    )


def is_scattered(row: Row) -> bool:
    """Whether our runs differ so much that their median should be shown as well."""
    deviation = None if row.comparison is None else row.comparison.deviation
    return not row.published.exact and deviation is not None and deviation >= LARGE_DEVIATION


def differs(row: Row) -> bool:
    """Whether our runs differ significantly from the paper's."""
    return row.verdict is not None and row.verdict.word == "differs"


def _verdict(row: Row) -> str:
    verdict = row.verdict
    if verdict is None:
        return NOT_TESTED + (", would differ" if row.alternative and row.alternative.word == "differs" else "")
    if verdict.word == "agrees":
        return "equal" if row.published.exact else "agrees"
    if verdict.word == "differs":
        return f"differs, {verdict.direction}" if verdict.direction else "differs"
    # Where the paper has no spread, more runs of ours would not help.
    return verdict.word if row.published.spread is not None else f"{NOT_TESTED}: {verdict.reason}"


def _with_deviation(row: Row, mean: float, deviation: float | None) -> str:
    return _number(row, mean) + ("" if deviation is None else f" ± {_number(row, deviation)}")


def _number(row: Row, value: float) -> str:
    """Two decimals, as in the paper; counts and rough numbers without a spread have none."""
    whole = row.published.spread is None and value.is_integer()
    return f"{value:,.0f}" if whole else f"{value:.2f}"


def _signed(row: Row, value: float) -> str:
    text = _number(row, abs(value))
    return text if not text.strip("0.") else f"{'+' if value > 0 else '−'}{text}"


# Text below a table


@dataclass(frozen=True)
class Tally:
    """Numbers of cells by their outcome."""

    agree: int
    above: int
    below: int
    too_few: int
    missing: int  # without runs of ours, whatever the source
    alternative: tuple[int, int] | None  # agreeing, and tested, with the whole training set as the source

    @property
    def tested(self) -> int:
        return self.agree + self.above + self.below


def tally(rows: Sequence[Row]) -> Tally:
    """Count the outcomes of a table."""
    verdicts = [row.verdict for row in rows if row.verdict is not None]
    outcomes = [(verdict.word, verdict.direction == "above") for verdict in verdicts]
    others = [r.alternative.word for r in rows if r.alternative is not None and r.alternative.word != "too few runs"]
    return Tally(
        agree=outcomes.count(("agrees", False)),
        above=outcomes.count(("differs", True)),
        below=outcomes.count(("differs", False)),
        too_few=sum(verdict.word == "too few runs" for verdict in verdicts),
        missing=len({row.cell for row in rows} - {row.cell for row in rows if row.comparison is not None}),
        alternative=(others.count("agrees"), len(others)) if others else None,
    )


def summarise(rows: Sequence[Row]) -> str:
    """How many cells agree, by which test, and which differences it would have found; a few sentences."""
    found = tally(rows)
    if all(row.comparison is None for row in rows):
        return "No runs of ours."
    counts = [
        (found.tested, f"{found.agree} of {found.tested} tested cells agree with the paper"),
        (found.above + found.below, f"{found.above} above and {found.below} below it"),
        (found.too_few, f"{found.too_few} not testable"),
        (found.missing, f"{found.missing} without runs"),
    ]
    sentences = ["; ".join(text for number, text in counts if number) + "."]
    if found.alternative:
        agree, tested = found.alternative
        sentences.append(f"With memory samples from the whole training set, {agree} of {tested} would agree.")
    noticeable = {row: size for row in rows if (size := noticeable_difference(row)) is not None}
    verdicts = [row.verdict for row in noticeable if row.verdict is not None]
    if verdicts:
        sizes, verdict = noticeable.values(), verdicts[0]
        sentences.append(
            f"Welch's t-test with Holm's correction, level {100 * verdict.level:g} % for {verdict.cells} cells "
            f"together; power {100 * POWER:.0f} % for true differences of {min(sizes):.1f} to {max(sizes):.1f} points, "
            "depending on the cell."
        )
        if any(row.comparison is not None and row.comparison.runs < ENOUGH_RUNS for row in noticeable):
            sentences.append(f"With fewer than {ENOUGH_RUNS} runs, cells differ by chance more often than that.")
    return " ".join(sentences)


def noticeable_difference(row: Row) -> float | None:
    """The true difference that a tested row would have found with a chance of POWER; None: no verdict."""
    verdict = row.verdict
    if row.comparison is None or verdict is None or verdict.cell_level is None or verdict.word == "too few runs":
        return None
    return row.comparison.noticeable(verdict.cell_level)


def legend(rows: Sequence[Row]) -> str:
    """How to read a cell."""
    if all(row.published.exact for row in rows):
        return "Counted, not measured."
    runs = sorted({row.published.runs for row in rows if row.published.spread is not None})
    paper = f"deviation with n, {' or '.join(map(str, runs))} runs" if runs else "no deviations"
    return f"Ours: mean ± standard deviation with n − 1 (n runs). Paper: as printed, {paper}."


def make_title(table: str, memory: str = RANDOM, is_part: bool = False) -> str:
    """The table's title, with what distinguishes its runs from the paper's."""
    is_trained = any(cell.metric in MEASURED for cell in published_table(table))
    return (
        table_info(table).title
        + (" (trained with the batch as memory)" if is_trained and memory == BATCH else "")
        + (" (a part of the table)" if is_part else "")
    )


def make_caption(records: Sequence[RunRecord], failures: Sequence[Failure] = (), skipped: int = 0) -> str:
    """Device, dates, versions and images of runs, and what does not count. skipped: lines of the records."""
    parts = []
    if records:
        dates = sorted(record.date[:10] for record in records)
        seconds = sum(each.seconds.training + each.seconds.evaluation for each in records)
        commits = _list(
            each.origin.commit[:10] + " with changes" * bool(each.origin.dirty)
            for each in records
            if each.origin.commit
        )
        parts = [
            f"{len(records)} run{'s' * (len(records) > 1)} on {_list(each.origin.device for each in records)}",
            " to ".join(unique([dates[0], dates[-1]])),
            f"{duration(seconds)} in total",
            _list(each.settings.precision for each in records),
            f"engine {_list_engines(records)}",
            _list(f"memwrap {each.origin.versions.get('memwrap', '?')}, {_torch(each)}" for each in records),
            *([f"commit {commits}"] if commits else []),
        ]
    sentences = [f"{', '.join(parts)}."] if parts else []
    if records:
        sentences.append(f"Images: {_list(map(_describe_images, records))}.")
    if failures:
        names = _list(failure.task.name for failure in failures[:5]) + " and more" * (len(failures) > 5)
        sentences.append(f"Failed runs, not counted: {len(failures)} ({names}).")
    if skipped:
        sentences.append(f"Skipped lines of the records: {skipped}.")
    return " ".join(sentences)


def _list(texts: Iterable[str]) -> str:
    return ", ".join(unique(texts))


def _torch(record: RunRecord) -> str:
    versions = record.origin.versions
    cuda = f" with CUDA {versions['cuda']}" if "cuda" in versions and record.origin.device != "cpu" else ""
    return f"torch {versions.get('torch', '?')}{cuda}"


def _list_engines(records: Iterable[RunRecord]) -> str:
    """As "loop; graph with 5 or 15 runs side by side"."""
    counts: dict[str, set[int]] = {}
    for record in records:
        counts.setdefault(record.origin.engine, set()).add(record.origin.side_by_side)
    return "; ".join(
        engine + (f" with {' or '.join(map(str, sorted(found)))} runs side by side" if max(found) > 1 else "")
        for engine, found in counts.items()
    )


def _describe_images(record: RunRecord) -> str:
    images, data = record.images, record.task.data
    replaced = "" if images.source == data else f" instead of the published {DATA[data]}"
    return f"{images.source}{replaced} ({images.training:,} for training, {images.test:,} for the test)"


# Files


def to_markdown(rows: Sequence[Row], title: str, caption: str) -> str:
    """A heading, the table with several lines in a cell, and the text below it."""
    marks = {note: n for n, note in enumerate(unique(r.published.note for r in rows if r.published.note), 1)}
    parts = [f"### {escape(title)}"]
    for block in arrange(rows):
        if block.source:
            parts.append(f"**{SOURCE_TITLES[block.source]}**")
        parts.append(_markdown_block(block, marks))
    parts += [summarise(rows), legend(rows)]
    parts += [f"<sup>{number}</sup> {escape(note)}" for note, number in marks.items()]
    parts += [escape(note) for note in (*table_info(rows[0].table).notes, caption) if note]
    return "\n\n".join(parts) + "\n"


def _markdown_block(block: Block, marks: Mapping[str, int]) -> str:
    lines, previous = [], None
    for line in block.lines:
        first = "" if line.first == previous else line.first
        lines.append([first, line.second, *(_markdown_cell(row, marks) for row in line.rows)])
        previous = line.first
    return markdown_table([*block.heads, *block.columns], lines, right_from=2)


def _markdown_cell(row: Row | None, marks: Mapping[str, int]) -> str:
    if row is None:
        return ABSENT
    text, mark = format_cell(row), f"<sup>{marks[row.published.note]}</sup>" if row.published.note else ""
    paper = f"paper {text.paper}{mark}"
    if row.comparison is None:
        return f"{text.ours}<br>{paper}"
    ours = f"**{text.ours}**" + (f" ({text.runs})" if text.runs else "")
    verdict = f"{text.difference} {f'**{text.verdict}**' if differs(row) else text.verdict}".strip()
    return "<br>".join([ours, *([f"median {text.median}"] if is_scattered(row) else []), paper, verdict])


def markdown_table(heads: Sequence[str], lines: Iterable[Sequence[str]], right_from: int | None = None) -> str:
    """A table in Markdown. right_from: the first column that is aligned to the right."""
    rules = ["---" if right_from is None or column < right_from else "---:" for column in range(len(heads))]
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, rules, *lines])


def escape(text: str) -> str:
    """Markdown that shows the text literally, in one paragraph."""
    marks = {"&": "&amp;", "<": "&lt;", ">": "&gt;", **{mark: f"\\{mark}" for mark in "\\`*_[]|#"}}
    visible = (letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in " ".join(text.split()))
    return "".join(marks.get(letter, letter) for letter in visible)


def to_csv(rows: Sequence[Row]) -> str:
    """A line for each row, under COLUMNS. Deviations are with n − 1, except the one as printed, which is with n."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        values = {name: f"{value:.10g}" if isinstance(value, float) else value for name, value in _csv_line(row)}
        writer.writerow(values)
    return stream.getvalue()


def _csv_line(row: Row) -> Iterable[tuple[str, object]]:
    number, found, verdict = row.published, row.comparison, row.verdict
    yield from [("table", row.table), ("source", row.source), ("note", number.note)]
    yield from ((name, getattr(row.cell, name)) for name in COLUMNS[2:8])
    yield from [("paper_mean", number.mean), ("paper_deviation_as_printed", number.spread), ("paper_runs", number.runs)]
    if found is not None:
        yield from [("ours_mean", found.mean), ("ours_deviation", found.deviation), ("ours_median", found.median)]
        yield from [("ours_runs", found.runs), ("paper_deviation", found.published_deviation)]
        yield from ((name, getattr(found, name)) for name in ("difference", "t", "degrees_of_freedom", "p"))
    if verdict is not None:
        yield from [("verdict", verdict.word), ("cells_tested", verdict.cells)]
        yield from ((name, getattr(verdict, name)) for name in ("direction", "reason", "adjusted_p", "level"))
        yield "cell_level", verdict.cell_level
        if found is not None and verdict.cell_level is not None:
            yield "allowed", found.allowed(verdict.cell_level)
            yield "noticeable", found.noticeable(verdict.cell_level)


def write_table(folder: Path, rows: Sequence[Row], title: str, caption: str) -> list[Path]:
    """Write a table's files, each atomically, and return their paths."""
    contents = (
        to_markdown(rows, title, caption).encode(),
        to_csv(rows).encode(),
        draw_figure(rows, title, f"{summarise(rows)}\n{caption}"),
    )
    paths = [folder / name for name in FILES]
    try:
        make_folder(folder)
        for path, content in zip(paths, contents, strict=True):
            write_file(path, content)
    except OSError as error:
        raise SaveError(f"{folder}: the table cannot be written ({error}); some of its files may be old") from error
    return paths


def check_folder(folder: Path) -> None:
    """Raise a SaveError now if a table could not be written there later. Creates nothing."""
    try:
        if (folder.exists() or folder.is_symlink()) and not folder.is_dir():
            raise SaveError(f"{folder}: is not a folder; name one for the table")
        if taken := [folder / name for name in FILES if (folder / name).is_dir()]:
            raise SaveError(f"{taken[0]}: is a folder where the table needs a file; name another folder")
        existing = next((place for place in (folder, *folder.absolute().parents) if place.exists()), folder)
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise SaveError(f"{folder}: the table cannot be written there ({error}); name another folder") from error
