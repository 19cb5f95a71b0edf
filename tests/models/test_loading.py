"""Saved models come back the same, proved by their probe; what cannot come back says why."""

import copy
import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.testing import assert_close

import memwrap
from memwrap import LoadError, MemoryClassifier, MemwrapWarning, NonFiniteError, SaveError, WrapError
from memwrap.models.memory_check import SAMPLED, check_memory, draw_rows
from memwrap.models.prediction import predict_images
from memwrap.nn.calibration import VoteCalibration
from memwrap.nn.probabilities import TemperatureCalibration
from memwrap.storage import checkpoint
from tests import networks
from tests.sealing import REMOVED, edit

TRANSFORM = memwrap.Transform((3, 8, 8), mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
pytestmark = pytest.mark.filterwarnings("ignore:.*cannot be rebuilt from a name:memwrap.MemwrapWarning")


@pytest.fixture
def plain() -> MemoryClassifier:
    """A hand-written network that has seen some data."""
    classifier = networks.Plain()
    classifier(torch.randn(20, 3, 8, 8))
    return memwrap.wrap(classifier).eval()


@pytest.mark.parametrize("as_pixels", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"variant": "only_memory"},
        {"head": "linear", "project": 6},
        {"variant": "vote"},
        {"variant": "vote", "project": 6, "scale": 3.0},
    ],
)
def test_a_model_comes_back_with_its_memory(
    arguments: dict[str, Any], as_pixels: bool, images: Tensor, memory: Tensor, labels: Tensor, tmp_path: Path
) -> None:
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=4), **arguments).eval()
    if as_pixels:
        model.transform = TRANSFORM
        memory = torch.randint(256, memory.shape, dtype=torch.uint8)
    model.remember(memory, labels, names=list("abcdefghijkl") if as_pixels else None)
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
    assert_close(reading.votes, expected.votes, atol=0, rtol=0)
    assert loaded.remembered.names == model.remembered.names
    assert loaded.decided_by == model.decided_by


# Of a vote, and of what decides by logits.
CALIBRATIONS = {
    "vote": VoteCalibration((1.0, 0.5, 0.7), (1.2, 0.8, 0.1), (0.9, 0.4, 0.2), 0.6),
    "memory_wrap": TemperatureCalibration(2.5),
    "standard": TemperatureCalibration(0.5),
}


@pytest.mark.parametrize("variant", CALIBRATIONS)
def test_a_calibration_comes_back(variant: str, images: Tensor, memory: Tensor, labels: Tensor, tmp_path: Path) -> None:
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=4), variant).eval()
    if isinstance(model, MemoryClassifier):
        model.remember(memory, labels)
    before = predict_images(model, images).probabilities
    model.calibration = CALIBRATIONS[variant]
    expected = predict_images(model, images).probabilities
    assert not torch.allclose(expected.float(), before)
    assert torch.equal(expected.argmax(1), before.argmax(1))
    if variant != "vote":
        assert_close(expected, (before.log() / CALIBRATIONS[variant].temperature).softmax(1))
    model.save(tmp_path)
    loaded = memwrap.load(tmp_path)
    assert loaded.calibration == model.calibration
    assert_close(predict_images(loaded, images).probabilities, expected, atol=0, rtol=0)
    edit(tmp_path / "model.json", ["calibration"], None)
    assert memwrap.load(tmp_path).calibration is None
    edit(tmp_path / "model.json", ["calibration"], REMOVED)  # as in folders of memwrap 0.1
    assert memwrap.load(tmp_path).calibration is None


@pytest.mark.parametrize(
    ("variant", "stored"),
    [
        ("vote", {"temperature": 2.0}),
        ("memory_wrap", asdict(CALIBRATIONS["vote"])),
        ("standard", asdict(CALIBRATIONS["vote"])),
        ("memory_wrap", {"temperature": 0.0}),
        ("memory_wrap", {"temperature": 1e9}),
        ("memory_wrap", {"temperature": 2.0, "more": 1}),
        ("memory_wrap", {}),
        ("memory_wrap", 2.0),
        ("vote", {**asdict(CALIBRATIONS["vote"]), "deviations": [1.0, 1.0, 0.0]}),
        ("vote", {**asdict(CALIBRATIONS["vote"]), "coefficients": [1.0, -1.0, 0.0]}),
        ("vote", {**asdict(CALIBRATIONS["vote"]), "means": [1.0, 1.0]}),
    ],
)
def test_a_calibration_that_does_not_fit_is_refused(variant: str, stored: object, tmp_path: Path) -> None:
    memwrap.wrap(memwrap.encoders.create("tiny", num_classes=4), variant).save(tmp_path)
    edit(tmp_path / "model.json", ["calibration"], stored)
    with pytest.raises(LoadError, match="calibration"):
        memwrap.load(tmp_path)


