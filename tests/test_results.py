"""The section of results: what the records give, and nothing else."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from memwrap.paper.published import published
from memwrap.paper.records import append
from tests.paper.recorded import recorded, tasks_of

SCRIPT = Path(__file__).parents[1] / "results" / "summary.py"


@pytest.fixture
def summary() -> ModuleType:
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
    for task in tasks_of("svhn-reduced", range(3), encoder="resnet18"):
        accuracy = numbers[task.samples, task.variant, "resnet18"].mean / 100 + 0.001 * (task.seed - 1)
        higher = 0.995 + 0.001 * task.seed
        record = recorded(task, higher if task.samples == 2000 and task.variant == "memory_wrap" else accuracy)
        append(tmp_path / "reproduce" / "records.jsonl", record)
    return tmp_path


def test_the_readme_has_the_table_its_caption_and_a_line_for_each_other(summary: ModuleType, folder: Path) -> None:
    made = summary.files(folder, f"before\n{summary.BEGIN}\nwhat was there\n{summary.END}\nafter\n")
    readme = made[summary.README]
    assert readme.startswith(f"before\n{summary.BEGIN}\n\n**Reduced SVHN")
    assert readme.endswith(f"{summary.END}\nafter\n")
    assert "what was there" not in readme
    assert "| ResNet18 | Standard | 20.63 ± 0.10 (20.63), n = 3 | 31.84 ± 0.10 (31.84), n = 3 |" in readme
    assert "**99.60 ± 0.10 (77.26), n = 3**" in readme
    assert "| MobileNetV2 | Standard | no runs | no runs | no runs |" in readme
    assert "27 runs on cpu, 2026-11-16" in readme
    assert "| [svhn-reduced](results/reproduce/svhn-reduced.md) | 9 | 8 | 1 | 3 |" in readme
    assert "| [parameters](results/reproduce/parameters.md) | 12 | 12 | 0 |  |" in readme
    assert "cifar10-reduced" not in readme
    assert {path.name for path in made} >= {"svhn-reduced.md", "explanations.md", "counterfactuals.md", "parameters.md"}


def test_a_readme_without_a_place_is_told(summary: ModuleType, folder: Path) -> None:
    with pytest.raises(SystemExit, match="has no place for results; expected the lines <!-- made by"):
        summary.files(folder, "no place here")


def test_the_readme_and_the_tables_are_what_the_records_give(
    summary: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["summary.py", "--check"])
    assert summary.main() == 0, "run python results/summary.py"
