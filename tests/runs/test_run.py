"""A run is opened once: its files are read, hashed and probed no more often than needed."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch

import memwrap
from memwrap.data import DataSet, digits
from memwrap.errors import DivergedError, LoadError, MemwrapWarning, RunError
from memwrap.models.base import EncoderModel
from memwrap.runs.evaluation import evaluate_run
from memwrap.runs.reporting import source_of
from memwrap.runs.run import Run, SavedModel, open_model, open_run
from memwrap.runs.training import begin, resume
from memwrap.storage import checkpoint
from memwrap.training.settings import Settings
from tests.sealing import seal

SETTINGS = Settings(encoder="tiny", samples=32, epochs=2, batch_size=16, memory_size=8, remember=10)


@pytest.fixture(scope="module")
def data() -> DataSet:
    return digits()


@pytest.fixture(scope="module")
def finished(data: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "run"
    begin(path, data, SETTINGS, "default").train()
    return path


def count_calls(monkeypatch: pytest.MonkeyPatch, place: object, *names: str) -> Counter[str]:
    calls: Counter[str] = Counter()

    def counting(name: str) -> None:
        real = getattr(place, name)

        def call(*arguments: object, **options: object) -> object:
            calls[name] += 1
            return real(*arguments, **options)

        monkeypatch.setattr(place, name, call)

    for name in names:
        counting(name)
    return calls


def test_each_file_of_tensors_is_read_once_for_all_that_is_done_with_a_run(
    finished: Path, data: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_calls(monkeypatch, checkpoint, "_read_tensors")
    run = open_model(finished)
    assert isinstance(run, Run)
    source = source_of(run)
    evaluate_run(run, run.model(), data, None, "test")
    assert run.model() is source.model
    assert len(run.memory_names or ()) == 10
    assert calls == {"_read_tensors": 3}  # weights, probe, memory


def test_the_state_is_known_without_reading_tensors(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_calls(monkeypatch, checkpoint, "_read_tensors")
    run = open_run(finished)
    assert run.state is not None
    assert run.state.finished
    with pytest.raises(RunError, match="finished"):
        run.unfinished_state()
    assert not calls


def test_a_model_without_a_run_is_opened_by_the_same_function(finished: Path, tmp_path: Path) -> None:
    open_run(finished).model().save(tmp_path)
    folder = open_model(tmp_path)
    assert type(folder) is SavedModel
    assert (folder.state, folder.seed) == (None, 0)
    assert folder.memory_names == open_run(finished).memory_names
    assert folder.model().remembered is not None


def test_a_model_is_described_once_and_probed_at_the_first_and_the_last_save(
    data: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_calls(monkeypatch, EncoderModel, "describe", "_probe")
    saves = count_calls(monkeypatch, checkpoint, "write")
    training = begin(tmp_path / "run", data, SETTINGS, "default")
    training.checkpoint_seconds = 0
    assert training.train()
    assert saves["write"] == 5  # at the start, after three of four steps, and at the end
    assert calls == {"describe": 1, "_probe": 2}
    assert list(tmp_path.glob("run/probe.*"))


def test_a_checkpoint_within_a_training_has_no_probe_and_is_resumed_to_the_same_weights(
    finished: Path, data: DataSet, tmp_path: Path
) -> None:
    assert not begin(tmp_path / "run", data, SETTINGS, "default").train(stop=lambda: True)
    assert not list(tmp_path.glob("run/probe.*"))
    memwrap.load(tmp_path / "run")
    training = resume(open_run(tmp_path / "run"), data)
    assert training.train()
    expected = open_run(finished).model().state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in training.run.model().state_dict().items())


def test_a_finished_model_without_its_probe_is_refused(data: DataSet, tmp_path: Path) -> None:
    begin(tmp_path / "run", data, SETTINGS, "default").train()
    file = tmp_path / "run" / "model.json"
    content = json.loads(file.read_text())
    del content["files"]["probe"]
    file.write_text(json.dumps(content))
    seal(file.parent)
    with pytest.raises(RunError, match="probe"):
        open_run(tmp_path / "run").model()
    with pytest.raises(LoadError, match="probe"):
        memwrap.load(tmp_path / "run")


def test_weights_that_are_not_finite_are_not_saved_over_good_ones(data: DataSet, tmp_path: Path) -> None:
    training = begin(tmp_path / "run", data, SETTINGS, "default")

    def stop() -> bool:
        training.model.layer.head.second.bias.data[0] = torch.inf
        return True

    with pytest.raises(DivergedError, match=r"layer\.head\.second\.bias"):
        training.train(stop)
    assert open_run(tmp_path / "run").unfinished_state().progress.step == 0


def test_a_run_of_version_0_1_0_is_opened(data: DataSet, tmp_path: Path) -> None:
    """Its JSON lacks what was added since; its checkpoints have a probe."""
    path = tmp_path / "run"
    training = begin(path, data, SETTINGS, "default")
    for name, key in (("run.json", "settings"), ("model.json", "layer")):
        content = json.loads((path / name).read_text())
        content["memwrap"] = "0.1.0"
        del content[key]["scale"]
        for later in ("root", "documents"):
            content.pop(later, None)
        (path / name).write_text(json.dumps(content))
    assert sorted(json.loads((path / "run.json").read_text())) == [
        "classes",
        "created",
        "data",
        "device",
        "format",
        "format_version",
        "memwrap",
        "recipe",
        "settings",
        "versions",
    ]
    with pytest.warns(MemwrapWarning, match="no root hash"):
        resumed = resume(open_run(path), data)
    assert resumed.run.settings == training.run.settings
    assert resumed.train()
    assert open_run(path).model().layer.settings() == training.model.layer.settings()
