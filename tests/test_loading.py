"""Saved models come back the same, proved by their probe; what cannot come back says why."""

import json
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import memwrap
from memwrap import LoadError, MemoryClassifier, NonFiniteError, SaveError
from tests import networks


@pytest.fixture
def plain() -> MemoryClassifier:
    """A hand-written network that has seen some data."""
    classifier = networks.Plain()
    classifier(torch.randn(20, 3, 8, 8))
    return memwrap.wrap(classifier).eval()


@pytest.mark.parametrize("arguments", [{}, {"variant": "only_memory"}, {"head": "linear", "project": 6}])
def test_a_model_comes_back_with_its_memory(
    arguments: dict[str, str], images: Tensor, memory: Tensor, labels: Tensor, tmp_path: Path
) -> None:
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=4), **arguments).eval()
    model.remember(memory, labels)
    model.save(tmp_path)
    loaded = memwrap.load(tmp_path)
    assert not loaded.training
    assert loaded.layer.settings() == model.layer.settings()
    assert loaded.origin == model.origin
    with torch.no_grad():
        reading, expected = loaded.read(images), model.read(images)
    assert_close(reading.logits, expected.logits, atol=0, rtol=0)
    assert_close(reading.weights, expected.weights, atol=0, rtol=0)
    for name, tensor in model.remembered.tensors().items():
        assert_close(loaded.remembered.tensors()[name], tensor, atol=0, rtol=0)


def test_a_model_without_memory_comes_back_without(model: MemoryClassifier, images: Tensor, tmp_path: Path) -> None:
    model.save(tmp_path)
    loaded = memwrap.load(tmp_path)
    assert loaded.remembered is None
    assert_close(loaded(images, memory=images), model(images, memory=images), atol=0, rtol=0)


def test_a_memory_of_one_comes_back(model: MemoryClassifier, images: Tensor, tmp_path: Path) -> None:
    model.remember(images[:1], [0])
    model.save(tmp_path)
    assert memwrap.load(tmp_path).remembered.predictions is None


def test_a_changed_number_of_classes_comes_back(images: Tensor, tmp_path: Path) -> None:
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=10), num_classes=3).eval()
    model.save(tmp_path)
    assert memwrap.load(tmp_path)(images, memory=images).shape == (5, 3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_precision_comes_back(dtype: torch.dtype, images: Tensor, tmp_path: Path) -> None:
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=4)).eval().to(dtype)
    model.remember(images.to(dtype), [0] * 5)
    model.save(tmp_path)
    loaded = memwrap.load(tmp_path)
    assert {parameter.dtype for parameter in loaded.parameters()} == {dtype}
    with torch.no_grad():
        assert_close(loaded(images.to(dtype)), model(images.to(dtype)), atol=0, rtol=0)


def test_a_hand_written_classifier_has_to_be_given(plain: MemoryClassifier, images: Tensor, tmp_path: Path) -> None:
    plain.remember(images, [0] * 5)
    plain.save(tmp_path)
    with pytest.raises(LoadError, match=re.escape(f'memwrap.load("{tmp_path}", classifier=Plain(...))')):
        memwrap.load(tmp_path)
    given = networks.Plain()
    before = {name: value.clone() for name, value in given.state_dict().items()}
    loaded = memwrap.load(tmp_path, classifier=given)
    with torch.no_grad():
        assert_close(loaded(images), plain(images), atol=0, rtol=0)
    assert_close(dict(given.state_dict()), before, atol=0, rtol=0)


class Leaky(networks.Plain):
    """The same weights, another activation."""

    def __init__(self) -> None:
        super().__init__()
        self.body[2] = nn.LeakyReLU(0.1)


