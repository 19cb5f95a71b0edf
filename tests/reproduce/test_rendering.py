"""Tables: every number in its place, verdicts as they are, and text from elsewhere that stays text."""

import csv
import io
import re
from dataclasses import replace

import pytest

from memwrap.errors import InputError
from memwrap.reproduce.published import Cell, about, published, tables
from memwrap.reproduce.rendering import COLUMNS, as_csv, as_html, as_markdown
from memwrap.reproduce.rows import SUBSET, WHOLE_SET, Row, blocks, rows_for
from memwrap.reproduce.words import legend, tally, words
from tests.report import parsed
from tests.reproduce import made_up_table

HOSTILE = '<script>alert(1)</script> & "co" | *x* {{ 7 * 7 }}'
CELL = Cell("accuracy", "svhn", 1000, "mobilenet_v2", "memory_wrap", 100)
PNG = b"\x89PNG\r\n\x1a\n rest"


def one(values: list[float]) -> Row:
    """The row of MobileNetV2 with Memory Wrap at 1000 samples of SVHN, the paper's 66.93 ± 3.15."""
    (row,) = [row for row in rows_for("svhn-reduced", {CELL: values}) if row.cell == CELL]
    return row


def grid(markdown: str) -> list[list[str]]:
    """The fields of a Markdown table's lines, the one under its heads left out."""
    lines = [line for line in markdown.splitlines() if line.startswith("|") and not line.startswith("| ---")]
    return [[field.strip() for field in line.strip("|").split("|")] for line in lines]


def explained() -> list[Row]:
    """Both sources of the explanation metrics."""
    return [
        *rows_for("explanations", made_up_table("explanations"), source=WHOLE_SET),
        *rows_for("explanations", made_up_table("explanations", shift=6), source=SUBSET, judged=False),
    ]


def test_a_row_for_each_number_in_the_paper_s_order() -> None:
    rows = rows_for("svhn-reduced", {CELL: [66.0, 67.0]})
    assert [row.cell for row in rows] == list(published("svhn-reduced"))
    assert [row.cell for row in rows if row.comparison is not None] == [CELL]


def test_a_cell_that_the_table_does_not_have_is_refused() -> None:
    with pytest.raises(InputError, match="table 'svhn-reduced' has no number for Cell"):
        rows_for("svhn-reduced", {replace(CELL, data="cifar10"): [1.0, 2.0]})


def test_no_rows_are_refused() -> None:
    with pytest.raises(InputError, match="rows is empty"):
        blocks([])


def test_rows_of_two_tables_are_refused() -> None:
    with pytest.raises(InputError, match="several tables, cost, full"):
        blocks([*rows_for("full", {}), *rows_for("cost", {})])


def test_a_cell_given_twice_is_refused() -> None:
    rows = rows_for("full", {})
    with pytest.raises(InputError, match="twice"):
        blocks([*rows, rows[0]])


@pytest.mark.parametrize(
    ("table", "heads", "columns", "lines"),
    [
        ("svhn-reduced", ("Encoder", "Variant"), ["1000 samples", "2000 samples", "5000 samples"], 9),
        ("full", ("Encoder", "Variant"), ["SVHN", "CIFAR10", "CINIC10"], 9),
        ("memory-size", ("Encoder", "Memory"), ["1000 samples", "2000 samples", "5000 samples"], 12),
        ("parameters", ("Encoder", "Variant"), ["Dimension of the encoding", "Parameters"], 9),
    ],
)
def test_tables_are_laid_out_as_the_paper_s(table: str, heads: tuple[str, str], columns: list[str], lines: int) -> None:
    (block,) = blocks(rows_for(table, {}))
    assert (block.heads, list(block.columns), len(block.lines)) == (heads, columns, lines)


@pytest.mark.parametrize("table", tables())
def test_every_number_of_every_table_is_shown_in_its_place(table: str) -> None:
    rows = rows_for(table, made_up_table(table))
    fields = [field for line in grid(as_markdown(rows, "a title", "a caption"))[1:] for field in line[2:]]
    shown = [field for field in fields if field != "–"]
    assert len(shown) == len(rows)
    (block,) = blocks(rows)
    placed = [row for line in block.lines for row in line.rows if row is not None]
    for row, field in zip(placed, shown, strict=True):
        assert f"paper {words(row).paper}" in field
        assert words(row).ours in field


def test_a_line_has_the_row_of_its_heads() -> None:
    (block,) = blocks(rows_for("svhn-reduced", {}))
    row = block.at("MobileNetV2", "Memory Wrap", "1000 samples")
    assert row is not None
    assert row.cell == CELL
    assert block.at("MobileNetV2", "Memory Wrap", "9 samples") is None


def test_a_cell_says_ours_the_paper_s_the_difference_and_the_verdict() -> None:
    said = words(one([66.0, 67.0, 68.0]))
    assert (said.ours, said.runs, said.median, said.paper) == ("67.00 ± 1.00", "(3)", "67.00", "66.93 ± 3.15")
    assert (said.difference, said.verdict, said.kind) == ("+0.07", "agrees", "agrees")


