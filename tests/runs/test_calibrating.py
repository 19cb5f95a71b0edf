"""What is chosen after training: a vote's scale, against a loop over scales, and probabilities that hold."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import memwrap
from memwrap.data import InMemoryImages, LabelledImages, Transform
from memwrap.metrics import calibration_error
from memwrap.models.evaluation import Encoded
from memwrap.models.inference import encode_all
from memwrap.models.loading import Model
from memwrap.nn.calibration import VoteCalibration
from memwrap.nn.probabilities import TemperatureCalibration
from memwrap.nn.similarity import CosineSimilarity
from memwrap.nn.voting import SCALES, TOLERANCE
from memwrap.runs import calibrating
from memwrap.runs.calibrating import LEAST, calibrate, choose_scale

CLASSES, SIDE = 4, 8
TRANSFORM = Transform((3, SIDE, SIDE), mean=(0.5,) * 3, std=(0.25,) * 3)


def labelled(count: int, seed: int, noise: float = 90.0) -> LabelledImages:
    """Images of four colours, so noisy that some are taken for another's."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    colours = torch.tensor([[90.0, 110, 130], [130, 110, 90], [110, 130, 110], [110, 90, 140]])[labels]
    pixels = colours[:, :, None, None] + noise * torch.randn(count, 3, SIDE, SIDE, generator=draws)
    names = tuple(map(str, range(count)))
    return LabelledImages(InMemoryImages(pixels.clamp(0, 255).to(torch.uint8)), labels, names)


def encoded(model: Model, images: LabelledImages, count: int | None = None) -> Encoded:
    """The first `count` of the images, or all."""
    return Encoded(encode_all(model, images.images)[:count], images.labels[:count])


def new_model(variant: str = "vote") -> Model:
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=CLASSES), variant).eval()
    model.transform = TRANSFORM
    return model


@pytest.fixture
def model() -> memwrap.MemoryClassifier:
    """A model that votes by 60 images; its head is the nearest mean of a class, and far too sure."""
    model, memory = new_model(), labelled(60, seed=1)
    model.remember(memory.images.pixels, memory.labels)
    encodings = model.remembered.encodings
    means = torch.stack([encodings[memory.labels == label].mean(0) for label in range(CLASSES)])
    with torch.no_grad():
        model.layer.head.weight.copy_(1000 * means)
        model.layer.head.bias.copy_(-500 * means.square().sum(1))
    model.remember(memory.images.pixels, memory.labels)
    return model


def slow_sparsemax(scores: Tensor) -> Tensor:
    """Of one row: the support grows as long as its threshold stays below the next score (Martins & Astudillo 2016)."""
    ordered = scores.sort(descending=True).values
    threshold = 0.0
    for count in range(1, len(scores) + 1):
        candidate = (float(ordered[:count].sum()) - 1) / count
        if float(ordered[count - 1]) > candidate:
            threshold = candidate
    return (scores - threshold).clamp(min=0)


def slow_choice(encodings: Tensor, labels: Tensor, memory: Tensor, own: Tensor, places: Tensor | None) -> float:
    """The scale, by votes of one image after the other. places: of the images in the memory, to be left out."""
    tried = []
    cosines = functional.normalize(encodings.double()) @ functional.normalize(memory.double()).mT
    for scale in SCALES:
        right, used = 0, 0
        for row, label in enumerate(labels.tolist()):
            kept = [place for place in range(len(memory)) if places is None or place != places[row]]
            weights = slow_sparsemax(scale * cosines[row, kept])
            votes = [float(weights[own[kept] == each].sum()) for each in range(CLASSES)]
            right += votes.index(max(votes)) == label
            used += int((weights > 1e-9).sum())
        tried.append((right / len(labels), used / len(labels), scale))
    best = max(accuracy for accuracy, _, _ in tried)
    good = [each for each in tried if each[0] >= best - TOLERANCE]
    return min(good, key=lambda each: each[1])[2]


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_the_scale_is_that_of_a_loop_over_the_validation_images(seed: int, model: memwrap.MemoryClassifier) -> None:
    validation = labelled(50, seed)
    choose_scale(model, encoded(model, validation))
    expected = slow_choice(
        encode_all(model, validation.images),
        validation.labels,
        model.remembered.encodings,
        model.remembered.labels,
        places=None,
    )
    assert model.layer.similarity.scale == expected


@pytest.mark.parametrize("noise", [40.0, 90.0, 140.0])
def test_without_validation_images_no_memory_image_votes_for_itself(noise: float) -> None:
    model, memory = new_model(), labelled(40, 5, noise)
    model.remember(memory.images.pixels, memory.labels)
    choose_scale(model, encoded(model, memory, 0))
    encodings = model.remembered.encodings
    expected = slow_choice(encodings, memory.labels, encodings, memory.labels, torch.arange(40))
    assert model.layer.similarity.scale == expected


