"""Photographs: a frozen encoder encodes each image once, and what follows is chosen by images that are held out."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

import memwrap
from memwrap.data import DataSet, digits
from memwrap.errors import DataError, RunError
from memwrap.models import caching
from memwrap.models.prediction import predict_files
from memwrap.nn.calibration import VoteCalibration
from memwrap.nn.probabilities import TemperatureCalibration
from memwrap.runs import fitting
from memwrap.runs.checking import check_folder
from memwrap.runs.data import data_for, data_of
from memwrap.runs.evaluation import evaluate_run
from memwrap.runs.fitting import FittedTraining, choose_fit
from memwrap.runs.run import Run, open_run
from memwrap.runs.training import begin, resume
from memwrap.training.fitting import whiten
from memwrap.training.recipes import RECIPES
from memwrap.training.settings import Settings
from tests.photographs import CLASSES, photograph, photographs
from tests.runs.conftest import Quick


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache without anything in it."""
    monkeypatch.setenv("MEMWRAP_DATA", str(tmp_path / "cache"))


def trained(path: Path, source: Path, settings: Settings) -> Run:
    training = begin(path, data_for(str(source), settings), settings, "photographs")
    assert isinstance(training, FittedTraining)
    assert training.train()
    return open_run(path)


@pytest.fixture(scope="module")
def run(photos: Path, quick: Quick, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run, not to be changed."""
    return trained(tmp_path_factory.mktemp("fitted") / "run", photos, quick(validation=3))


def tensors(path: Path) -> dict[str, str]:
    """The hashes of all that was stored."""
    return {part: file["sha256"] for part, file in json.loads((path / "model.json").read_text())["files"].items()}


@contextmanager
def counted() -> Iterator[list[int]]:
    """How many images each pass over a data set has to encode, if there are any."""
    found: list[int] = []

    def encode_missing(self: Any, images: Any, missing: Any, encodings: Any) -> None:
        found.append(len(missing))
        original(self, images, missing, encodings)

    original = caching.CachedEncoder._encode_missing
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(caching.CachedEncoder, "_encode_missing", encode_missing)
        yield found


def pixels_of(path: Path, model: memwrap.MemoryClassifier) -> Tensor:
    """A file as the model's pixels."""
    with Image.open(path) as image:
        return model.get_transform().fit_image(image)


# The whole way, with the encoder that photographs get


@pytest.fixture(scope="module")
def default(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of the recipe; only the size is changed, for the sake of time."""
    settings = RECIPES["photographs"].replace(size=64)
    chosen, data = choose_fit(settings, lambda tried: data_for(str(photos), tried))
    path = tmp_path_factory.mktemp("default") / "run"
    assert begin(path, data, chosen, "photographs").train()
    return open_run(path)


def test_photographs_are_learnt_with_a_pretrained_encoder(default: Run, tmp_path: Path) -> None:
    model = memwrap.load(default.path)
    assert (default.settings.encoder, default.record.recipe) == ("lite0", "photographs")
    assert isinstance(model, memwrap.MemoryClassifier)
    assert model.decided_by in ("vote", "classifier")
    assert model.classes == tuple(sorted(CLASSES))
    new = photographs(tmp_path / "new", count=5, seed=500)
    found = list(predict_files(model, [new]))
    right = [each.prediction_name == Path(each.path).parent.name for each in found]
    assert len(right) == 15
    assert sum(right) >= 14
    assert {each.decided_by for each in found} == {model.decided_by}


def test_the_way_images_are_made_square_is_chosen_and_recorded(default: Run) -> None:
    stored = json.loads((default.path / "run.json").read_text())["settings"]["fit"]
    assert stored in ("crop", "stretch")
    assert default.settings.fit == stored
    assert memwrap.load(default.path).transform.fit == stored
    assert data_of(default).record["adjusted"] == {"cropped" if stored == "crop" else "stretched": 36}


def test_the_encoder_is_as_it_was(default: Run) -> None:
    encoder = memwrap.encoders.create("lite0", 3, pretrained=True).features.state_dict()
    kept = memwrap.load(default.path).encoder.state_dict()
    for name, tensor in encoder.items():
        assert torch.equal(kept[f"features.{name}"], tensor)


# What a finished run holds


def test_all_training_images_are_remembered_as_pixels_with_their_names(run: Run, photos: Path) -> None:
    memory, model = run.model().remembered, run.model()
    data = data_of(run)
    training = run.splits.of(data, "train")
    assert (len(run.splits.train), len(run.splits.validation), len(run.splits.test)) == (26, 3, 7)
    assert memory.images.dtype == torch.uint8
    assert sorted(memory.names) == sorted(training.names)
    for row, name in enumerate(memory.names):
        assert model.classes[memory.labels[row]] == Path(name).parent.name
        assert torch.equal(memory.images[row], pixels_of(photos / name, model))
    held_out = {*run.splits.of(data, "validation").names, *run.splits.of(data, "test").names}
    assert not held_out & set(memory.names)


def test_encodings_are_the_encoder_s(run: Run) -> None:
    model = run.model()
    with torch.no_grad():
        expected = model.encoder(model.get_transform()(model.remembered.images))
    torch.testing.assert_close(model.remembered.encodings, expected)


def test_the_scores_are_those_of_leaving_one_image_out(run: Run) -> None:
    """By a loop: the vote of all other training images, compared and whitened as was chosen, fitted without the one."""
    found, memory, layer = run.state.fitted, run.model().remembered, run.model().layer
    assert found.held_out == len(memory) == 26
    assert layer.similarity.scale == found.scale
    assert (layer.projection is None) == (found.shrinkage is None)
    right, used = [], []
    for row in range(len(memory)):
        others = torch.arange(len(memory)) != row
        encodings, labels = memory.encodings[others], memory.labels[others]
        query = memory.encodings[row : row + 1]
        if found.shrinkage is not None:
            projection = whiten(encodings, labels, found.shrinkage)
            encodings, query = projection.project(encodings), projection.project(query)
        cosines = functional.normalize(query.double()) @ functional.normalize(encodings.double()).mT
        weights = memwrap.sparsemax(found.scale * cosines)[0]
        votes = torch.zeros(3, dtype=torch.float64).index_add(0, labels, weights)
        right.append(int(votes.argmax() == memory.labels[row]))
        used.append(int((weights > 0).sum()))
    assert found.vote_accuracy == pytest.approx(np.mean(right), abs=1.5 / 26)  # the mean variance is of all images
    assert found.images_used == pytest.approx(np.mean(used), abs=0.2)
    assert 0.5 < found.head_accuracy <= 1


def test_the_head_is_near_the_optimum_of_its_loss(run: Run) -> None:
    """The gradient of cross-entropy and penalty, by autograd, for encodings of the norm that the penalty is for."""
    model, found = run.model(), run.state.fitted
    memory, head = model.remembered, model.layer.head
    factor = 10 / memory.encodings.norm(dim=1).mean()
    weight = (head.weight / factor).detach().requires_grad_()
    bias = head.bias.detach().requires_grad_()
    logits = functional.linear(factor * memory.encodings, weight, bias)
    loss = functional.cross_entropy(logits, memory.labels) + found.penalty / 2 * weight.square().sum()
    for gradient in torch.autograd.grad(loss, [weight, bias]):
        assert float(gradient.abs().max()) < 1e-3


def test_probabilities_are_calibrated(run: Run) -> None:
    model = run.model()
    assert isinstance(model.calibration, VoteCalibration if model.decided_by == "vote" else TemperatureCalibration)
    record = evaluate_run(run, model, data_of(run), None, "test")
    assert record["decided_by"] == model.decided_by
    assert "uncalibrated" in record["remembered"]
    assert record["remembered"]["accuracy"] >= 6 / 7


def test_everything_in_the_folder_is_right(run: Run) -> None:
    result = check_folder(open_run(run.path), data_of(run))
    assert result.right
    assert {finding.what: finding.state for finding in result.findings} == dict.fromkeys(
        ["root hash", "tensors", "model", "memory", "data", "splits", "memory images"], "right"
    )


def test_a_finished_run_is_not_resumed(run: Run) -> None:
    with pytest.raises(RunError, match="is finished"):
        resume(open_run(run.path), data_of(run))


def test_fewer_images_can_be_remembered_and_a_scale_be_given(photos: Path, quick: Quick, tmp_path: Path) -> None:
    run = trained(tmp_path / "run", photos, quick(remember=9, scale=3.0, samples=20))
    model = run.model()
    assert model.remembered.labels.bincount().tolist() == [3, 3, 3]
    assert model.layer.similarity.scale == 3.0
    assert run.state.fitted.held_out == 20
    assert check_folder(run, data_of(run)).right


def test_a_memory_larger_than_the_data_is_refused_before_anything_is_made(
    photos: Path, quick: Quick, tmp_path: Path
) -> None:
    settings = quick(remember=1000)
    with pytest.raises(memwrap.SettingsError, match="remember is 1000"):
        begin(tmp_path / "run", data_for(str(photos), settings), settings, "photographs")
    assert not (tmp_path / "run").exists()


def test_few_images_choose_nothing_and_a_run_is_made_of_them(quick: Quick, tmp_path: Path) -> None:
    source = photographs(tmp_path / "few", CLASSES[:2], count=2)
    run = trained(tmp_path / "run", source, quick(test=0.0))
    model = memwrap.load(run.path)
    assert model.decided_by == "vote"
    assert (run.state.fitted.held_out, run.state.fitted.scale) == (4, 4.0)
    single = photographs(tmp_path / "single", CLASSES[:2], count=1)
    run = trained(tmp_path / "other", single, quick(test=0.0))
    found = run.state.fitted
    assert (found.held_out, found.head_accuracy, found.vote_accuracy) == (0, None, None)
    assert open_run(run.path).model().predict(torch.zeros(1, 3, 48, 48)).sum() == pytest.approx(1)


# What decides


def test_a_classifier_decides_where_the_vote_is_worse(
    photos: Path, quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose = fitting.choose_layer
    monkeypatch.setattr(
        fitting, "choose_layer", lambda *given, **named: replace(choose(*given, **named), decide="head")
    )
    run = trained(tmp_path / "run", photos, quick())
    model, images = memwrap.load(run.path), run.splits.of(data_of(run), "test")
    assert model.decided_by == "classifier"
    assert isinstance(model.calibration, TemperatureCalibration)
    inputs = model.get_transform()(torch.cat(list(images.images.batches([torch.arange(len(images))]))))
    with torch.no_grad():
        logits = functional.linear(model.encoder(inputs), model.layer.head.weight, model.layer.head.bias)
        torch.testing.assert_close(model(inputs), logits)
        torch.testing.assert_close(model.predict(inputs), (logits / model.calibration.temperature).softmax(1))
    record = evaluate_run(run, model, data_of(run), None, "test")
    assert record["decided_by"] == "classifier"
    assert record["remembered"]["accuracy"] == record["remembered"]["head_accuracy"]
    assert all(explanation.flip_set is None for explanation in model.explain(inputs))
    assert check_folder(run, data_of(run)).right


# Crop or stretch


class Opener:
    """Opens data, and remembers how."""

    def __init__(self, source: Path) -> None:
        self.source, self.fits = source, list[str | None]()

    def __call__(self, settings: Settings) -> DataSet:
        self.fits.append(settings.fit)
        return data_for(str(self.source), settings)


def test_both_ways_are_compared_and_of_equal_ones_images_are_cropped(photos: Path, quick: Quick) -> None:
    opener = Opener(photos)
    settings, data = choose_fit(quick(fit=None), opener)
    assert opener.fits == ["crop", "stretch"]
    assert settings == quick(fit="crop"), "both predict all images"
    assert data.record["adjusted"] == {"cropped": 36}


def test_images_are_stretched_where_their_edges_tell_the_classes(quick: Quick, tmp_path: Path) -> None:
    for name in CLASSES:
        (tmp_path / "wide" / name).mkdir(parents=True)
        for number in range(10):
            draw = np.random.default_rng(1000 * len(name) + number)
            pixels = draw.integers(90, 160, (72, 216, 3)).astype(np.uint8)
            edge = np.array(photograph(name, number, (70, 72)))
            pixels[:, :70], pixels[:, -70:] = edge, edge
            Image.fromarray(pixels).save(tmp_path / "wide" / name / f"{number}.png")
    settings, data = choose_fit(quick(fit=None), Opener(tmp_path / "wide"))
    assert settings.fit == "stretch"
    assert data.record["adjusted"] == {"stretched": 30}
    assert begin(tmp_path / "run", data, settings, "photographs").train()
    run = open_run(tmp_path / "run")
    assert (run.settings.fit, run.model().transform.fit) == ("stretch", "stretch")
    assert check_folder(run, data_of(run)).right


def test_square_images_are_not_compared(quick: Quick, tmp_path: Path) -> None:
    opener = Opener(photographs(tmp_path / "square", count=2, size=(64, 64)))
    with counted() as found:
        assert choose_fit(quick(fit=None), opener)[0].fit == "crop"
    assert (opener.fits, found) == (["crop"], [])


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
def test_a_way_that_is_given_is_not_compared(fit: str, photos: Path, quick: Quick) -> None:
    opener = Opener(photos)
    with counted() as found:
        assert choose_fit(quick(fit=fit), opener)[0] == quick(fit=fit)
    assert (opener.fits, found) == ([fit], [])


def test_nothing_is_compared_for_an_encoder_that_is_trained(photos: Path, quick: Quick) -> None:
    opener, settings = Opener(photos), quick(fit=None, freeze=False)
    assert choose_fit(settings, opener)[0] == settings
    assert opener.fits == [None]


def test_some_images_of_many_are_compared(
    photos: Path, quick: Quick, monkeypatch: pytest.MonkeyPatch, own_cache: None
) -> None:
    monkeypatch.setattr(fitting, "SHAPES_COMPARED", 15)
    with counted() as found:
        choose_fit(quick(fit=None), Opener(photos))
    assert found == [15, 15]


def test_test_images_choose_nothing(
    photos: Path, quick: Quick, monkeypatch: pytest.MonkeyPatch, own_cache: None
) -> None:
    with counted() as found:
        choose_fit(quick(fit=None), Opener(photos))
    assert found == [29, 29]


# The same seed, and stops


def test_the_same_seed_gives_the_same_bits_with_and_without_a_cache(
    run: Run, photos: Path, quick: Quick, tmp_path: Path, own_cache: None
) -> None:
    for name in ("first", "second"):
        trained(tmp_path / name, photos, quick(validation=3))
        assert tensors(tmp_path / name) == tensors(run.path)
        assert open_run(tmp_path / name).state.fitted == run.state.fitted
        assert memwrap.load(tmp_path / name).calibration == run.model().calibration
    other = trained(tmp_path / "other", photos, quick(validation=3, seed=1))
    assert other.splits.content() != run.splits.content()
    assert tensors(tmp_path / "other")["memory"] != tensors(run.path)["memory"]


def after(batches: int) -> Callable[[], bool]:
    """Says to stop when it has been asked so often."""
    asked = iter([False] * batches)
    return lambda: next(asked, True)


@pytest.mark.parametrize("batches", [0, 1, 3])
def test_a_run_stopped_while_encoding_ends_as_if_it_had_not_been(
    batches: int, photos: Path, quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: None
) -> None:
    monkeypatch.setattr(caching, "encoded_at_once", lambda _: 8)
    path, settings = tmp_path / "run", quick()
    data = data_for(str(photos), settings)
    assert not begin(path, data, settings, "photographs").train(after(batches))
    stopped = open_run(path)
    assert not stopped.state.finished
    with pytest.raises(RunError, match="is not finished"):
        stopped.model()
    with counted() as found:
        assert resume(stopped, data_of(stopped)).train()
    assert found == [29 - 8 * batches]
    monkeypatch.setenv("MEMWRAP_DATA", str(tmp_path / "other cache"))
    trained(tmp_path / "whole", photos, settings)
    assert tensors(path) == tensors(tmp_path / "whole")
    assert open_run(path).state.finished
    assert check_folder(open_run(path), data).right


def test_a_second_training_encodes_nothing_and_a_changed_file_is_encoded_alone(
    photos: Path, quick: Quick, tmp_path: Path, own_cache: None
) -> None:
    source = Path(shutil.copytree(photos, tmp_path / "photos"))
    with counted() as found:
        trained(tmp_path / "first", source, quick())
    assert found == [29]
    with counted() as found:
        trained(tmp_path / "second", source, quick(scale=5.0, epochs=7))
    assert found == []
    name = open_run(tmp_path / "first").model().remembered.names[0]
    photograph(Path(name).parent.name, seed=999).save(source / name)
    with counted() as found:
        run = trained(tmp_path / "changed", source, quick())
    assert found == [1]
    assert check_folder(run, data_of(run)).right


def test_images_that_cannot_be_read_leave_a_run_to_resume(
    photos: Path, quick: Quick, tmp_path: Path, own_cache: None
) -> None:
    source, settings = Path(shutil.copytree(photos, tmp_path / "photos")), quick()
    data = data_for(str(source), settings, hold_bytes=0)
    training = begin(tmp_path / "run", data, settings, "photographs")
    source.rename(tmp_path / "elsewhere")
    with pytest.raises(DataError):
        training.train()
    run = open_run(tmp_path / "run")
    assert not run.state.finished
    assert resume(run, data_of(run, str(tmp_path / "elsewhere"))).train()


# A vote that is trained from scratch


SCRATCH = Settings(encoder="tiny", variant="vote", samples=300, test=0.5, epochs=12, batch_size=50, remember=150)


@pytest.mark.parametrize("validation", [0, 100])
def test_a_vote_can_be_trained_from_scratch(validation: int, tmp_path: Path) -> None:
    data, path = digits(), tmp_path / "run"
    assert begin(path, data, SCRATCH.replace(validation=validation), "default").train()
    run = open_run(path)
    model = run.model()
    assert (model.decided_by, model.trains_with_memory) == ("vote", False)
    assert len(model.remembered) == 150
    assert run.settings.scale is None
    assert (model.calibration is not None) == (validation > 0)
    record = evaluate_run(run, model, data, None, "test")["remembered"]
    assert record["accuracy"] == record["vote_accuracy"] > 0.7
    assert record["head_accuracy"] > 0.7
    assert record["agreement"] > 0.7
    lines = (path / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 12
    assert ("validation_accuracy" in json.loads(lines[-1])) == (validation > 0)
    assert check_folder(run, data).right


def test_a_vote_trained_from_scratch_ends_the_same_after_a_stop(tmp_path: Path) -> None:
    data, settings = digits(), SCRATCH.replace(validation=40, samples=100, epochs=2, remember=50)
    begin(tmp_path / "whole", data, settings, "default").train()
    begun = begin(tmp_path / "run", data, settings, "default")
    while not begun.train(after(0)):
        begun = resume(open_run(tmp_path / "run"), data)
    assert tensors(tmp_path / "run") == tensors(tmp_path / "whole")


def test_a_scale_that_is_given_stays(tmp_path: Path) -> None:
    assert begin(tmp_path / "run", digits(), SCRATCH.replace(epochs=1, scale=5.0), "default").train()
    assert open_run(tmp_path / "run").model().layer.similarity.scale == 5.0
