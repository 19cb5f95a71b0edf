"""Tables from records alone: each run in its cell, memory sources apart, and nothing mixed that does not belong."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from memwrap.errors import DataError, SaveError, SettingsError
from memwrap.reproduce.grid import Task, cells_of, task_for
from memwrap.reproduce.published import Cell, published
from memwrap.reproduce.records import SHARE, Images, Record, Seconds
from memwrap.reproduce.rows import PUBLISHED_SHARE, SUBSET, WHOLE_SET, Row
from memwrap.reproduce.tables import caption_of, counted, rows_of, title_of, write
from memwrap.reproduce.words import tally, words
from tests.reproduce.recorded import ORIGIN, TASK, drawn, failed, recorded, tasks_of

CELL = Cell("accuracy", "svhn", 1000, "mobilenet_v2", "memory_wrap", 100)
CELLS = cells_of("svhn-reduced")


def at(rows: list[Row], cell: Cell, source: str = "") -> Row:
    (row,) = [row for row in rows if (row.cell, row.source) == (cell, source)]
    return row


def test_each_run_counts_in_its_cell_in_percent() -> None:
    records = [recorded(task, 0.2 + task.seed / 100) for task in tasks_of("svhn-reduced", range(3))]
    rows = rows_of("svhn-reduced", CELLS, records)
    assert [row.cell for row in rows] == CELLS
    for row in rows:
        assert row.comparison is not None
        assert row.comparison.runs == 3
        assert row.comparison.mean == pytest.approx(21.0)
        assert row.comparison.published == published("svhn-reduced")[row.cell]
        assert row.verdict is not None


def test_accuracy_is_that_with_memories_of_the_training_subset() -> None:
    row = at(rows_of("svhn-reduced", CELLS, [recorded(accuracy=0.6)]), CELL)
    assert row.comparison is not None
    assert row.comparison.mean == pytest.approx(60.0), "that of the whole training set would be 30"


def test_cells_without_runs_have_none() -> None:
    rows = rows_of("svhn-reduced", CELLS, [recorded()])
    assert sum(row.comparison is not None for row in rows) == 1
    assert len(rows) == 27


def test_only_the_cells_asked_for_are_shown_and_judged_as_in_the_whole_table() -> None:
    records = [recorded(task, 0.2 + task.seed / 100) for task in tasks_of("svhn-reduced", range(3))]
    cells = cells_of("svhn-reduced", encoders=["resnet18"], samples=[1000])
    rows = rows_of("svhn-reduced", cells, records)
    assert [row.cell for row in rows] == cells
    assert all(row.verdict is not None and row.verdict.cells == 27 for row in rows)
    assert rows == [row for row in rows_of("svhn-reduced", CELLS, records) if row.cell in cells]


def test_the_caption_says_how_many_lines_do_not_count() -> None:
    assert "passed over" not in caption_of([recorded()])
    assert "1 line of the records was passed over: damaged" in caption_of([recorded()], passed_over=1)
    assert caption_of([], passed_over=2).startswith("2 lines of the records were passed over")


def test_runs_of_other_tables_are_passed_over() -> None:
    others = [replace(TASK, memory_size=20), replace(TASK, data="cifar10"), replace(TASK, samples=None)]
    rows = rows_of("svhn-reduced", CELLS, [recorded(task) for task in others])
    assert all(row.comparison is None for row in rows)


def test_both_sources_of_the_memory_have_rows_of_their_own_and_only_the_paper_s_is_judged() -> None:
    records = [recorded(task) for task in tasks_of("explanations", range(3), data=["svhn"])]
    for table, metric, whole, subset in (
        ("explanations", "explanation_accuracy", 80.0, 90.0),
        ("counterfactuals", "counterfactual_accuracy", 50.0, 40.0),
    ):
        rows = rows_of(table, cells_of(table), records)
        cell = replace(CELL, metric=metric)
        published_way, other_way = at(rows, cell, WHOLE_SET), at(rows, cell, SUBSET)
        assert published_way.comparison is not None
        assert published_way.comparison.mean == pytest.approx(whole)
        assert published_way.verdict is not None
        assert other_way.comparison is not None
        assert other_way.comparison.mean == pytest.approx(subset)
        assert other_way.verdict is None
        assert {row.source for row in rows} == {WHOLE_SET, SUBSET}


def with_share(record: Record) -> Record:
    """With memories like the paper's, too."""
    return replace(
        record, metrics={**record.metrics, "drawn": {**record.metrics["drawn"], SHARE: drawn(0.5, 0.7, 0.6)}}
    )


