"""The wrapped model: two passes in training, a remembered memory, staleness, moving, and what it refuses."""

import copy
import dataclasses
import inspect
import pickle
import re
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.testing import assert_close

import memwrap
from memwrap import InputError, MemoryClassifier, NoMemoryError, NonFiniteError, StaleMemoryError
from memwrap.explain.explanation import Explanation
from memwrap.nn.memory import UNKNOWN
from memwrap.nn.precision import exact_convolutions
from tests import networks

TRANSFORM = memwrap.Transform((3, 8, 8), mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))


def test_predicts_with_the_memory_that_is_given(model: MemoryClassifier, images: Tensor, memory: Tensor) -> None:
    reading = model.read(images, memory=memory)
    expected = model.layer.read(model.encoder(images), model.encoder(memory))
    assert_close(reading.logits, expected.logits, atol=0, rtol=0)
    assert_close(reading.weights, expected.weights, atol=0, rtol=0)
    assert_close(model(images, memory=memory), reading.logits, atol=0, rtol=0)


def test_one_memory_for_each_input(model: MemoryClassifier, images: Tensor) -> None:
    memories = torch.randn(5, 4, 3, 8, 8)
    together = model.read(images, memory=memories)
    for row in range(5):
        alone = model.read(images[row : row + 1], memory=memories[row])
        assert_close(together.logits[row : row + 1], alone.logits)
        assert_close(together.weights[row : row + 1], alone.weights)


def test_batch_and_memory_pass_batch_normalisation_apart(images: Tensor, memory: Tensor) -> None:
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=4)).train()
    normalisation = next(module for module in model.modules() if isinstance(module, nn.BatchNorm2d))
    seen: list[int] = []
    normalisation.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    before = int(normalisation.num_batches_tracked)
    model(images, memory=memory)
    assert seen == [len(images), len(memory)]
    assert int(normalisation.num_batches_tracked) == before + 2


def test_gradients_flow_through_both_passes(images: Tensor, memory: Tensor) -> None:
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=4)).train()
    images.requires_grad_()
    memory.requires_grad_()
    model(images, memory=memory).square().sum().backward()
    assert images.grad.abs().sum() > 0
    assert memory.grad.abs().sum() > 0
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("variant", ["memory_wrap", "only_memory"])
def test_a_remembered_memory_predicts_as_if_it_were_given(
    variant: str, images: Tensor, memory: Tensor, labels: Tensor
) -> None:
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=4), variant).eval()
    model.remember(memory, labels, chunk_size=5)
    expected = model.read(images, memory=memory)
    keep = torch.rand(5, 12) > 0.5
    keep[:, 0] = True
    for context in (torch.no_grad(), torch.enable_grad(), torch.inference_mode()):
        with context:
            reading = model.read(images)
            assert_close(reading.logits, expected.logits)
            assert_close(reading.weights, expected.weights)
            assert_close(reading.memory_vector, expected.memory_vector)
            assert_close(model(images), expected.logits)
            assert_close(model.read(images, keep=keep).logits, model.read(images, memory, keep).logits)


def test_what_is_remembered(model: MemoryClassifier, memory: Tensor, labels: Tensor) -> None:
    model.remember(memory, labels.tolist(), chunk_size=5)
    remembered = model.remembered
    assert len(remembered) == 12
    assert_close(remembered.images, memory, atol=0, rtol=0)
    assert_close(remembered.labels, labels)
    assert_close(remembered.encodings, model.encode(memory))
    assert not remembered.encodings.requires_grad
    memory.zero_()
    assert remembered.images.abs().sum() > 0


def test_each_sample_is_predicted_with_the_memory_less_itself(
    model: MemoryClassifier, memory: Tensor, labels: Tensor
) -> None:
    model.remember(memory, labels, chunk_size=5)
    for index in range(12):
        others = torch.cat([memory[:index], memory[index + 1 :]])
        assert model.remembered.predictions[index] == model(memory[index : index + 1], memory=others).argmax()


