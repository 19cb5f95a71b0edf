"""A memory next to a trained classifier: the same logits as before, and the memory's votes; what cannot be attached."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn
from torch.testing import assert_close

import memwrap
from memwrap import InputError, LoadError, MemoryClassifier, NoMemoryError, WrapError, encoders
from memwrap.metrics import predict_classes
from tests import networks
from tests.sealing import edit

CLASSES = 5
SMALL_VIT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def small_vit() -> nn.Module:
    configuration = transformers.ViTConfig(image_size=32, num_labels=CLASSES, **SMALL_VIT)
    return transformers.ViTForImageClassification(configuration)


def squeezenet() -> nn.Module:
    """Ends in a convolution of whole maps, a ReLU and a mean."""
    return torchvision.models.squeezenet1_1(weights=None, num_classes=CLASSES)


NAMED: dict[str, Callable[[], nn.Module]] = {
    "timm": lambda: timm.create_model("resnet10t", num_classes=CLASSES),
    "timm, with a convolution": lambda: timm.create_model("ghostnet_100", num_classes=CLASSES),
    "torchvision": lambda: torchvision.models.resnet18(weights=None, num_classes=CLASSES),
    "torchvision, a whole head": lambda: torchvision.models.mobilenet_v3_small(weights=None, num_classes=CLASSES),
    "transformers": small_vit,
    "memwrap": lambda: encoders.create("tiny", CLASSES),
}
HAND_WRITTEN: dict[str, Callable[[], nn.Module]] = {
    each.__name__: each
    for each in (
        networks.Plain,
        networks.HeadFirst,
        networks.AuxiliaryInTraining,
        networks.SharedHead,
        networks.ConvolutionalHead,
        networks.CalledByKeyword,
        networks.MovingAverage,
    )
}
ALL = {**NAMED, **HAND_WRITTEN}


def classifier_of(kind: str) -> nn.Module:
    """In evaluation mode, with statistics and a last layer unlike those of a new one."""
    classifier = ALL[kind]()
    classifier.train()(torch.randn(8, 3, 32, 32))
    with torch.no_grad():
        for parameter in list(classifier.parameters())[-2:]:
            parameter.normal_()
    return classifier.eval()


def logits_of(classifier: nn.Module, images: Tensor) -> Tensor:
    output = classifier(images)
    return output if isinstance(output, Tensor) else output.logits


def colours(count: int, seed: int = 1) -> Tensor:
    """Images unlike enough for an untrained encoder."""
    generator = torch.Generator().manual_seed(seed)
    noise, colour = torch.randn(count, 3, 32, 32, generator=generator), torch.randn(count, 3, 1, 1, generator=generator)
    return noise + 4 * colour


# The classifier as it was


@pytest.mark.parametrize("kind", ALL)
def test_the_logits_are_those_of_the_classifier_to_the_last_bit(kind: str, tmp_path: Path) -> None:
    classifier, images = classifier_of(kind), colours(6)
    before = {name: value.clone() for name, value in classifier.state_dict().items()}
    model = memwrap.attach(classifier)
    with torch.no_grad():
        expected = logits_of(classifier, images)
        assert torch.equal(model(images), expected)
        model.remember(colours(10, seed=2), torch.arange(10) % CLASSES)
        assert torch.equal(model(images), expected)
        reading = model.read(images)
        assert torch.equal(reading.logits, expected)
        assert_close(model.predict(images), expected.softmax(1))
    if kind in NAMED:
        model.save(tmp_path)
        loaded = memwrap.load(tmp_path)
    else:
        with pytest.warns(memwrap.MemwrapWarning, match=re.escape("memwrap.load(folder, classifier=...)")):
            model.save(tmp_path)
        with pytest.raises(LoadError, match=re.escape("classifier=...")):
            memwrap.load(tmp_path)
        loaded = memwrap.load(tmp_path, classifier=ALL[kind]())
    with torch.no_grad():
        assert torch.equal(loaded(images), expected)
        assert_close(loaded.read(images).votes, reading.votes, atol=0, rtol=0)
    assert loaded.layer.settings() == model.layer.settings()
    assert loaded.decided_by == "classifier"
    for name, value in classifier.state_dict().items():
        assert torch.equal(value, before[name])
    assert logits_of(classifier, images).shape == (6, CLASSES)


@pytest.mark.parametrize("kind", ["timm", "transformers", "Plain", "ConvolutionalHead"])
def test_images_stand_next_to_a_prediction_that_they_did_not_make(kind: str) -> None:
    classifier, images = classifier_of(kind), colours(6)
    model = memwrap.attach(classifier)
    assert model.decided_by == "classifier"
    assert not model.trains_with_memory
    memory, labels = colours(12, seed=2), torch.arange(12) % CLASSES
    model.remember(memory, labels)
    expected = logits_of(classifier, images).detach()
    with torch.no_grad():
        encodings, memory_encodings = model.encode(images), model.encode(memory)
        cosines = nn.functional.cosine_similarity(encodings.unsqueeze(1), memory_encodings, dim=2)
    for row, explanation in enumerate(model.explain(images)):
        assert explanation.prediction == int(expected[row].argmax())
        assert (explanation.decided_by, explanation.flip_set, explanation.check()) == ("classifier", None, None)
        assert explanation.effects is None
        assert {sample.effect for sample in explanation.samples} == {None}
        assert explanation.samples[0].index == int(cosines[row].argmax())
        assert explanation.other_prediction == int(explanation.votes.argmax())
        strongest = explanation.samples[0].label
        assert explanation.uncertain == (len({explanation.prediction, explanation.other_prediction, strongest}) > 1)
        # The classifier's own class for each image of the memory.
        own = logits_of(classifier, memory).argmax(1)
        assert all(sample.prediction == int(own[sample.index]) for sample in explanation.samples)
        record = explanation.record()
        assert (record.decided_by, record.flip_set, record.check) == ("classifier", None, None)
        assert record.effect_sentence == record.flip_sentence == ""


@pytest.mark.parametrize("kind", ["torchvision", "Plain", "ConvolutionalHead"])
def test_with_a_vote_the_memory_decides_and_the_classifier_stands_next_to_it(kind: str) -> None:
    classifier, images = classifier_of(kind), colours(6)
    model, beside = memwrap.attach(classifier, decide="vote", scale=4.0), memwrap.attach(classifier, scale=4.0)
    memory, labels = colours(12, seed=2), torch.arange(12) % CLASSES
    for each in (model, beside):
        each.remember(memory, labels)
    assert model.decided_by == "vote"
    expected = logits_of(classifier, images).detach()
    with torch.no_grad():
        reading, other = model.read(images), beside.read(images)
        assert torch.equal(reading.head_logits, expected)
        assert_close(reading.votes, other.votes, atol=0, rtol=0)
        assert_close(model(images).softmax(1), reading.votes)
        assert_close(model.predict(images), reading.votes)
    for row, explanation in enumerate(model.explain(images)):
        assert explanation.decided_by == "vote"
        assert explanation.prediction == int(reading.votes[row].argmax())
        assert explanation.other_prediction == int(expected[row].argmax())
        assert_close(explanation.votes, reading.votes[row])
        for sample in explanation.samples:
            without = model.read(images, keep=torch.arange(12) != sample.index).votes[row]
            change = (without - reading.votes[row])[explanation.prediction]
            assert sample.effect == pytest.approx(float(change.detach()), abs=1e-5)
        assert explanation.check()
        assert explanation.flip_set is not None


def test_a_classifier_is_attached_in_the_mode_that_it_is_in() -> None:
    classifier = networks.Plain().train()
    classifier.body[1].eval()
    model = memwrap.attach(classifier)
    assert (model.training, model.encoder.training, model.layer.head.training) == (True, True, True)
    assert not model.encoder.body[1].training


def test_what_is_attached_can_be_trained_on_like_the_classifier() -> None:
    """In training mode the head's logits come without the memory, whatever decides."""
    for decide in ("head", "vote"):
        model = memwrap.attach(networks.Plain().train(), decide=decide)
        model(torch.randn(4, 3, 8, 8)).square().sum().backward()
        assert all(parameter.grad.abs().sum() > 0 for parameter in model.layer.head.parameters())
        assert any(parameter.grad.abs().sum() > 0 for parameter in model.encoder.parameters())


