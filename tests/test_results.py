"""results/summary.py: tables and READMEs hold what the records give, and nothing else."""

import importlib.util
import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from memwrap.errors import DataError, RunError
from memwrap.reproduce.bench.record import BenchRecord, Measurement, Skipped, write_bench
from memwrap.reproduce.bench.timing import Spread
from memwrap.reproduce.provenance import hash_code
from memwrap.reproduce.record_files import append_record
from memwrap.reproduce.records import SHARE, RunRecord
from memwrap.reproduce.tasks import BATCH, RANDOM, Task
from tests.reproduce.records import ORIGIN, drawn, failed, recorded

SCRIPT = Path(__file__).parents[1] / "results" / "summary.py"
GPU = replace(ORIGIN, device="NVIDIA H200")


@pytest.fixture
def summary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script for an empty folder of results and few tables, none of which counts parameters."""
    spec = importlib.util.spec_from_file_location("summary", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "HERE", tmp_path / "results")
    monkeypatch.setattr(module.published, "table_names", lambda: ["svhn-reduced", "cifar10-reduced", "explanations"])
    (tmp_path / "results").mkdir()
    for path in (tmp_path / "README.md", tmp_path / "results" / "README.md"):
        path.write_text(f"before\n{module.BEGIN}\nold text\n{module.END}\nafter\n")
    return module


@pytest.fixture
def run(summary: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the script with flags."""

    def call(*flags: str) -> int:
        monkeypatch.setattr("sys.argv", ["summary.py", *flags])
        code: int = summary.main()
        return code

    return call


def keep(folder: Path, runs: Sequence[RunRecord]) -> None:
    for each in runs:
        append_record(folder / "results" / "reproduce" / "records.jsonl", each)


def make_runs(
    accuracies: Sequence[float], memory: str, samples: int = 1000, variant: str = "memory_wrap", data: str = "svhn"
) -> list[RunRecord]:
    """Runs of ResNet18, a seed for each accuracy."""
    size = 0 if variant == "standard" else 100
    tasks = [Task(data, samples, "resnet18", variant, size, seed, memory) for seed in range(len(accuracies))]
    return [recorded(task, accuracy) for task, accuracy in zip(tasks, accuracies, strict=True)]


def make_measurement(name: str, ratio: float, base: str = "published loop", subject: str = "one step") -> Measurement:
    spread = Spread(ratio, ratio, ratio)
    return Measurement("steps", subject, "resnet18", "step", name, base, spread, Spread(1.0, 1.0, 1.0), spread, 4)


def keep_bench(folder: Path, name: str, rows: Sequence[Measurement], **changes: object) -> None:
    record = BenchRecord(
        "2026-11-17T00:00:00+00:00", True, GPU, 16, {"quick": False}, {}, "random pixels", tuple(rows), ()
    )
    write_bench(folder / "results" / "bench" / f"{name}.json", replace(record, **changes))  # type: ignore[arg-type]


