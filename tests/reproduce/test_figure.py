"""Figures of tables: read back from their SVG, where text is text and marks have places."""

import html
import io
import re
from collections.abc import Sequence
from typing import Any

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from memwrap.errors import SettingsError
from memwrap.reproduce.figure import BAND, OURS, PAPER, draw_figure
from memwrap.reproduce.layout import Row
from memwrap.reproduce.published import Cell, published_table, table_names
from memwrap.reproduce.rendering import make_title
from memwrap.reproduce.tables import PUBLISHED_SHARE, SUBSET, WHOLE_SET, make_rows
from tests.reproduce import made_up_table

CELL = Cell("accuracy", "svhn", 1000, "mobilenet_v2", "memory_wrap", 100)
COLOURS = FIRST, SECOND, _ = [colour for colour, _ in OURS]
Marks = list[tuple[str, float, float]]  # colour, value, half the bar


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> Marks:
    """What is drawn, as it is drawn."""
    drawn: Marks = []
    original = Axes.errorbar

    def noted(panel: Axes, value: float, height: float, *, xerr: float, color: str, **look: Any) -> Any:
        drawn.append((color, value, xerr))
        return original(panel, value, height, xerr=xerr, color=color, **look)

    monkeypatch.setattr(Axes, "errorbar", noted)
    return drawn


def svg(rows: Sequence[Row], title: str = "a title", caption: str = "") -> str:
    return draw_figure(rows, title, caption, kind="svg").decode()


def text_of(text: str) -> str:
    """The text of an SVG."""
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", text).split()))


@pytest.mark.parametrize("table", table_names())
def test_each_number_of_the_paper_and_of_ours_has_a_mark(table: str, marks: Marks) -> None:
    ours = made_up_table(table)
    rows = make_rows(table, ours)
    draw_figure(rows, "a title")
    assert sorted(value for colour, value, _ in marks if colour == PAPER[0]) == sorted(
        row.published.mean for row in rows
    )
    expected = sorted(row.comparison.mean for row in rows if row.comparison is not None)
    assert sorted(value for colour, value, _ in marks if colour == FIRST) == expected


def test_bars_are_two_standard_errors_of_the_mean(marks: Marks) -> None:
    rows = [row for row in make_rows("svhn-reduced", {CELL: [66.0, 68.0, 70.0, 72.0]}) if row.cell == CELL]
    draw_figure(rows, "a title")
    (_, _, paper), (_, _, ours) = marks
    assert paper == pytest.approx(2 * 3.15 * (15 / 14) ** 0.5 / 15**0.5)
    assert ours == pytest.approx(2 * (20 / 3) ** 0.5 / 4**0.5)


def test_a_single_run_has_a_mark_without_a_bar(marks: Marks) -> None:
    draw_figure(make_rows("svhn-reduced", {CELL: [66.0]}), "a title")
    assert [(value, bar) for colour, value, bar in marks if colour == FIRST] == [(66.0, 0)]


def test_cells_that_differ_have_a_band() -> None:
    agreeing, differing = ({CELL: [mean - 1, mean, mean + 1]} for mean in (67.0, 30.0))
    assert BAND not in svg(make_rows("svhn-reduced", agreeing))
    assert svg(make_rows("svhn-reduced", differing)).count(f"fill: {BAND}") == 1


def test_sources_have_their_markers_and_names(marks: Marks) -> None:
    ours = made_up_table("explanations")
    rows = [
        row
        for source in (PUBLISHED_SHARE, WHOLE_SET, SUBSET)
        for row in make_rows("explanations", ours, source=source, tested=source == PUBLISHED_SHARE)
    ]
    text = text_of(svg(rows))
    assert [sum(colour == each for colour, _, _ in marks) for each in (PAPER[0], *COLOURS)] == [30, 30, 30, 30]
    for source in (PUBLISHED_SHARE, WHOLE_SET, SUBSET):
        assert f"memory from: {source}" in text


@pytest.mark.parametrize("title", ["a title", make_title("counterfactuals", "batch", is_part=True)])
@pytest.mark.parametrize("columns", [1, 4])
def test_title_and_legend_stay_within_the_picture(columns: int, title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = made_up_table("explanations")
    models = list(dict.fromkeys((cell.encoder, cell.variant) for cell in ours))[:columns]
    rows = [
        row
        for source in (PUBLISHED_SHARE, WHOLE_SET, SUBSET)
        for row in make_rows("explanations", ours, source=source, tested=False)
        if (row.cell.encoder, row.cell.variant) in models
    ]
    found: list[tuple[float, float, float]] = []
    save = Figure.savefig

    def measured(figure: Figure, *args: Any, **options: Any) -> None:
        save(figure, *args, **options)
        panel = figure.axes[0].get_window_extent()
        found.append((figure.legends[0].get_window_extent().x1, figure.bbox.width, panel.height / figure.dpi))

    monkeypatch.setattr(Figure, "savefig", measured)
    draw_figure(rows, title)
    ((right, width, height),) = found
    assert right <= width
    lines = len({(row.cell.data, row.cell.samples) for row in rows})
    assert height >= 0.59 * lines, "a title or legend of several lines takes nothing from the panels"


def test_sources_with_different_cells_are_kept_apart(marks: Marks) -> None:
    cells = list(published_table("explanations"))
    first = [row for row in make_rows("explanations", {cells[0]: [1.0, 2.0]}, source=WHOLE_SET) if row.comparison]
    second = [
        row for row in make_rows("explanations", {cells[7]: [5.0, 7.0]}, source=SUBSET, tested=False) if row.comparison
    ]
    draw_figure(first + second, "a title")
    assert [(colour, value) for colour, value, _ in marks if colour != PAPER[0]] == [(FIRST, 1.5), (SECOND, 6.0)]


def test_the_text_is_shown() -> None:
    rows = make_rows("svhn-reduced", made_up_table("svhn-reduced"))
    text = text_of(svg(rows, "Reduced $x$ & <b>", "on a GPU"))
    for part in (
        "Reduced $x$ & <b>",
        "MobileNetV2",
        "Only Memory",
        "5000 samples",
        "2 standard errors",
        "on a GPU",
    ):
        assert part in text


def test_the_same_rows_give_the_same_bytes() -> None:
    rows = make_rows("full", made_up_table("full"))
    assert svg(rows) == svg(rows)


def test_png_is_large_enough_to_print() -> None:
    image = Image.open(io.BytesIO(draw_figure(make_rows("svhn-reduced", made_up_table("svhn-reduced")), "a title")))
    assert image.format == "PNG"
    assert image.width >= 1800


def test_another_kind_is_refused() -> None:
    with pytest.raises(SettingsError, match="kind is 'gif'; expected png or svg"):
        draw_figure(make_rows("full", {}), "a title", kind="gif")
