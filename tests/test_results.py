"""The section of results and the tables: what the records give, and nothing else."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from memwrap.errors import DataError, RunError
from memwrap.reproduce.bench.record import BenchRecord, LeftOut, Row, write
from memwrap.reproduce.bench.timing import Spread
from memwrap.reproduce.grid import BATCH, RANDOM, Task
from memwrap.reproduce.published import published
from memwrap.reproduce.records import SHARE, Images, Origin, Record, append, code_of
from tests.reproduce.recorded import drawn, failed, recorded, tasks_of

SCRIPT = Path(__file__).parents[1] / "results" / "summary.py"


@pytest.fixture
def summary(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script; its parts are found where they are when it is run, beside it."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    spec = importlib.util.spec_from_file_location("summary", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Runs of ResNet18 on SVHN: with 1000 images as in the paper, with 2000 far above."""
    (tmp_path / "reproduce").mkdir()
    numbers = {(cell.samples, cell.variant, cell.encoder): each for cell, each in published("svhn-reduced").items()}
    for task in tasks_of("svhn-reduced", range(3), encoders=["resnet18"]):
        accuracy = numbers[task.samples, task.variant, "resnet18"].mean / 100 + 0.001 * (task.seed - 1)
        higher = 0.995 + 0.001 * task.seed
        record = recorded(task, higher if task.samples == 2000 and task.variant == "memory_wrap" else accuracy)
        append(tmp_path / "reproduce" / "records.jsonl", record)
    return tmp_path