@pytest.mark.parametrize("chunk_size", [1, 2, 128])
def test_predictions_of_samples_depend_on_the_memory_around_them(chunk_size: int) -> None:
    """With a head that copies the nearest sample's encoding, a sample that saw itself would predict otherwise."""
    model = memwrap.wrap(networks.Plain(), "only_memory", head="linear", num_classes=3).eval()
    model.encoder = nn.Flatten()
    with torch.no_grad():
        model.layer = memwrap.MemoryWrap(3, 3, "only_memory", head="linear")
        model.layer.head.first.weight.copy_(torch.eye(3))
        model.layer.head.first.bias.zero_()
    memory = torch.tensor([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.2, 1.0]]).reshape(3, 3, 1, 1)
    model.remember(memory, [0, 0, 0], chunk_size)
    assert model(memory).argmax(1).tolist() == [0, 1, 2]
    assert model.remembered.predictions.tolist() == [1, 0, 1]


def test_a_memory_of_one_has_no_prediction_of_its_own(model: MemoryClassifier, images: Tensor, memory: Tensor) -> None:
    model.remember(memory[:1], [2])
    assert model.remembered.predictions is None
    assert (model.read(images).weights == 1).all()


def test_a_memory_is_encoded_in_evaluation_mode(model: MemoryClassifier, memory: Tensor, labels: Tensor) -> None:
    expected, before = model.encode(memory), copy.deepcopy(model.state_dict())
    model.train().remember(memory, labels)
    assert_close(model.remembered.encodings, expected)
    assert_close(dict(model.state_dict()), dict(before), atol=0, rtol=0)


def test_remembering_leaves_the_modes_of_all_modules(model: MemoryClassifier, memory: Tensor, labels: Tensor) -> None:
    model.train()
    model.encoder.features[0].eval()
    modes = {name: module.training for name, module in model.named_modules()}
    model.remember(memory, labels)
    assert {name: modes[name] for name in modes} == {
        name: module.training for name, module in model.named_modules() if name in modes
    }


def test_remembering_in_inference_mode_still_allows_training(
    model: MemoryClassifier, images: Tensor, memory: Tensor, labels: Tensor
) -> None:
    with torch.inference_mode():
        model.remember(memory, labels)
    model(images).sum().backward()
    assert model.layer.head.first.weight.grad is not None
    model.requires_grad_(False)
    images.requires_grad_()
    model(images).sum().backward()
    assert images.grad.abs().sum() > 0


def test_a_head_that_learns_gets_its_whole_gradient_from_a_remembered_memory(
    model: MemoryClassifier, images: Tensor, memory: Tensor, labels: Tensor
) -> None:
    weight = model.layer.head.first.weight
    model.requires_grad_(False)
    weight.requires_grad_()
    (expected,) = torch.autograd.grad(model(images, memory=memory).square().sum(), weight)
    model.remember(memory, labels)
    (gradient,) = torch.autograd.grad(model(images).square().sum(), weight)
    assert_close(gradient, expected)


def test_a_model_without_memory_says_what_to_do(model: MemoryClassifier, images: Tensor) -> None:
    message = "the model has no memory; let it keep one, model.remember(memory_images, labels)"
    with pytest.raises(NoMemoryError, match=re.escape(message)):
        model(images)


def test_a_memory_can_be_forgotten(model: MemoryClassifier, images: Tensor, memory: Tensor, labels: Tensor) -> None:
    model.remember(memory, labels)
    model.forget()
    with pytest.raises(NoMemoryError):
        model(images)


def step(model: MemoryClassifier, optimiser: str, **options: object) -> None:
    model.zero_grad()
    model(torch.randn(5, 3, 8, 8), memory=torch.randn(6, 3, 8, 8)).square().sum().backward()
    getattr(torch.optim, optimiser)(model.parameters(), lr=0.1, **options).step()


def train_pass(model: MemoryClassifier) -> None:
    model.train()
    model(torch.randn(5, 3, 8, 8), memory=torch.randn(6, 3, 8, 8))
    model.eval()


def exchange_parameter(model: MemoryClassifier) -> None:
    first = model.layer.head.first
    first.bias = nn.Parameter(first.bias.detach().clone())


