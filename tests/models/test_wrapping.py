"""Which layer is found in hand-written classifiers, and in which words the others are refused."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import nn
from torch.testing import assert_close

import memwrap
from memwrap import InputError, NoMemoryError, WrapError
from memwrap.models.surgery.modules import drop_auxiliary_heads
from memwrap.nn.vote_layer import SCALE
from tests import networks

FOUND = {
    networks.Plain: ("fc", 6),
    networks.HeadFirst: ("fc", 6),
    networks.AuxiliaryInTraining: ("fc", 6),
    networks.SharedHead: ("fc", 6),
    networks.ConvolutionalHead: ("fc", 6),
    networks.Flattened: ("layers.3", 20),
    networks.CalledByKeyword: ("fc", 6),
    networks.MovingAverage: ("fc", 6),
    networks.WritesToAParameter: ("fc", 6),
}

REFUSED = {
    networks.LogSoftmax: "fc is followed by log_softmax: let the classifier return the logits",
    networks.ReluInPlace: "fc gives an output that is not the model's output",
    networks.Averaged: "the classifier averages the outputs of fc, second; a memory can replace one last layer only",
    networks.AveragedZeros: "the classifier averages the outputs of fc, second",
    networks.CalledTwice: "fc is called 2 times for one prediction",
    networks.ChangedInTraining: "fc gives an output that is changed before it is returned in training",
    networks.ReturnsTuple: "the classifier returns a tuple; expected a tensor (B, C), or an object with .logits",
    networks.UsesWeights: "fc cannot be replaced: the classifier then fails with AttributeError",
    networks.OwnHead: 'A module whose output is the model\'s output can be replaced whole: layer="fc"',
    networks.ConvolutionalHeadOnMaps: "fc takes one vector for each image only while images are small",
    networks.Headless: "the classifier has no linear layer; give one that ends in a linear layer",
    networks.Clamped: "fc gives an output that is changed before it is returned",
    networks.WithoutLastLayer: "create it with one",
    networks.CallsTheOriginal: "a copy of the classifier still calls body of the original",
    networks.KeepsByHook: "a copy of the classifier does not compute what the classifier does",
    networks.WritesIntoFeatures: "fc has an input that is changed after it was called",
    networks.NotCopied: "a copy of the classifier shares modules with it",
}


@pytest.mark.parametrize("network", FOUND)
def test_the_last_layer_is_found_and_its_input_becomes_the_encoding(network: type[nn.Module]) -> None:
    classifier = network().eval()
    model = memwrap.wrap(classifier)
    assert (model.origin.layer, model.layer.in_features, model.layer.num_classes) == (*FOUND[network], networks.CLASSES)
    taken = []
    classifier.get_submodule(model.origin.layer).register_forward_hook(
        lambda _, inputs, named, __: taken.append([*inputs, *named.values()][0]), with_kwargs=True
    )
    images = torch.randn(3, *model.origin.image_shape)
    classifier(images)
    assert_close(model.encode(images), taken[0].flatten(1), atol=0, rtol=0)


@pytest.mark.parametrize("network", REFUSED)
def test_what_cannot_be_replaced_is_refused_with_a_reason(network: type[nn.Module]) -> None:
    with pytest.raises(WrapError, match=re.escape(REFUSED[network])):
        memwrap.wrap(network())


def test_a_layer_of_another_kind_can_be_named() -> None:
    model = memwrap.wrap(networks.OwnHead(), layer="fc")
    assert model.layer.in_features == 6
    assert model(torch.randn(2, 3, 8, 8), memory=torch.randn(4, 3, 8, 8)).shape == (2, 5)


def test_a_whole_head_can_be_named() -> None:
    classifier = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 5))
    )
    assert memwrap.wrap(classifier).layer.in_features == 9
    assert memwrap.wrap(classifier, layer="3").layer.in_features == 6


def test_a_named_layer_is_proved_too() -> None:
    with pytest.raises(WrapError, match=re.escape("layer 'narrow' gives an output that is not the model's output")):
        memwrap.wrap(networks.HeadFirst(), layer="narrow")
    with pytest.raises(WrapError, match=re.escape("the classifier has no layer 'head.fc'; it has fc")):
        memwrap.wrap(networks.Plain(), layer="head.fc")
    with pytest.raises(WrapError, match=re.escape("layer is a Linear; expected the name of one, as in layer='body'")):
        memwrap.wrap(networks.Plain(), layer=nn.Linear(6, 5))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("network", [networks.Plain, networks.HeadFirst])
def test_the_classifier_given_is_left_unchanged(network: type[nn.Module], training: bool) -> None:
    classifier = network().train(training)
    classifier.body[1].eval()
    before, modules = copy.deepcopy(classifier.state_dict()), list(classifier.named_modules())
    generator_state = torch.get_rng_state()
    modes = [module.training for module in classifier.modules()]
    model = memwrap.wrap(classifier)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert list(classifier.named_modules()) == modules
    assert [module.training for module in classifier.modules()] == modes
    for name, value in classifier.state_dict().items():
        assert_close(value, before[name], atol=0, rtol=0)
    # The new head is initialised at random; probing takes no random numbers before it.
    torch.set_rng_state(generator_state)
    expected = memwrap.MemoryWrap(6, networks.CLASSES)
    assert_close(model.layer.head.first.weight - 1, expected.head.first.weight)


def test_modules_frozen_in_evaluation_mode_stay_frozen() -> None:
    classifier = networks.Plain().train()
    classifier.body[1].eval()
    model = memwrap.wrap(classifier)
    assert (model.training, model.encoder.training, model.layer.head.training) == (True, True, True)
    assert not model.encoder.body[1].training


@pytest.mark.parametrize("network", [networks.Plain, networks.MovingAverage])
def test_all_other_weights_and_statistics_are_kept(network: type[nn.Module]) -> None:
    classifier = network()
    classifier(torch.randn(4, 3, 8, 8))
    model = memwrap.wrap(classifier)
    kept = model.encoder.state_dict()
    assert set(classifier.state_dict()) - set(kept) == {"fc.weight", "fc.bias"}
    for name, value in kept.items():
        assert_close(value, classifier.state_dict()[name], atol=0, rtol=0)


def test_dropout_before_the_last_layer_still_acts() -> None:
    model = memwrap.wrap(networks.Plain().train())
    assert (model.encode(torch.randn(50, 3, 8, 8)) == 0).float().mean() > 0.3


def test_the_number_of_classes_can_be_changed() -> None:
    model = memwrap.wrap(networks.Plain(), num_classes=9)
    assert model(torch.randn(2, 3, 8, 8), memory=torch.randn(4, 3, 8, 8)).shape == (2, 9)


def test_an_example_says_which_images_the_classifier_takes() -> None:
    classifier = nn.Sequential(nn.Flatten(), nn.Linear(3 * 5 * 7, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(WrapError, match=r"takes none of the image shapes tried; give some of your images"):
        memwrap.wrap(classifier)
    assert memwrap.wrap(classifier, example=torch.randn(1, 3, 5, 7)).origin.image_shape == (3, 5, 7)
    with pytest.raises(WrapError, match=r"none of the image shapes tried:\n  \(3, 5, 5\): RuntimeError"):
        memwrap.wrap(classifier, example=torch.randn(1, 3, 5, 5))
    with pytest.raises(InputError, match=re.escape("example has shape (3, 5, 7)")):
        memwrap.wrap(classifier, example=torch.randn(3, 5, 7))
    with pytest.raises(InputError, match="example is a tuple; expected a float tensor"):
        memwrap.wrap(classifier, example=(3, 5, 7))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")
def test_what_is_no_plain_classifier_is_refused(model: memwrap.MemoryClassifier) -> None:
    with pytest.raises(WrapError, match=re.escape("classifier is a str; expected a torch.nn.Module")):
        memwrap.wrap("resnet18")
    with pytest.raises(InputError, match="variant is a Tensor; expected one of 'memory_wrap', 'only_memory'"):
        memwrap.wrap(networks.Plain(), torch.zeros(9))
    with pytest.raises(InputError, match="num_classes is a str; expected a whole number"):
        memwrap.wrap(networks.Plain(), num_classes="10")
    with pytest.raises(WrapError, match="memwrap model"):
        memwrap.wrap(model)
    with pytest.raises(WrapError, match="classifier is a ScriptModule, whose layers cannot be replaced"):
        memwrap.wrap(torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(64, 4))))
    with pytest.raises(WrapError, match="classifier is on the meta device, without weights"):
        memwrap.wrap(networks.Plain().to("meta"))
    with pytest.raises(WrapError, match="lazy layers without weights yet"):
        memwrap.wrap(nn.Sequential(nn.Flatten(), nn.LazyLinear(4)))


def test_a_compiled_classifier_is_unwrapped() -> None:
    model = memwrap.wrap(torch.compile(networks.Plain(), backend="eager"))
    assert type(model.encoder) is networks.Plain


class LearntFactor(networks.Plain):
    """Multiplies its logits by a learnt factor that is 1 at first, or adds a learnt bias that is 0."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.bias = bias
        self.t = nn.Parameter(torch.zeros(1) if bias else torch.ones(1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits = super().forward(images)
        return logits + self.t if self.bias else logits * self.t


@pytest.mark.parametrize("bias", [False, True])
def test_a_learnt_factor_or_bias_that_happens_to_change_nothing_is_noticed(bias: bool) -> None:
    classifier = LearntFactor(bias)
    before = {name: value.clone() for name, value in classifier.state_dict().items()}
    with pytest.raises(WrapError, match="learnt parameters"):
        memwrap.wrap(classifier)
    for name, value in classifier.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_vote_has_a_new_head_and_a_scale_of_its_own() -> None:
    classifier, images = memwrap.encoders.create("tiny", 3).eval(), torch.randn(4, 3, 8, 8)
    model = memwrap.wrap(classifier, "vote", num_classes=5, project=7)
    assert (model.layer.num_classes, model.layer.head_classes, model.layer.project) == (5, 5, 7)
    assert model.layer.similarity.scale == SCALE
    assert (model.decided_by, model.trains_with_memory) == ("vote", False)
    assert_close(model.encode(images), memwrap.wrap(classifier).encode(images), atol=0, rtol=0)
    # It is trained without a memory, and predicts with one.
    model.train()(images).sum().backward()
    assert model.layer.head.weight.grad.abs().sum() > 0
    assert model.layer.projection.weight.grad is None
    with pytest.raises(NoMemoryError):
        model.eval()(images)
    model.remember(images, [0, 1, 2, 4])
    assert model(images).argmax(1).tolist() == [0, 1, 2, 4]


@pytest.mark.parametrize(
    ("variant", "options", "words"),
    [
        ("vote", {"head": "mlp"}, "head is of a layer whose head reads the memory"),
        ("vote", {"scale": 0.0}, "scale is 0.0"),
        ("vote", {"project": -1}, "project is -1"),
        ("standard", {"head": "mlp"}, "variant='standard'"),
        ("standard", {"project": 4}, "variant='standard'"),
        ("memory_wrap", {"head": "round"}, "head is 'round'"),
        ("votes", {}, "variant is 'votes'"),
    ],
)
def test_options_that_a_variant_does_not_have_are_refused(variant: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        memwrap.wrap(networks.Plain(), variant, **options)


@pytest.mark.filterwarnings("ignore:The default weight initialization:FutureWarning")
@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_auxiliary_heads_are_dropped(name: str) -> None:
    classifier = torchvision.models.get_model(name, weights=None, num_classes=4, init_weights=False)
    drop_auxiliary_heads(classifier)
    assert not [each for each, _ in classifier.named_modules() if "aux" in each.lower()]
    images = torch.randn(2, 3, 75, 75)  # too small for the auxiliary head of Inception
    assert isinstance(classifier.train()(images), torch.Tensor)
    plain = torchvision.models.get_model(name, weights=None, num_classes=4, init_weights=False, aux_logits=False)
    plain.load_state_dict(classifier.state_dict())
    assert_close(classifier.eval()(images), plain.eval()(images), atol=0, rtol=0)


def test_what_a_network_of_one_s_own_calls_auxiliary_stays() -> None:
    class Auxiliary(networks.Plain):
        aux_logits = True

        def __init__(self) -> None:
            super().__init__()
            self.aux_scale = torch.nn.Linear(1, 1)

    classifier = Auxiliary()
    drop_auxiliary_heads(classifier)
    assert classifier.aux_logits is True
    assert hasattr(classifier, "aux_scale")


def test_the_scale_is_the_layer_s_and_is_saved(tmp_path: Path) -> None:
    model = memwrap.wrap(memwrap.encoders.create("tiny", 3), scale=16.0)
    assert model.layer.settings()["scale"] == 16.0
    model.save(tmp_path)
    assert memwrap.load(tmp_path).layer.similarity.scale == 16.0
    with pytest.raises(InputError, match="scale"):
        memwrap.wrap(networks.Plain(), "standard", scale=2.0)