def test_memories_like_the_paper_s_are_judged() -> None:
    records = [recorded(task) for task in tasks_of("explanations", range(3), data=["svhn"])]
    cell, cells = replace(CELL, metric="explanation_accuracy"), cells_of("explanations")
    rows = rows_of("explanations", cells, [with_share(record) for record in records])
    assert list(dict.fromkeys(row.source for row in rows)) == [PUBLISHED_SHARE, WHOLE_SET, SUBSET]
    share, whole = at(rows, cell, PUBLISHED_SHARE), at(rows, cell, WHOLE_SET)
    assert share.comparison is not None
    assert share.comparison.mean == pytest.approx(70.0)
    assert share.verdict is not None
    assert whole.comparison is not None
    assert whole.verdict is None

    assert share.verdict.cells == 12
    assert whole.otherwise is not None
    assert whole.otherwise.cells == 12
    assert share.otherwise is None
    assert at(rows, cell, SUBSET).otherwise is None


def test_a_source_that_is_not_judged_tells_what_it_would_be() -> None:
    records = [recorded(replace(TASK, seed=seed)) for seed in range(3)]
    for place, record in enumerate(records):
        near, far = 0.84 + place / 100, 0.94 + place / 100  # the paper has 84.26
        record.metrics["drawn"] |= {SHARE: drawn(0.5, near, 0.5), "whole_training_set": drawn(0.5, far, 0.5)}
    cell, cells = replace(CELL, metric="explanation_accuracy"), cells_of("explanations")
    rows = rows_of("explanations", cells, records)
    share, whole = at(rows, cell, PUBLISHED_SHARE), at(rows, cell, WHOLE_SET)
    assert share.verdict is not None
    assert share.verdict.word == "agrees"
    assert words(whole).verdict == "not judged, would differ"
    assert words(at(rows, cell, SUBSET)).verdict == "not judged"
    assert "than in the paper, 0 of 1 cell would agree." in tally(rows)


def test_each_cell_is_judged_by_what_is_likest_to_the_paper_s() -> None:
    """Few images of SVHN, and CIFAR10 as it was published: the verdicts are corrected for both together."""
    short = [with_share(recorded(task)) for task in tasks_of("explanations", range(3), data=["svhn"])]
    whole = [recorded(task) for task in tasks_of("explanations", range(3), data=["cifar10"])]
    rows = rows_of("explanations", cells_of("explanations"), [*short, *whole])
    judged = [row for row in rows if row.verdict is not None]
    assert {(row.cell.data, row.source) for row in judged} == {("svhn", PUBLISHED_SHARE), ("cifar10", WHOLE_SET)}
    assert {row.verdict.cells for row in judged if row.verdict} == {24}
    assert {row.cell.data for row in rows if row.source == PUBLISHED_SHARE} == {"svhn"}
    assert "; 6 have no runs of ours" in tally(rows)


@pytest.mark.parametrize(
    ("before", "after", "judged"),
    [(10, 1, WHOLE_SET), (10, 5, PUBLISHED_SHARE), (1, 3, WHOLE_SET), (0, 1, PUBLISHED_SHARE)],
)
def test_a_few_runs_with_memories_like_the_paper_s_take_no_verdict_away(before: int, after: int, judged: str) -> None:
    records = [recorded(replace(TASK, seed=seed)) for seed in range(before)]
    records += [with_share(recorded(replace(TASK, seed=seed))) for seed in range(before, before + after)]
    rows = rows_of("explanations", cells_of("explanations"), records)
    cell = replace(CELL, metric="explanation_accuracy")
    share, whole = at(rows, cell, PUBLISHED_SHARE), at(rows, cell, WHOLE_SET)
    assert share.comparison is not None
    assert whole.comparison is not None
    assert (share.comparison.runs, whole.comparison.runs) == (after, before + after)
    assert [row.source for row in (share, whole) if row.verdict is not None] == [judged]


def test_what_runs_found_does_not_decide_what_they_are_judged_by() -> None:
    """Four of five had a counterfactual on top: fewer values, but as many runs with memories like the paper's."""
    records = [with_share(recorded(replace(TASK, seed=seed))) for seed in range(5)]
    records[0].metrics["drawn"][SHARE] = drawn(0.5, 0.7, None)
    rows = rows_of("counterfactuals", cells_of("counterfactuals"), records)
    cell = replace(CELL, metric="counterfactual_accuracy")
    assert at(rows, cell, WHOLE_SET).verdict is None
    share = at(rows, cell, PUBLISHED_SHARE)
    assert share.verdict is not None
    assert share.comparison is not None
    assert share.comparison.runs == 4


def test_a_run_that_never_had_a_counterfactual_on_top_has_no_accuracy_on_them() -> None:
    sure = {"images": 1, "drawn": {"training_subset": drawn(1, 1, None), "whole_training_set": drawn(1, 1, None)}}
    records = [recorded(), recorded(replace(TASK, seed=4), metrics=sure)]
    rows = rows_of("counterfactuals", cells_of("counterfactuals"), records)
    row = at(rows, replace(CELL, metric="counterfactual_accuracy"), WHOLE_SET)
    assert row.comparison is not None
    assert row.comparison.runs == 1