@pytest.mark.filterwarnings("ignore:The default weight initialization:FutureWarning")
def test_auxiliary_heads_are_dropped_but_those_of_old_folders_load(tmp_path: Path) -> None:
    """Nobody read their outputs, nor trained them; memwrap 0.1 kept them."""
    images = torch.randn(3, 3, 32, 32)
    classifier = torchvision.models.googlenet(weights=None, num_classes=4, init_weights=False).eval()
    model = memwrap.wrap(classifier, example=images).eval()
    assert not [each for each, _ in model.named_modules() if "aux" in each.lower()]
    model.remember(images, [0, 1, 2])
    model.save(tmp_path / "new")
    with torch.no_grad():
        expected = model(images)
        assert_close(memwrap.load(tmp_path / "new")(images), expected, atol=0, rtol=0)
    old = copy.deepcopy(classifier)
    old.fc = nn.Identity()
    kept = MemoryClassifier(old, model.layer, model.origin).eval()
    kept.save(tmp_path / "old")
    stored = checkpoint.read(tmp_path / "old")[1]["weights"]
    assert [each for each in stored if each.lower().startswith("encoder.aux")]
    loaded = memwrap.load(tmp_path / "old")
    loaded.remember(images, [0, 1, 2])
    with torch.no_grad():
        assert_close(loaded(images), expected, atol=0, rtol=0)


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
    with pytest.warns(MemwrapWarning, match=re.escape("memwrap.load(folder, classifier=...)")):
        plain.save(tmp_path)
    with pytest.raises(LoadError, match=re.escape(f'memwrap.load("{tmp_path}", classifier=...)')):
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
        (Leaky, "the classifier takes the saved weights but computes something else"),
        (Wider, "the saved weights do not fit the classifier"),
        (networks.Headless, "the classifier has no layer 'fc', which the saved one had"),
    ],
)
def test_another_classifier_than_the_saved_one_is_refused(
    given: type[nn.Module], message: str, plain: MemoryClassifier, tmp_path: Path
) -> None:
    plain.save(tmp_path)
    with pytest.raises(LoadError, match=re.escape(message)):
        memwrap.load(tmp_path, classifier=given())


def test_a_name_that_now_builds_another_network_is_noticed(model: MemoryClassifier, tmp_path: Path) -> None:
    model.save(tmp_path)
    edit(tmp_path / "model.json", ["classifier", "architecture", "name"], "resnet18")
    with pytest.raises(LoadError, match="the saved weights do not fit the classifier"):
        memwrap.load(tmp_path)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ["classifier", "architecture", "source"],
            "os",
            "the classifier is of 'os'; known are encoders, torchvision, transformers",
        ),
        (["classifier", "architecture", "name"], "timm:hf-hub:someone/model", "timm has no model"),
        (["classifier", "architecture", "arguments", "checkpoint_path"], "x", "name a source of weights"),
        (["classifier", "layer"], "no.such.layer", "has no layer 'no.such.layer'"),
        (["classifier"], {}, "classifier.architecture is missing"),
        (["layer", "variant"], "nothing", "incomplete or contradicts itself (InputError"),
        (["layer", "variant"], "standard", "the saved weights do not fit the classifier"),
        (["layer", "colour"], "red", "incomplete or contradicts itself (TypeError"),
        (["files"], {}, "incomplete or contradicts itself (KeyError: 'weights'"),
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(
    path: list[str], value: object, message: str, model: MemoryClassifier, tmp_path: Path
) -> None:
    model.save(tmp_path)
    edit(tmp_path / "model.json", path, value)
    with pytest.raises(LoadError, match=re.escape(message)):
        memwrap.load(tmp_path)


def test_torchvision_and_transformers_build_only_models_by_the_names_they_know() -> None:
    from memwrap.models.architectures import Architecture, build

    for architecture in (
        Architecture("torchvision", "os.system", {}),
        Architecture("torchvision", "resnet18", {"weights": "DEFAULT"}),
        Architecture("transformers", "pipeline", {}),
        Architecture("transformers", "AutoTokenizer", {}),
        Architecture("transformers", "GPT2LMHeadModel", {}),
        Architecture("transformers", "AutoModelForImageClassification", {}),
        Architecture("transformers", "TimmWrapperForImageClassification", {"architecture": "hf-hub:someone/model"}),
        Architecture("transformers", "ViTForImageClassification", {"attn_implementation": "someone/kernels"}),
        Architecture("transformers", "ViTForImageClassification", {"quantization_config": {"load_in_4bit": True}}),
    ):
        with pytest.raises(LoadError, match="cannot be built here"):
            build(architecture)