CHANGES = {
    "SGD": lambda model: step(model, "SGD"),
    "SGD, one tensor at a time": lambda model: step(model, "SGD", foreach=False),
    "SGD, fused": lambda model: step(model, "SGD", fused=True),
    "AdamW, fused": lambda model: step(model, "AdamW", fused=True),
    "load_state_dict": lambda model: model.load_state_dict(copy.deepcopy(model.state_dict())),
    "load_state_dict by assignment": lambda model: model.load_state_dict(model.state_dict(), assign=True),
    "load_state_dict of the head": lambda model: model.layer.load_state_dict(model.layer.state_dict()),
    "a training pass": train_pass,
    "a weight written to": lambda model: nn.init.zeros_(model.encoder.features[0][0].weight),
    "a buffer exchanged": lambda model: setattr(model.encoder.features[0][1], "running_mean", torch.ones(32)),
    "a module exchanged": lambda model: setattr(model.encoder, "dropout", nn.Dropout(0.5)),
    "a parameter exchanged": exchange_parameter,
    "the encoder exchanged": lambda model: setattr(model, "encoder", copy.deepcopy(model.encoder)),
    "the layer exchanged": lambda model: setattr(model, "layer", copy.deepcopy(model.layer)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_stale_memory_is_noticed(
    change: str, model: MemoryClassifier, images: Tensor, memory: Tensor, labels: Tensor, tmp_path: Path
) -> None:
    model.remember(memory, labels)
    model(images)
    CHANGES[change](model)
    for use in (model, model.read, lambda _: model.save(tmp_path)):
        with pytest.raises(StaleMemoryError, match=re.escape("call model.remember(images, labels) again")):
            use(images)
    model.remember(memory, labels)
    model(images)


def test_predicting_in_training_mode_with_a_remembered_memory_is_warned_of(
    model: MemoryClassifier, images: Tensor, memory: Tensor, labels: Tensor
) -> None:
    model.train().remember(memory, labels)
    with pytest.warns(UserWarning, match=re.escape("call model.eval() first")):
        model(images)
    with pytest.raises(StaleMemoryError, match=re.escape("if model.eval() was forgotten")):
        model(images)


def test_what_changes_nothing_leaves_the_memory_fresh(
    model: MemoryClassifier, images: Tensor, memory: Tensor, labels: Tensor
) -> None:
    model.remember(memory, labels)
    model(images, memory=memory).sum().backward()
    model.zero_grad()
    model.train().eval()
    model.requires_grad_(False)
    model.state_dict()
    model.to(memory_format=torch.channels_last)
    model(images)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_keeps_the_memory_and_whether_it_is_stale(
    duplicate: object, model: MemoryClassifier, images: Tensor, memory: Tensor, labels: Tensor
) -> None:
    model.remember(memory, labels)
    fresh = duplicate(model)
    assert_close(fresh(images), model(images), atol=0, rtol=0)
    step(model, "SGD")
    assert_close(fresh(images), fresh.read(images).logits)
    with pytest.raises(StaleMemoryError):
        duplicate(model)(images)
    step(fresh, "SGD")
    with pytest.raises(StaleMemoryError):
        fresh(images)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_the_memory_moves_with_the_model(
    dtype: torch.dtype, model: MemoryClassifier, images: Tensor, memory: Tensor, labels: Tensor
) -> None:
    model.remember(memory, labels)
    with torch.no_grad():
        expected = model.read(images)
        reading = model.to(dtype).read(images.to(dtype))
    assert {tensor.dtype for tensor in (model.remembered.encodings, model.remembered.images)} == {dtype}
    assert reading.logits.dtype == dtype
    assert reading.weights.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    tolerance = {torch.float64: 1e-6, torch.float16: 5e-3, torch.bfloat16: 5e-2}[dtype]
    assert_close(reading.logits.float(), expected.logits, atol=tolerance, rtol=0)


def test_a_stale_memory_stays_stale_when_it_is_moved(
    model: MemoryClassifier, images: Tensor, memory: Tensor, labels: Tensor
) -> None:
    model.remember(memory, labels)
    step(model, "SGD")
    with pytest.raises(StaleMemoryError):
        model.double()(images.double())


def test_the_state_dict_does_not_depend_on_the_memory(model: MemoryClassifier, memory: Tensor, labels: Tensor) -> None:
    before = list(model.state_dict())
    model.remember(memory, labels)
    assert list(model.state_dict()) == before


@pytest.fixture
def colours() -> Tensor:
    """Images unlike enough for an untrained encoder: each uses a part of a memory of their kind."""
    return torch.randn(5, 3, 8, 8) + 4 * torch.randn(5, 3, 1, 1)


@pytest.fixture
def remembering(model: MemoryClassifier, labels: Tensor) -> MemoryClassifier:
    """A model that is sure enough of its word, with such a memory."""
    with torch.no_grad():
        model.layer.head.second.weight.mul_(30)
    model.remember(torch.randn(12, 3, 8, 8) + 4 * torch.randn(12, 3, 1, 1), labels)
    return model


def assert_same_explanation(ours: Explanation, theirs: Explanation, tolerance: float = 1e-5) -> None:
    assert (ours.prediction, ours.uncertain, ours.unused) == (theirs.prediction, theirs.uncertain, theirs.unused)
    assert [sample.index for sample in ours.samples] == [sample.index for sample in theirs.samples]
    assert (ours.decided_by, ours.other_prediction) == (theirs.decided_by, theirs.other_prediction)
    for name in ("logits", "probabilities", "weights", "votes", "effects", "labels"):
        close = {"atol": tolerance, "rtol": 0, "equal_nan": True, "check_dtype": False}
        assert_close(getattr(ours, name), getattr(theirs, name), **close)
    # Of other samples the prediction is not known, unless an input of the same batch used them.
    used = ours.weights > 0
    assert (ours.memory_predictions[used] >= 0).all()
    assert_close(ours.memory_predictions[used], theirs.memory_predictions[used])
    assert ours.flip_set == theirs.flip_set


def test_each_image_gets_an_explanation_of_its_prediction(remembering: MemoryClassifier, colours: Tensor) -> None:
    explanations, reading = remembering.explain(colours), remembering.read(colours)
    assert len(explanations) == 5
    for row, explanation in enumerate(explanations):
        assert explanation.prediction == int(reading.logits[row].argmax())
        assert_close(explanation.logits, reading.logits[row].detach())
        assert_close(explanation.weights, reading.weights[row].detach())
        assert_close(explanation.labels, remembering.remembered.labels)
        used = (reading.weights > 0).any(0)  # by an input of the batch
        assert_close(explanation.memory_predictions[used], remembering.remembered.predictions[used])
        assert (explanation.memory_predictions[~used] == UNKNOWN).all()
        for sample in explanation.samples:
            keep = torch.arange(12) != sample.index
            change = remembering.read(colours, keep=keep).logits.softmax(1)[row] - reading.logits.softmax(1)[row]
            assert sample.effect == pytest.approx(change[explanation.prediction].item(), abs=1e-6)
        assert explanation.check()
    assert len({explanation.prediction for explanation in explanations}) > 1
    assert any(explanation.unused for explanation in explanations)


def test_effects_need_not_be_asked_for(remembering: MemoryClassifier, colours: Tensor) -> None:
    for without, complete in zip(
        remembering.explain(colours, effects=False), remembering.explain(colours), strict=True
    ):
        assert without.effects is None
        assert_same_explanation(dataclasses.replace(without, effects=complete.effects), complete)


def test_images_are_explained_together_as_one_by_one(remembering: MemoryClassifier, colours: Tensor) -> None:
    for row, together in enumerate(remembering.explain(colours)):
        (alone,) = remembering.explain(colours[row : row + 1])
        assert_same_explanation(together, alone)


@pytest.mark.filterwarnings("error")
def test_explaining_in_training_mode_changes_nothing(remembering: MemoryClassifier, colours: Tensor) -> None:
    expected, before = remembering.explain(colours), copy.deepcopy(remembering.state_dict())
    remembering.train()
    remembering.encoder.features[0].eval()
    modes = {name: module.training for name, module in remembering.named_modules()}
    for ours, theirs in zip(remembering.explain(colours), expected, strict=True):
        assert_same_explanation(ours, theirs, tolerance=0)
    assert {name: module.training for name, module in remembering.named_modules()} == modes
    assert_close(dict(remembering.state_dict()), dict(before), atol=0, rtol=0)


def test_the_modes_are_restored_when_images_cannot_be_explained(remembering: MemoryClassifier) -> None:
    with pytest.raises(InputError, match=re.escape("for a single image give image.unsqueeze(0)")):
        remembering.train().explain(torch.randn(3, 8, 8))
    assert all(module.training for module in remembering.modules())


@pytest.mark.parametrize("change", CHANGES)
def test_a_stale_memory_explains_nothing(change: str, remembering: MemoryClassifier, colours: Tensor) -> None:
    explanation = remembering.explain(colours)[0]
    CHANGES[change](remembering)
    with pytest.raises(StaleMemoryError, match=re.escape("call model.remember(images, labels) again")):
        remembering.explain(colours)
    if change in ("SGD", "SGD, fused", "load_state_dict of the head", "a parameter exchanged"):
        with pytest.raises(StaleMemoryError, match="explain the images again"):
            explanation.check()


def test_without_a_memory_nothing_is_explained(model: MemoryClassifier, images: Tensor) -> None:
    with pytest.raises(NoMemoryError, match=re.escape("model.remember(memory_images, labels)")):
        model.explain(images)


def test_explanations_in_double_precision_agree(remembering: MemoryClassifier, colours: Tensor) -> None:
    expected = remembering.explain(colours)
    flip_sets = [explanation.flip_set for explanation in expected]
    explanations = remembering.to(torch.float64).explain(colours.double())
    assert {explanation.effects.dtype for explanation in explanations} == {torch.float64}
    for ours, theirs in zip(explanations, expected, strict=True):
        assert_same_explanation(ours, theirs, tolerance=1e-5)
        assert ours.check()
        with pytest.raises(StaleMemoryError, match="the model has changed or moved"):
            theirs.check()
    assert [explanation.flip_set for explanation in expected] == flip_sets


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_explanations_in_half_precision_hold(
    dtype: torch.dtype, remembering: MemoryClassifier, colours: Tensor
) -> None:
    for explanation in remembering.to(dtype).explain(colours.to(dtype)):
        assert explanation.check()
        assert explanation.effects.dtype == explanation.probabilities.dtype == torch.float32
        assert explanation.flip_set.tried <= 3


def test_a_loaded_model_explains_the_same(remembering: MemoryClassifier, colours: Tensor, tmp_path: Path) -> None:
    remembering.save(tmp_path)
    for ours, theirs in zip(memwrap.load(tmp_path).explain(colours), remembering.explain(colours), strict=True):
        assert_same_explanation(ours, theirs, tolerance=0)


def test_explanations_are_made_in_full_precision_under_autocast(remembering: MemoryClassifier, colours: Tensor) -> None:
    expected = remembering.explain(colours)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for ours, theirs in zip(remembering.explain(colours), expected, strict=True):
            assert_same_explanation(ours, theirs, tolerance=0)
            assert ours.check().logit_difference == pytest.approx(0, abs=1e-6)


def test_explaining_in_inference_mode_still_allows_training(remembering: MemoryClassifier, colours: Tensor) -> None:
    expected = remembering.explain(colours)
    with torch.inference_mode():
        explanations = remembering.explain(colours)
    for ours, theirs in zip(explanations, expected, strict=True):
        assert not ours.logits.requires_grad
        assert_same_explanation(ours, theirs, tolerance=0)
    remembering(colours).sum().backward()


def test_an_explanation_keeps_the_memory_that_it_was_made_with(
    remembering: MemoryClassifier, colours: Tensor, memory: Tensor
) -> None:
    explanation, expected = remembering.explain(colours)[0], remembering.explain(colours)[0]
    flip_set = expected.flip_set
    remembering.remember(memory[:3], [0, 1, 2])
    assert explanation.flip_set == flip_set
    assert explanation.check()
    remembering.forget()
    assert explanation.check()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_what_is_kept_may_be_given_on_the_cpu(remembering: MemoryClassifier, colours: Tensor) -> None:
    keep = torch.arange(len(remembering.remembered)) != 0
    expected = remembering.read(colours, keep=keep).weights
    with torch.no_grad():
        found = remembering.cuda().read(colours.cuda(), keep=keep).weights
    assert_close(found.cpu(), expected, atol=1e-4, rtol=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["highest", "medium"])
def test_explanations_on_a_gpu_agree(precision: str, remembering: MemoryClassifier, colours: Tensor) -> None:
    expected = remembering.double().explain(colours.double())
    for explanation in expected:
        _ = explanation.flip_set  # now, as the model moves
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        remembered = remembering.remembered
        with exact_convolutions(torch.empty(0, device="cuda")):
            model = remembering.float().cuda()
            model.remember(remembered.images, remembered.labels)
            for ours, theirs in zip(model.explain(colours.cuda()), expected, strict=True):
                assert_same_explanation(ours, theirs, tolerance=1e-5)
                assert ours.check()
    finally:
        torch.set_float32_matmul_precision(before)


BAD_IMAGES = {
    "no batch": (torch.randn(3, 8, 8), "has shape (3, 8, 8); expected"),
    "grey": (torch.randn(2, 1, 8, 8), "has shape (2, 1, 8, 8); expected"),
    "channels last": (torch.randn(2, 8, 8, 3), "channels come first: images.permute(0, 3, 1, 2)"),
    "int64": (torch.zeros(2, 3, 8, 8, dtype=torch.int64), "has dtype torch.int64; expected floating point, normalised"),
    "none": (torch.randn(0, 3, 8, 8), "is empty: its shape is (0, 3, 8, 8); give at least one image"),
    "double": (
        torch.randn(2, 3, 8, 8).double(),
        "of (3, 8, 8), torch.float64, on cpu; it was built with (3, 32, 32), torch.float32, on cpu",
    ),
}


@pytest.mark.parametrize("case", BAD_IMAGES)
def test_images_that_cannot_be_used_are_refused(
    case: str, model: MemoryClassifier, images: Tensor, memory: Tensor
) -> None:
    bad, message = BAD_IMAGES[case]
    for use in (
        lambda: model(bad, memory=memory),
        lambda: model(images, memory=bad),
        lambda: model.remember(bad, [0, 1]),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            use()


PIXELS = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (PIXELS, "has dtype torch.uint8; expected floating point, normalised"),
        (torch.randn(2, 3, 8, 8).numpy(), "is a ndarray; expected a float tensor"),
    ],
    ids=["uint8", "an array"],
)
def test_a_forward_pass_takes_tensors_as_the_classifier_does(
    bad: Any, message: str, model: MemoryClassifier, images: Tensor, memory: Tensor
) -> None:
    """Even where the transform is known: only `remember` takes pixels and arrays."""
    model.transform = TRANSFORM
    for use in (lambda: model(bad, memory=memory), lambda: model(images, memory=bad)):
        with pytest.raises(InputError, match=re.escape(message)):
            use()
    model.remember(bad, [0, 1])


def test_pixels_need_a_transform_to_be_remembered(model: MemoryClassifier) -> None:
    for pixels in (PIXELS, PIXELS.numpy()):
        with pytest.raises(InputError, match=re.escape("uint8 pixels need model.transform")):
            model.remember(pixels, [0, 1])
    assert model.remembered is None


def test_what_was_wrong_is_named(model: MemoryClassifier, images: Tensor) -> None:
    with pytest.raises(
        InputError, match=re.escape("memory has shape (4, 4); expected (M, 3, H, W) or (B, M, 3, H, W)")
    ):
        model(images, memory=torch.randn(4, 4))
    with pytest.raises(InputError, match=re.escape("the encoder cannot take memory of (3, 8, 8), torch.float64")):
        model(images, memory=images.double())
    with pytest.raises(InputError, match=re.escape("holds one memory for each of 2 inputs, but there are 5 images")):
        model(images, memory=torch.randn(2, 4, 3, 8, 8))


def test_a_single_image_is_refused_with_what_to_do(model: MemoryClassifier, memory: Tensor) -> None:
    with pytest.raises(InputError, match=re.escape("for a single image give image.unsqueeze(0)")):
        model(torch.randn(3, 8, 8), memory=memory)


def test_images_of_a_size_that_the_encoder_cannot_take_are_refused() -> None:
    model = memwrap.wrap(networks.Flattened())
    with pytest.raises(InputError, match=re.escape("(1, 28, 28), torch.float32, on cpu")):
        model(torch.randn(2, 1, 32, 32), memory=torch.randn(2, 1, 28, 28))


@pytest.mark.parametrize("library", ["timm", "transformers"])
def test_images_of_a_size_that_a_transformer_cannot_take_are_refused(library: str) -> None:
    if library == "timm":
        classifier = memwrap.encoders.create("timm:vit_tiny_patch16_224", 4, img_size=32)
    else:
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        classifier = transformers.ViTForImageClassification(
            transformers.ViTConfig(image_size=32, num_labels=4, **sizes)
        )
    model = memwrap.wrap(classifier).eval()
    with pytest.raises(InputError, match=re.escape("the encoder cannot take images of (3, 64, 64)")):
        model(torch.randn(2, 3, 64, 64), memory=torch.randn(2, 3, 32, 32))


def test_images_that_are_encoded_to_another_width_are_refused() -> None:
    classifier = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AvgPool2d(30), nn.Flatten(), nn.Linear(4, 2))
    model = memwrap.wrap(classifier)
    with pytest.raises(InputError, match=re.escape("are encoded to (2, 16); expected encodings of length 4")):
        model(torch.randn(2, 3, 64, 64), memory=torch.randn(2, 3, 32, 32))


