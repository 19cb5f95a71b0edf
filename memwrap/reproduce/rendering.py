"""Tables to read: Markdown for a README, CSV for a program, and an HTML page that stands alone.

Markdown and HTML are laid out as the paper's tables are; CSV has a line for each number, with all that is known of it.
"""

import base64
import csv
import io
from collections.abc import Mapping, Sequence

from memwrap.errors import InputError
from memwrap.reproduce.published import about
from memwrap.reproduce.rows import Block, Row, blocks
from memwrap.reproduce.verdict import POWER
from memwrap.reproduce.words import legend, noticed, numbered_notes, scatters, source_words, tally, words

NOTICED = f"Would notice: so far apart, true means would have been told apart {100 * POWER:.0f} % of the time."
ABSENT = "–"  # no such number in the paper, none asked for, or no runs with memories of that source

COLUMNS = (
    "table", "source", "metric", "data", "samples", "encoder", "variant", "memory_size",
    "ours_mean", "ours_deviation", "ours_median", "ours_runs",
    "paper_mean", "paper_deviation", "paper_deviation_as_printed", "paper_runs",
    "difference", "allowed", "noticeable", "verdict", "direction", "reason",
    "t", "degrees_of_freedom", "p", "adjusted_p", "cell_level", "level", "cells_tested", "note",
)  # fmt: skip


def as_markdown(rows: Sequence[Row], title: str, caption: str) -> str:
    """A heading, the table in cells of several lines, what it comes to, and the caption: device, versions, date."""
    parts, marks = [f"### {plain_text(title)}"], numbered_notes(rows)
    for block in blocks(rows):
        if block.source:
            parts.append(f"**{plain_text(source_words(block.source))}**")
        parts.append(_markdown_table(block, marks))
    parts += [plain_text(tally(rows)), plain_text(legend(rows))]
    parts += [f"<sup>{number}</sup> {plain_text(note)}" for note, number in marks.items()]
    parts += [plain_text(note) for note in (*about(rows[0].table).notes, caption) if note]
    return "\n\n".join(parts) + "\n"


def as_csv(rows: Sequence[Row]) -> str:
    """A line for each row, under COLUMNS. Deviations are with n − 1, but for the one as printed, which is with n."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_csv_line(row) for row in rows)
    return stream.getvalue()


def as_html(rows: Sequence[Row], title: str, caption: str, picture: bytes | None = None) -> str:
    """A page that needs nothing else. picture: PNG or SVG, as `reproduce.picture` makes it; None for no picture."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("memwrap.reproduce", "templates"),
        autoescape=True,  # titles and captions come from elsewhere
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text: str = environment.get_template("table.html").render(
        title=title,
        caption=caption,
        blocks=blocks(rows),
        words=words,
        source_words=source_words,
        marks=numbered_notes(rows),
        summary=tally(rows),
        legend=legend(rows),
        noticed=NOTICED if any(noticed(row) is not None for row in rows) else "",
        notes=about(rows[0].table).notes,
        picture=None if picture is None else _uri(picture),
        absent=ABSENT,
    )
    return text


def _markdown_table(block: Block, marks: Mapping[str, int]) -> str:
    lines = [[*block.heads, *block.columns], ["---", "---", *("---:" for _ in block.columns)]]
    previous = None
    for line in block.lines:
        first = "" if line.first == previous else line.first
        lines.append([first, line.second, *(_markdown_cell(row, marks) for row in line.rows)])
        previous = line.first
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _markdown_cell(row: Row | None, marks: Mapping[str, int]) -> str:
    if row is None:
        return ABSENT
    said, mark = words(row), f"<sup>{marks[row.note]}</sup>" if row.note else ""
    lines = [said.ours if said.kind == "missing" else f"**{said.ours}** {said.runs}".rstrip()]
    if scatters(row):
        lines.append(f"median {said.median}")
    lines.append(f"paper {said.paper}{mark}")
    if said.kind != "missing":
        verdict = f"**{said.verdict}**" if said.kind == "differs" else said.verdict
        lines.append(f"{said.difference} {verdict}".strip())
    return "<br>".join(lines)


def plain_text(words: str) -> str:
    """What Markdown shows as these words and nothing else, in one paragraph."""
    marks = {"&": "&amp;", "<": "&lt;", ">": "&gt;", **{mark: f"\\{mark}" for mark in "\\`*_[]|#"}}
    seen = (letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in " ".join(words.split()))
    return "".join(marks.get(letter, letter) for letter in seen)


def _csv_line(row: Row) -> dict[str, object]:
    found, verdict = row.comparison, row.verdict
    level = None if verdict is None else verdict.cell_level
    values: dict[str, object] = {name: getattr(row.cell, name) for name in COLUMNS[2:8]}
    values |= {"table": row.table, "source": row.source, "note": row.note}
    values |= {
        "paper_mean": row.published.mean,
        "paper_deviation_as_printed": row.published.spread,
        "paper_runs": row.published.runs,
    }
    if found is not None:
        values |= {
            "ours_mean": found.mean,
            "ours_deviation": found.deviation,
            "ours_median": found.median,
            "ours_runs": found.runs,
            "paper_deviation": found.published_deviation,
            "difference": found.difference,
            "allowed": None if level is None else found.allowed(level),
            "noticeable": noticed(row),
            "t": found.t,
            "degrees_of_freedom": found.degrees_of_freedom,
            "p": found.p,
        }
    if verdict is not None:
        values |= {
            "verdict": verdict.word,
            "direction": verdict.direction,
            "reason": verdict.reason,
            "adjusted_p": verdict.adjusted_p,
            "cell_level": verdict.cell_level,
            "level": verdict.level,
            "cells_tested": verdict.cells,
        }
    return {name: f"{value:.10g}" if isinstance(value, float) else value for name, value in values.items()}


def _uri(picture: bytes) -> str:
    if picture.startswith(b"\x89PNG"):
        kind = "image/png"
    elif b"<svg" in picture[:1000]:
        kind = "image/svg+xml"
    else:
        raise InputError(f"picture begins with {picture[:8]!r}; expected PNG or SVG")
    return f"data:{kind};base64,{base64.b64encode(picture).decode()}"
