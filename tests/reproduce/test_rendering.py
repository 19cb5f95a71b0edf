"""Tables as Markdown and CSV: every number in its place, and text from elsewhere stays text."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from memwrap.errors import InputError, SaveError
from memwrap.reproduce.layout import Row, arrange
from memwrap.reproduce.published import Cell, published_table, table_names
from memwrap.reproduce.records import Seconds
from memwrap.reproduce.rendering import (
    COLUMNS,
    FILES,
    format_cell,
    legend,
    make_caption,
    make_title,
    summarise,
    tally,
    to_csv,
    to_markdown,
    write_table,
)
from memwrap.reproduce.tables import SUBSET, WHOLE_SET, make_rows, rows_from_records
from memwrap.reproduce.tasks import select_cells
from tests.reproduce import made_up_table
from tests.reproduce.records import ORIGIN, TASK, failed, recorded, tasks_of

HOSTILE = '<script>alert(1)</script> & "co" | *x* {{ 7 * 7 }}'
CELL = Cell("accuracy", "svhn", 1000, "mobilenet_v2", "memory_wrap", 100)


def one(values: list[float]) -> Row:
    """The row of MobileNetV2 with Memory Wrap at 1000 samples of SVHN, the paper's 66.93 ± 3.15."""
    (row,) = [row for row in make_rows("svhn-reduced", {CELL: values}) if row.cell == CELL]
    return row


def explained() -> list[Row]:
    """Two sources of memory samples."""
    return [
        *make_rows("explanations", made_up_table("explanations"), source=WHOLE_SET),
        *make_rows("explanations", made_up_table("explanations", shift=6), source=SUBSET, tested=False),
    ]


# Layout


def test_there_is_a_row_for_each_number_in_the_paper_s_order() -> None:
    rows = make_rows("svhn-reduced", {CELL: [66.0, 67.0]})
    assert [row.cell for row in rows] == list(published_table("svhn-reduced"))
    assert [row.cell for row in rows if row.comparison is not None] == [CELL]


def test_cells_of_another_table_are_refused() -> None:
    with pytest.raises(InputError, match="'svhn-reduced' has no number for Cell"):
        make_rows("svhn-reduced", {replace(CELL, data="cifar10"): [1.0, 2.0]})


def test_rows_that_cannot_be_arranged_are_refused() -> None:
    rows = make_rows("full", {})
    for wrong, message in (
        ([], "rows is empty"),
        ([*rows, *make_rows("cost", {})], "cost, full"),
        ([*rows, rows[0]], "twice"),
    ):
        with pytest.raises(InputError, match=message):
            arrange(wrong)


@pytest.mark.parametrize(
    ("table", "heads", "columns", "lines"),
    [
        ("svhn-reduced", ("Encoder", "Variant"), ["1000 samples", "2000 samples", "5000 samples"], 9),
        ("full", ("Encoder", "Variant"), ["SVHN", "CIFAR10", "CINIC10"], 9),
        ("memory-size", ("Encoder", "Memory"), ["1000 samples", "2000 samples", "5000 samples"], 12),
        ("parameters", ("Encoder", "Variant"), ["Dimension of the encoding", "Parameters"], 9),
    ],
)
def test_the_layout_is_the_paper_s(table: str, heads: tuple[str, str], columns: list[str], lines: int) -> None:
    (block,) = arrange(make_rows(table, {}))
    assert (block.heads, list(block.columns), len(block.lines)) == (heads, columns, lines)


def test_a_row_is_found_by_its_headings() -> None:
    (block,) = arrange(make_rows("svhn-reduced", {}))
    row = block.at("MobileNetV2", "Memory Wrap", "1000 samples")
    assert row is not None
    assert row.cell == CELL
    assert block.at("MobileNetV2", "Memory Wrap", "9 samples") is None


# Cells


@pytest.mark.parametrize(
    ("values", "difference", "verdict"),
    [
        ([66.0, 67.0, 68.0], "+0.07", "agrees"),
        ([40.0, 41.0, 42.0], "−25.93", "differs, below"),
        ([80.0, 81.0, 82.0], "+14.07", "differs, above"),
        ([66.93, 66.931, 66.929], "0.00", "agrees"),
        ([60.0], "−6.93", "too few runs"),
    ],
)
def test_a_cell_has_difference_and_verdict(values: list[float], difference: str, verdict: str) -> None:
    text = format_cell(one(values))
    assert (text.difference, text.verdict) == (difference, verdict)


