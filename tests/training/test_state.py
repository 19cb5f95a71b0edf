"""An optimiser's state as named tensors: stored as safetensors, and put back as it was."""

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
    restore_optimizer(twin, fresh, stored(optimizer_tensors(model, optimizer)))
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
    restore_optimizer(model, fresh, tensors)
    stepped(model, fresh, 1)
    assert_close(tensors, before, atol=0, rtol=0)


def test_parameters_that_do_not_learn_have_no_state() -> None:
    model = toy_model()
    model.encoder.requires_grad_(False)
    optimizer = optimizer_for(model, toy_settings())
    stepped(model, optimizer, 0)
    assert {key.split(" ")[1].split(".")[0] for key in optimizer_tensors(model, optimizer)} == {"layer"}
