"""Tables from records alone: each run in its cell, memory sources apart, and nothing mixed that does not belong."""

from dataclasses import replace

import pytest

from memwrap.errors import DataError, SettingsError
from memwrap.reproduce.layout import Row
from memwrap.reproduce.published import Cell, published_table
from memwrap.reproduce.records import SHARE, ImageInfo, RunRecord
from memwrap.reproduce.rendering import format_cell, make_caption, make_title, tally
from memwrap.reproduce.tables import PUBLISHED_SHARE, SUBSET, WHOLE_SET, count, rows_from_records
from memwrap.reproduce.tasks import Task, select_cells
from tests.reproduce.records import TASK, drawn, recorded, tasks_of

CELL = Cell("accuracy", "svhn", 1000, "mobilenet_v2", "memory_wrap", 100)
CELLS = select_cells("svhn-reduced")


def at(rows: list[Row], cell: Cell, source: str = "") -> Row:
    (row,) = [row for row in rows if (row.cell, row.source) == (cell, source)]
    return row


def test_each_run_counts_in_its_cell_in_percent() -> None:
    records = [recorded(task, 0.2 + task.seed / 100) for task in tasks_of("svhn-reduced", range(3))]
    rows = rows_from_records("svhn-reduced", CELLS, records)
    assert [row.cell for row in rows] == CELLS
    for row in rows:
        assert row.comparison is not None
        assert row.comparison.runs == 3
        assert row.comparison.mean == pytest.approx(21.0)
        assert row.comparison.published == published_table("svhn-reduced")[row.cell]
        assert row.verdict is not None


def test_accuracy_is_that_with_memories_of_the_training_subset() -> None:
    row = at(rows_from_records("svhn-reduced", CELLS, [recorded(accuracy=0.6)]), CELL)
    assert row.comparison is not None
    assert row.comparison.mean == pytest.approx(60.0), "that of the whole training set would be 30"


def test_cells_without_runs_have_none() -> None:
    rows = rows_from_records("svhn-reduced", CELLS, [recorded()])
    assert sum(row.comparison is not None for row in rows) == 1
    assert len(rows) == 27


def test_only_the_cells_asked_for_are_shown_and_tested_as_in_the_whole_table() -> None:
    records = [recorded(task, 0.2 + task.seed / 100) for task in tasks_of("svhn-reduced", range(3))]
    cells = select_cells("svhn-reduced", encoders=["resnet18"], samples=[1000])
    rows = rows_from_records("svhn-reduced", cells, records)
    assert [row.cell for row in rows] == cells
    assert all(row.verdict is not None and row.verdict.cells == 27 for row in rows)
    assert rows == [row for row in rows_from_records("svhn-reduced", CELLS, records) if row.cell in cells]


def test_the_caption_says_how_many_lines_do_not_count() -> None:
    assert "Skipped" not in make_caption([recorded()])
    assert "Skipped lines of the records: 1" in make_caption([recorded()], skipped=1)
    assert make_caption([], skipped=2) == "Skipped lines of the records: 2."


def test_runs_of_other_tables_do_not_count() -> None:
    others = [replace(TASK, memory_size=20), replace(TASK, data="cifar10"), replace(TASK, samples=None)]
    rows = rows_from_records("svhn-reduced", CELLS, [recorded(task) for task in others])
    assert all(row.comparison is None for row in rows)


def test_both_sources_of_the_memory_have_rows_of_their_own_and_only_the_paper_s_is_tested() -> None:
    records = [recorded(task) for task in tasks_of("explanations", range(3), data=["svhn"])]
    for table, metric, whole, subset in (
        ("explanations", "explanation_accuracy", 80.0, 90.0),
        ("counterfactuals", "counterfactual_accuracy", 50.0, 40.0),
    ):
        rows = rows_from_records(table, select_cells(table), records)
        cell = replace(CELL, metric=metric)
        published_way, other_way = at(rows, cell, WHOLE_SET), at(rows, cell, SUBSET)
        assert published_way.comparison is not None
        assert published_way.comparison.mean == pytest.approx(whole)
        assert published_way.verdict is not None
        assert other_way.comparison is not None
        assert other_way.comparison.mean == pytest.approx(subset)
        assert other_way.verdict is None
        assert {row.source for row in rows} == {WHOLE_SET, SUBSET}