def test_a_cell_has_ours_and_the_paper_s() -> None:
    text = format_cell(one([66.0, 67.0, 68.0]))
    assert (text.ours, text.runs, text.median, text.paper) == ("67.00 ± 1.00", "3", "67.00", "66.93 ± 3.15")


def test_counted_numbers_are_equal_or_not() -> None:
    cell = Cell("parameters", "", None, "resnet18", "standard", 0)
    right, wrong = ({cell: [count]} for count in (11_173_962.0, 11_173_963.0))
    texts = [format_cell(row) for ours in (right, wrong) for row in make_rows("parameters", ours) if row.cell == cell]
    assert (texts[0].ours, texts[0].difference, texts[0].verdict) == ("11,173,962", "", "equal")
    assert (texts[1].ours, texts[1].difference, texts[1].verdict) == ("11,173,963", "+1", "differs, above")


def test_numbers_without_a_published_spread_are_not_tested() -> None:
    rows = make_rows("cost", made_up_table("cost"))
    assert format_cell(rows[0]).verdict == "not tested: the paper gives no spread"
    assert (tally(rows).tested, tally(rows).too_few) == (0, 4)


# Text below a table


def test_outcomes_are_counted() -> None:
    numbers = published_table("svhn-reduced")
    ours = {cell: [number.mean - 1, number.mean, number.mean + 1] for cell, number in numbers.items()}
    cells = list(ours)
    ours[cells[0]] = [0.0, 0.1, 0.2]
    ours[cells[2]] = [99.0, 99.1, 99.2]
    ours[cells[5]] = [50.0]
    del ours[cells[7]]
    rows = make_rows("svhn-reduced", ours, level=0.1)
    found = tally(rows)
    assert (found.agree, found.above, found.below, found.too_few, found.missing) == (23, 1, 1, 1, 1)
    text = summarise(rows)
    for part in ("23 of 25", "level 10 % for 25 cells", "fewer than 5 runs"):
        assert part in text
    assert "fewer than" not in summarise(make_rows("svhn-reduced", made_up_table("svhn-reduced", runs=5)))


def test_the_summary_has_the_noticeable_differences() -> None:
    rows = make_rows("svhn-reduced", made_up_table("svhn-reduced"))
    sizes = [float(line["noticeable"]) for line in csv.DictReader(io.StringIO(to_csv(rows)))]
    assert f"{min(sizes):.1f} to {max(sizes):.1f} points" in summarise(rows)


def test_a_table_without_runs_says_so() -> None:
    assert summarise(make_rows("full", {})) == "No runs of ours."
    assert "no runs<br>paper 94.39 ± 0.24" in to_markdown(make_rows("full", {}), "", "")


def test_the_legend_has_the_paper_s_number_of_runs() -> None:
    assert "15 runs" in legend(make_rows("full", {}))
    assert "15" not in legend(make_rows("memory-size", {}))


def test_a_caption_names_devices_dates_versions_and_failures() -> None:
    later = replace(ORIGIN, device="NVIDIA H200", engine="graph", side_by_side=5, dirty=True)
    later = replace(later, versions={**ORIGIN.versions, "cuda": "13.0"})
    records = [
        recorded(),
        recorded(origin=later, date="2026-11-18T00:00:00+00:00", seconds=Seconds(3600.0, 4185.0)),
        recorded(replace(TASK, seed=1), origin=replace(later, side_by_side=15), seconds=Seconds(0.0, 0.0)),
    ]
    failure = failed(replace(TASK, seed=9))
    caption = make_caption(records, [failure], skipped=2)
    for part in (
        "3 runs on cpu, NVIDIA H200, 2026-11-16 to 2026-11-18, 2 h 10 min",
        "torch 2.11 with CUDA 13.0",
        "commit 0123456789, 0123456789 with changes",
        "loop; graph with 5 or 15 runs",
        "svhn (73,257 for training, 26,032 for the test)",
        failure.task.name,
        "records: 2",
    ):
        assert part in caption
    assert make_caption([]) == ""


# Markdown


@pytest.mark.parametrize("table", table_names())
def test_every_number_of_every_table_is_shown_in_its_place(table: str) -> None:
    rows = make_rows(table, made_up_table(table))
    lines = [line for line in to_markdown(rows, "a title", "a caption").splitlines() if line.startswith("|")]
    fields = [field.strip() for line in lines[2:] for field in line.strip("|").split("|")[2:]]
    shown = [field for field in fields if field != "–"]
    (block,) = arrange(rows)
    placed = [row for line in block.lines for row in line.rows if row is not None]
    assert len(shown) == len(rows)
    for row, field in zip(placed, shown, strict=True):
        assert f"paper {format_cell(row).paper}" in field
        assert format_cell(row).ours in field


