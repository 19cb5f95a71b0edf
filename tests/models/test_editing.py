"""A remembered memory that is added to and taken from, image by image and class by class."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

import memwrap
from memwrap import InputError, MemoryClassifier, NoMemoryError, StaleMemoryError, Transform, encoders
from tests import networks

TRANSFORM = Transform((3, 8, 8), mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
KINDS: dict[str, dict[str, Any]] = {
    "memory_wrap": {},
    "linear, projected": {"head": "linear", "project": 6},
    "vote": {"variant": "vote"},
    "vote, projected": {"variant": "vote", "project": 6},
}


def new_model(kind: str = "vote") -> MemoryClassifier:
    model = memwrap.wrap(encoders.create("tiny", num_classes=4), **KINDS[kind]).eval()
    model.transform = TRANSFORM
    return model


def state_of(model: MemoryClassifier) -> dict[str, Tensor]:
    """All tensors of the memory, those that are computed from others included."""
    memory = model.remembered
    return {name: tensor.clone() for name, tensor in memory.named_buffers() if not name.startswith("_predictions")}


def assert_same(model: MemoryClassifier, expected: dict[str, Tensor]) -> None:
    found = state_of(model)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.fixture
def pixels() -> Tensor:
    return torch.randint(256, (12, 3, 8, 8), dtype=torch.uint8)


@pytest.mark.parametrize("as_pixels", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_adding_and_dropping_images_gives_the_memory_of_before_to_the_last_bit(
    kind: str, as_pixels: bool, pixels: Tensor, images: Tensor, labels: Tensor
) -> None:
    model, memory = new_model(kind), pixels if as_pixels else TRANSFORM(pixels)
    model.remember(memory[:8], labels[:8], names=[f"{number}.png" for number in range(8)])
    before, names = state_of(model), model.remembered.names
    with torch.no_grad():
        logits, predictions = model(images), model.remembered.predictions.clone()
    model.remember(memory[8:], labels[8:], names=["a", "b", "c", "d"], extend=True)
    assert len(model.remembered) == 12
    assert model.remembered.names == (*names, "a", "b", "c", "d")
    with torch.no_grad():
        assert not torch.equal(model(images), logits)
        model.remembered.predictions  # noqa: B018 - known now, and of another memory later on
    model.forget([8, 9, 10, 11])
    assert_same(model, before)
    assert model.remembered.names == names
    with torch.no_grad():
        assert torch.equal(model(images), logits)
        assert torch.equal(model.remembered.predictions, predictions)


@pytest.mark.parametrize("kind", KINDS)
def test_adding_in_parts_gives_the_memory_of_all(kind: str, pixels: Tensor, images: Tensor, labels: Tensor) -> None:
    model = new_model(kind)
    model.remember(pixels, labels, chunk_size=4)
    before = state_of(model)
    with torch.no_grad():
        logits, predictions = model(images), model.remembered.predictions.clone()
    model.forget()
    for part in range(0, 12, 4):  # at first there is nothing to add to
        model.remember(pixels[part : part + 4], labels[part : part + 4], extend=True)
    assert_same(model, before)
    with torch.no_grad():
        assert torch.equal(model(images), logits)
        assert torch.equal(model.remembered.predictions, predictions)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(dropped=st.lists(st.integers(0, 11), max_size=20).filter(lambda rows: len(set(rows)) < 12))
def test_any_images_can_be_dropped_and_the_others_stay_in_their_order(
    dropped: list[int], pixels: Tensor, labels: Tensor
) -> None:
    model = new_model()
    model.remember(pixels, labels, names=[*"abcdefghijkl"])
    whole = model.remembered
    model.forget(dropped)
    kept = [row for row in range(12) if row not in dropped]
    for name, tensor in model.remembered.tensors().items():
        assert torch.equal(tensor, whole.tensors()[name][kept])
    assert model.remembered.names == tuple("abcdefghijkl"[row] for row in kept)


@pytest.mark.parametrize("rows", [torch.tensor([1, 5]), (1, 5), torch.tensor([[5], [1]]), range(1, 6, 4)])
def test_rows_come_in_any_form(rows: Any, pixels: Tensor, labels: Tensor) -> None:
    model = new_model()
    model.remember(pixels, labels)
    model.forget(rows)
    assert_close(model.remembered.images, pixels[[0, 2, 3, 4, *range(6, 12)]])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([12], "12"),
        ([-1], "-1"),
        (range(12), "all 12 memory images"),
        ([True] + [False] * 11, "whole numbers"),
        (torch.arange(12) > 3, "whole numbers"),
        ([0.7], "whole numbers"),
        (["a.png"], "whole numbers"),
        ([[1], [2, 3]], "whole numbers"),
    ],
)
def test_rows_that_make_no_sense_are_refused(rows: Any, words: str, pixels: Tensor, labels: Tensor) -> None:
    model = new_model()
    model.remember(pixels, labels)
    before = model.remembered
    with pytest.raises(InputError, match=words):
        model.forget(rows)
    assert model.remembered is before


def test_nothing_can_be_dropped_from_no_memory(model: MemoryClassifier) -> None:
    with pytest.raises(NoMemoryError):
        model.forget([0])
    model.forget()


def test_a_stale_memory_is_neither_added_to_nor_dropped_from(pixels: Tensor, labels: Tensor) -> None:
    model = new_model()
    model.remember(pixels, labels)
    torch.nn.init.zeros_(model.encoder.features[0][0].weight)
    with pytest.raises(StaleMemoryError):
        model.remember(pixels, labels, extend=True)
    with pytest.raises(StaleMemoryError):
        model.forget([0])
    assert len(model.remembered) == 12


def test_what_cannot_be_added_leaves_the_memory(pixels: Tensor, labels: Tensor) -> None:
    model = new_model()
    model.remember(pixels, labels)
    before = model.remembered
    for images, numbers, words in (
        (TRANSFORM(pixels), labels, "torch.float32"),
        (pixels, labels + 4, "labels go from 4"),
        (pixels[:0], labels[:0], "empty"),
    ):
        with pytest.raises(InputError, match=words):
            model.remember(images, numbers, extend=True)
        assert model.remembered is before
    model.remember(TRANSFORM(pixels), labels)
    with pytest.raises(InputError, match=re.escape("(3, 9, 9)")):
        model.remember(torch.randn(2, 3, 9, 9), [0, 1], extend=True)


def test_images_without_a_name_get_an_empty_one_next_to_others(pixels: Tensor, labels: Tensor) -> None:
    model = new_model()
    model.remember(pixels[:2], labels[:2])
    model.remember(pixels[2:4], labels[2:4], names=["a", "b"], extend=True)
    model.remember(pixels[4:5], labels[4:5], extend=True)
    assert model.remembered.names == ("", "", "a", "b", "")


def test_an_explanation_keeps_the_memory_that_it_was_made_with(pixels: Tensor, images: Tensor, labels: Tensor) -> None:
    model = new_model()
    model.remember(pixels, labels)
    explanation = model.explain(images[:1])[0]
    expected = model.explain(images[:1])[0].flip_set
    model.forget([explanation.samples[0].index])
    assert explanation.check()
    assert explanation.flip_set == expected


# Classes


def test_a_class_is_added_without_training(images: Tensor, pixels: Tensor, labels: Tensor, tmp_path: Path) -> None:
    model = new_model()
    model.classes = ("cat", "dog", "eel", "fox")
    model.remember(TRANSFORM(pixels), labels)
    with torch.no_grad():
        before = model.read(images)
    assert model.add_class("gnu") == 4
    assert model.classes == ("cat", "dog", "eel", "fox", "gnu")
    with torch.no_grad():
        widened = model.read(images)
    assert torch.equal(widened.votes, torch.cat([before.votes, torch.zeros(5, 1)], dim=1))
    assert torch.equal(widened.head_logits, before.head_logits)
    # The images themselves become those of the new class.
    model.remember(images, [4] * 5, extend=True)
    explanations = model.explain(images)
    for row, explanation in enumerate(explanations):
        assert explanation.samples[0].index == 12 + row
        assert (explanation.prediction, explanation.other_prediction) == (4, None)
        assert explanation.uncertain is False
        assert explanation.record(class_names=model.classes).prediction_name == "gnu"
    assert model.predict(images).shape == (5, 5)
    model.save(tmp_path)
    loaded = memwrap.load(tmp_path)
    assert (loaded.layer.num_classes, loaded.layer.head_classes) == (5, 4)
    assert loaded.classes == model.classes
    assert torch.equal(loaded.predict(images), model.predict(images))
    # Without its images the class has no vote any more.
    model.forget(range(12, 17))
    with torch.no_grad():
        assert torch.equal(model.read(images).votes, widened.votes)


def test_a_class_next_to_a_classifier_s_own_ones(images: Tensor, tmp_path: Path) -> None:
    classifier = encoders.create("tiny", num_classes=3).eval()
    model = memwrap.attach(classifier, decide="vote")
    assert model.add_class("new") == 3
    assert model.add_class("newer") == 4
    assert model.classes is None
    model.remember(images, range(5))
    assert [each.prediction for each in model.explain(images)] == list(range(5))
    model.save(tmp_path)
    loaded = memwrap.load(tmp_path)
    with torch.no_grad():
        assert torch.equal(loaded.read(images).head_logits, classifier(images))
        assert torch.equal(loaded.read(images).votes, model.read(images).votes)


def test_only_a_vote_takes_a_class_and_only_a_new_one() -> None:
    for model in (new_model("memory_wrap"), memwrap.attach(networks.Plain())):
        with pytest.raises(InputError, match="vote"):
            model.add_class("gnu")
    model = new_model()
    model.classes = ("cat", "dog", "eel", "fox")
    with pytest.raises(InputError, match="'dog'"):
        model.add_class("dog")
    assert model.layer.num_classes == 4


# Moving and copying


def test_predictions_of_a_memory_that_was_copied_in_inference_mode(
    pixels: Tensor, images: Tensor, labels: Tensor
) -> None:
    model = new_model()
    model.remember(pixels, labels)
    with torch.inference_mode():
        twin = copy.deepcopy(model)
    assert twin.remembered.encodings.is_inference()
    for ours, theirs in zip(twin.explain(images), model.explain(images), strict=True):
        assert_close(ours.memory_predictions, theirs.memory_predictions)
    with torch.inference_mode():
        assert_close(twin.remembered.predictions, model.remembered.predictions)
    assert_close(twin.remembered.predictions, model.remembered.predictions)