def test_a_model_that_predicts_nan_is_not_saved_over_a_good_one(model: MemoryClassifier, tmp_path: Path) -> None:
    model.save(tmp_path)
    nn.init.constant_(model.layer.head.second.bias, torch.nan)
    with pytest.raises(NonFiniteError):
        model.save(tmp_path)
    memwrap.load(tmp_path)


def test_a_model_that_encodes_by_the_batch_is_not_saved_over_a_good_one(tmp_path: Path) -> None:
    """Its memory could not be told from a changed one."""
    layers = (nn.BatchNorm2d(3, track_running_stats=False), nn.Flatten(), nn.Linear(12, 4))
    model = memwrap.wrap(nn.Sequential(*layers), example=torch.randn(2, 3, 2, 2)).eval()
    model.save(tmp_path)
    before = (tmp_path / "model.json").read_bytes()
    model.remember(torch.randn(6, 3, 2, 2), [0, 1, 2, 3, 0, 1])
    with pytest.raises(SaveError):
        model.save(tmp_path)
    assert (tmp_path / "model.json").read_bytes() == before


def test_names_that_could_not_be_loaded_are_not_saved(model: MemoryClassifier, tmp_path: Path) -> None:
    model.classes = ("x" * 1500, "b", "c", "d")
    with pytest.raises(SaveError, match="1500"):
        model.save(tmp_path)


def test_state_that_is_no_tensor_cannot_be_saved(tmp_path: Path) -> None:
    class Stateful(networks.Plain):
        def get_extra_state(self) -> object:
            return {"anything": 1}

        def set_extra_state(self, state: object) -> None: ...

    with pytest.raises(SaveError, match=re.escape("(encoder._extra_state)")):
        memwrap.wrap(Stateful()).save(tmp_path)


class Raising(networks.Plain):
    """The same weights, and no way to run them."""

    def forward(self, images: Tensor) -> Tensor:
        raise RuntimeError("out of order")


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (networks.Plain, WrapError, "classifier is a type; expected a torch.nn.Module"),
        ("cpu", WrapError, "classifier is a str; expected a torch.nn.Module"),
        (memwrap.wrap(networks.Plain()), WrapError, "is a memwrap model"),
        (Raising(), LoadError, "takes the saved weights but fails (RuntimeError: out of order)"),
        (networks.ReturnsTuple(), LoadError, "takes the saved weights but fails (WrapError: the classifier returns"),
    ],
)
def test_what_cannot_be_a_classifier_is_refused_and_the_file_is_not_blamed(
    given: object, error: type[Exception], message: str, plain: MemoryClassifier, tmp_path: Path
) -> None:
    plain.save(tmp_path)
    with pytest.raises(error, match=re.escape(message)):
        memwrap.load(tmp_path, classifier=given)


def test_a_compiled_classifier_can_be_given(plain: MemoryClassifier, tmp_path: Path) -> None:
    plain.save(tmp_path)
    memwrap.load(tmp_path, classifier=torch.compile(networks.Plain(), backend="eager"))