def test_medians_are_shown_where_the_spread_is_large() -> None:
    scattered, steady = (to_markdown([one(values)], "", "") for values in ([20.0, 60.0, 70.0], [66.0, 67.0, 68.0]))
    assert "median 60.00" in scattered
    assert "median" not in steady


def test_sources_have_a_block_each_and_one_is_tested() -> None:
    rows = explained()
    assert [block.source for block in arrange(rows)] == [WHOLE_SET, SUBSET]
    tested, other = to_markdown(rows, "", "").split("**Memory samples from the training subset**")
    assert tested.count(" agrees |") + tested.count("differs") == 30
    assert other.count("not tested |") == 30


def test_slips_of_the_paper_are_noted_and_marked() -> None:
    markdown = to_markdown(make_rows("explanations", {}), "", "")
    assert "paper 74.47 ± 0.62<sup>1</sup>" in markdown
    assert "<sup>1</sup> As printed, and perhaps a slip" in markdown
    assert "The paper's caption says SVHN" in to_markdown(make_rows("cinic10-reduced", {}), "", "")


def test_text_from_elsewhere_stays_text() -> None:
    markdown = to_markdown(make_rows("full", {}), f"title {HOSTILE}", f"caption\n# {HOSTILE}")
    assert "<script>" not in markdown
    escaped = '&lt;script&gt;alert(1)&lt;/script&gt; &amp; "co" \\| \\*x\\* {{ 7 \\* 7 }}'
    assert markdown.startswith(f"### title {escaped}\n")
    assert markdown.endswith(f"\n\ncaption \\# {escaped}\n")


# CSV


def test_csv_has_a_line_for_each_row() -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(make_rows("svhn-reduced", {CELL: [66.0, 67.0, 71.0]})))))
    assert len(lines) == 27
    assert tuple(lines[0]) == COLUMNS
    (line,) = [line for line in lines if line["ours_mean"]]
    row = one([66.0, 67.0, 71.0])
    assert row.comparison is not None
    assert row.verdict is not None
    assert row.verdict.cell_level is not None
    expected = {
        "metric": "accuracy", "data": "svhn", "samples": "1000", "encoder": "mobilenet_v2", "variant": "memory_wrap",
        "memory_size": "100", "ours_runs": "3", "ours_mean": "68", "ours_median": "67", "paper_mean": "66.93",
        "paper_deviation_as_printed": "3.15", "paper_runs": "15", "verdict": "agrees", "cells_tested": "1",
        "level": "0.05",
    }  # fmt: skip
    assert {name: line[name] for name in expected} == expected
    assert float(line["ours_deviation"]) == pytest.approx(7**0.5)
    assert float(line["paper_deviation"]) == pytest.approx(3.15 * (15 / 14) ** 0.5)
    assert float(line["p"]) == pytest.approx(row.comparison.p)
    assert float(line["allowed"]) == pytest.approx(row.comparison.allowed(row.verdict.cell_level))
    assert float(line["noticeable"]) == pytest.approx(row.comparison.noticeable(row.verdict.cell_level))


def test_csv_keeps_large_counts_whole_and_names_sources() -> None:
    assert "15447642" in to_csv(make_rows("parameters", made_up_table("parameters")))
    sources = [line["source"] for line in csv.DictReader(io.StringIO(to_csv(explained())))]
    assert sources == [WHOLE_SET] * 30 + [SUBSET] * 30


# Files


def test_a_table_is_written_as_markdown_csv_and_a_figure(tmp_path: Path) -> None:
    cells = select_cells("svhn-reduced")
    records = [recorded(task, 0.2 + task.seed / 100) for task in tasks_of("svhn-reduced", range(2))]
    rows = rows_from_records("svhn-reduced", cells, records)
    for _ in range(2):  # the second time in the place of the first
        written = write_table(tmp_path / "deep" / "table", rows, make_title("svhn-reduced"), "on a Monday")
    assert sorted(path.name for path in (tmp_path / "deep" / "table").iterdir()) == sorted(FILES)
    markdown, table, figure = written
    assert "on a Monday" in markdown.read_text()
    assert figure.read_bytes().startswith(b"\x89PNG")
    lines = list(csv.DictReader(table.open()))
    assert [line["variant"] for line in lines] == [cell.variant for cell in cells]
    assert {line["ours_mean"] for line in lines} == {"20.5"}


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SaveError, match="cannot be written"):
        write_table(tmp_path / "file" / "table", make_rows("full", {}), "title", "caption")
