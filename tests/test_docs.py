"""What the documents show works."""

import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from pydantic import BaseModel

import memwrap
from memwrap.explain.record import ExplanationRecord, PredictionRecord
from memwrap.metrics import DeletionCurve
from memwrap.models.evidence import EvidenceScores
from memwrap.report import Verification
from memwrap.runs import CheckResult, Evaluation
from memwrap.runs.scores import RememberedResult, TrainResult

ROOT = Path(__file__).parent.parent


def code_blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_the_training_loop_for_own_classifiers_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,) = code_blocks(ROOT / "docs" / "python.md", "python")
    given = {
        "classifier": memwrap.encoders.create("tiny", num_classes=2),
        "pixels": torch.randint(0, 256, (80, 3, 32, 32), dtype=torch.uint8),
        "labels": torch.arange(80) % 2,
        "names": tuple(map(str, range(80))),
    }
    exec(code, given)
    assert capsys.readouterr().out.count("EpochMetrics") == 3
    model = memwrap.load("model")
    assert isinstance(model, memwrap.MemoryClassifier)
    assert model.remembered is not None
    assert model.remembered.labels.bincount().tolist() == [25, 25]
    assert model.classes == ("cat", "dog")


def test_the_snippets_of_the_readme_pass_mypy(tmp_path: Path) -> None:
    codes = code_blocks(ROOT / "README.md", "python")
    given = (
        "import torch\nfrom torch import Tensor\nimages: Tensor\nmemory_images: Tensor\nlabels: Tensor\n"
        "classifier: torch.nn.Module\n"
    )
    (tmp_path / "snippet.py").write_text(given + "".join(codes))
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        str(ROOT / "pyproject.toml"),
        str(tmp_path / "snippet.py"),
    ]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_every_file_that_contributing_names_exists() -> None:
    named = set(re.findall(r"`([\w/.]+\.py)`", (ROOT / "CONTRIBUTING.md").read_text()))
    files = [path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("memwrap/**/*.py"), *ROOT.glob("tests/**/*.py"))]
    for name in named:
        assert "NAME" in name or any(f"/{path}".endswith(f"/{name}") for path in files), name


def test_every_local_link_leads_somewhere() -> None:
    for page in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "results").glob("*.md"),
    ]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists() or target.startswith("http"), f"{page.name}: {target}"


def test_every_command_in_the_documents_is_one_that_exists() -> None:
    from memwrap.cli.app import app

    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for name in re.findall(r"^memwrap (\w+)", page.read_text(), flags=re.MULTILINE):
            assert name in known, f"{page.name}: memwrap {name}"


def fields_of(model: Any) -> set[str]:
    """The keys of a record's JSON, and of the records in it."""
    if is_dataclass(model):
        return {field.name for field in fields(model)}
    names: set[str] = set()
    for name, field in {**model.model_fields, **model.model_computed_fields}.items():
        names.add(name)
        kind = getattr(field, "annotation", None) or field.return_type
        for part in (kind, *get_args(kind), *(inner for each in get_args(kind) for inner in get_args(each))):
            if isinstance(part, type) and issubclass(part, BaseModel):
                names |= fields_of(part)
    return names


@pytest.mark.parametrize(
    ("section", "records"),
    [
        ("predict", [PredictionRecord]),
        ("explain", [PredictionRecord, ExplanationRecord]),
        ("evaluate", [Evaluation, RememberedResult, EvidenceScores, DeletionCurve]),
        ("train", [TrainResult]),
        ("check", [CheckResult]),
        ("verify", [Verification]),
    ],
)
def test_every_key_of_the_json_output_is_described(section: str, records: list[Any]) -> None:
    text = (ROOT / "docs" / "json.md").read_text()
    assert f"\n## {section}\n" in text
    described = set(re.findall(r"`(\w+)`", text)) | {"confidence"}  # as selective.confidence
    for record in records:
        assert fields_of(record) - described == set()
