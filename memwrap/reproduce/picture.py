"""A table as a picture: each mean of ours beside the paper's, with two standard errors to either side."""

import io
import math
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from memwrap.errors import SettingsError
from memwrap.reproduce.rows import Block, Row, blocks, once
from memwrap.reproduce.words import source_words, tally, without_runs

KINDS = ("png", "svg")
DPI = 200
# Told apart by the colour-blind, and by shape in grey: the paper's mark, and those of our sources.
PAPER = "#b4540a"
OURS = (("#1f6fa8", "o"), ("#6a3d9a", "^"), ("#2e7d5b", "D"))
INK, SOFT, GRID, BAND = "#1b1b1a", "#444444", "#dddddd", "#ededeb"
ERRORS = 2  # standard errors to either side of a mean
LABELS, PANEL = 1.95, 2.4  # inches wide
MARK, BETWEEN, AROUND = 0.11, 0.14, 1.5  # inches high: a mark, the space between lines, and all around the panels
LETTERS, LEGEND_LETTERS, TITLE_LETTERS = 18, 13, 9  # to an inch: of small print, of the legend with its marks
LEGEND_LINE, TITLE_LINE = 0.16, 0.18  # inches high
EXPLAINED = f"Marks: means. Bars: {ERRORS} standard errors to either side; a single run has none."
BANDS = "Grey bands: ours and the paper's differ."
ONLY_PAPER = "Where only the paper's mark stands, there are no runs of ours."


def picture(rows: Sequence[Row], title: str, caption: str = "", kind: str = "png") -> bytes:
    """A file's content. Panels are the table's columns, each with its own scale; lines are the table's."""
    if kind not in KINDS:
        raise SettingsError(f"kind is {kind!r}; expected {' or '.join(KINDS)}")
    found = blocks(rows)

    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Text stays text in SVG, and is shown as it is. Nothing depends on the time.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "memwrap", "text.parse_math": False}):
        drawn = Figure(layout="constrained")
        FigureCanvasAgg(drawn)
        _draw(drawn, found, title)
        _legend(drawn, found, title)
        letters = int(drawn.get_figwidth() * LETTERS)
        explained = " ".join(_explained(rows))
        small = "\n".join(textwrap.fill(text, letters) for text in (explained, tally(rows), caption) if text)
        drawn.supxlabel(small, fontsize=7, color=SOFT, x=0.01, ha="left")
        stream = io.BytesIO()
        drawn.savefig(stream, format=kind, dpi=DPI, metadata={"Date": None} if kind == "svg" else None)
    return stream.getvalue()


def _explained(rows: Sequence[Row]) -> list[str]:
    """What there is to be seen, in words."""
    differing = any(_differs(row) for row in rows)
    return [
        *([] if all(row.published.exact for row in rows) else [EXPLAINED]),
        *([BANDS] if differing else []),
        *([ONLY_PAPER] if without_runs(rows) else []),
    ]


def _differs(row: Row) -> bool:
    return row.verdict is not None and row.verdict.word == "differs"


def _draw(drawn: Any, found: Sequence[Block], title: str) -> None:
    """All sources in the same panels: the paper has one number, and ours is seen to move."""
    lines = once((line.first, line.second) for block in found for line in block.lines)
    columns = once(column for block in found for column in block.columns)
    count = max(len(columns), 2)
    width = LABELS + PANEL * count
    more_above = TITLE_LINE * (len(_title_lines(title, width)) - 1)
    more_above += 0 if _fits_a_line(found, width) else LEGEND_LINE * len(found)
    drawn.set_size_inches(width, AROUND + more_above + (MARK * (1 + len(found)) + BETWEEN) * len(lines))
    widths = [LABELS, *(PANEL * count / len(columns) for _ in columns)]
    labels, *panels = drawn.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    _write_labels(labels, found[0].heads, lines)
    for panel, column in zip(panels, columns, strict=True):
        _frame(panel, column)
        for place, line in enumerate(lines):
            _line(panel, place, [block.at(*line, column) for block in found])
    for panel in (labels, *panels):
        panel.set_ylim(len(lines) - 0.5, -0.5)
        for place, (before, line) in enumerate(pairwise(lines), 1):
            if line[0] != before[0]:
                panel.axhline(place - 0.5, color=SOFT, linewidth=0.6)


