"""The tables under results/reproduce, and the README's section of results, from the records that lie here.

python results/summary.py           # write them
python results/summary.py --check   # say whether they are what the records give
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from memwrap.bench import record as bench
from memwrap.paper import records, tables
from memwrap.paper.grid import BATCH, RANDOM, cells_of
from memwrap.paper.published import published
from memwrap.paper.published import tables as known_tables
from memwrap.paper.records import Record
from memwrap.paper.rows import Block, Row, blocks
from memwrap.paper.words import NO_RUNS, words

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
BEGIN, END = "<!-- made by results/summary.py -->", "<!-- end of what it makes -->"
SHOWN = "svhn-reduced"  # the table that the README shows whole


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--check", action="store_true", help="write nothing")
    wanted = files(HERE, README.read_text(encoding="utf-8"))
    if options.parse_args().check:
        stale = [path for path, content in wanted.items() if not path.exists() or path.read_text("utf-8") != content]
        for path in stale:
            print(f"{path.relative_to(HERE.parent)}: is not what the records give; run python results/summary.py")
        return bool(stale)
    for path, content in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return 0


def files(folder: Path, readme: str) -> dict[Path, str]:
    """What the records in a folder give: the text of each file, the README's among them."""
    known = records.read(sorted(folder.glob("reproduce/*.jsonl"))).results.values()
    found = {(table, memory): rows for table in known_tables() for memory, rows in rows_by_memory(table, list(known))}
    made = {
        folder / "reproduce" / f"{table}{'-batch' * (memory == BATCH)}.md": tables_text(
            table, memory, rows, list(known)
        )
        for (table, memory), rows in found.items()
    }
    section = [*reproduced(found, list(known)), *measured(folder)]
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"README.md: has no place for results; expected the lines {BEGIN} and {END}")
    return {**made, README: before + "\n\n".join([BEGIN, *section, END]) + after}


def rows_by_memory(table: str, known: Sequence[Record]) -> Iterator[tuple[str, list[Row]]]:
    """The rows of a table for each way of training that there are runs of; `parameters` needs none."""
    if table == "cost":
        return
    for memory in (RANDOM, BATCH):
        if memory == BATCH and not any(record.task.memory == BATCH for record in known):
            continue
        rows = tables.rows_of(table, cells_of(table), known, memory)
        if any(row.comparison is not None for row in rows) and not (table == "parameters" and memory == BATCH):
            yield memory, rows


def tables_text(table: str, memory: str, rows: Sequence[Row], known: Sequence[Record]) -> str:
    return tables.as_markdown(rows, tables.title_of(table, memory), caption(table, memory, known))


def caption(table: str, memory: str, known: Sequence[Record]) -> str:
    """Where and when the runs of a table were made."""
    return tables.caption_of([run for runs in tables.by_cell(published(table), known, memory).values() for run in runs])


def reproduced(found: dict[tuple[str, str], list[Row]], known: Sequence[Record]) -> list[str]:
    """The table that is shown whole, and a line for each of the others."""
    parts = []
    if rows := found.get((SHOWN, RANDOM)):
        parts += [
            f"**{tables.title_of(SHOWN)}**, ours and the paper's in brackets; **bold** where they differ by more than "
            "chance explains (Welch's test with Holm's correction). All of this section is made by "
            "`python results/summary.py` from the records in [results](results/README.md).",
            compact(blocks(rows)[0]),
            caption(SHOWN, RANDOM, known),
        ]
    lines = [
        "| table | cells that can be judged | agree | differ | runs in a cell |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [summary_line(table, memory, rows) for (table, memory), rows in found.items()]
    return [*parts, "\n".join(lines)] if found else parts


def compact(block: Block) -> str:
    """A cell as "67.50 ± 2.94 (66.93), n = 5"."""
    lines = [f"| {' | '.join([*block.heads, *block.columns])} |", "| --- " * (2 + len(block.columns)) + "|"]
    for line in block.lines:
        lines.append(f"| {' | '.join([line.first, line.second, *map(compact_cell, line.rows)])} |")
    return "\n".join(lines)


def compact_cell(row: Row | None) -> str:
    if row is None or row.comparison is None:
        return "" if row is None else NO_RUNS
    said = words(row)
    text = f"{said.ours} ({said.paper.split(' ')[0]}), n = {row.comparison.runs}"
    return f"**{text}**" if said.kind == "differs" else text


def summary_line(table: str, memory: str, rows: Sequence[Row]) -> str:
    kinds = [words(row).kind for row in rows if row.comparison is not None and row.verdict is not None]
    runs = sorted({row.comparison.runs for row in rows if row.comparison is not None})
    name = f"{table}{'-batch' * (memory == BATCH)}"
    span = "" if table == "parameters" else str(runs[0]) if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
    counts = f"{len(kinds)} | {kinds.count('agrees')} | {kinds.count('differs')}"
    return f"| [{name}](results/reproduce/{name}.md) | {counts} | {span} |"


def measured(folder: Path) -> list[str]:
    """What `memwrap bench` found, a table for each of its records."""
    parts = []
    for path in sorted(folder.glob("bench/*.json")):
        found = bench.read(path)
        versions = found.origin.versions
        lines = ["| time of | as a ratio of | | ratio | quartiles |", "| --- | --- | --- | --- | --- |"]
        for row in found.rows:
            what = ", ".join(filter(None, [row.subject, row.encoder]))
            spread = f"{row.ratio.lower:.3g} to {row.ratio.upper:.3g}"
            lines.append(f"| {row.name} | {row.base} | {what} | {row.ratio.median:.3g} | {spread} |")
        where = f"`memwrap bench` on {found.origin.device}, torch {versions.get('torch', '?')}, {found.date[:10]}:"
        parts += [where, "\n".join(lines)]
    return parts


if __name__ == "__main__":
    sys.exit(main())
