"""What libraries say of the images that their classifiers take: the transform of a wrapped one, where it is known."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
import transformers
from torch import nn

import memwrap
from memwrap import Transform, encoders
from memwrap.models.configurations import known_transform
from tests import networks

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "image_size": 32}


def of_transformers(name: str, **arguments: object) -> nn.Module:
    configuration = getattr(transformers, f"{name}Config")(num_labels=3, **arguments)
    return getattr(transformers, f"{name}ForImageClassification")(configuration)


KNOWN: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[float, ...], tuple[float, ...]], tuple[int, ...]]] = {
    "timm": (lambda: timm.create_model("resnet10t", num_classes=3), IMAGENET, (3, 176, 176)),
    "timm of other colours": (lambda: timm.create_model("tf_efficientnet_lite0", num_classes=3), HALF, (3, 224, 224)),
    "timm by our name": (lambda: encoders.create("timm:resnet10t", 3), IMAGENET, (3, 176, 176)),
    "lite": (lambda: encoders.create("lite0", 3), HALF, (3, 224, 224)),
    "torchvision": (
        lambda: torchvision.models.resnet18(weights=None, num_classes=3),
        IMAGENET,
        (3, 224, 224),
    ),
}


@pytest.mark.parametrize("use", [memwrap.wrap, memwrap.attach])
@pytest.mark.parametrize("kind", KNOWN)
def test_the_transform_is_that_of_the_library(kind: str, use: Callable[[nn.Module], memwrap.MemoryClassifier]) -> None:
    make, (mean, std), shape = KNOWN[kind]
    model = use(make())
    assert model.transform == Transform(shape, mean, std)
    assert model.origin.image_shape == shape


def test_the_colours_of_timm_are_those_that_timm_normalises_by() -> None:
    classifier = timm.create_model("tf_efficientnet_lite0", num_classes=3)
    theirs = timm.data.resolve_data_config({}, model=classifier)
    model = memwrap.wrap(classifier, example=torch.zeros(1, 3, 64, 64))
    assert (model.transform.mean, model.transform.std) == (tuple(theirs["mean"]), tuple(theirs["std"]))
    assert model.transform.shape == (3, 64, 64)  # of the images that were given


@pytest.mark.parametrize(
    "make",
    [
        networks.Plain,
        lambda: encoders.create("tiny", 3),
        lambda: encoders.create("resnet18", 3),
        lambda: timm.create_model("resnet10t", num_classes=3, in_chans=1),
        lambda: encoders.create("timm:resnet10t", 3, channels=1),
    ],
    ids=["hand-written", "tiny", "resnet18", "timm, grey", "timm by our name, grey"],
)
def test_where_colours_are_not_known_there_is_no_transform(make: Callable[[], nn.Module]) -> None:
    assert memwrap.wrap(make()).transform is None


class Unlike(nn.Module):
    """Has a configuration, but is of no library."""

    def __init__(self) -> None:
        super().__init__()
        self.pretrained_cfg = {"mean": (0.1,) * 3, "std": (0.2,) * 3}
        self.config = transformers.ViTConfig()


def test_a_configuration_of_another_s_making_is_not_believed() -> None:
    assert known_transform(Unlike(), (3, 32, 32)) is None


def test_the_transform_of_transformers_is_that_of_the_processor_with_the_weights(tmp_path: Path) -> None:
    """Not that of the processor's class, which would be 0.5 throughout."""
    of_transformers("ViT", **SMALL).save_pretrained(tmp_path)
    transformers.ViTImageProcessor(image_mean=[0.1, 0.2, 0.3], image_std=[0.4, 0.5, 0.6]).save_pretrained(tmp_path)
    classifier = transformers.ViTForImageClassification.from_pretrained(tmp_path)
    assert memwrap.attach(classifier).transform == Transform((3, 32, 32), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


@pytest.mark.parametrize("options", [{"do_normalize": False}, {"do_rescale": False}, {"rescale_factor": 1 / 127.5}])
def test_a_processor_of_another_kind_is_no_transform(tmp_path: Path, options: dict[str, Any]) -> None:
    of_transformers("ViT", **SMALL).save_pretrained(tmp_path)
    transformers.ViTImageProcessor(**options).save_pretrained(tmp_path)
    classifier = transformers.ViTForImageClassification.from_pretrained(tmp_path)
    assert known_transform(classifier, (3, 32, 32)) is None


NAMES = ["alexnet", "vgg11", "mobilenet_v3_small", "vit_b_16", "swin_t", "convnext_tiny"]


@pytest.mark.parametrize("name", [*NAMES, *torchvision.models.list_models(include="efficientnet*")])
def test_the_colours_of_torchvision_are_those_of_its_weights(name: str) -> None:
    with torch.device("meta"):
        classifier = torchvision.models.get_model(name, weights=None)
    theirs = torchvision.models.get_model_weights(name).DEFAULT.transforms()
    transform = known_transform(classifier, (3, 224, 224))
    assert transform is not None
    assert (transform.mean, transform.std) == (tuple(theirs.mean), tuple(theirs.std))


@pytest.mark.parametrize("place", ["", "no/such-model"])
def test_without_a_processor_there_is_no_transform(place: str) -> None:
    classifier: Any = of_transformers("ViT", **SMALL)
    classifier.config._name_or_path = place
    assert known_transform(classifier, (3, 32, 32)) is None


def test_values_that_do_not_fit_are_left_out() -> None:
    classifier = timm.create_model("resnet10t", num_classes=3)
    for config in ({}, None, {"mean": (0.5,) * 3}, {"mean": 0.5, "std": 0.5}, {"mean": (0.5,) * 3, "std": (0.0,) * 3}):
        classifier.pretrained_cfg = config
        assert known_transform(classifier, (3, 32, 32)) is None


def test_the_transform_is_saved_with_the_model(tmp_path: Path) -> None:
    model = memwrap.attach(timm.create_model("resnet10t", num_classes=3).eval())
    model.remember(torch.randint(256, (4, 3, 40, 40), dtype=torch.uint8), [0, 1, 2, 0])
    model.save(tmp_path)
    loaded = memwrap.load(tmp_path)
    assert loaded.transform == model.transform
    assert torch.equal(loaded.remembered.images, model.remembered.images)
