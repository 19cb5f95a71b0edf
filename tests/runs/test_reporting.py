"""A run as reports need it: its model with a memory, and what the memory's images are called."""

import json
from pathlib import Path

import pytest
import torch

from memwrap import RunError, SettingsError
from memwrap.data import DataSet, decode_image, open_data
from memwrap.report.create import memory_pixels
from memwrap.runs.reporting import source_of
from memwrap.runs.run import Run, open_model, open_run
from memwrap.runs.training import begin
from memwrap.training.recipes import recipe
from memwrap.training.settings import with_changes
from tests.cli import photos
from tests.sealing import seal


def trained(path: Path, data: DataSet, steps: int | None = None, **changes: object) -> Run:
    """A run of a moment; steps: after which it is stopped."""
    settings = with_changes(recipe("default"), {"encoder": "tiny", "epochs": 1, **changes}, "test")
    training = begin(path, data, settings, "default")
    done = iter([False] * (steps or 0) + [True])
    training.train((lambda: next(done)) if steps is not None else lambda: False)
    return open_run(path)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return open_data(str(photos(tmp_path_factory.mktemp("data") / "photos")))


def test_a_source_says_where_the_run_is_and_its_seed(
    data: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path / "run", data, seed=5)
    monkeypatch.chdir(tmp_path)
    source = source_of(open_model(Path("run")))
    assert source.path == str(tmp_path / "run")
    assert source.seed == 5
    assert not source.model.training


def test_memory_images_are_called_as_their_files(data: DataSet, tmp_path: Path) -> None:
    source = source_of(trained(tmp_path / "run", data, remember=7))
    pixels = memory_pixels(source.model)
    assert len(source.memory_names) == len(pixels) == 7
    assert len(set(source.memory_names)) == 7
    for name, found, label in zip(source.memory_names, pixels, source.model.remembered.labels.tolist(), strict=True):
        assert found.equal(decode_image((Path(data.name) / name).read_bytes(), (3, 8, 8), "crop"))
        assert name.startswith(source.model.class_name(label))


def test_a_run_of_0_1_tells_names_with_its_training_or_not_at_all(data: DataSet, tmp_path: Path) -> None:
    trained(tmp_path / "run", data)
    file = tmp_path / "run" / "model.json"
    stored = json.loads(file.read_text())
    names = stored.pop("memory_names")
    stored["training"]["remembered_names"] = names
    file.write_text(json.dumps(stored))
    seal(file.parent)
    assert list(source_of(open_model(tmp_path / "run")).memory_names or ()) == names
    for names in (None, ["one.png"]):
        stored["training"]["remembered_names"] = names
        file.write_text(json.dumps(stored))
        seal(file.parent)
        assert source_of(open_model(tmp_path / "run")).memory_names is None


def test_a_run_without_a_memory_is_refused(data: DataSet, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", data, variant="standard")
    with pytest.raises(
        SettingsError, match="a model of the variant standard, which has no memory to explain by; train"
    ):
        source_of(open_model(run.path))


def test_a_run_that_is_not_finished_is_refused(data: DataSet, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", data, steps=0, epochs=3)
    with pytest.raises(RunError, match="not finished"):
        source_of(open_model(run.path))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_model_is_where_one_wants_it(data: DataSet, tmp_path: Path) -> None:
    assert source_of(trained(tmp_path / "run", data), "cuda").model.reference.is_cuda