@pytest.mark.parametrize(
    ("values", "difference", "verdict", "kind"),
    [
        ([40.0, 41.0, 42.0], "−25.93", "differs, below", "differs"),
        ([80.0, 81.0, 82.0], "+14.07", "differs, above", "differs"),
        ([66.93, 66.931, 66.929], "0.00", "agrees", "agrees"),
        ([60.0], "−6.93", "too few runs", "open"),
    ],
)
def test_verdicts_in_words(values: list[float], difference: str, verdict: str, kind: str) -> None:
    said = words(one(values))
    assert (said.difference, said.verdict, said.kind) == (difference, verdict, kind)


def test_counted_numbers_are_equal_or_not() -> None:
    cell = Cell("parameters", "", None, "resnet18", "standard", 0)
    right, wrong = ({cell: [count]} for count in (11_173_962.0, 11_173_963.0))
    said = [words(row) for ours in (right, wrong) for row in rows_for("parameters", ours) if row.cell == cell]
    assert (said[0].ours, said[0].difference, said[0].verdict) == ("11,173,962", "", "equal")
    assert (said[1].ours, said[1].difference, said[1].verdict) == ("11,173,963", "+1", "differs, above")


def test_times_that_the_paper_gives_without_spread_are_not_judged() -> None:
    rows = rows_for("cost", made_up_table("cost"))
    assert words(rows[0]).verdict == "not judged: the paper gives no spread"
    assert tally(rows) == "4 cells cannot be judged."


def test_markdown_shows_medians_where_the_spread_is_large() -> None:
    scattered, steady = (as_markdown([one(values)], "", "") for values in ([20.0, 60.0, 70.0], [66.0, 67.0, 68.0]))
    assert "median 60.00" in scattered
    assert "median" not in steady


def test_the_tally_counts_verdicts() -> None:
    ours = {cell: [number.mean - 1, number.mean, number.mean + 1] for cell, number in published("svhn-reduced").items()}
    cells = list(ours)
    ours[cells[0]] = [0.0, 0.1, 0.2]
    ours[cells[2]] = [99.0, 99.1, 99.2]
    ours[cells[5]] = [50.0]
    del ours[cells[7]]
    text = tally(rows_for("svhn-reduced", ours, level=0.1))
    assert text.startswith(
        "23 of 25 cells agree with the paper; 2 differ (1 above, 1 below); 1 cannot be judged; 1 has no runs of ours. "
        "Welch's t-test at a level of 10 % for all 25 cells of the table that have runs, together (Holm's "
        "correction). A true difference of "
    )
    assert text.endswith("Cells of fewer than 5 runs differ by chance more often than that level says.")


def test_enough_runs_need_no_warning() -> None:
    assert "by chance" not in tally(rows_for("svhn-reduced", made_up_table("svhn-reduced", runs=5)))


def test_the_tally_says_what_would_have_been_noticed() -> None:
    rows = rows_for("svhn-reduced", made_up_table("svhn-reduced"))
    sizes = [float(line["noticeable"]) for line in csv.DictReader(io.StringIO(as_csv(rows)))]
    assert f"{min(sizes):.1f} points in the steadiest cell and {max(sizes):.1f} in the most scattered" in tally(rows)


def test_a_table_without_runs_says_so() -> None:
    assert tally(rows_for("full", {})) == "No runs of ours."
    assert "no runs<br>paper 94.39 ± 0.24" in as_markdown(rows_for("full", {}), "", "")


def test_the_legend_says_how_many_runs_the_paper_has() -> None:
    assert "15 runs" in legend(rows_for("full", {}))
    assert "5 runs" in legend(rows_for("memory-size", {}))
    assert "15" not in legend(rows_for("memory-size", {}))


def test_sources_stand_apart_and_only_the_published_one_is_judged() -> None:
    rows = explained()
    assert [block.source for block in blocks(rows)] == [WHOLE_SET, SUBSET]
    markdown = as_markdown(rows, "", "")
    published_part, other_part = markdown.split("**Memory drawn from the training subset**")
    assert "**Memory drawn from the whole training set**" in published_part
    assert published_part.count(" agrees |") + published_part.count("differs") == 30
    assert other_part.count("not judged |") == 30
    assert "30 of another memory source are not judged" in tally(rows)


def test_slips_are_noted_below_the_table_and_marked_in_their_cell() -> None:
    rows = rows_for("explanations", {})
    markdown, page = as_markdown(rows, "", ""), as_html(rows, "", "")
    assert "paper 74.47 ± 0.62<sup>1</sup>" in markdown
    assert "<sup>1</sup> As printed, and perhaps a slip" in markdown
    assert "paper 74.47 ± 0.62<sup>1</sup>" in page
    assert "The paper's caption says SVHN" in as_markdown(rows_for("cinic10-reduced", {}), "", "")
    assert "caption says SVHN" in as_html(rows_for("cinic10-reduced", {}), "", "")