def test_nan_in_an_image_does_not_stay_silent(model: MemoryClassifier, images: Tensor, memory: Tensor) -> None:
    bad = images.clone()
    bad[3, 0, 0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match=re.escape("encodings: 1 of 5 vectors hold NaN")):
        model(bad, memory=memory)
    with pytest.raises(NonFiniteError, match=re.escape("memory: 1 of 5 vectors hold NaN")):
        model(images, memory=bad)
    with pytest.raises(NonFiniteError, match=re.escape("(the first is number 3)")):
        model.remember(bad, [0] * 5)
    assert model.remembered is None


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")),
    ],
)
def test_predicting_from_a_remembered_memory_refuses_what_it_should(
    device: str, remembering: MemoryClassifier, colours: Tensor
) -> None:
    """On a GPU, which is at work while values are looked at, as on a CPU."""
    model, images = remembering.to(device), colours.to(device)
    bad = images.clone()
    bad[3, 0, 0, 0] = torch.nan
    with torch.inference_mode():
        assert model(images).isfinite().all()
        with pytest.raises(NonFiniteError, match=re.escape("encodings: 1 of 5 vectors hold NaN")):
            model(bad)
        with pytest.raises(NonFiniteError, match=re.escape("(the first is number 3)")):
            model.read(bad)
    with torch.no_grad():
        model.layer.head.second.bias[0] = torch.inf
    with pytest.raises(StaleMemoryError), torch.inference_mode():
        model(images)
    model.remember(model.remembered.images, model.remembered.labels)
    with pytest.raises(NonFiniteError, match="logits of 5 of 5 inputs are not finite"), torch.inference_mode():
        model(images)
    with pytest.raises(NonFiniteError, match="logits of 12 of 12 inputs are not finite"):
        _ = model.remembered.predictions
    model.forget()
    with pytest.raises(NoMemoryError), torch.inference_mode():
        model(images)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1], "memory holds 12 images but 2 labels; each image needs one"),
        ([4] * 12, "labels go from 4 to 4; expected 0 to 3, as the model has 4 classes"),
        ([-1] * 12, "labels go from -1 to -1"),
        ([0.5] * 12, "labels have shape (12,) and dtype torch.float32; expected integers of shape (12,)"),
        (None, "labels are missing; expected one class number for each image"),
        ([None] * 12, "labels cannot be read as integers (RuntimeError: Could not infer dtype of NoneType)"),
        (["cat"] * 12, "labels cannot be read as integers"),
    ],
)
def test_labels_that_cannot_be_used_are_refused(
    labels: list[int], message: str, model: MemoryClassifier, memory: Tensor
) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        model.remember(memory, labels)