def test_batch_as_memory_never_mixes_with_the_paper_s_way() -> None:
    batch = replace(TASK, memory="batch")
    standard = Task("svhn", 1000, "mobilenet_v2", "standard", 0, 0)
    records = [recorded(TASK, 0.5), recorded(batch, 0.9), recorded(standard, 0.4)]
    for memory, mean in (("random", 50.0), ("batch", 90.0)):
        rows = rows_of("svhn-reduced", CELLS, records, memory)
        row = at(rows, CELL)
        assert row.comparison is not None
        assert row.comparison.mean == pytest.approx(mean)
        assert row.comparison.runs == 1
        assert sum(each.comparison is not None for each in rows) == 2, "Standard is the same run in both"
    assert "batch as memory" in title_of("svhn-reduced", "batch")
    assert "batch" not in title_of("svhn-reduced")


def test_runs_on_different_images_are_not_mixed() -> None:
    other = Images("svhn.zip", "beef", 20000, 10000)
    records = [recorded(), recorded(replace(TASK, seed=4), images=other)]
    message = r"svhn: the records are of different images: .*seed3 of svhn \(73,257 .*seed4 of svhn.zip in the place .*"
    with pytest.raises(DataError, match=message):
        rows_of("svhn-reduced", CELLS, records)
    elsewhere = recorded(replace(TASK, data="cifar10"), images=other)
    assert rows_of("svhn-reduced", CELLS, [recorded(), elsewhere]), "another data set has other images anyway"


def test_parameters_are_counted_to_the_last_digit() -> None:
    cells = cells_of("parameters", encoders=["mobilenet_v2"])
    assert [counted(cell) for cell in cells] == [1280, 2_296_922, 5_589_082, 15_447_642]
    rows = rows_of("parameters", cells, [])
    assert [row.verdict is not None and row.verdict.word for row in rows] == ["agrees"] * 4


def test_cost_is_measured_elsewhere() -> None:
    with pytest.raises(SettingsError, match="memwrap bench --only sizes"):
        rows_of("cost", cells_of("cost"), [])


def test_a_caption_tells_where_when_and_by_what() -> None:
    later = replace(ORIGIN, device="NVIDIA H200", engine="graph", side_by_side=5, dirty=True)
    later = replace(later, versions={**ORIGIN.versions, "cuda": "13.0"})
    records = [
        recorded(),
        recorded(origin=later, date="2026-11-18T00:00:00+00:00", seconds=Seconds(3600.0, 4185.0)),
        recorded(replace(TASK, seed=1), origin=replace(later, side_by_side=15), seconds=Seconds(0.0, 0.0)),
    ]
    caption = caption_of(records, [failed(replace(TASK, seed=9))])
    for told in (
        "3 runs on cpu, NVIDIA H200, 2026-11-16 to 2026-11-18, 2 h 10 min together, in fp32.",
        "memwrap 0.1.0, torch 2.11",
        "torch 2.11 with CUDA 13.0",
        "commit 0123456789, 0123456789 with changes",
        "Engine: loop; graph, 5 or 15 runs side by side.",
        "Images: svhn (73,257 for training, 26,032 for the test).",
        "1 run failed and is not counted: svhn-1000-mobilenet_v2-memory_wrap-100-random-seed9.",
    ):
        assert told in caption
    assert caption_of([]) == ""


def test_a_table_becomes_four_files(tmp_path: Path) -> None:
    records = [recorded(task, 0.2 + task.seed / 100) for task in tasks_of("svhn-reduced", range(2))]
    rows = rows_of("svhn-reduced", CELLS, records)
    for _ in range(2):  # the second time in the place of the first
        written = write(tmp_path / "deep" / "table", rows, title_of("svhn-reduced"), "on a Monday")
    assert sorted(path.name for path in (tmp_path / "deep" / "table").iterdir()) == [
        "table.csv",
        "table.html",
        "table.md",
        "table.png",
    ]
    by_name = {path.name: path for path in written}
    assert "on a Monday" in by_name["table.md"].read_text()
    assert "on a Monday" in by_name["table.html"].read_text()
    assert by_name["table.png"].read_bytes().startswith(b"\x89PNG")
    with by_name["table.csv"].open() as file:
        lines = list(csv.DictReader(file))
    assert [(line["encoder"], line["variant"], line["samples"]) for line in lines] == [
        (cell.encoder, cell.variant, str(cell.samples)) for cell in CELLS
    ]
    assert {line["ours_mean"] for line in lines} == {"20.5"}


def test_a_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    rows = rows_of("svhn-reduced", CELLS[:1], [recorded(task_for(CELLS[0], 0))])
    with pytest.raises(SaveError, match="the table cannot be written"):
        write(tmp_path / "file" / "table", rows, "title", "caption")