def test_scales_differ_between_data() -> None:
    """So that the tests above compare more than one number."""
    found = set()
    for noise in (20.0, 90.0, 140.0):
        model, memory = new_model(), labelled(40, 5, noise)
        model.remember(memory.images.pixels, memory.labels)
        choose_scale(model, encoded(model, memory, 0))
        found.add(model.layer.similarity.scale)
    assert len(found) > 1


def test_of_a_large_memory_some_images_choose(model: memwrap.MemoryClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrating, "LEFT_OUT", 20)
    choose_scale(model, encoded(model, labelled(4, 0), 0))
    memory, places = model.remembered, torch.arange(0, 60, 3)  # from first to last, whatever the order of classes
    some = memory.encodings[places], memory.labels[places]
    expected = slow_choice(*some, memory.encodings, memory.labels, places)
    assert model.layer.similarity.scale == expected


def test_the_scale_is_saved(model: memwrap.MemoryClassifier, tmp_path: Path) -> None:
    choose_scale(model, encoded(model, labelled(50, 2)))
    chosen = model.layer.similarity.scale
    model.save(tmp_path)
    assert memwrap.load(tmp_path).layer.similarity.scale == chosen


# Calibration


def scores_of(model: memwrap.MemoryClassifier, images: LabelledImages) -> tuple[float, float, Tensor]:
    """The negative log-likelihood, the calibration error, and the predictions."""
    probabilities = model.predict(TRANSFORM(images.images.pixels)).double()
    loss = -probabilities[torch.arange(len(images)), images.labels].clamp(min=1e-12).log().mean()
    return float(loss), calibration_error(probabilities, images.labels), probabilities.argmax(1)


@pytest.mark.parametrize("decide", ["vote", "head"])
def test_calibrated_probabilities_are_better_on_other_images(decide: str, model: memwrap.MemoryClassifier) -> None:
    model.layer.decide = decide
    model.layer.similarity = CosineSimilarity(64.0)  # few images, so that the vote is far too sure, too
    validation, test = labelled(300, seed=6, noise=70), labelled(600, seed=7, noise=70)
    calibrate(model, encoded(model, validation, 0))
    assert model.calibration is None
    loss, error, predictions = scores_of(model, test)
    assert 0.4 < float((predictions == test.labels).double().mean()) < 0.95
    calibrate(model, encoded(model, validation))
    kind = VoteCalibration if decide == "vote" else TemperatureCalibration
    assert isinstance(model.calibration, kind)
    after, error_after, predictions_after = scores_of(model, test)
    assert after < loss - 0.2
    assert error_after < error / 2
    assert torch.equal(predictions_after, predictions)


@pytest.mark.parametrize(("variant", "deviation"), [("standard", 1.0), ("memory_wrap", 0.1)])
def test_other_variants_get_the_temperature_of_the_least_loss(variant: str, deviation: float) -> None:
    model, images = new_model(variant), labelled(200, seed=6)
    for parameter in model.layer.parameters():
        torch.nn.init.normal_(parameter, 0, deviation, generator=torch.Generator().manual_seed(0))
    if variant == "memory_wrap":
        model.remember(images.images.pixels[:20], images.labels[:20])
    calibrate(model, encoded(model, images))
    assert isinstance(model.calibration, TemperatureCalibration)
    with torch.no_grad():
        logits = model(TRANSFORM(images.images.pixels)).double()

    def loss(temperature: float) -> float:
        """With the prior of one image that the fit has."""
        likelihood = functional.cross_entropy(logits / temperature, images.labels, reduction="sum")
        return float(likelihood) + math.log(temperature) ** 2 / 2

    found = model.calibration.temperature
    assert 2 < found < 19, "the weights are random"
    assert all(loss(found) <= loss(other) + 1e-6 for other in torch.logspace(math.log10(0.05), math.log10(20), 400))


@pytest.mark.parametrize(("count", "calibrated"), [(0, False), (LEAST - 1, False), (LEAST, True)])
def test_too_few_images_leave_probabilities_as_they_are(
    count: int, calibrated: bool, model: memwrap.MemoryClassifier
) -> None:
    model.calibration = TemperatureCalibration(3.0)
    calibrate(model, encoded(model, labelled(LEAST, 6), count))
    assert (model.calibration is not None) == calibrated


def test_a_vote_without_a_head_is_calibrated() -> None:
    """By the share of the vote and the similarity alone."""
    model, memory = new_model(), labelled(60, seed=1)
    model.layer = memwrap.VoteLayer(model.in_features, CLASSES, head_classes=0, scale=64.0).eval()
    model.remember(memory.images.pixels, memory.labels)
    test = labelled(600, seed=7)
    loss, error, _ = scores_of(model, test)
    calibrate(model, encoded(model, labelled(300, seed=6)))
    after, error_after, _ = scores_of(model, test)
    assert after < loss - 0.2
    assert error_after < error / 2