class Wider(networks.Plain):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 7, 3), nn.BatchNorm2d(7), nn.ReLU())
        self.fc = nn.Linear(7, networks.CLASSES)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Leaky, "the classifier given takes the saved weights but computes something else"),
        (Wider, "the saved weights do not fit the classifier"),
        (networks.Headless, "the classifier given has no layer 'fc', which the saved one had"),
    ],
)
def test_another_classifier_than_the_saved_one_is_refused(
    given: type[nn.Module], message: str, plain: MemoryClassifier, tmp_path: Path
) -> None:
    plain.save(tmp_path)
    with pytest.raises(LoadError, match=re.escape(message)):
        memwrap.load(tmp_path, classifier=given())


def edit(folder: Path, path: list[str], value: object) -> None:
    """Set one field of the manifest."""
    manifest = json.loads((folder / "model.json").read_text())
    place = manifest
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (folder / "model.json").write_text(json.dumps(manifest))


def test_a_name_that_now_builds_another_network_is_noticed(model: MemoryClassifier, tmp_path: Path) -> None:
    model.save(tmp_path)
    edit(tmp_path, ["classifier", "architecture", "name"], "resnet18")
    with pytest.raises(LoadError, match=re.escape("give one of the architecture that was saved: memwrap.load(")):
        memwrap.load(tmp_path)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["classifier", "architecture", "source"], "os", "cannot be built here"),
        (["classifier", "architecture", "name"], "timm:hf-hub:someone/model", "timm has no model"),
        (["classifier", "architecture", "arguments", "arguments"], {"checkpoint_path": "x"}, "a source of weights"),
        (["classifier", "layer"], "no.such.layer", "has no layer 'no.such.layer'"),
        (["classifier"], {}, "incomplete or contradicts itself (KeyError"),
        (["layer", "variant"], "standard", "incomplete or contradicts itself (InputError"),
        (["layer", "colour"], "red", "incomplete or contradicts itself (TypeError"),
        (["files"], {}, "incomplete or contradicts itself (KeyError: 'weights'"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(
    path: list[str], value: object, message: str, model: MemoryClassifier, tmp_path: Path
) -> None:
    model.save(tmp_path)
    edit(tmp_path, path, value)
    with pytest.raises(LoadError, match=re.escape(message)):
        memwrap.load(tmp_path)


def test_torchvision_and_transformers_build_only_models_by_the_names_they_know() -> None:
    from memwrap.architectures import Architecture, build

    for architecture in (
        Architecture("torchvision", "os.system", {}),
        Architecture("torchvision", "resnet18", {"weights": "DEFAULT"}),
        Architecture("transformers", "pipeline", {}),
        Architecture("transformers", "AutoTokenizer", {}),
    ):
        with pytest.raises(LoadError, match="cannot be built here"):
            build(architecture)


def test_nothing_that_is_stored_is_pickled(model: MemoryClassifier, tmp_path: Path) -> None:
    model.save(tmp_path)
    endings = {path.suffix for path in tmp_path.iterdir()}
    assert endings == {".json", ".safetensors"}


def test_a_model_that_predicts_nan_is_not_saved_over_a_good_one(model: MemoryClassifier, tmp_path: Path) -> None:
    model.save(tmp_path)
    nn.init.constant_(model.layer.head.second.bias, torch.nan)
    with pytest.raises(NonFiniteError):
        model.save(tmp_path)
    memwrap.load(tmp_path)


def test_state_that_is_no_tensor_cannot_be_saved(tmp_path: Path) -> None:
    class Stateful(networks.Plain):
        def get_extra_state(self) -> object:
            return {"anything": 1}

        def set_extra_state(self, state: object) -> None: ...

    with pytest.raises(SaveError, match=re.escape("keeps state that is no tensor (encoder._extra_state)")):
        memwrap.wrap(Stateful()).save(tmp_path)


def test_saving_leaves_the_model_as_it_was(model: MemoryClassifier, images: Tensor, tmp_path: Path) -> None:
    model.remember(images, [0] * 5)
    model.train()
    before, random = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    model.save(tmp_path)
    assert model.training
    assert_close(dict(model.state_dict()), before, atol=0, rtol=0)
    assert torch.equal(torch.get_rng_state(), random)
    model.eval()(images)
