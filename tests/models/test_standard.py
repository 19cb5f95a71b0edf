"""The plain classifier: the same network with a new linear layer, that trains, saves and loads like the others."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import memwrap
from memwrap import InputError, StandardClassifier
from tests import networks


def sizes(module: nn.Module) -> list[int]:
    return sorted(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("name", ["mobilenet_v2", "resnet18", "efficientnet_b0", "tiny"])
def test_it_has_the_parameters_of_the_classifier(name: str) -> None:
    classifier = memwrap.encoders.create(name, num_classes=10)
    assert sizes(memwrap.wrap(classifier, "standard")) == sizes(classifier)


def test_it_computes_what_the_classifier_does_once_it_has_its_last_layer() -> None:
    classifier, images = networks.Plain().eval(), torch.randn(3, 3, 8, 8)
    model = memwrap.wrap(classifier, "standard")
    assert not torch.allclose(model(images), classifier(images))  # the layer is a new one
    model.layer.load_state_dict(classifier.fc.state_dict())
    assert_close(model(images), classifier(images))


def test_the_number_of_classes_can_be_changed() -> None:
    model = memwrap.wrap(networks.Plain(), "standard", num_classes=9)
    assert model(torch.randn(2, 3, 8, 8)).shape == (2, 9)


def test_it_learns() -> None:
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=2), "standard").train()
    labels = torch.arange(16) % 2
    images = torch.randn(16, 3, 8, 8) + labels.reshape(-1, 1, 1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(5):
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_it_is_saved_and_loaded_as_what_it_is(tmp_path: Path) -> None:
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=4), "standard").train()
    model(torch.randn(8, 3, 8, 8))  # moves the statistics of batch normalisation
    model.encoder.requires_grad_(False)
    model.save(tmp_path)
    loaded, images = memwrap.load(tmp_path), torch.randn(5, 3, 8, 8)
    assert type(loaded) is StandardClassifier
    assert not loaded.training
    assert_close(loaded(images), model.eval()(images), atol=0, rtol=0)
    assert {name for name, each in loaded.named_parameters() if each.requires_grad} == {"layer.weight", "layer.bias"}


def test_a_hand_written_classifier_is_given_again(tmp_path: Path) -> None:
    model = memwrap.wrap(networks.Plain().eval(), "standard", num_classes=3)
    model.save(tmp_path)
    loaded, images = memwrap.load(tmp_path, networks.Plain()), torch.randn(5, 3, 8, 8)
    assert_close(loaded(images), model(images), atol=0, rtol=0)


@pytest.mark.parametrize("options", [{"head": "linear"}, {"project": 8}])
def test_what_shapes_a_memory_is_refused(options: dict[str, object]) -> None:
    message = "variant='standard'"
    with pytest.raises(InputError, match=re.escape(message)):
        memwrap.wrap(networks.Plain(), "standard", **options)


def test_a_model_of_ours_is_not_wrapped_again() -> None:
    model = memwrap.wrap(networks.Plain(), "standard")
    for variant in ("standard", "memory_wrap"):
        with pytest.raises(memwrap.WrapError, match="memwrap model"):
            memwrap.wrap(model, variant)