def test_encoding_in_chunks_bounds_what_passes_at_once(model: MemoryClassifier, memory: Tensor, labels: Tensor) -> None:
    seen: list[int] = []
    model.encoder.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    model.remember(memory, labels, chunk_size=5)
    assert seen == [5, 5, 2]
    with pytest.raises(InputError, match="chunk_size is 0; expected at least 1"):
        model.remember(memory, labels, chunk_size=0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.uint16])
def test_labels_may_be_of_any_integer_type(dtype: torch.dtype, memory: Tensor) -> None:
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=300)).eval()
    model.remember(memory, torch.arange(100, 112).to(dtype))
    assert model.remembered.labels.tolist() == list(range(100, 112))


def test_a_memory_is_encoded_in_full_precision_under_autocast(
    model: MemoryClassifier, memory: Tensor, labels: Tensor
) -> None:
    expected = model.encode(memory)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model.remember(memory, labels)
    assert_close(model.remembered.encodings, expected)


def test_numbers_of_numpy_can_be_given_and_saved(images: Tensor, tmp_path: Path) -> None:
    model = memwrap.wrap(networks.Plain(), num_classes=np.int64(3), project=torch.tensor(4))
    model.save(tmp_path)
    assert model.layer.settings()["num_classes"] == 3


# As a module among modules