def with_share(record: RunRecord) -> RunRecord:
    """With memories like the paper's, too."""
    return replace(
        record, metrics={**record.metrics, "drawn": {**record.metrics["drawn"], SHARE: drawn(0.5, 0.7, 0.6)}}
    )


def test_memories_like_the_paper_s_are_tested() -> None:
    records = [recorded(task) for task in tasks_of("explanations", range(3), data=["svhn"])]
    cell, cells = replace(CELL, metric="explanation_accuracy"), select_cells("explanations")
    rows = rows_from_records("explanations", cells, [with_share(record) for record in records])
    assert list(dict.fromkeys(row.source for row in rows)) == [PUBLISHED_SHARE, WHOLE_SET, SUBSET]
    share, whole = at(rows, cell, PUBLISHED_SHARE), at(rows, cell, WHOLE_SET)
    assert share.comparison is not None
    assert share.comparison.mean == pytest.approx(70.0)
    assert share.verdict is not None
    assert whole.comparison is not None
    assert whole.verdict is None

    assert share.verdict.cells == 12
    assert whole.alternative is not None
    assert whole.alternative.cells == 12
    assert share.alternative is None
    assert at(rows, cell, SUBSET).alternative is None


def test_a_source_that_is_not_tested_shows_what_it_would_be() -> None:
    records = [recorded(replace(TASK, seed=seed)) for seed in range(3)]
    for place, record in enumerate(records):
        near, far = 0.84 + place / 100, 0.94 + place / 100  # the paper has 84.26
        record.metrics["drawn"] |= {SHARE: drawn(0.5, near, 0.5), "whole_training_set": drawn(0.5, far, 0.5)}
    cell, cells = replace(CELL, metric="explanation_accuracy"), select_cells("explanations")
    rows = rows_from_records("explanations", cells, records)
    share, whole = at(rows, cell, PUBLISHED_SHARE), at(rows, cell, WHOLE_SET)
    assert share.verdict is not None
    assert share.verdict.word == "agrees"
    assert format_cell(whole).verdict == "not tested, would differ"
    assert format_cell(at(rows, cell, SUBSET)).verdict == "not tested"
    assert tally(rows).alternative == (0, 1)


def test_each_cell_is_tested_with_the_source_closest_to_the_paper_s() -> None:
    """Few images of SVHN, and CIFAR10 as it was published: the verdicts are corrected for both together."""
    short = [with_share(recorded(task)) for task in tasks_of("explanations", range(3), data=["svhn"])]
    whole = [recorded(task) for task in tasks_of("explanations", range(3), data=["cifar10"])]
    rows = rows_from_records("explanations", select_cells("explanations"), [*short, *whole])
    tested = [row for row in rows if row.verdict is not None]
    assert {(row.cell.data, row.source) for row in tested} == {("svhn", PUBLISHED_SHARE), ("cifar10", WHOLE_SET)}
    assert {row.verdict.cells for row in tested if row.verdict} == {24}
    assert {row.cell.data for row in rows if row.source == PUBLISHED_SHARE} == {"svhn"}
    assert tally(rows).missing == 6