class NormalisedInFull(networks.Plain):
    """Computes in bfloat16, except for batch normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.to(torch.bfloat16).body[1].float()

    def encode(self, images: Tensor) -> Tensor:
        maps = self.body[1](self.body[0](images).float())
        return self.body[2](maps).to(images.dtype).mean((2, 3))


def test_mixed_precision_comes_back(tmp_path: Path) -> None:
    model = memwrap.wrap(NormalisedInFull()).eval()
    model.save(tmp_path)
    loaded = memwrap.load(tmp_path, classifier=NormalisedInFull().float())
    assert {name: value.dtype for name, value in loaded.state_dict().items()} == {
        name: value.dtype for name, value in model.state_dict().items()
    }


def test_frozen_weights_come_back_frozen(model: MemoryClassifier, tmp_path: Path) -> None:
    model.encoder.requires_grad_(False)
    model.save(tmp_path)
    loaded = memwrap.load(tmp_path)
    assert not any(parameter.requires_grad for parameter in loaded.encoder.parameters())
    assert all(parameter.requires_grad for parameter in loaded.layer.parameters())


def replace_part(folder: Path, part: str, **changes: Tensor) -> None:
    """Exchange tensors of a part, with a manifest that fits."""
    settings, parts = checkpoint.read(folder)
    parts[part].update(changes)
    parts[part] = {name: tensor for name, tensor in parts[part].items() if tensor is not GONE}
    checkpoint.write(folder, {key: settings[key] for key in settings if key not in ("format", "files")}, parts)


GONE = torch.empty(0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": torch.arange(5) + 3}, "labels go from 3 to 7; expected 0 to 3"),
        ({"labels": torch.zeros(4, dtype=torch.int64)}, "memory holds 5 images but 4 labels"),
        ({"encodings": torch.randn(5, 127)}, "memory has shape (5, 127)"),
        ({"encodings": torch.randn(4, 128)}, "memory holds 5 images but 4 encodings"),
        ({"encodings": torch.full((5, 128), torch.nan)}, "memory: 5 of 5 vectors hold NaN"),
        ({"images": torch.zeros(5, 3, 8, 8, dtype=torch.int64)}, "images has dtype torch.int64"),
        ({"images": torch.zeros(5, 3, 8, 8, dtype=torch.uint8)}, "does not know how its images are normalised"),
        ({"images": torch.zeros(5, 3, 8, 8, dtype=torch.bool)}, "images has dtype torch.bool"),
        ({"labels": GONE}, "missing 1 required positional argument: 'labels'"),
    ],
)
def test_a_memory_that_makes_no_sense_is_refused(
    changes: dict[str, Tensor], message: str, model: MemoryClassifier, images: Tensor, tmp_path: Path
) -> None:
    model.remember(images, [0] * 5)
    model.save(tmp_path)
    replace_part(tmp_path, "memory", **changes)
    with pytest.raises(LoadError, match=re.escape(message)):
        memwrap.load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": torch.zeros(5, 3, 8, 9, dtype=torch.uint8)}, "pixels of (3, 8, 9); expected (3, 8, 8)"),
        ({"images": torch.zeros(5, 1, 8, 8, dtype=torch.uint8)}, "pixels of (1, 8, 8); expected (3, 8, 8)"),
        ({"images": torch.zeros(0, 3, 8, 8, dtype=torch.uint8)}, "memory holds 0 images but 5 labels"),
        ({"images": torch.zeros(5, 3, 8, 8, dtype=torch.uint8)}, "another encoding"),
        ({"images": torch.zeros(5, 3, 8, 8)}, "another encoding"),
        ({"encodings": torch.randn(4, 128)}, "memory holds 5 images but 4 encodings"),
    ],
)
def test_pixels_of_a_memory_that_make_no_sense_are_refused(
    changes: dict[str, Tensor], message: str, model: MemoryClassifier, tmp_path: Path
) -> None:
    model.transform = TRANSFORM
    model.remember(torch.randint(256, (5, 3, 8, 8), dtype=torch.uint8), [0] * 5)
    model.save(tmp_path)
    memwrap.load(tmp_path)
    replace_part(tmp_path, "memory", **changes)
    with pytest.raises(LoadError, match=re.escape(message)):
        memwrap.load(tmp_path)


@pytest.mark.parametrize("names", [[], ["a"] * 4, ["a"] * 6])
def test_names_for_another_memory_are_refused(names: list[str], model: MemoryClassifier, tmp_path: Path) -> None:
    model.remember(torch.randn(5, 3, 8, 8), [0] * 5, names=[*"abcde"])
    model.save(tmp_path)
    assert memwrap.load(tmp_path).remembered.names == tuple("abcde")
    edit(tmp_path / "model.json", ["memory_names"], names)
    with pytest.raises(LoadError, match="names"):
        memwrap.load(tmp_path)


# What is proved: a memory that fits all hashes, but is not what the model makes of its images.


@pytest.fixture
def remembering(model: MemoryClassifier, tmp_path: Path) -> Path:
    """A saved model with a memory of few images, all of which are computed again when it is loaded."""
    images = torch.randn(SAMPLED, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    model.remember(images, range(SAMPLED))
    model.save(tmp_path)
    return tmp_path


def swapped(tensor: Tensor) -> Tensor:
    changed = tensor.clone()
    changed[[0, 3]] = tensor[[3, 0]]
    return changed


@pytest.mark.parametrize("part", ["images", "encodings"])
def test_a_memory_with_two_swapped_entries_is_noticed(part: str, remembering: Path) -> None:
    memwrap.load(remembering)
    replace_part(remembering, "memory", **{part: swapped(checkpoint.read(remembering)[1]["memory"][part])})
    with pytest.raises(LoadError, match="another encoding"):
        memwrap.load(remembering)


@pytest.mark.parametrize(
    "stored",
    [torch.arange(SAMPLED), torch.full((SAMPLED,), -1), torch.full((7, 2), torch.nan)],
    ids=["some", "none", "nonsense"],
)
def test_predictions_of_a_memory_are_the_model_s_whatever_a_file_says(
    stored: Tensor, model: MemoryClassifier, remembering: Path
) -> None:
    """Folders of memwrap 0.1 have them. They are computed when they are asked for, so nobody can change them."""
    memory = model.remembered.images
    assert "predictions" not in checkpoint.read(remembering)[1]["memory"]
    replace_part(remembering, "memory", predictions=stored)
    loaded = memwrap.load(remembering)
    with torch.no_grad():
        expected = [
            int(model(memory[row : row + 1], memory=torch.cat([memory[:row], memory[row + 1 :]])).argmax())
            for row in range(SAMPLED)
        ]
    assert loaded.remembered.predictions.tolist() == expected
    loaded.save(remembering)
    assert "predictions" not in checkpoint.read(remembering)[1]["memory"]


def test_a_sample_of_a_large_memory_is_drawn_anew_each_time(model: MemoryClassifier) -> None:
    model.remember(torch.randn(100, 3, 8, 8), [0] * 100)
    assert model.remembered is not None
    draws = [draw_rows(model.remembered) for _ in range(20)]
    assert all(len(set(rows.tolist())) == SAMPLED for rows in draws)
    assert len(torch.cat(draws).unique()) > 3 * SAMPLED


def test_an_image_of_huge_numbers_does_not_excuse_the_others(model: MemoryClassifier) -> None:
    images = torch.randn(20, 3, 8, 8)
    images[::2] *= 1e6
    model.remember(images, [0] * 20)
    memory = model.remembered
    assert memory is not None
    check_memory(model, torch.arange(20))
    memory.encodings[7] += torch.randn(memory.encodings.shape[1])
    with pytest.raises(LoadError, match="image 7 has another encoding"):
        check_memory(model, torch.arange(20))


def test_every_image_of_a_memory_can_be_computed_again(model: MemoryClassifier) -> None:
    model.remember(torch.randn(300, 3, 8, 8), [0] * 300)
    memory = model.remembered
    assert memory is not None
    rows = torch.arange(300)
    check_memory(model, rows)
    memory.images[271] += 0.5
    with pytest.raises(LoadError, match="image 271 has another encoding"):
        check_memory(model, rows)


def test_weights_far_larger_than_the_classifier_are_not_read(
    model: MemoryClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.save(tmp_path)
    replace_part(tmp_path, "weights", more=torch.zeros(10_000_000, dtype=torch.uint8))
    read = checkpoint.StoredParts.__getitem__
    parts: list[str] = []
    monkeypatch.setattr(checkpoint.StoredParts, "__getitem__", lambda self, key: parts.append(key) or read(self, key))
    with pytest.raises(LoadError, match="the weights hold"):
        memwrap.load(tmp_path)
    assert parts == []


def test_saving_leaves_the_model_as_it_was(model: MemoryClassifier, images: Tensor, tmp_path: Path) -> None:
    model.remember(images, [0] * 5)
    model.train()
    before, random = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    model.save(tmp_path)
    assert model.training
    assert_close(dict(model.state_dict()), before, atol=0, rtol=0)
    assert torch.equal(torch.get_rng_state(), random)
    model.eval()(images)


@pytest.mark.parametrize("classes", [["cat", "dog", "b\udcff", "d"], ("cat", "dog", "cow", "d"), [0, 1, 2, 3]])
def test_classes_of_any_kind_are_saved_as_names(classes: Any, model: MemoryClassifier, tmp_path: Path) -> None:
    model.classes = classes
    model.save(tmp_path)
    assert memwrap.load(tmp_path).classes == tuple(map(str, classes))


@pytest.mark.parametrize("classes", [["cat"], ["cat", "dog", "cow", "d", "e"]])
def test_class_names_for_another_number_of_classes_are_refused(
    classes: list[str], model: MemoryClassifier, tmp_path: Path
) -> None:
    """A prediction without a name would otherwise be noticed only when it is shown."""
    model.save(tmp_path)
    edit(tmp_path / "model.json", ["classes"], classes)
    with pytest.raises(LoadError, match=f"{len(classes)} class names for 4"):
        memwrap.load(tmp_path)
    model.classes = tuple(classes)
    with pytest.raises(SaveError, match=f"{len(classes)} names"):
        model.save(tmp_path / "other")


def test_a_manifest_with_nan_and_a_missing_file_is_an_error(model: MemoryClassifier, tmp_path: Path) -> None:
    model.save(tmp_path)
    edit(tmp_path / "model.json", ["training"], {"seconds": math.nan})
    next(tmp_path.glob("weights.*")).unlink()
    with pytest.raises(LoadError, match="weights"):
        memwrap.load(tmp_path)