def _write_labels(panel: Any, heads: tuple[str, str], lines: Sequence[tuple[str, str]]) -> None:
    panel.set_xlim(0, 1)
    panel.set_xticks([])
    panel.set_yticks([])
    panel.spines[:].set_visible(False)
    before = None
    for place, (first, second) in enumerate(lines):
        if first != before:
            panel.text(0, place, first, fontsize=8, color=INK, fontweight="bold", va="center")
        named = f"{heads[1]} {second}" if second.isdigit() else second  # a bare number says nothing
        panel.text(1, place, named, fontsize=8, color=INK, ha="right", va="center")
        before = first


def _frame(panel: Any, head: str) -> None:
    panel.set_title("\n".join(textwrap.wrap(head, 32)), fontsize=9, color=INK)
    panel.set_yticks([])
    panel.grid(axis="x", color=GRID, linewidth=0.6)
    panel.set_axisbelow(True)
    panel.tick_params(labelsize=8, colors=INK, length=0)
    panel.spines[["left", "right", "top"]].set_visible(False)
    panel.spines["bottom"].set_color(SOFT)
    panel.margins(x=0.08)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value / 1e6:g} million" if value >= 1e6 else f"{value:g}")


def _line(panel: Any, place: int, rows: Sequence[Row | None]) -> None:
    """The paper's number above ours, one below the other for each source."""
    known = [row for row in rows if row is not None]
    if not known:  # the paper has no such number
        return
    if any(_differs(row) for row in known):
        panel.axhspan(place - 0.5, place + 0.5, color=BAND, linewidth=0, zorder=0)
    number = known[0].published
    step = MARK / (MARK * (1 + len(rows)) + BETWEEN)  # as a part of a line
    height = place - step * len(rows) / 2
    _mark(panel, number.mean, height, _standard_error(number.spread, number.runs, 0), PAPER, "s", "white")
    for source, row in enumerate(rows):
        height += step
        if row is not None and row.comparison is not None:
            error = _standard_error(row.comparison.deviation, row.comparison.runs, 1)
            colour, shape = OURS[source]
            _mark(panel, row.comparison.mean, height, error, colour, shape, colour)


def _mark(panel: Any, value: float, height: float, error: float, colour: str, shape: str, filling: str) -> None:
    panel.errorbar(
        value,
        height,
        xerr=ERRORS * error,
        fmt=shape,
        color=colour,
        markersize=4,
        elinewidth=1.3,
        markerfacecolor=filling,
        markeredgewidth=1.1,
        zorder=3,
    )


def _standard_error(deviation: float | None, runs: int, ddof: int) -> float:
    """Of a mean; nothing where it is not known. A deviation with ddof = 0 is divided by the root of n - 1 instead."""
    return 0.0 if deviation is None or runs < 2 else deviation / math.sqrt(runs - 1 + ddof)


def _names(found: Sequence[Block]) -> list[str]:
    """What the legend says of the paper's mark, and of each source's."""
    words = [source_words(block.source) for block in found]
    return ["paper", *(f"ours: {each[0].lower()}{each[1:]}" if each else "ours" for each in words)]


def _fits_a_line(found: Sequence[Block], width: float) -> bool:
    return sum(len(name) for name in _names(found)) <= LEGEND_LETTERS * width


def _title_lines(title: str, width: float) -> list[str]:
    return textwrap.wrap(title, int(TITLE_LETTERS * width)) or [""]


def _legend(drawn: Any, found: Sequence[Block], title: str) -> None:
    """With the title on top of it, so that neither covers the other."""
    from matplotlib.lines import Line2D

    paper, *ours = _names(found)
    rows = [row for block in found for line in block.lines for row in line.rows if row is not None]
    bar = "none" if all(row.published.exact for row in rows) else "-"
    marks = [Line2D([], [], color=PAPER, marker="s", linestyle=bar, markerfacecolor="white", label=paper)]
    for name, (colour, shape) in zip(ours, OURS, strict=False):
        marks.append(Line2D([], [], color=colour, marker=shape, linestyle=bar, label=name))
    columns = len(marks) if _fits_a_line(found, drawn.get_figwidth()) else 1
    legend = drawn.legend(
        handles=marks, loc="outside upper left", ncols=columns, fontsize=8, frameon=False,
        title="\n".join(_title_lines(title, drawn.get_figwidth())),
        title_fontproperties={"size": 11, "weight": "bold"}, alignment="left", borderaxespad=0.2,
    )  # fmt: skip
    legend.get_title().set_color(INK)
