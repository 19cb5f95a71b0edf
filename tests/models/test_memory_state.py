"""The remembered memory in a state_dict, for checkpoints of other libraries, and of modules around the model."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import memwrap
from memwrap import InputError, MemoryClassifier, StaleMemoryError, Transform, encoders
from memwrap.nn.calibration import fit_vote_calibration
from memwrap.nn.similarity import CosineSimilarity
from memwrap.report.create import model_hash
from memwrap.storage import checkpoint

TRANSFORM = Transform((3, 8, 8), mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
NAMES = ("a.png", "ü.png", "caf\udce9.png", "", *"efghijkl")


class Outer(nn.Module):
    """A module around a model, as training frameworks have it."""

    def __init__(self, model: MemoryClassifier) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.inner = nn.ModuleDict({"model": model})

    @property
    def model(self) -> MemoryClassifier:
        model = self.inner["model"]
        assert isinstance(model, MemoryClassifier)
        return model


KINDS: dict[str, dict[str, Any]] = {
    "memory_wrap": {},
    "projected": {"project": 6},
    "vote": {"variant": "vote"},
}


def new_model(kind: str = "memory_wrap") -> MemoryClassifier:
    """Of other weights each time."""
    model = memwrap.wrap(encoders.create("tiny", num_classes=4), **KINDS[kind]).eval()
    model.transform = TRANSFORM
    return model


def stored(state: dict[str, Tensor], path: Path) -> dict[str, Tensor]:
    """Through a file, with nothing but tensors in it."""
    torch.save(state, path)
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize("as_pixels", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_memory_comes_back_through_a_module_around_the_model(
    kind: str, as_pixels: bool, images: Tensor, labels: Tensor, tmp_path: Path
) -> None:
    outer, other = Outer(new_model(kind)), Outer(new_model(kind))
    pixels = torch.randint(256, (12, 3, 8, 8), dtype=torch.uint8)
    outer.model.remember(pixels if as_pixels else TRANSFORM(pixels), labels, names=NAMES)
    outer.model.memory_in_state_dict = True
    with torch.no_grad():
        assert not torch.equal(other.model.encode(images), outer.model.encode(images))
    assert other.load_state_dict(stored(outer.state_dict(), tmp_path / "state.pt")) == ([], [])
    ours, theirs = other.model.remembered, outer.model.remembered
    for name, tensor in theirs.tensors().items():
        assert torch.equal(ours.tensors()[name], tensor)
        assert ours.tensors()[name].dtype == tensor.dtype
    assert ours.names == theirs.names == NAMES
    with torch.no_grad():
        assert torch.equal(other.model(images), outer.model(images))  # and it is not stale
    assert torch.equal(ours.predictions, theirs.predictions)
    # What has come with a memory goes with it.
    assert other.model.memory_in_state_dict
    assert list(other.state_dict()) == list(outer.state_dict())


def test_what_was_chosen_and_added_later_comes_back_with_a_memory(tmp_path: Path) -> None:
    model, other = new_model("vote"), new_model("vote")
    model.classes = ("ant", "bee", "cow", "dog")
    model.layer.similarity = CosineSimilarity(3.0)
    assert model.add_class("eel") == 4
    images, labels = torch.randn(15, 3, 8, 8), torch.arange(15) % 5
    model.remember(images, labels)
    calibration_images = torch.randn(40, 3, 8, 8)
    with torch.no_grad():
        reading = model.read(calibration_images)
    head = nn.functional.pad(reading.head_logits, (0, 1))
    known = torch.arange(40) % 5
    model.calibration = fit_vote_calibration(reading.votes, head, reading.similarity, known)
    model.memory_in_state_dict = True
    other.load_state_dict(stored(model.state_dict(), tmp_path / "state.pt"))
    assert torch.equal(other.predict(images), model.predict(images))
    assert other.classes == ("ant", "bee", "cow", "dog", "eel")
    (ours,), (theirs,) = other.explain(images[:1]), model.explain(images[:1])
    assert torch.equal(ours.weights, theirs.weights)
    assert torch.equal(ours.probabilities, theirs.probabilities)


def test_a_memory_that_another_kind_of_model_decides_by_is_refused(images: Tensor, labels: Tensor) -> None:
    classifier = encoders.create("tiny", num_classes=4)
    voting, deciding = (memwrap.attach(classifier, decide=decide) for decide in ("vote", "head"))
    voting.remember(torch.randn(12, 3, 8, 8), labels)
    voting.memory_in_state_dict = True
    with pytest.raises(InputError, match="decided by the vote"):
        deciding.load_state_dict(voting.state_dict())


def test_the_hash_of_a_model_is_without_its_memory(model: MemoryClassifier, memory: Tensor) -> None:
    model.remember(memory, [0] * 12)
    before = model_hash(model)
    model.memory_in_state_dict = True
    assert model_hash(model) == before


def test_a_memory_of_another_size_replaces_the_one_there(
    model: MemoryClassifier, memory: Tensor, images: Tensor
) -> None:
    model.remember(memory, [0] * 12, names=NAMES)
    model.memory_in_state_dict = True
    state = copy.deepcopy(model.state_dict())
    before = model(images).detach()
    model.remember(images, [1] * 5)
    model.load_state_dict(state)
    assert len(model.remembered) == 12
    assert_close(model(images).detach(), before, atol=0, rtol=0)


def test_a_loaded_memory_shares_nothing_with_the_state(model: MemoryClassifier, memory: Tensor, images: Tensor) -> None:
    model.remember(memory, [0] * 12)
    model.memory_in_state_dict = True
    state = model.state_dict()
    model.load_state_dict(state)
    expected = model(images).detach()
    for name, tensor in state.items():
        if name.startswith("remembered."):
            tensor.zero_()
    assert_close(model(images).detach(), expected, atol=0, rtol=0)


def test_loading_does_not_change_the_state_that_is_given(model: MemoryClassifier, memory: Tensor) -> None:
    model.remember(memory, [0] * 12)
    model.memory_in_state_dict = True
    state = model.state_dict()
    names = list(state)
    Outer(model).model.load_state_dict(state)
    assert list(state) == names


def test_by_default_a_state_holds_no_memory(model: MemoryClassifier, memory: Tensor, images: Tensor) -> None:
    before = list(model.state_dict())
    model.remember(memory, [0] * 12)
    assert list(model.state_dict()) == before
    model.memory_in_state_dict = True
    parts = ("images", "labels", "encodings", "record")
    assert set(model.state_dict()) - set(before) == {f"remembered.{part}" for part in parts}
    model.forget()
    assert list(model.state_dict()) == before


def test_weights_without_a_memory_make_the_one_there_stale(
    model: MemoryClassifier, memory: Tensor, images: Tensor
) -> None:
    model.memory_in_state_dict = True
    state = model.state_dict()
    model.remember(memory, [0] * 12)
    model.load_state_dict(copy.deepcopy(state))
    with pytest.raises(StaleMemoryError):
        model(images)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": torch.full((12,), 4)}, "labels go from 4 to 4"),
        ({"labels": torch.zeros(11, dtype=torch.int64)}, "11 labels"),
        ({"encodings": torch.zeros(12, 127)}, "(12, 127)"),
        ({"images": torch.zeros(12, 1, 8, 8)}, "(12, 1, 8, 8)"),
        ({"record": torch.zeros(3, dtype=torch.uint8)}, "damaged or incomplete"),
        ({"other": torch.zeros(3)}, "'other'"),
    ],
)
def test_a_memory_that_makes_no_sense_is_refused(
    changes: dict[str, Tensor], words: str, model: MemoryClassifier, memory: Tensor, images: Tensor
) -> None:
    model.remember(memory, [0] * 12)
    model.memory_in_state_dict = True
    state = {**model.state_dict(), **{f"remembered.{name}": tensor for name, tensor in changes.items()}}
    with pytest.raises(InputError) as caught:
        model.load_state_dict(state)
    assert words in str(caught.value)
    model.load_state_dict({name: tensor for name, tensor in state.items() if not name.startswith("remembered.")})
    model.remember(memory, [0] * 12)
    model(images)


def test_a_saved_folder_has_its_memory_once(
    model: MemoryClassifier, memory: Tensor, images: Tensor, tmp_path: Path
) -> None:
    model.remember(memory, [0] * 12, names=NAMES)
    model.memory_in_state_dict = True
    model.save(tmp_path)
    parts = checkpoint.read(tmp_path)[1]
    assert not [name for name in parts["weights"] if "remembered" in name]
    assert set(parts["memory"]) == {"images", "labels", "encodings"}
    loaded = memwrap.load(tmp_path)
    assert loaded.remembered.names == NAMES
    assert_close(loaded(images), model(images), atol=0, rtol=0)
    assert not loaded.memory_in_state_dict


def test_a_copy_has_its_own_memory(model: MemoryClassifier, memory: Tensor, images: Tensor) -> None:
    model.remember(memory, [0] * 12)
    model.memory_in_state_dict = True
    twin = copy.deepcopy(model)
    assert list(twin.state_dict()) == list(model.state_dict())
    twin.load_state_dict(model.state_dict())
    assert twin.remembered is not model.remembered
    assert twin.remembered._layer[0] is twin.layer
    assert_close(twin(images), model(images), atol=0, rtol=0)