class Mixed(networks.Plain):
    """A body in bfloat16 and a last layer in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.body.to(torch.bfloat16)

    def encode(self, images: Tensor) -> Tensor:
        return super().encode(images).float()


def test_a_last_layer_of_another_precision_keeps_it() -> None:
    classifier = Mixed().eval()
    images = torch.randn(3, 3, 8, 8, dtype=torch.bfloat16)
    model = memwrap.attach(classifier)
    assert torch.equal(model(images), classifier(images))
    assert model.layer.head.weight.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_precision_comes_back(dtype: torch.dtype, tmp_path: Path) -> None:
    classifier, images = encoders.create("tiny", CLASSES).eval().to(dtype), colours(4).to(dtype)
    model = memwrap.attach(classifier, decide="vote")
    model.remember(colours(10, seed=2).to(dtype), torch.arange(10) % CLASSES)
    model.save(tmp_path)
    loaded = memwrap.load(tmp_path)
    with torch.no_grad():
        assert torch.equal(loaded.read(images).head_logits, classifier(images))
        assert torch.equal(loaded(images), model(images))


# Backbones


BACKBONES: dict[str, Callable[[], nn.Module]] = {
    "timm": lambda: timm.create_model("resnet10t", num_classes=0),
    "hand-written": networks.WithoutLastLayer,
    "transformers": lambda: transformers.ViTModel(transformers.ViTConfig(image_size=32, **SMALL_VIT)),
    "transformers, of maps": lambda: transformers.ResNetModel(
        transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    ),
}


def encodings_of(backbone: nn.Module, images: Tensor) -> Tensor:
    output = backbone(images)
    return output if isinstance(output, Tensor) else output.pooler_output.flatten(1)


@pytest.mark.parametrize("kind", BACKBONES)
def test_the_images_of_a_backbone_vote(kind: str, tmp_path: Path) -> None:
    backbone, images = BACKBONES[kind]().eval(), colours(6)
    model = memwrap.attach(backbone, num_classes=3, decide="vote").eval()
    assert (model.layer.num_classes, model.layer.head_classes) == (3, 0)
    assert torch.equal(model.encode(images), encodings_of(backbone, images))
    with pytest.raises(NoMemoryError):
        model(images)
    with pytest.raises(NoMemoryError):
        model.train()(images)
    model.eval().remember(colours(9, seed=2), torch.arange(9) % 3)
    explanations = model.explain(images)
    for explanation in explanations:
        assert (explanation.decided_by, explanation.other_prediction) == ("vote", None)
        assert explanation.prediction == int(explanation.votes.argmax())
        assert explanation.uncertain == (explanation.samples[0].label != explanation.prediction)
        assert explanation.check()
    with torch.no_grad():
        expected = model.read(images)
    assert expected.head_logits is None
    with pytest.warns(memwrap.MemwrapWarning, match=re.escape("classifier=...")):
        model.save(tmp_path)
    loaded = memwrap.load(tmp_path, classifier=BACKBONES[kind]())
    assert loaded.layer.settings() == model.layer.settings()
    assert_close(loaded.read(images).votes, expected.votes, atol=0, rtol=0)


@pytest.mark.parametrize("variant", ["memory_wrap", "only_memory", "vote", "standard"])
@pytest.mark.parametrize("kind", BACKBONES)
def test_a_backbone_is_wrapped_when_the_number_of_classes_is_known(kind: str, variant: str, tmp_path: Path) -> None:
    backbone, images = BACKBONES[kind]().eval(), colours(4)
    model = memwrap.wrap(backbone, variant, num_classes=3).eval()
    assert torch.equal(model.encode(images), encodings_of(backbone, images))
    assert model.origin.layer == ""
    if isinstance(model, MemoryClassifier):
        model.remember(colours(9, seed=2), torch.arange(9) % 3)
    with torch.no_grad():
        logits = model(images)
    assert logits.shape == (4, 3)
    with pytest.warns(memwrap.MemwrapWarning, match=re.escape("classifier=...")):
        model.save(tmp_path)
    with torch.no_grad():
        assert_close(memwrap.load(tmp_path, BACKBONES[kind]())(images), logits, atol=0, rtol=0)


@pytest.mark.parametrize("kind", ["timm", "hand-written"])
def test_a_backbone_without_a_number_of_classes_is_refused_with_what_to_do(kind: str) -> None:
    backbone = BACKBONES[kind]()
    for use in (
        lambda: memwrap.wrap(backbone),
        lambda: memwrap.attach(backbone),
        lambda: memwrap.attach(backbone, decide="vote"),
    ):
        with pytest.raises(WrapError, match="num_classes=10"):
            use()
    with pytest.raises(InputError, match="decide='vote'"):
        memwrap.attach(backbone, num_classes=3)


@pytest.mark.parametrize("kind", ["cosine", "convolution before pooling"])
def test_a_classifier_of_another_kind_of_head_is_not_taken_for_a_backbone(kind: str) -> None:
    classifier = networks.OwnHead() if kind == "cosine" else squeezenet()
    for use in (memwrap.wrap, partial(memwrap.attach, decide="vote")):
        with pytest.raises(WrapError, match="no linear layer's output is the model's output"):
            use(classifier, num_classes=3)


def test_an_output_named_as_the_encoding_does_not_say_how_many_classes_there_are() -> None:
    for use in (memwrap.wrap, partial(memwrap.attach, decide="vote")):
        with pytest.raises(InputError, match="num_classes=10"):
            use(networks.Plain(), layer="")


def test_any_output_can_be_named_as_the_encoding() -> None:
    """Of a classifier whose last layer cannot be replaced, and of one that could."""
    classifier, images = networks.LogSoftmax().eval(), colours(4)
    model = memwrap.attach(classifier, layer="", num_classes=3, decide="vote").eval()
    assert torch.equal(model.encode(images), classifier(images))
    model = memwrap.wrap(networks.Plain(), layer="", num_classes=3)
    assert (model.layer.in_features, model.layer.num_classes) == (networks.CLASSES, 3)


# What is refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"decide": "memory"}, "decide is 'memory'"),
        ({"scale": -1.0}, "scale is -1.0"),
        ({"num_classes": 0}, "num_classes is 0"),
        ({"num_classes": 7}, "num_classes is 7, but the classifier has 5 classes"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        memwrap.attach(networks.Plain(), **options)


def test_the_number_of_classes_may_be_said_if_it_is_the_classifier_s() -> None:
    assert memwrap.attach(networks.Plain(), num_classes=networks.CLASSES).layer.head_classes == networks.CLASSES


@pytest.mark.parametrize(
    "network", [networks.LogSoftmax, networks.Averaged, networks.Clamped, networks.CallsTheOriginal]
)
def test_what_cannot_be_taken_apart_is_refused(network: type[nn.Module]) -> None:
    with pytest.raises(WrapError):
        memwrap.attach(network())


def test_a_convolution_of_whole_maps_is_refused() -> None:
    with pytest.raises(WrapError):
        memwrap.attach(squeezenet())


def test_a_layer_of_another_kind_can_be_named() -> None:
    classifier, images = networks.OwnHead().eval(), colours(4)
    model = memwrap.attach(classifier, layer="fc")
    assert torch.equal(model(images), classifier(images))


def test_memory_images_without_labels_are_refused() -> None:
    model = memwrap.attach(networks.Plain().eval(), decide="vote")
    for memory in (colours(4), "batch"):
        with pytest.raises(InputError, match=re.escape("model.remember(images, labels)")):
            model(colours(4), memory=memory)


def test_a_memwrap_model_is_no_classifier() -> None:
    with pytest.raises(WrapError, match="memwrap model"):
        memwrap.attach(memwrap.attach(networks.Plain()))


def test_what_the_stored_layer_says_has_to_fit_the_classifier(tmp_path: Path) -> None:
    model = memwrap.attach(encoders.create("tiny", CLASSES).eval(), decide="vote")
    for number, (path, value) in enumerate(
        [
            (["layer", "attached"], False),  # then a linear head is made, which its weights fit
            (["layer", "head_classes"], 0),
            (["layer", "head_classes"], 6),
            (["layer", "num_classes"], 3),
            (["layer", "decide"], "memory"),
            (["layer", "in_features"], 3),
            (["classifier", "layer"], ""),
        ]
    ):
        folder = tmp_path / str(number)
        model.save(folder)
        edit(folder / "model.json", path, value)
        if path[-1] == "attached":
            assert torch.equal(memwrap.load(folder).layer.head.weight, model.layer.head.weight)
            continue
        with pytest.raises(LoadError):
            memwrap.load(folder)


# Predictions


def test_predictions_come_from_what_decides() -> None:
    model = memwrap.attach(networks.Plain().eval(), decide="vote", scale=4.0)
    images = colours(20)
    model.remember(colours(12, seed=2), torch.arange(12) % CLASSES)
    reading = model.read(images)
    assert torch.equal(predict_classes(model.predict(images)), predict_classes(reading.votes))
    assert torch.equal(predict_classes(model(images)), predict_classes(reading.votes))
    uncertain = model.remembered.is_uncertain(reading)
    for row in range(20):
        vote, head = int(reading.votes[row].argmax()), int(reading.head_logits[row].argmax())
        strongest = int(model.remembered.labels[reading.weights[row].argmax()])
        assert bool(uncertain[row]) == (vote != head or strongest != vote)
    assert 0 < int(uncertain.sum()) < 20
