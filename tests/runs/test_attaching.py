"""A run around a trained classifier: it predicts what it did, with training images next to it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

import memwrap
from memwrap.data import DataSet
from memwrap.errors import InputError, RunError, SettingsError
from memwrap.models import caching
from memwrap.nn.calibration import fit_vote_calibration
from memwrap.nn.probabilities import TemperatureCalibration, head_logits_for
from memwrap.runs.attaching import attach_run, attach_settings
from memwrap.runs.calibrating import SCALES
from memwrap.runs.checking import check_folder
from memwrap.runs.data import data_for, data_of
from memwrap.runs.evaluation import evaluate_run
from memwrap.runs.run import Run, open_run
from tests.photographs import CLASSES, photographs
from tests.runs.conftest import ENCODER

SIDE = 48


@pytest.fixture(scope="module")
def classifier(photos: Path) -> nn.Module:
    """A network of timm whose last layer finds the nearest mean of a class."""
    torch.manual_seed(0)
    network = timm.create_model("test_resnet", num_classes=3).eval()
    data = data_for(str(photos), attach_settings(ENCODER, {"weights": "x", "size": SIDE}))
    with torch.no_grad():
        pixels = data.train.images.pixels  # type: ignore[attr-defined]
        encodings = network.forward_head(network.forward_features(normalised(pixels)), pre_logits=True)
        means = torch.stack([encodings[data.train.labels == label].mean(0) for label in range(3)])
        network.fc.weight.copy_(means)
        network.fc.bias.copy_(-means.square().sum(1) / 2)
    return network


def normalised(pixels: Tensor) -> Tensor:
    """As timm's weights were trained."""
    facts = timm.get_pretrained_cfg("test_resnet")
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (facts.mean, facts.std))
    return (pixels.float() / 255 - mean) / std