def test_hooks_on_model_encoder_and_layer_are_called(
    model: MemoryClassifier, images: Tensor, memory: Tensor, labels: Tensor
) -> None:
    model.remember(memory, labels)
    called: list[str] = []
    for name in ("", "encoder", "layer", "layer.head"):
        model.get_submodule(name).register_forward_hook(lambda *_, name=name: called.append(name))
    model(images, memory=memory)
    assert called == ["encoder", "encoder", "layer.head", "layer", ""]
    for way in ({}, {"memory": "batch"}):
        called.clear()
        model(images, **way)
        assert {"encoder", "layer", ""} <= set(called)


@pytest.mark.parametrize("count", [2, 5])
def test_with_the_batch_as_memory_each_half_is_encoded_and_read_apart(
    model: MemoryClassifier, count: int, images: Tensor
) -> None:
    model.train()
    halves = images[:count].tensor_split(2)
    state = copy.deepcopy(model.state_dict())
    first, second = (model.encode(half) for half in halves)
    expected = torch.cat([model.layer(first, second), model.layer(second, first)])
    statistics = copy.deepcopy(model.state_dict())
    model.load_state_dict(state)
    assert_close(model(images[:count], memory="batch"), expected)
    for name, value in model.state_dict().items():
        assert_close(value, statistics[name])


