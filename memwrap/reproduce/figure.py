"""A table as a figure: our means and the paper's, with error bars."""

import io
import math
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from memwrap.errors import SettingsError
from memwrap.reproduce.layout import Block, Row, arrange
from memwrap.reproduce.tasks import unique

FORMATS = ("png", "svg")
DPI = 200
# Distinguishable by the colour-blind, and by shape in grey: the paper's marker, and one for each of our sources.
PAPER = ("#b4540a", "s")
OURS = (("#1f6fa8", "o"), ("#6a3d9a", "^"), ("#2e7d5b", "D"))
INK, SOFT, GRID, BAND = "#1b1b1a", "#444444", "#dddddd", "#ededeb"
ERRORS = 2  # standard errors on either side of a mean
LABELS, PANEL = 1.95, 2.4  # widths in inches
MARKER, GAP, MARGIN = 0.11, 0.14, 1.55  # heights in inches: a marker, the space between lines, the text around
LETTERS, TITLE_LETTERS = 18, 9  # per inch
TITLE_LINE = 0.18  # inches


def draw_figure(rows: Sequence[Row], title: str, caption: str = "", kind: str = "png") -> bytes:
    """The contents of a PNG or SVG file. Panels are the table's columns, with a scale each."""
    if kind not in FORMATS:
        raise SettingsError(f"kind is {kind!r}; expected {' or '.join(FORMATS)}")
    blocks = arrange(rows)

    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Text stays text in SVG and is not parsed as mathematics. The file does not depend on the time.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "memwrap", "text.parse_math": False}):
        figure = Figure(layout="constrained")
        FigureCanvasAgg(figure)
        _draw_panels(figure, blocks, title)
        _draw_legend(figure, blocks, title)
        paragraphs = [_explain(rows), *caption.splitlines()]
        width = int(figure.get_figwidth() * LETTERS)
        small = "\n".join(textwrap.fill(text, width) for text in paragraphs if text)
        figure.supxlabel(small, fontsize=7, color=SOFT, x=0.01, ha="left")
        stream = io.BytesIO()
        figure.savefig(stream, format=kind, dpi=DPI, metadata={"Date": None} if kind == "svg" else None)
    return stream.getvalue()


def _explain(rows: Sequence[Row]) -> str:
    if all(row.published.exact for row in rows):
        return ""
    bars = f"Bars: {ERRORS} standard errors on either side of the mean."
    return bars + (" Grey bands: ours and the paper's differ." if any(map(_differs, rows)) else "")


def _differs(row: Row) -> bool:
    return row.verdict is not None and row.verdict.word == "differs"


def _draw_panels(figure: Any, blocks: Sequence[Block], title: str) -> None:
    """All sources share the panels, as the paper has one number for all of them."""
    lines = unique((line.first, line.second) for block in blocks for line in block.lines)
    columns = unique(column for block in blocks for column in block.columns)
    width = PANEL * max(len(columns), 2)
    line_height = MARKER * (1 + len(blocks)) + GAP
    title_height = TITLE_LINE * len(_wrap_title(title, LABELS + width))
    figure.set_size_inches(LABELS + width, MARGIN + title_height + line_height * len(lines))
    widths = [LABELS, *(width / len(columns) for _ in columns)]
    labels, *panels = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    _write_labels(labels, blocks[0].heads, lines)
    for panel, column in zip(panels, columns, strict=True):
        _style(panel, column)
        for position, line in enumerate(lines):
            _draw_line(panel, position, [block.at(*line, column) for block in blocks], MARKER / line_height)
    for panel in (labels, *panels):
        panel.set_ylim(len(lines) - 0.5, -0.5)
        for position, (before, line) in enumerate(pairwise(lines), 1):
            if line[0] != before[0]:
                panel.axhline(position - 0.5, color=SOFT, linewidth=0.6)


def _write_labels(panel: Any, heads: tuple[str, str], lines: Sequence[tuple[str, str]]) -> None:
    panel.set_xlim(0, 1)
    panel.set_xticks([])
    panel.set_yticks([])
    panel.spines[:].set_visible(False)
    previous = None
    for position, (first, second) in enumerate(lines):
        if first != previous:
            panel.text(0, position, first, fontsize=8, color=INK, fontweight="bold", va="center")
        text = f"{heads[1]} {second}" if second.isdigit() else second
        panel.text(1, position, text, fontsize=8, color=INK, ha="right", va="center")
        previous = first


def _style(panel: Any, head: str) -> None:
    panel.set_title("\n".join(textwrap.wrap(head, 32)), fontsize=9, color=INK)
    panel.set_yticks([])
    panel.grid(axis="x", color=GRID, linewidth=0.6)
    panel.set_axisbelow(True)
    panel.tick_params(labelsize=8, colors=INK, length=0)
    panel.spines[["left", "right", "top"]].set_visible(False)
    panel.spines["bottom"].set_color(SOFT)
    panel.margins(x=0.08)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value / 1e6:g} million" if value >= 1e6 else f"{value:g}")


def _draw_line(panel: Any, position: int, rows: Sequence[Row | None], step: float) -> None:
    """The paper's marker above ours, one for each source. step: the distance between two, as a share of the line."""
    present = [row for row in rows if row is not None]
    if not present:  # the paper has no such number
        return
    if any(map(_differs, present)):
        panel.axhspan(position - 0.5, position + 0.5, color=BAND, linewidth=0, zorder=0)
    number = present[0].published
    top = position - step * len(rows) / 2
    _draw_marker(panel, number.mean, top, _standard_error(number.spread, number.runs - 1), *PAPER, "white")
    for source, row in enumerate(rows):
        if row is not None and row.comparison is not None:
            error = _standard_error(row.comparison.deviation, row.comparison.runs)
            colour, shape = OURS[source]
            _draw_marker(panel, row.comparison.mean, top + step * (source + 1), error, colour, shape, colour)


def _draw_marker(panel: Any, mean: float, height: float, error: float, colour: str, shape: str, face: str) -> None:
    style = {"markersize": 4, "elinewidth": 1.3, "markeredgewidth": 1.1, "zorder": 3}
    panel.errorbar(mean, height, xerr=ERRORS * error, fmt=shape, color=colour, markerfacecolor=face, **style)


def _standard_error(deviation: float | None, divisor: int) -> float:
    """Of a mean; 0 where it is not known. divisor: n for a deviation with ddof = 1, n - 1 for one with ddof = 0."""
    return 0.0 if deviation is None or divisor < 1 else deviation / math.sqrt(divisor)


def _wrap_title(title: str, width: float) -> list[str]:
    return textwrap.wrap(title, int(TITLE_LETTERS * width)) or [""]


def _draw_legend(figure: Any, blocks: Sequence[Block], title: str) -> None:
    """With the title on top of it, so that neither covers the other."""
    from matplotlib.lines import Line2D

    names = [("ours" if not block.source else f"ours, memory from: {block.source}") for block in blocks]
    marks = [Line2D([], [], color=PAPER[0], marker=PAPER[1], linestyle="none", markerfacecolor="white", label="paper")]
    for name, (colour, shape) in zip(names, OURS, strict=False):
        marks.append(Line2D([], [], color=colour, marker=shape, linestyle="none", label=name))
    legend = figure.legend(
        handles=marks, loc="outside upper left", ncols=2 if len(marks) > 2 else len(marks), fontsize=8, frameon=False,
        title="\n".join(_wrap_title(title, figure.get_figwidth())),
        title_fontproperties={"size": 11, "weight": "bold"}, alignment="left", borderaxespad=0.2,
    )  # fmt: skip
    legend.get_title().set_color(INK)
