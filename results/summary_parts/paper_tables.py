"""Makes the paper's tables: a file for each and each way of training, and what the README tells of them."""

from collections.abc import Iterator, Mapping, Sequence

from memwrap.reproduce import tables
from memwrap.reproduce.grid import BATCH, MEASURED, RANDOM, cells_of, is_of_runs, task_for
from memwrap.reproduce.published import published
from memwrap.reproduce.published import tables as known_tables
from memwrap.reproduce.records import Record, Records
from memwrap.reproduce.rendering import as_markdown, plain_text
from memwrap.reproduce.rows import Block, Row, blocks, once
from memwrap.reproduce.words import NO_RUNS, agreeing_otherwise, scatters, without_runs, words
from summary_parts.markdown import markdown_table
from summary_parts.wording import span, where

SHOWN = "svhn-reduced"  # the table that the README shows whole


def rows_of(known: Records) -> dict[tuple[str, str], list[Row]]:
    """The rows of each table and each way of training that there are runs of."""
    runs = list(known.results.values())
    return {(table, way): rows for table in known_tables() for way, rows in _rows_by_memory(table, runs)}


def files(found: Mapping[tuple[str, str], Sequence[Row]], known: Records) -> dict[str, str]:
    """The text of each table, by its file's name in results/."""
    return {
        _file_of(table, way): as_markdown(rows, tables.title_of(table, way), _caption(table, way, known))
        for (table, way), rows in found.items()
    }


def paragraphs(found: Mapping[tuple[str, str], Sequence[Row]], known: Records) -> list[str]:
    """One table whole, and what each comes to."""
    return [*_shown_table(found, known), *_all_tables(found, known)]


def _rows_by_memory(table: str, known: Sequence[Record]) -> Iterator[tuple[str, list[Row]]]:
    """The rows of a table for each way of training that there are runs of; `parameters` needs none."""
    if not is_of_runs(table):
        return
    for way in (RANDOM, BATCH):
        # Standard has no memory: its runs are in the tables of both ways, and alone make none of the second.
        if way == BATCH and not any(run.task.memory == BATCH for run in _runs_of(table, BATCH, known)):
            continue
        rows = tables.rows_of(table, cells_of(table), known, way)
        if any(row.comparison is not None for row in rows):
            yield way, rows


def _file_of(table: str, way: str) -> str:
    return f"reproduce/{table}{'-batch' * (way == BATCH)}.md"


def _runs_of(table: str, way: str, known: Sequence[Record]) -> list[Record]:
    return [run for runs in tables.by_cell(published(table), known, way).values() for run in runs]


def _caption(table: str, way: str, known: Records) -> str:
    """As `memwrap reproduce` has it: which runs failed and what was passed over is told, too."""
    groups = {task_for(cell, 0, way).group for cell in published(table) if cell.metric in MEASURED}
    failures = [failure for failure in known.failures if failure.task.group in groups]
    runs = _runs_of(table, way, list(known.results.values()))
    return tables.caption_of(runs, failures, passed_over=len(known.problems) if groups else 0)


def _shown_table(found: Mapping[tuple[str, str], Sequence[Row]], known: Records) -> list[str]:
    """The table that is shown whole."""
    if not (rows := found.get((SHOWN, RANDOM))):
        return []
    return [
        f"**{tables.title_of(SHOWN)}**, mean ± standard deviation of n = {_runs_in(rows)} runs, and in brackets the "
        "paper's of 15; **bold** where they differ by more than chance explains (Welch's test with Holm's correction). "
        "All of this section is made by `.venv/bin/python results/summary.py` from the records in "
        "[results](results/README.md).",
        _compact(blocks(rows)[0]),
        plain_text(_caption(SHOWN, RANDOM, known)),
    ]


def _runs_in(rows: Sequence[Row]) -> str:
    return span(row.comparison.runs for row in rows if row.comparison is not None)


def _compact(block: Block) -> str:
    """A cell as "61.28 ± 19.16, median 72.81 (72.59 ± 4.00)", and with its n if others have another."""
    known = [row for line in block.lines for row in line.rows if row is not None]
    uneven = len({row.comparison.runs for row in known if row.comparison is not None}) > 1
    lines = [[line.first, line.second, *(_compact_cell(row, uneven) for row in line.rows)] for line in block.lines]
    return markdown_table([*block.heads, *block.columns], lines)


def _compact_cell(row: Row | None, with_runs: bool) -> str:
    if row is None or row.comparison is None:
        return "" if row is None else NO_RUNS
    said = words(row)
    median = f", median {said.median}" if scatters(row) else ""
    text = f"{said.ours}{median} ({said.paper})" + (f", n = {row.comparison.runs}" if with_runs else "")
    return f"**{text}**" if said.kind == "differs" else text


def _all_tables(found: Mapping[tuple[str, str], Sequence[Row]], known: Records) -> list[str]:
    """A line for each table, and in it what each way of training comes to."""
    if not found:
        return []
    every = list(known.results.values())
    runs = list({run.task: run for table, way in found for run in _runs_of(table, way, every)}.values())
    about = "**All tables**: how many cells agree with the paper by that test, out of those that can be judged."
    if runs:
        about += (
            f" {len(runs)} runs on {where(runs)}; n: runs in a cell. Standard, without a memory, is in both columns."
        )
    if any(agreeing_otherwise(rows) for rows in found.values()):
        about += (
            " Explanations are judged with memories of which as small a share was trained on as in the paper, whose "
            "training sets had more images, where enough runs have such memories; in brackets, how many of these cells "
            "agree with memories from all of our training images."
        )
    if absent := [
        table for table in known_tables() if is_of_runs(table) and not any(table == made for made, _ in found)
    ]:
        about += f" Not run: {', '.join(absent)}."
    lines = []
    for table in once(table for table, _ in found):
        told = [_outcome(table, way, found[table, way]) if (table, way) in found else "" for way in (RANDOM, BATCH)]
        lines.append([table, *told])
    return [about, markdown_table(["table", "trained as in the paper", "trained with the batch as memory"], lines)]


def _outcome(table: str, way: str, rows: Sequence[Row]) -> str:
    """As "[26 of 27 agree](...), n = 5", with a link to the table."""
    judged = {row: row.comparison for row in rows if row.comparison is not None and row.verdict is not None}
    said = [words(row).kind for row in judged]
    agreeing, differing, open_ = (said.count(kind) for kind in ("agrees", "differs", "open"))
    parts = [f"[{agreeing} of {agreeing + differing} agree](results/{_file_of(table, way)})"]
    if otherwise := agreeing_otherwise(rows):
        parts[0] += f" ({otherwise[0]} of {otherwise[1]})"
    if open_:
        parts.append(f"{open_} cannot be judged")
    if missing := without_runs(rows):
        parts.append(f"{missing} not run")
    if measured := [comparison.runs for row, comparison in judged.items() if row.cell.metric in MEASURED]:
        parts.append(f"n = {span(measured)}")
    return ", ".join(parts)