def test_the_committed_files_are_up_to_date() -> None:
    """Without the hashes of commits, which need the history."""
    spec = importlib.util.spec_from_file_location("summary", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    runs, benches = module.read_results(SCRIPT.parent, module.read_commits(SCRIPT.parent))
    assert runs.problems == ()
    wanted = module.make_files(SCRIPT.parent, runs, benches)
    assert len(wanted) == 20
    assert [path.name for path, text in wanted.items() if path.read_text() != text] == []


def test_tables_and_readmes_are_written_once(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(tmp_path, [*make_runs([0.20, 0.21], RANDOM, variant="standard"), *make_runs([0.98, 0.99, 0.985], RANDOM)])
    assert run("--check") == 1
    assert "out of date" in capsys.readouterr().out
    assert run() == 0
    assert run("--check") == 0
    readme = (tmp_path / "README.md").read_text()
    assert readme.startswith("before\n")
    assert readme.endswith("after\n")
    assert "old text" not in readme
    assert "| ResNet18 | Standard | 20.50 ± 0.71 (20.63 ± 2.85) | no runs | no runs |" in readme
    assert "| ResNet18 | Memory Wrap | **98.50 ± 0.50** (45.31 ± 8.19) |" in readme
    assert "n = 2 to 3 runs" in readme
    assert "5 runs on cpu, 2026-11-16" in readme
    index = (tmp_path / "results" / "README.md").read_text()
    assert "[1 of 2 agree](reproduce/svhn-reduced.md), 25 without runs, n = 2 to 3 |" in index
    assert "Without runs: cifar10-reduced." in index
    assert "differs, above" in (tmp_path / "results" / "reproduce" / "svhn-reduced.md").read_text()


def test_a_readme_without_the_marks_is_refused(run: Callable[..., int], tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("no marks")
    with pytest.raises(RunError, match=str(tmp_path / "README.md")):
        run()


def test_skipped_lines_and_failed_runs_are_reported(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = tmp_path / "results" / "reproduce" / "records.jsonl"
    keep(tmp_path, make_runs([0.2, 0.3], RANDOM))
    failure = failed(replace(make_runs([0.5], RANDOM)[0].task, seed=7))
    append_record(records, failure)
    assert run() == 0
    keep(tmp_path, make_runs([0.6], RANDOM))  # another result of seed 0
    assert run() == 1
    assert "line 4" in capsys.readouterr().err
    for path in (tmp_path / "README.md", tmp_path / "results" / "reproduce" / "svhn-reduced.md"):
        text = path.read_text().replace("\\_", "_")
        assert "Skipped lines of the records: 1" in text
        assert failure.task.name in text
        assert "25.00 ± 7.07" in text, "the first of the same age counts"


def test_text_of_records_stays_text(run: Callable[..., int], summary: ModuleType, tmp_path: Path) -> None:
    hostile = f"H200 {summary.END} <img src=x> | \x1b[31m"
    (one,) = make_runs([0.5], RANDOM)
    images = replace(one.images, source=hostile)
    keep(tmp_path, [replace(one, origin=replace(one.origin, device=hostile), images=images)])
    row = replace(make_measurement("ours", 0.5, subject=hostile), facts={hostile: hostile})
    origin, skipped = replace(GPU, device=hostile), (Skipped("memory", hostile, hostile),)
    keep_bench(tmp_path, "a", [row], origin=origin, images=hostile, left_out=skipped)
    assert run() == 0
    assert run("--check") == 0
    for path in (tmp_path / "README.md", *(tmp_path / "results").rglob("*.md")):
        text = path.read_text()
        assert "<img" not in text
        assert "\x1b" not in text
        assert text.count(summary.END) == (path.name == "README.md")


def test_orphaned_tables_are_reported_and_kept(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(tmp_path, make_runs([0.2, 0.3], RANDOM))
    orphans = [tmp_path / "results" / name for name in ("reproduce/cifar10-reduced.md", "bench/old.md")]
    for path in orphans:
        path.parent.mkdir(exist_ok=True)
        path.write_text("once made")
    for flags in ((), ("--check",)):
        capsys.readouterr()
        assert run(*flags) == 1
        assert capsys.readouterr().out.count("belongs to no record") == 2
    assert all(path.read_text() == "once made" for path in orphans)


def test_standard_alone_gives_no_table_of_the_batch_as_memory(run: Callable[..., int], tmp_path: Path) -> None:
    keep(tmp_path, make_runs([0.2, 0.3], RANDOM, variant="standard"))
    keep(tmp_path, make_runs([0.4, 0.5], BATCH, data="cifar10"))
    assert run() == 0
    names = {path.name for path in (tmp_path / "results" / "reproduce").glob("*.md")}
    assert names == {"svhn-reduced.md", "cifar10-reduced-batch.md", "explanations-batch.md"}


def test_both_sources_of_memory_samples_are_counted(run: Callable[..., int], tmp_path: Path) -> None:
    """From the whole training set the explanation accuracy is 80; with the paper's share it is the paper's."""
    runs = make_runs([0.5, 0.5, 0.5], RANDOM)
    for each, near, far in zip(runs, (0.69, 0.70, 0.71), (0.79, 0.80, 0.81), strict=True):
        each.metrics["drawn"] |= {SHARE: drawn(0.5, near, 0.5), "whole_training_set": drawn(0.5, far, 0.5)}
    keep(tmp_path, runs)
    assert run() == 0
    index = (tmp_path / "results" / "README.md").read_text()
    assert "[1 of 1 agree](reproduce/explanations.md) (0 of 1), 29 without runs, n = 3 |" in index


# The batch as memory versus two passes


def test_differences_are_taken_seed_by_seed(summary: ModuleType) -> None:
    """14, 10 and 6 in pairs, with a variance of 16; both sides scatter far more."""
    mean, error, t = summary.paired_difference([14.0, 60.0, 96.0], [0.0, 50.0, 90.0])
    assert (mean, error, t) == (pytest.approx(10), pytest.approx(4 / 3**0.5), pytest.approx(2.5 * 3**0.5))
    assert summary.paired_difference([1.0], [2.0]) == (-1, None, None)
    assert summary.paired_difference([1.0, 3.0], [2.0, 4.0]) == (-1, 0, None)


def test_the_two_ways_of_training_are_compared(run: Callable[..., int], tmp_path: Path) -> None:
    """14 and 6 points with 1000 samples, and a seed without a partner; a single pair with 5000."""
    keep(tmp_path, make_runs([0.74, 0.66, 0.99], BATCH) + make_runs([0.60, 0.60], RANDOM))
    keep(tmp_path, make_runs([0.8], BATCH, samples=5000) + make_runs([0.7, 0.9], RANDOM, samples=5000))
    keep(tmp_path, make_runs([0.5, 0.6], BATCH, data="cifar10") + make_runs([0.5, 0.6], RANDOM, variant="only_memory"))
    assert run() == 0
    text = (tmp_path / "results" / "reproduce" / "batch-as-memory.md").read_text()
    assert [line for line in text.splitlines() if line.startswith(("| SVHN", "| CIFAR"))] == [
        "| SVHN | ResNet18 | 1000 | 100 | 2 | 70.00 ± 5.66 (70.00) | 60.00 ± 0.00 (60.00) | +10.00 ± 4.00 | **+2.5** |",
        "| SVHN | ResNet18 | 5000 | 100 | 1 | 80.00 (80.00) | 70.00 (70.00) | +10.00 | – |",
    ]


def test_pairs_of_different_training_images_are_refused(run: Callable[..., int], tmp_path: Path) -> None:
    (batch,), (passes,) = make_runs([0.5], BATCH), make_runs([0.5], RANDOM)
    keep(tmp_path, [batch, replace(passes, subset="another")])
    with pytest.raises(DataError, match=passes.task.name):
        run()


# Benchmarks


def test_the_readme_has_the_speedup_of_the_engine(run: Callable[..., int], tmp_path: Path) -> None:
    rows = [make_measurement("our 5 runs side by side, each", 0.05), make_measurement("our loop", 0.5)]
    keep_bench(tmp_path, "a", [*rows, make_measurement("published, arithmetic alone", 0.5)])
    faster = [make_measurement("our 5 runs side by side, each", 0.001), rows[1]]
    keep_bench(tmp_path, "quick", faster, asked={"quick": True})
    assert run() == 0
    assert "20 to 20 times as fast" in (tmp_path / "README.md").read_text()
    assert "10 to 10 times as fast" in (tmp_path / "README.md").read_text()
    assert "| 20.00 | 4 |" in (tmp_path / "results" / "bench" / "a.md").read_text()


def test_stopped_benchmarks_are_marked(run: Callable[..., int], tmp_path: Path) -> None:
    keep_bench(tmp_path, "whole", [make_measurement("ours", 0.5)])
    keep_bench(tmp_path, "part", [make_measurement("ours", 0.5)], complete=False)
    assert run() == 0
    assert "Stopped" in (tmp_path / "results" / "bench" / "part.md").read_text()
    assert "Stopped" not in (tmp_path / "results" / "bench" / "whole.md").read_text()


def test_a_damaged_bench_record_is_refused(run: Callable[..., int], tmp_path: Path) -> None:
    (tmp_path / "results" / "bench").mkdir()
    (tmp_path / "results" / "bench" / "a.json").write_text("{")
    with pytest.raises(RunError, match=r"a\.json"):
        run()


# Commits


def test_the_commit_that_has_the_code_is_named(run: Callable[..., int], tmp_path: Path) -> None:
    dirty = replace(ORIGIN, dirty=True, commit="0" * 40, code="c0de")
    keep(tmp_path, [replace(each, origin=dirty) for each in make_runs([0.2, 0.3], RANDOM)])
    (tmp_path / "results" / "programs.json").write_text(json.dumps({"c0de": "a" * 40, "other": "b" * 40}))
    assert run() == 0
    text = (tmp_path / "results" / "reproduce" / "svhn-reduced.md").read_text()
    assert "commit aaaaaaaaaa" in text
    assert "with changes" not in text


@pytest.mark.parametrize("content", ["{", "[]", '{"c0de": 1}'])
def test_other_files_than_commits_are_refused(content: str, run: Callable[..., int], tmp_path: Path) -> None:
    (tmp_path / "results" / "programs.json").write_text(content)
    with pytest.raises(RunError, match=r"programs\.json"):
        run()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_commits_with_other_code_are_reported(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def git(*arguments: str) -> str:
        names = ("-c", "user.name=x", "-c", "user.email=x@y")
        done = subprocess.run(["git", *names, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    (tmp_path / "memwrap").mkdir()
    (tmp_path / "memwrap" / "a.py").write_text("1")
    git("init")
    git("add", "memwrap")
    git("commit", "-m", "first")
    commit, code = git("rev-parse", "HEAD"), hash_code(tmp_path / "memwrap")
    programs = tmp_path / "results" / "programs.json"
    programs.write_text(json.dumps({code: commit, "unknown": "f" * 40}))
    assert run() == 0
    programs.write_text(json.dumps({"c0de": commit}))
    assert run() == 1
    assert commit in capsys.readouterr().err
