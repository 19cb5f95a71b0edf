"""Every encoder by name: its size as in the paper, its shapes, its gradients."""

import pytest
import torch

import memwrap
from memwrap import InputError, encoders

# The paper's table "Number of parameters", 10 classes: Standard, Only Memory, Memory Wrap.
PAPER = {
    "efficientnet_b0": (3_599_686, 3_808_326, 4_429_766),
    "mobilenet_v2": (2_296_922, 5_589_082, 15_447_642),
    "resnet18": (11_173_962, 11_704_394, 13_288_522),
}
# The length of an encoding, of the paper's encoders and ours.
WIDTHS = {
    "efficientnet_b0": 320,
    "mobilenet_v2": 1280,
    "resnet18": 512,
    "googlenet": 1024,
    "densenet": 384,
    "shufflenet_v2": 1024,
    "small": 256,
    "tiny": 128,
    "lite0": 1280,
    "lite1": 1280,
    "lite2": 1280,
}


def size(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", PAPER)
def test_parameter_counts_are_those_of_the_paper(name: str) -> None:
    classifier = encoders.create(name, num_classes=10)
    counts = tuple(size(memwrap.wrap(classifier, variant)) for variant in ("only_memory", "memory_wrap"))
    assert (size(classifier), *counts) == PAPER[name]


@pytest.mark.parametrize("name", encoders.names())
def test_shapes_and_gradients(name: str) -> None:
    """Encodings have the protocol's length, every weight gets a gradient, and nothing is NaN."""
    classifier = encoders.create(name, num_classes=7, channels=2)
    assert classifier.head.in_features == WIDTHS.get(name, classifier.head.in_features)
    logits = classifier(torch.randn(2, 2, 32, 32))
    assert logits.shape == (2, 7)
    assert logits.isfinite().all()
    logits.square().sum().backward()
    without = {key for key, parameter in classifier.named_parameters() if parameter.grad is None}
    # The paper counts the expansion of EfficientNetB0's first block, which is not used.
    assert {key for key in without if not key.startswith("features.1.expand.")} == set()
    assert len(without) == (3 if name == "efficientnet_b0" else 0)
    assert all(p.grad.isfinite().all() for p in classifier.parameters() if p.grad is not None)


def test_resnet_is_initialised_as_in_the_published_experiments() -> None:
    weights = [m.weight for m in encoders.create("resnet18", 10).modules() if isinstance(m, torch.nn.Conv2d)]
    for weight in weights[1:]:  # the stem has too few weights to estimate their deviation
        outputs, _, height, width = weight.shape
        assert float(weight.detach().std()) == pytest.approx((2 / (outputs * height * width)) ** 0.5, rel=0.05)


def test_efficientnet_has_dropout_on_encodings_only() -> None:
    classifier = encoders.create("efficientnet_b0", 10)
    assert classifier.dropout.p == 0.2
    assert [m.p for m in classifier.modules() if isinstance(m, torch.nn.Dropout)] == [0.2]


def test_timm_models_are_created_by_name() -> None:
    classifier = encoders.create("timm:resnet10t", num_classes=5, channels=1)
    assert classifier(torch.randn(2, 1, 64, 64)).shape == (2, 5)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("resnet81", {}, "'resnet81'.*efficientnet_b0, mobilenet_v2, resnet18"),
        ("timm:resnet1x", {}, "'resnet1x'.*resnet1"),
        ("timm:hf-hub:someone/something", {}, "'hf-hub:someone/something'"),
        ("tiny", {"width": 3}, "'tiny'.*width"),
        ("tiny", {"num_classes": 0}, "num_classes is 0"),
    ],
)
def test_invalid_arguments_are_refused(name: str, arguments: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        encoders.create(name, **{"num_classes": 10, **arguments})