def test_markdown_keeps_text_from_elsewhere_as_text() -> None:
    markdown = as_markdown(rows_for("full", {}), f"title {HOSTILE}", f"caption\n# {HOSTILE}")
    assert "<script>" not in markdown
    escaped = '&lt;script&gt;alert(1)&lt;/script&gt; &amp; "co" \\| \\*x\\* {{ 7 \\* 7 }}'
    assert markdown.startswith(f"### title {escaped}\n")
    assert markdown.endswith(f"\n\ncaption \\# {escaped}\n")


def test_csv_has_a_line_for_each_row_with_all_that_is_known() -> None:
    rows = rows_for("svhn-reduced", {CELL: [66.0, 67.0, 71.0]})
    lines = list(csv.DictReader(io.StringIO(as_csv(rows))))
    assert len(lines) == 27
    assert tuple(lines[0]) == COLUMNS
    (line,) = [line for line in lines if line["ours_mean"]]
    found, verdict = one([66.0, 67.0, 71.0]).comparison, one([66.0, 67.0, 71.0]).verdict
    assert found is not None
    assert verdict is not None
    assert verdict.cell_level is not None
    assert (line["metric"], line["data"], line["samples"], line["encoder"]) == (
        "accuracy",
        "svhn",
        "1000",
        "mobilenet_v2",
    )
    assert (line["variant"], line["memory_size"], line["ours_runs"]) == ("memory_wrap", "100", "3")
    assert (line["ours_mean"], line["ours_median"], line["paper_mean"]) == ("68", "67", "66.93")
    assert (line["paper_deviation_as_printed"], line["paper_runs"]) == ("3.15", "15")
    assert float(line["ours_deviation"]) == pytest.approx(7**0.5)
    assert float(line["paper_deviation"]) == pytest.approx(3.15 * (15 / 14) ** 0.5)
    assert float(line["p"]) == pytest.approx(found.p)
    assert float(line["allowed"]) == pytest.approx(found.allowed(verdict.cell_level))
    assert float(line["noticeable"]) == pytest.approx(found.noticeable(verdict.cell_level))
    assert (line["verdict"], line["cells_tested"], line["level"]) == ("agrees", "1", "0.05")


def test_csv_keeps_large_counts_whole() -> None:
    rows = rows_for("parameters", made_up_table("parameters"))
    assert "15447642" in as_csv(rows)


def test_csv_names_the_source() -> None:
    sources = [line["source"] for line in csv.DictReader(io.StringIO(as_csv(explained())))]
    assert sources == [WHOLE_SET] * 30 + [SUBSET] * 30


def test_html_has_the_cells_of_the_table() -> None:
    rows = rows_for("svhn-reduced", made_up_table("svhn-reduced"))
    page = parsed(as_html(rows, about("svhn-reduced").title, "made today"))
    cells = [cell.text for cell in page.all("td")]
    assert len(cells) == 27
    for row, cell in zip(rows, cells, strict=True):
        said = words(row)
        assert cell.startswith(f"{said.ours} {said.runs} median {said.median} paper {said.paper}")
        assert f"{said.difference} {said.verdict}" in cell
        assert f"would notice {said.noticeable}" in cell
    assert "made today" in page.text
    assert tally(rows) in page.text


def test_html_marks_cells_that_differ() -> None:
    page = parsed(as_html([one([10.0, 10.1, 10.2])], "", ""))
    (cell,) = page.all("td")
    assert cell.attributes["class"] == "differs"


def test_html_stands_alone_and_keeps_text_as_text() -> None:
    rows = [replace(row, note=HOSTILE) for row in explained()]
    rows = [replace(row, source=HOSTILE) if row.source == SUBSET else row for row in rows]
    page = as_html(rows, f"title {HOSTILE}", f"caption {HOSTILE}", PNG)
    assert "<script" not in page
    assert "{{ 7 * 7 }}" in page
    assert re.findall(r'(?:src|href)="(?!data:)', page) == []
    assert "http" not in page.replace("http-equiv", "")
    assert "default-src 'none'" in page


@pytest.mark.parametrize(
    ("picture", "kind"), [(PNG, "image/png"), (b'<?xml version="1.0"?><svg></svg>', "image/svg+xml")]
)
def test_html_holds_its_picture(picture: bytes, kind: str) -> None:
    assert f'src="data:{kind};base64,' in as_html(rows_for("full", {}), "", "", picture)


def test_a_picture_of_another_kind_is_refused() -> None:
    with pytest.raises(InputError, match="picture begins with b'GIF89a'; expected PNG or SVG"):
        as_html(rows_for("full", {}), "", "", b"GIF89a")


def test_html_without_a_picture_has_none() -> None:
    assert "<img" not in as_html(rows_for("full", {}), "", "")