@pytest.fixture
def quick(summary: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The same for few tables, none of which counts parameters."""
    monkeypatch.setattr(summary.paper_tables, "known_tables", lambda: ["svhn-reduced", "cifar10-reduced"])
    return summary


def readme_of(made: dict[Path, str], summary: ModuleType) -> str:
    return made[summary.README]


def empty_readme(summary: ModuleType) -> str:
    """The marks, and nothing between them."""
    return f"{summary.readme_section.BEGIN}\n{summary.readme_section.END}\n"


def made_of(summary: ModuleType, folder: Path, readme: str) -> dict[Path, str]:
    """What the records in a folder give."""
    reading = summary.reading
    found: dict[Path, str] = summary.files(folder, readme, reading.runs_in(folder), reading.measured_in(folder))
    return found


def section(summary: ModuleType, folder: Path) -> str:
    """What becomes of the README."""
    return readme_of(made_of(summary, folder, empty_readme(summary)), summary)


def keep(folder: Path, runs: Sequence[Record]) -> None:
    for run in runs:
        append(folder / "reproduce" / "records.jsonl", run)


def runs_of(
    accuracies: Sequence[float], memory: str, samples: int = 1000, variant: str = "memory_wrap", data: str = "svhn"
) -> list[Record]:
    """Of ResNet18, a seed for each accuracy."""
    size = 0 if variant == "standard" else 100
    tasks = [Task(data, samples, "resnet18", variant, size, seed, memory) for seed in range(len(accuracies))]
    return [recorded(task, accuracy) for task, accuracy in zip(tasks, accuracies, strict=True)]


def test_the_readme_has_the_table_its_caption_and_a_line_for_each_other(summary: ModuleType, folder: Path) -> None:
    begin, end = summary.readme_section.BEGIN, summary.readme_section.END
    made = made_of(summary, folder, f"before\n{begin}\nwhat was there\n{end}\nafter\n")
    readme = made[summary.README]
    assert readme.startswith(f"before\n{begin}\n\n**Reduced SVHN")
    assert readme.endswith(f"{end}\nafter\n")
    assert "what was there" not in readme
    assert "mean ± standard deviation of n = 3 runs" in readme
    assert "| ResNet18 | Standard | 20.63 ± 0.10 (20.63 ± 2.85) | 31.84 ± 0.10 (31.84 ± 18.38) |" in readme
    assert "**99.60 ± 0.10 (77.26 ± 3.38)**" in readme
    assert "| MobileNetV2 | Standard | no runs | no runs | no runs |" in readme
    assert "27 runs on cpu, 2026-11-16" in readme
    assert "27 runs on cpu, memwrap 0.1.0, torch 2.11, 2026-11-16; n: runs in a cell" in readme
    assert "| svhn-reduced | [8 of 9 agree](results/reproduce/svhn-reduced.md), 18 not run, n = 3 |  |" in readme
    assert "| parameters | [12 of 12 agree](results/reproduce/parameters.md) |  |" in readme
    assert " Not run: cifar10-reduced, cinic10-reduced, " in readme
    assert "| cifar10-reduced" not in readme
    assert "standard errors" not in readme
    assert "memwrap bench" not in readme
    assert {path.name for path in made} >= {"svhn-reduced.md", "explanations.md", "counterfactuals.md", "parameters.md"}


@pytest.fixture
def at_home(quick: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the script, with flags, on a folder of results of its own, which has some runs and tables."""
    monkeypatch.setattr(quick, "HERE", tmp_path / "results")
    monkeypatch.setattr(quick, "README", tmp_path / "README.md")
    (tmp_path / "README.md").write_text(empty_readme(quick))
    keep(tmp_path / "results", runs_of([0.2, 0.3], RANDOM))

    def run(*flags: str) -> int:
        monkeypatch.setattr("sys.argv", ["summary.py", *flags])
        code: int = quick.main()
        return code

    assert run() == 0
    return run


def test_a_line_that_does_not_count_is_told_everywhere(
    at_home: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(tmp_path / "results", runs_of([0.6], RANDOM))
    assert at_home("--check") == 1
    said = capsys.readouterr()
    assert "line 3: svhn-1000-resnet18-memory_wrap-100-random-seed0 is passed over" in said.err
    assert "README.md: is not what the records give" in said.out
    assert at_home() == 1
    for path in (tmp_path / "README.md", tmp_path / "results" / "reproduce" / "svhn-reduced.md"):
        assert "1 line of the records was passed over" in path.read_text()
    assert "25.00 ± 7.07" in (tmp_path / "README.md").read_text(), "the older counts, or the first of the same age"


def test_a_run_that_failed_is_told_in_the_tables(at_home: Callable[..., int], tmp_path: Path) -> None:
    task = replace(runs_of([0.5], RANDOM)[0].task, seed=7)
    append(tmp_path / "results" / "reproduce" / "records.jsonl", failed(task))
    assert at_home("--check") == 1
    assert at_home() == 0
    for path in (tmp_path / "README.md", tmp_path / "results" / "reproduce" / "svhn-reduced.md"):
        assert "1 run failed and is not counted" in path.read_text()


def test_what_records_say_is_shown_as_text(at_home: Callable[..., int], quick: ModuleType, tmp_path: Path) -> None:
    hostile = f"H200 {quick.readme_section.END} <img src=x> | \x1b[31m"
    (run,) = runs_of([0.5], RANDOM, samples=2000)
    images = replace(run.images, source=hostile)
    keep(tmp_path / "results", [replace(run, origin=replace(run.origin, device=hostile), images=images)])
    row = measured_row(0.5, subject=hostile, facts={hostile: hostile})
    origin, left_out = replace(GPU, device=hostile), (LeftOut("memory", hostile, hostile),)
    measured(tmp_path / "results", "a", [row], origin=origin, images=hostile, left_out=left_out)
    assert at_home() == 0
    assert at_home("--check") == 0, "once more, it is the same"
    for path in (tmp_path / "README.md", *(tmp_path / "results").glob("*/*.md")):
        text = path.read_text()
        assert "<img" not in text
        assert "\x1b" not in text
        assert text.count(quick.readme_section.END) == (path.name == "README.md")


def test_a_readme_without_a_place_is_told(quick: ModuleType, folder: Path) -> None:
    with pytest.raises(SystemExit, match="has no place for results; expected the lines <!-- made by"):
        made_of(quick, folder, "no place here")


# Tables that are not made any more, or not yet


def test_standard_alone_makes_no_table_of_the_batch_as_memory(quick: ModuleType, tmp_path: Path) -> None:
    keep(tmp_path, runs_of([0.2, 0.3], RANDOM, variant="standard"))
    keep(tmp_path, runs_of([0.4, 0.5], BATCH, data="cifar10"))
    made = made_of(quick, tmp_path, empty_readme(quick))
    assert {path.name for path in made} == {"svhn-reduced.md", "cifar10-reduced-batch.md", "README.md"}
    readme = readme_of(made, quick)
    assert "| svhn-reduced | [1 of 1 agree](results/reproduce/svhn-reduced.md), 26 not run, n = 2 |  |" in readme
    assert "|  | [1 of 1 agree](results/reproduce/cifar10-reduced-batch.md), 26 not run, n = 2 |" in readme


def test_standard_is_in_the_table_of_the_batch_as_memory_too(quick: ModuleType, tmp_path: Path) -> None:
    keep(tmp_path, [*runs_of([0.2, 0.21], RANDOM, variant="standard"), *runs_of([0.4, 0.5, 0.45], BATCH)])
    readme = section(quick, tmp_path)
    assert "n = 2 | [2 of 2 agree](results/reproduce/svhn-reduced-batch.md), 25 not run, n = 2 to 3 |" in readme
    assert "**All tables**: how many cells agree with the paper by that test" in readme
    assert " 5 runs on cpu, " in readme


def test_cells_of_one_run_are_not_said_to_be_judged(quick: ModuleType, tmp_path: Path) -> None:
    keep(tmp_path, [*runs_of([0.2, 0.21], RANDOM, variant="standard"), *runs_of([0.4], RANDOM)])
    expected = "[1 of 1 agree](results/reproduce/svhn-reduced.md), 1 cannot be judged, 25 not run, n = 1 to 2"
    assert expected in section(quick, tmp_path)


def test_a_mean_that_says_little_has_its_median(quick: ModuleType, tmp_path: Path) -> None:
    keep(tmp_path, runs_of([0.1, 0.7, 0.8], RANDOM, variant="standard"))
    assert "| 53.33 ± 37.86, median 70.00 (20.63 ± 2.85) |" in section(quick, tmp_path)


def test_cells_of_other_numbers_of_runs_say_so(quick: ModuleType, tmp_path: Path) -> None:
    keep(tmp_path, [*runs_of([0.2, 0.21], RANDOM, variant="standard"), *runs_of([0.44, 0.45, 0.46], RANDOM)])
    readme = section(quick, tmp_path)
    assert "of n = 2 to 3 runs" in readme
    assert "| 20.50 ± 0.71 (20.63 ± 2.85), n = 2 |" in readme
    assert "| 45.00 ± 1.00 (45.31 ± 8.19), n = 3 |" in readme


def test_what_explanations_are_judged_by_is_told(
    summary: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the whole training set their accuracy is 80; with the paper's share it is what the paper has."""
    likest = [drawn(0.5, accuracy, 0.5) for accuracy in (0.69, 0.70, 0.71)]
    runs = runs_of([0.5, 0.5, 0.5], RANDOM)
    for run, found, whole in zip(runs, likest, (0.79, 0.80, 0.81), strict=True):
        run.metrics["drawn"] |= {SHARE: found, "whole_training_set": drawn(0.5, whole, 0.5)}
    keep(tmp_path, runs)
    monkeypatch.setattr(summary.paper_tables, "known_tables", lambda: ["explanations"])
    readme = section(summary, tmp_path)
    assert "Explanations are judged with memories of which as small a share was trained on as in the paper" in readme
    assert "| explanations | [1 of 1 agree](results/reproduce/explanations.md) (0 of 1), 29 not run, n = 3 |" in readme


def test_a_table_that_no_record_gives_is_told(
    at_home: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = [tmp_path / "results" / name for name in ("reproduce/cifar10-reduced.md", "bench/old.md")]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_text("once made")
    for flags in (("--check",), ()):
        capsys.readouterr()
        assert at_home(*flags) == 1
        assert capsys.readouterr().out.count("no record gives it; remove it") == 2
    assert all(path.read_text() == "once made" for path in left), "records may only be damaged"
    for path in left:
        path.unlink()
    assert at_home("--check") == 0


# The batch as memory against two passes


def test_a_difference_is_taken_seed_by_seed(summary: ModuleType) -> None:
    """14, 10 and 6 in pairs, with a variance of 16; both scatter by far more."""
    found = summary.batch_as_memory.difference([14.0, 60.0, 96.0], [0.0, 50.0, 90.0])
    assert found.points == pytest.approx(10)
    assert found.standard_error == pytest.approx(4 / 3**0.5)
    assert found.in_errors == pytest.approx(2.5 * 3**0.5)
    assert found.is_far
    turned = summary.batch_as_memory.difference([0.0, 50.0, 90.0], [14.0, 60.0, 96.0])
    assert turned.in_errors == pytest.approx(-2.5 * 3**0.5)
    assert turned.is_far


def test_two_standard_errors_are_not_far(summary: ModuleType) -> None:
    found = summary.batch_as_memory.difference([3.0, 11.0], [0.0, 10.0])  # 3 and 1: 2, and a standard error of 1
    assert found.in_errors == 2
    assert not found.is_far


@pytest.mark.parametrize(("first", "second"), [([1.0], [2.0]), ([1.0, 3.0], [2.0, 4.0])])
def test_without_any_spread_a_difference_is_not_judged(
    summary: ModuleType, first: list[float], second: list[float]
) -> None:
    found = summary.batch_as_memory.difference(first, second)
    assert found.points < 0
    assert found.in_errors is None
    assert not found.is_far


@pytest.fixture
def trained_both_ways(tmp_path: Path) -> Path:
    """14 and 6 points with 1000 samples, 12 and 4 with 2000, and a seed that has no other; a single pair with 5000."""
    keep(tmp_path, runs_of([0.74, 0.66, 0.99], BATCH) + runs_of([0.60, 0.60], RANDOM))
    keep(tmp_path, runs_of([0.72, 0.66, 0.99], BATCH, samples=2000) + runs_of([0.60, 0.62], RANDOM, samples=2000))
    keep(tmp_path, runs_of([0.8], BATCH, samples=5000) + runs_of([0.7, 0.9], RANDOM, samples=5000))
    # Of which no two are of both kinds.
    keep(tmp_path, runs_of([0.5, 0.6], BATCH, data="cifar10") + runs_of([0.5, 0.6], RANDOM, variant="only_memory"))
    return tmp_path


def test_the_two_ways_of_training_stand_side_by_side(quick: ModuleType, trained_both_ways: Path) -> None:
    made = made_of(quick, trained_both_ways, empty_readme(quick))
    text = made[trained_both_ways / "reproduce" / "batch-as-memory.md"]
    lines = [line for line in text.splitlines() if line.startswith("| SVHN")]
    assert lines == [
        "| SVHN | ResNet18 | 1000 samples | 100 | 70.00 ± 5.66 (2) | 70.00 | 60.00 ± 0.00 (2) | 60.00 "
        "| +10.00 | 4.00 | **+2.5** |",
        "| SVHN | ResNet18 | 2000 samples | 100 | 69.00 ± 4.24 (2) | 69.00 | 61.00 ± 1.41 (2) | 61.00 "
        "| +8.00 | 4.00 | +2.0 |",
        "| SVHN | ResNet18 | 5000 samples | 100 | 80.00 (1) | 80.00 | 70.00 (1) | 70.00 | +10.00 | – | – |",
    ]
    assert "CIFAR10" not in text
    assert "10 runs on cpu, 2026-11-16" in text


def test_the_readme_names_the_cells_that_are_far_apart(quick: ModuleType, trained_both_ways: Path) -> None:
    readme = section(quick, trained_both_ways)
    assert (
        "in 1 of 2 [cells](results/reproduce/batch-as-memory.md) the accuracy of Memory Wrap differs by at most 2 "
        "standard errors, and by more for SVHN, ResNet18, 1000 samples, memory of 100 (+10.00 points, +2.5 standard "
        "errors). n = 2 seeds, each trained both ways, cpu, memwrap 0.1.0, torch 2.11, 2026-11-16."
    ) in readme


def test_the_readme_says_nothing_more_where_none_is_far(quick: ModuleType, tmp_path: Path) -> None:
    keep(tmp_path, runs_of([0.5, 0.6], BATCH) + runs_of([0.5, 0.7], RANDOM))
    made = made_of(quick, tmp_path, empty_readme(quick))
    assert "in 1 of 1 [cells](results/reproduce/batch-as-memory.md)" in readme_of(made, quick)
    assert "by more for" not in readme_of(made, quick)
    # 0 and -10: a deviation of 7.07 over the root of 2.
    assert "| −5.00 | 5.00 | −1.0 |" in made[tmp_path / "reproduce" / "batch-as-memory.md"]


def test_runs_on_other_images_are_not_held_against_each_other(quick: ModuleType) -> None:
    others = [replace(run, images=Images("mine.zip", "beef", 10, 10)) for run in runs_of([0.5, 0.6], BATCH)]
    with pytest.raises(DataError, match="the records are of different images"):
        quick.batch_as_memory.sides_of([*others, *runs_of([0.5, 0.7], RANDOM)])


# What `memwrap bench` measured

VERSIONS = {"memwrap": "0.1.0", "torch": "2.11.0", "memorywrap": "1.1.7", "entmax": "1.3", "cuda": "13.0"}
GPU = Origin("0123456789abcdef", True, "c0de", VERSIONS, "NVIDIA H200", "bench", 5)
STEP = {"images": 1000, "memory": "random", "precision": "bf16", "side_by_side": 5}
READ = {"batch": 500, "memory": 100, "classes_read": True}


def measured_row(ratio: float, **changes: Any) -> Row:
    """Of 4 ms; a quarter more and less are the quartiles."""
    row = Row(
        part="steps",
        subject="one step",
        encoder="resnet18",
        unit="step",
        name="our 5 runs side by side, each",
        base="published loop",
        seconds=Spread(0.004, 0.003, 0.005),
        base_seconds=Spread(0.004 / ratio, 0.003 / ratio, 0.005 / ratio),
        ratio=Spread(ratio, 0.75 * ratio, 1.25 * ratio),
        rounds=3,
        facts=STEP,
        base_facts={"images": 1000, "memory": "random", "precision": "fp16"},
    )
    return replace(row, **changes)


def step_beside_standard(ratio: float, memory: str, **changes: Any) -> Row:
    name = {"random": "Memory Wrap, two passes", "batch": "Memory Wrap, batch as memory"}[memory]
    facts = {"facts": {**STEP, "memory": memory}, "base_facts": {**STEP, "memory": None}}
    subject = "one step, our 5 runs side by side, each"
    return measured_row(ratio, subject=subject, name=name, base="Standard", **facts, **changes)


def predicting(ratio: float, read: bool = True, name: str = "Memory Wrap, 100 remembered", **changes: Any) -> Row:
    return measured_row(
        ratio,
        part="inference",
        unit="batch",
        subject="predicting 500 images" + ", none read" * (not read),
        name=name,
        base="Standard",
        facts={**READ, "classes_read": read},
        base_facts={**READ, "classes_read": read, "memory": 0},
        **changes,
    )


def with_memory(ratio: float, size: int, **changes: Any) -> Row:
    return measured_row(
        ratio,
        part="memory",
        unit="batch",
        subject=f"memory of {size:,}, 500 images",
        name=f"Memory Wrap, {size:,} encodings",
        base="Standard",
        facts={**READ, "memory": size},
        base_facts={**READ, "memory": 0},
        **changes,
    )


def measured(
    folder: Path, name: str, rows: Sequence[Row], date: str = "2026-11-16T10:00:00+00:00", **changes: Any
) -> None:
    record = BenchRecord(
        date=date,
        complete=True,
        origin=GPU,
        threads=16,
        asked={},
        amounts={},
        images="random pixels",
        rows=tuple(rows),
        left_out=(),
    )
    write(folder / "bench" / f"{name}.json", replace(record, **changes))


def bench_table(summary: ModuleType, folder: Path, name: str) -> str:
    return made_of(summary, folder, empty_readme(summary))[folder / "bench" / f"{name}.md"]


def test_a_record_of_bench_becomes_a_table_of_all_its_rows(quick: ModuleType, tmp_path: Path) -> None:
    sparsemax = measured_row(0.5, part="attention", subject="sparsemax", encoder=None, unit="call", name="ours")
    measured(tmp_path, "mine", [measured_row(0.04), sparsemax], left_out=(LeftOut("memory", "a memory", "no room"),))
    text = bench_table(quick, tmp_path, "mine")
    assert text.startswith(
        "### memwrap bench: mine\n\n"
        "NVIDIA H200, memwrap 0.1.0, torch 2.11.0, memorywrap 1.1.7, entmax 1.3, 2026-11-16, by a program with changes "
        "that were not yet committed; commit 0123456789, CUDA 13.0, 16 CPU threads. Images: random pixels.\n"
    )
    assert "**Training**, for each step\n\n| encoder |" in text
    assert (
        "| ResNet18 | one step | our 5 runs side by side, each | 4 ms | published loop | 100 ms "
        "| 0.040 | 0.030 to 0.050 | 25.00 | 3 |\n"
    ) in text
    assert "**Sparsemax**, for each call\n" in text
    assert "|  | sparsemax | ours | 4 ms | published loop | 8 ms | 0.500 | 0.375 to 0.625 | 2.00 | 3 |\n" in text
    assert "**Left out**\n\n- a memory (no room)\n" in text
    assert "peak memory" not in text
    assert "stopped" not in text


def test_a_table_of_bench_tells_of_memory_where_it_was_measured(quick: ModuleType, tmp_path: Path) -> None:
    measured(tmp_path, "mine", [with_memory(2.0, 100, peak=3 * 2**20, base_peak=2**20)], complete=False)
    text = bench_table(quick, tmp_path, "mine")
    assert "| rounds | peak memory | beside it |" in text
    assert "| 2.000 | 1.500 to 2.500 | 0.50 | 3 | 3 MiB | 1 MiB |" in text
    assert "It was stopped before its end." in text


def test_conditions_are_said_once_for_all_and_then_for_each(summary: ModuleType) -> None:
    rows = [
        measured_row(
            1, name="a", base="b", facts={"size": 1000, "last_one": True}, base_facts={"size": 1000, "c": None}
        ),
        measured_row(
            1, name="a", base="b", facts={"size": 1000, "last_one": False}, base_facts={"size": 1000, "c": 2.5}
        ),
    ]
    assert summary.bench_tables.conditions(rows) == [
        "- All: size 1,000",
        "- b: c none or 2.5",
        "- a: last one yes or no",
    ]
    assert summary.bench_tables.conditions([measured_row(1, facts={}, base_facts={})]) == []


def headline_lines(summary: ModuleType, folder: Path) -> list[str]:
    """Below the heads."""
    *_, table = section(summary, folder).partition("**Speed**")
    return [line for line in table.splitlines() if line.startswith("|")][2:]


def test_the_readme_tells_headlines_by_their_rule(quick: ModuleType, tmp_path: Path) -> None:
    rows = [
        measured_row(0.9, name="our loop", facts={"memory": "random"}),
        measured_row(0.5, name="published, arithmetic alone", facts={"memory": "random"}),
        measured_row(0.95, name="published loop, cuDNN not deterministic", facts={"memory": "random"}),
        measured_row(0.05),
        measured_row(0.02, encoder="efficientnet_b0"),
        step_beside_standard(1.25, "batch"),
        step_beside_standard(1.5, "random"),
        measured_row(0.5, encoder=None),
        measured_row(0.1, part="training", subject="whole training, 280 steps"),
        measured_row(0.4, part="training", subject="whole training, 280 steps", name="our loop", facts={}),
    ]
    others = [
        predicting(1.03),
        predicting(1.29, name="published layer, 100 encoded with each batch"),
        predicting(1.07, read=False),
        predicting(1.3, read=False, name="published layer, 100 encoded with each batch"),
        with_memory(1.01, 100_000),
        with_memory(1.25, 50_000, peak=800 * 2**20, base_peak=700 * 2**20),
        with_memory(4.0, 1_000_000),
    ]
    measured(tmp_path, "steps", rows)  # headlines have their own order, not the record's
    measured(tmp_path, "predicting", others[::-1])
    assert headline_lines(quick, tmp_path) == [
        "| one step: our 5 runs side by side, each, against published loop | 50.0 times as fast (4 ms, 200 ms) "
        "| 20.0 times as fast (4 ms, 80 ms) | steps, n = 3 |",
        "| one step: our loop, against published loop | – | 1.1 times as fast (4 ms, 4.44 ms) | steps, n = 3 |",
        "| one step: published, arithmetic alone, against published loop | – | 2.0 times as fast (4 ms, 8 ms) "
        "| steps, n = 3 |",
        "| whole training, 280 steps: our 5 runs side by side, each, against published loop | – "
        "| 10.0 times as fast (4 ms, 40 ms); quartiles 8.0 to 13.3 | steps, n = 3 |",
        "| one step, our 5 runs side by side, each: Memory Wrap, two passes, against Standard | – | 1.50 "
        "| steps, n = 3 |",
        "| one step, our 5 runs side by side, each: Memory Wrap, batch as memory, against Standard | – | 1.25 "
        "| steps, n = 3 |",
        "| predicting 500 images: Memory Wrap, 100 remembered, against Standard | – "
        "| 1.03; 1.07 if nobody waits for the classes | predicting, n = 3 |",
        "| predicting 500 images: Memory Wrap, 50,000 encodings, against Standard | – "
        "| 1.25; peak 800 MiB, Standard's 700 MiB | predicting, n = 3 |",
        "| predicting 500 images: Memory Wrap, 1,000,000 encodings, against Standard | – | 4.00 | predicting, n = 3 |",
    ]
    readme = section(quick, tmp_path)
    assert "|  | EfficientNetB0 | ResNet18 | from |" in readme
    assert (
        "Full tables: [predicting](results/bench/predicting.md), [steps](results/bench/steps.md) on NVIDIA H200, "
        "memwrap 0.1.0, torch 2.11.0, memorywrap 1.1.7, entmax 1.3, 2026-11-16, by a program with changes"
    ) in readme


def test_of_two_records_of_a_comparison_the_newest_counts(quick: ModuleType, tmp_path: Path) -> None:
    both = [measured_row(0.5), measured_row(0.5, encoder="mobilenet_v2")]
    measured(tmp_path, "a", [measured_row(0.25, rounds=8)], date="2026-11-17T10:00:00+00:00")
    measured(tmp_path, "b", both, date="2026-11-16T10:00:00+00:00")
    label = "one step: our 5 runs side by side, each, against published loop"
    assert headline_lines(quick, tmp_path) == [
        f"| {label} | 2.0 times as fast (4 ms, 8 ms) | 4.0 times as fast (4 ms, 16 ms) | a, b, n = 3 to 8 |",
    ]
    readme = section(quick, tmp_path)
    assert (
        "entmax 1.3, 2026-11-17, by a program with changes that were not yet committed; [b](results/bench/b.md) on"
        in readme
    )


def test_another_device_takes_no_headline_away(quick: ModuleType, tmp_path: Path) -> None:
    measured(tmp_path, "a", [predicting(1.5)])
    measured(tmp_path, "b", [predicting(2.5)], date="2026-11-17T10:00:00+00:00", origin=replace(GPU, device="cpu"))
    assert [line.split(" | ")[1:] for line in headline_lines(quick, tmp_path)] == [
        ["1.50", "NVIDIA H200: a, n = 3 |"],
        ["2.50", "cpu: b, n = 3 |"],
    ]


def test_what_was_measured_by_quick_is_no_headline(quick: ModuleType, tmp_path: Path) -> None:
    measured(tmp_path, "a", [predicting(1.5)])
    measured(tmp_path, "b", [predicting(2.5)], date="2026-11-17T10:00:00+00:00", asked={"quick": True})
    assert [line.split(" | ")[1:] for line in headline_lines(quick, tmp_path)] == [["1.50", "a, n = 3 |"]]
    assert "[b]" not in section(quick, tmp_path)
    assert "By --quick" in bench_table(quick, tmp_path, "b")
    assert "By --quick" not in bench_table(quick, tmp_path, "a")


def test_a_record_without_a_headline_is_linked_all_the_same(quick: ModuleType, tmp_path: Path) -> None:
    measured(tmp_path, "mine", [measured_row(0.5, part="attention", encoder=None)])
    assert "[mine](results/bench/mine.md)" in section(quick, tmp_path)
    assert headline_lines(quick, tmp_path) == []


def test_the_readme_and_the_tables_are_what_the_records_give(tmp_path: Path) -> None:
    """Asked as anybody would, from a folder that is not the script's."""
    asked = [sys.executable, str(SCRIPT), "--check"]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"run python results/summary.py\n{done.stdout}{done.stderr}"


def test_a_program_is_that_of_the_commit_which_has_its_code(quick: ModuleType, tmp_path: Path) -> None:
    """Of runs and of measurements; not where the record itself is sure of its commit, or has another code."""
    (tmp_path / "reproduce").mkdir()
    unsure = replace(recorded().origin, commit="0" * 40, dirty=True, code="c0de")
    origins = [unsure, replace(unsure, dirty=False), replace(unsure, code="another")]
    tasks = tasks_of("svhn-reduced", range(3), encoders=["resnet18"], variants=["standard"], samples=[1000])
    keep(tmp_path, [recorded(task, origin=origin) for task, origin in zip(tasks, origins, strict=True)])
    measured(tmp_path, "mine", [measured_row(0.5)])
    assert quick.reading.measured_in(tmp_path)["mine"].origin.code == unsure.code
    (tmp_path / "programs.json").write_text(json.dumps({"c0de": "1" * 40}))
    runs = quick.reading.runs_in(tmp_path).results
    found = [(runs[task].origin.commit, runs[task].origin.dirty) for task in tasks]
    assert found == [("1" * 40, False), ("0" * 40, False), ("0" * 40, True)]
    assert f"2026-11-16; commit {'1' * 10}, CUDA" in bench_table(quick, tmp_path, "mine")


def test_the_named_commits_have_the_code_that_they_are_named_for(summary: ModuleType) -> None:
    named = summary.programs.named_in(SCRIPT.parent)
    assert named
    assert summary.programs.contradicted(named, SCRIPT.parents[1]) == []


def test_a_commit_that_is_named_wrongly_is_told(summary: ModuleType, tmp_path: Path) -> None:
    def git(*words: str) -> str:
        names = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
        return subprocess.run(
            ["git", *names, *words], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.strip()

    (tmp_path / "memwrap").mkdir()
    (tmp_path / "memwrap" / "layer.py").write_text("one\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    commit, code = git("rev-parse", "HEAD"), code_of(tmp_path / "memwrap")
    (tmp_path / "memwrap" / "layer.py").write_text("another\n")  # since then
    contradicted = summary.programs.contradicted
    assert contradicted({code: commit, "c0de": "0" * 40}, tmp_path) == []  # nothing is known of the other
    assert contradicted({"c0de": commit}, tmp_path) == [
        f"programs.json: commit {commit} has not the code c0de, but {code}"
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"c0de": ', r"programs.json: is no JSON \(Expecting value"),
        ('["c0de"]', r'programs.json: holds \["c0de"\]; expected commits by the hash of their code'),
        ('{"c0de": 7}', r'programs.json: holds \{"c0de": 7\}; expected commits'),
    ],
)
def test_names_of_programs_that_are_damaged_are_refused(
    summary: ModuleType, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "programs.json").write_text(text)
    with pytest.raises(RunError, match=said):
        summary.programs.named_in(tmp_path)