def test_a_memory_by_another_name_is_refused(model: MemoryClassifier, images: Tensor) -> None:
    with pytest.raises(InputError, match="'queue'"):
        model(images, memory="queue")


def test_a_transform_that_is_not_set_is_none_and_tools_can_look_at_the_model(
    model: MemoryClassifier, images: Tensor, memory: Tensor, labels: Tensor
) -> None:
    assert model.transform is None
    inspect.getmembers(model)
    with pytest.raises(InputError, match="transform"):
        model.get_transform()
    model.remember(memory, labels)
    for context in (torch.no_grad(), nullcontext()):
        with context, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = torch.jit.trace(model, images)
            assert_close(traced(images), model(images))


def test_per_sample_gradients_by_torch_func(model: MemoryClassifier, images: Tensor, memory: Tensor) -> None:
    parameters = dict(model.named_parameters())

    def logit(parameters: dict[str, Tensor], image: Tensor) -> Tensor:
        return torch.func.functional_call(model, parameters, (image.unsqueeze(0), memory))[0, 0]

    found = torch.func.vmap(torch.func.grad(logit), in_dims=(None, 0))(parameters, images)
    for row, image in enumerate(images):
        one = torch.autograd.grad(logit(parameters, image), list(parameters.values()), allow_unused=True)
        for name, expected in zip(parameters, one, strict=True):
            if expected is not None:
                assert_close(found[name][row], expected, atol=1e-5, rtol=1e-4)