@pytest.fixture(scope="module")
def trained_weights(classifier: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights of a classifier of these three classes."""
    path = tmp_path_factory.mktemp("trained") / "mine.safetensors"
    save_file(classifier.state_dict(), path)
    return path


Attach = Callable[..., tuple[Run, DataSet]]


@pytest.fixture
def attached(photos: Path, tmp_path: Path) -> Attach:
    """Attaches a run to weights."""

    def make(weights: Path, decide: Any, source: Path | str = photos, **given: Any) -> tuple[Run, DataSet]:
        settings = attach_settings(
            ENCODER, {"weights": str(weights), "size": SIDE, "fit": "crop", "test": 0.2, **given}
        )
        data = data_for(str(source), settings)
        return attach_run(tmp_path / "run", data, settings, decide), data

    return make


def inputs_of(run: Run, data: DataSet) -> tuple[Tensor, Tensor]:
    """The run's test images as the classifier takes them, and their labels."""
    images = run.splits.of(data, "test")
    (pixels,) = images.images.batches([torch.arange(len(images))])
    return normalised(pixels), images.labels


def test_the_classifier_predicts_what_it_did(attached: Attach, trained_weights: Path, classifier: nn.Module) -> None:
    run, data = attached(trained_weights, "head")
    model = memwrap.load(run.path)
    assert (model.decided_by, model.classes) == ("classifier", tuple(sorted(CLASSES)))
    inputs, labels = inputs_of(run, data)
    with torch.no_grad():
        expected = classifier(inputs)
        torch.testing.assert_close(model(inputs), expected)
        torch.testing.assert_close(model.predict(inputs), expected.softmax(1))
    record = evaluate_run(run, model, data, None, "test")
    assert record["decided_by"] == "classifier"
    scores = record["remembered"]
    assert scores["accuracy"] == scores["head_accuracy"] == float((expected.argmax(1) == labels).double().mean())
    assert scores["accuracy"] > 0.5
    vote = model.read(inputs).votes.argmax(1)
    assert scores["agreement"] == pytest.approx(float((vote == expected.argmax(1)).double().mean()))
    assert scores["vote_accuracy"] == pytest.approx(float((vote == labels).double().mean()))


def test_with_a_vote_the_images_decide_and_the_classifier_stands_next_to_them(
    attached: Attach, trained_weights: Path, classifier: nn.Module
) -> None:
    run, data = attached(trained_weights, "vote")
    model = memwrap.load(run.path)
    inputs, _ = inputs_of(run, data)
    assert model.decided_by == "vote"
    with torch.no_grad():
        reading = model.read(inputs)
        torch.testing.assert_close(reading.head_logits, classifier(inputs))
        assert torch.equal(model.predict(inputs).argmax(1), reading.votes.argmax(1))


def test_weights_of_other_classes_cannot_decide(attached: Attach, weights: Path) -> None:
    with pytest.raises(SettingsError, match="no last layer for these 3 classes") as caught:
        attached(weights, "head")
    assert "--decide vote" in str(caught.value)


def test_images_vote_without_a_last_layer(attached: Attach, weights: Path) -> None:
    run, data = attached(weights, "vote")
    model = memwrap.load(run.path)
    assert (model.decided_by, model.layer.head_classes) == ("vote", 0)
    inputs, labels = inputs_of(run, data)
    assert model.read(inputs).head_logits is None
    record = evaluate_run(run, model, data, None, "test")["remembered"]
    assert (record["head_accuracy"], record["agreement"]) == (None, None)
    assert record["accuracy"] == record["vote_accuracy"]
    assert record["accuracy"] == float((model.predict(inputs).argmax(1) == labels).double().mean())
    assert record["accuracy"] > 0.8
    stored = load_file(weights)
    kept = model.encoder.state_dict()
    assert kept.keys() == stored.keys() - {"fc.weight", "fc.bias"}
    assert all(torch.equal(kept[name], stored[name]) for name in kept)


# What the run holds


def test_it_is_a_finished_run_in_which_everything_is_right(
    attached: Attach, trained_weights: Path, photos: Path
) -> None:
    run, data = attached(trained_weights, "head")
    again = open_run(run.path)
    assert again.state.finished
    assert again.state.progress.step == 0
    assert again.record.recipe == "attached"
    assert (again.settings.variant, again.settings.encoder, again.settings.freeze) == ("vote", ENCODER, True)
    result = check_folder(again, data_of(again))
    assert result.right
    assert {finding.state for finding in result.findings} == {"right"}
    memory = again.model().remembered
    assert sorted(memory.names) == sorted(run.splits.of(data, "train").names)
    for row, name in enumerate(memory.names):
        with Image.open(photos / name) as image:
            assert torch.equal(memory.images[row], again.model().transform.fit_image(image))


def test_some_images_can_be_remembered(attached: Attach, trained_weights: Path) -> None:
    run, _ = attached(trained_weights, "head", remember=9)
    assert run.model().remembered.labels.bincount().tolist() == [3, 3, 3]


def test_more_images_than_there_are_cannot(attached: Attach, trained_weights: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="remember is 99"):
        attached(trained_weights, "head", remember=99)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("decide", ["head", "vote"])
def test_a_scale_that_is_given_is_used(decide: str, attached: Attach, trained_weights: Path) -> None:
    run, data = attached(trained_weights, decide, scale=3.0)
    model = memwrap.load(run.path)
    assert model.layer.similarity.scale == 3.0
    inputs, _ = inputs_of(run, data)
    keys = functional.normalize(model.remembered.encodings.double())
    with torch.no_grad():
        cosines = functional.normalize(model.encode(inputs).double()) @ keys.mT
    torch.testing.assert_close(model.read(inputs).weights.double(), memwrap.sparsemax(3 * cosines), atol=1e-4, rtol=0)


def test_a_scale_that_is_not_is_one_of_those_tried(attached: Attach, trained_weights: Path) -> None:
    run, _ = attached(trained_weights, "vote")
    assert run.settings.scale is None
    assert run.model().layer.similarity.scale in SCALES


def test_validation_images_calibrate(attached: Attach, trained_weights: Path, tmp_path: Path) -> None:
    many = photographs(tmp_path / "many", count=24)
    run, data = attached(trained_weights, "head", source=many, validation=30)
    assert isinstance(run.model().calibration, TemperatureCalibration)
    names = run.splits.of(data, "validation").names
    assert len(names) == 30
    assert not set(names) & set(run.model().remembered.names)
    record = evaluate_run(run, run.model(), data, None, "test")
    assert "uncalibrated" in record["remembered"]


def test_without_validation_images_nothing_is_calibrated(attached: Attach, trained_weights: Path) -> None:
    assert attached(trained_weights, "vote")[0].model().calibration is None


def test_each_image_is_encoded_once(
    attached: Attach, trained_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMWRAP_DATA", str(tmp_path / "cache"))
    found: list[int] = []
    add = caching.EncodingCache.add
    monkeypatch.setattr(
        caching.EncodingCache, "add", lambda self, encodings: (found.append(len(encodings)), add(self, encodings))
    )
    run, _ = attached(trained_weights, "head", validation=4)
    assert sum(found) == 29
    run.path.rename(tmp_path / "first")
    attached(trained_weights, "vote", validation=4)
    assert sum(found) == 29


def test_grey_images_are_taken_too(attached: Attach, weights: Path) -> None:
    """Of the colours of the weights, the mean."""
    run, data = attached(weights, "vote", source="digits", size=16, remember=100)
    assert data.train.images.shape == (1, 16, 16)
    facts = timm.get_pretrained_cfg("test_resnet")
    assert run.model().transform.mean == (pytest.approx(sum(facts.mean) / 3),)
    assert check_folder(run, data_of(run)).right


def test_colours_can_be_given(attached: Attach, weights: Path) -> None:
    run, _ = attached(weights, "vote", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    transform = run.model().transform
    assert (transform.mean, transform.std, transform.fit) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "crop")


def test_a_transformer_is_built_for_the_size_of_the_images(photos: Path, tmp_path: Path) -> None:
    save_file(timm.create_model("test_vit", num_classes=3).state_dict(), tmp_path / "vit.safetensors")
    given = {"weights": str(tmp_path / "vit.safetensors"), "size": 32, "fit": "stretch"}
    settings = attach_settings("timm:test_vit", given)
    run = attach_run(tmp_path / "run", data_for(str(photos), settings), settings, "head")
    assert run.model().transform.shape == (3, 32, 32)
    assert memwrap.load(run.path).decided_by == "classifier"


@pytest.mark.parametrize(
    ("given", "share"), [({"weights": "x"}, 0), ({}, 0.2), ({"weights": "x", "test": 0.3}, 0.3), ({"test": 0.0}, 0)]
)
def test_a_classifier_is_tested_on_nothing_that_it_may_have_been_trained_on(
    given: dict[str, Any], share: float
) -> None:
    assert attach_settings(ENCODER, given).test == share


def test_an_encoder_that_was_not_trained_on_its_memory_is_calibrated_by_it(photos: Path, tmp_path: Path) -> None:
    settings = attach_settings("lite0", {"size": 64, "fit": "crop", "test": 0.0})
    model = attach_run(tmp_path / "run", data_for(str(photos), settings), settings, "vote").model()
    memory = model.remembered
    found = [
        model.layer.read(memory.encodings[row : row + 1], memory.prepared, torch.arange(len(memory)) != row)
        for row in range(len(memory))
    ]
    votes, similarity = (torch.cat([getattr(each, name) for each in found]) for name in ("votes", "similarity"))
    head = head_logits_for(votes, None, average=0.0)
    assert model.calibration == fit_vote_calibration(votes, head, similarity, memory.labels)


def test_the_encoder_of_photographs_can_be_attached(photos: Path, tmp_path: Path) -> None:
    settings = attach_settings("lite0", {"size": 64, "fit": "crop"})
    assert settings.pretrained
    data = data_for(str(photos), settings)
    with pytest.raises(SettingsError, match="cannot decide"):
        attach_run(tmp_path / "run", data, settings, "head")
    run = attach_run(tmp_path / "run", data, settings, "vote")
    record = evaluate_run(run, run.model(), data, None, "test")
    assert record["remembered"]["accuracy"] >= 6 / 7
    assert json.loads((run.path / "run.json").read_text())["settings"]["pretrained"] is True


def test_folders_that_are_taken_and_files_without_weights_are_refused(
    attached: Attach, trained_weights: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.safetensors").write_text("no weights")
    with pytest.raises(InputError, match="not available"):
        attached(tmp_path / "bad.safetensors", "head")
    assert not (tmp_path / "run").exists()
    attached(trained_weights, "head")
    with pytest.raises(RunError, match="holds a run already"):
        attached(trained_weights, "head")