@pytest.mark.parametrize(
    ("before", "after", "tested"),
    [(10, 1, WHOLE_SET), (10, 5, PUBLISHED_SHARE), (1, 3, WHOLE_SET), (0, 1, PUBLISHED_SHARE)],
)
def test_a_few_runs_with_memories_like_the_paper_s_take_no_verdict_away(before: int, after: int, tested: str) -> None:
    records = [recorded(replace(TASK, seed=seed)) for seed in range(before)]
    records += [with_share(recorded(replace(TASK, seed=seed))) for seed in range(before, before + after)]
    rows = rows_from_records("explanations", select_cells("explanations"), records)
    cell = replace(CELL, metric="explanation_accuracy")
    share, whole = at(rows, cell, PUBLISHED_SHARE), at(rows, cell, WHOLE_SET)
    assert share.comparison is not None
    assert whole.comparison is not None
    assert (share.comparison.runs, whole.comparison.runs) == (after, before + after)
    assert [row.source for row in (share, whole) if row.verdict is not None] == [tested]


def test_results_do_not_decide_which_source_is_tested() -> None:
    """Four of five had a counterfactual on top: fewer values, but as many runs with memories like the paper's."""
    records = [with_share(recorded(replace(TASK, seed=seed))) for seed in range(5)]
    records[0].metrics["drawn"][SHARE] = drawn(0.5, 0.7, None)
    rows = rows_from_records("counterfactuals", select_cells("counterfactuals"), records)
    cell = replace(CELL, metric="counterfactual_accuracy")
    assert at(rows, cell, WHOLE_SET).verdict is None
    share = at(rows, cell, PUBLISHED_SHARE)
    assert share.verdict is not None
    assert share.comparison is not None
    assert share.comparison.runs == 4


def test_a_run_that_never_had_a_counterfactual_on_top_has_no_accuracy_on_them() -> None:
    sure = {"images": 1, "drawn": {"training_subset": drawn(1, 1, None), "whole_training_set": drawn(1, 1, None)}}
    records = [recorded(), recorded(replace(TASK, seed=4), metrics=sure)]
    rows = rows_from_records("counterfactuals", select_cells("counterfactuals"), records)
    row = at(rows, replace(CELL, metric="counterfactual_accuracy"), WHOLE_SET)
    assert row.comparison is not None
    assert row.comparison.runs == 1


def test_batch_as_memory_never_mixes_with_the_paper_s_training() -> None:
    batch = replace(TASK, memory="batch")
    standard = Task("svhn", 1000, "mobilenet_v2", "standard", 0, 0)
    records = [recorded(TASK, 0.5), recorded(batch, 0.9), recorded(standard, 0.4)]
    for memory, mean in (("random", 50.0), ("batch", 90.0)):
        rows = rows_from_records("svhn-reduced", CELLS, records, memory)
        row = at(rows, CELL)
        assert row.comparison is not None
        assert row.comparison.mean == pytest.approx(mean)
        assert row.comparison.runs == 1
        assert sum(each.comparison is not None for each in rows) == 2, "Standard is the same run in both"
    assert "batch as memory" in make_title("svhn-reduced", "batch")
    assert "batch" not in make_title("svhn-reduced")


def test_runs_on_different_images_are_not_mixed() -> None:
    other = ImageInfo("svhn.zip", "beef", 20000, 10000)
    records = [recorded(), recorded(replace(TASK, seed=4), images=other)]
    message = r"svhn: .*seed3 \(svhn, 73,257 .*seed4 \(svhn.zip, 20,000"
    with pytest.raises(DataError, match=message):
        rows_from_records("svhn-reduced", CELLS, records)
    elsewhere = recorded(replace(TASK, data="cifar10"), images=other)
    assert rows_from_records("svhn-reduced", CELLS, [recorded(), elsewhere]), "another data set has other images anyway"


def test_parameters_are_counted_to_the_last_digit() -> None:
    cells = select_cells("parameters", encoders=["mobilenet_v2"])
    assert [count(cell) for cell in cells] == [1280, 2_296_922, 5_589_082, 15_447_642]
    rows = rows_from_records("parameters", cells, [])
    assert [row.verdict is not None and row.verdict.word for row in rows] == ["agrees"] * 4


def test_cost_is_measured_elsewhere() -> None:
    with pytest.raises(SettingsError, match="memwrap bench --only sizes"):
        rows_from_records("cost", select_cells("cost"), [])
