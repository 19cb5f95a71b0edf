"""An optimiser's state as named tensors: stored as safetensors, and put back as it was."""

import re

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.testing import assert_close

from memwrap.models.loading import Model
from memwrap.training.state import optimizer_tensors, restore_optimizer
from memwrap.training.trainer import optimizer_for
from tests.training.toys import same_weights, toy_model, toy_settings

KINDS = {"sgd": {"momentum_buffer"}, "adamw": {"step", "exp_avg", "exp_avg_sq"}}


def stepped(model: Model, optimizer: torch.optim.Optimizer, number: int) -> None:
    """One step by gradients that depend on this number alone."""
    generator = torch.Generator().manual_seed(number)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step()


def stored(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return load(save({name: tensor.clone() for name, tensor in tensors.items()}))


@pytest.mark.parametrize("name", KINDS)
def test_every_tensor_is_named_by_kind_and_parameter(name: str) -> None:
    model = toy_model()
    optimizer = optimizer_for(model, toy_settings(optimizer=name))
    assert optimizer_tensors(model, optimizer) == {}
    stepped(model, optimizer, 0)
    expected = {f"{kind} {parameter}" for kind in KINDS[name] for parameter, _ in model.named_parameters()}
    assert set(optimizer_tensors(model, optimizer)) == expected


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_optimiser_continues_with_its_stored_state(name: str, steps: int) -> None:
    settings, model = toy_settings(optimizer=name), toy_model()
    optimizer = optimizer_for(model, settings)
    for number in range(steps):
        stepped(model, optimizer, number)
    twin = toy_model(seed=99)
    twin.load_state_dict(model.state_dict())
    fresh = optimizer_for(twin, settings)
    restore_optimizer(twin, fresh, stored(optimizer_tensors(model, optimizer)), steps)
    for number in range(steps, steps + 3):
        stepped(model, optimizer, number)
        stepped(twin, fresh, number)
        assert same_weights(model, twin)


def test_what_is_restored_is_a_copy() -> None:
    model = toy_model()
    optimizer = optimizer_for(model, toy_settings(optimizer="adamw"))
    stepped(model, optimizer, 0)
    tensors = stored(optimizer_tensors(model, optimizer))
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    fresh = optimizer_for(model, toy_settings(optimizer="adamw"))
    restore_optimizer(model, fresh, tensors, 1)
    stepped(model, fresh, 1)
    assert_close(tensors, before, atol=0, rtol=0)


def test_parameters_that_do_not_learn_have_no_state() -> None:
    model = toy_model()
    model.encoder.requires_grad_(False)
    optimizer = optimizer_for(model, toy_settings())
    stepped(model, optimizer, 0)
    assert {key.split(" ")[1].split(".")[0] for key in optimizer_tensors(model, optimizer)} == {"layer"}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64, torch.float64, torch.bfloat16, torch.bool])
def test_tensors_of_another_kind_are_refused(name: str, dtype: torch.dtype) -> None:
    model, settings = toy_model(), toy_settings(optimizer=name)
    optimizer = optimizer_for(model, settings)
    stepped(model, optimizer, 0)
    tensors = stored(optimizer_tensors(model, optimizer))
    for kind in KINDS[name]:
        key = next(each for each in tensors if each.startswith(f"{kind} "))
        with pytest.raises(ValueError, match=re.escape(f"{key} is of {dtype}")):
            restore_optimizer(model, optimizer_for(model, settings), {**tensors, key: tensors[key].to(dtype)}, 1)


@pytest.mark.parametrize("name", KINDS)
def test_a_state_that_lacks_tensors_is_refused_after_a_step(name: str) -> None:
    model, settings = toy_model(), toy_settings(optimizer=name)
    optimizer = optimizer_for(model, settings)
    restore_optimizer(model, optimizer, {}, 0)
    stepped(model, optimizer, 0)
    tensors = stored(optimizer_tensors(model, optimizer))
    layer = {key for key in tensors if key.split(" ")[1].startswith("layer.")}
    parts = [{}, {key: tensors[key] for key in layer}, {key: tensors[key] for key in tensors if key not in layer}]
    lacking = [{key: tensors[key] for key in tensors if key != left_out} for left_out in layer]
    if name == "adamw":  # all of a parameter or nothing
        lacking += [{key: tensors[key] for key in tensors if key != left_out} for left_out in tensors]
    for some in parts + lacking:
        with pytest.raises(ValueError, match="lacks"):
            restore_optimizer(model, optimizer_for(model, settings), some, 1)


def test_states_that_an_optimiser_does_not_have_are_refused() -> None:
    model = toy_model()
    name, parameter = next(iter(model.named_parameters()))
    without = optimizer_for(model, toy_settings(momentum=0))
    restore_optimizer(model, without, {}, 3)
    for kind in ("momentum_buffer", "exp_avg", "lr"):
        with pytest.raises(ValueError, match=kind):
            restore_optimizer(model, without, {f"{kind} {name}": parameter.detach().clone()}, 3)


def test_parameters_that_no_gradient_reaches_may_have_no_state() -> None:
    model, settings = toy_model(), toy_settings()
    optimizer = optimizer_for(model, settings)
    stepped(model, optimizer, 0)
    tensors = stored(optimizer_tensors(model, optimizer))
    key = next(each for each in tensors if each.split(" ")[1].startswith("encoder."))
    del tensors[key]
    restore_optimizer(model, optimizer_for(model, settings), tensors, 1)


@pytest.mark.parametrize("variant", ["memory_wrap", "only_memory", "standard"])
def test_frozen_encoders_have_no_state(variant: str) -> None:
    model = toy_model(variant)
    model.encoder.requires_grad_(False)
    optimizer = optimizer_for(model, toy_settings())
    stepped(model, optimizer, 0)
    tensors = stored(optimizer_tensors(model, optimizer))
    restore_optimizer(model, optimizer_for(model, toy_settings()), tensors, 1)
    name, parameter = next(iter(model.encoder.named_parameters()))
    with pytest.raises(KeyError):
        restore_optimizer(model, optimizer, {**tensors, f"momentum_buffer encoder.{name}": parameter.detach()}, 1)
