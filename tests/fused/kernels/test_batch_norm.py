"""Fused batch normalisation against torch in float64."""

import pytest
import torch
from torch.testing import assert_close

from memwrap import InputError
from memwrap.fused.kernels.norm import Norm
from tests.fused.kernels.reference import IMAGES, maps_of, reference_batch_norm, twin, with_gradients
from tests.with_kernels import DEVICE, INTERPRETED, needs_triton


def check_normalisation(runs: int, channels: int, side: int, mean: float, first: int, activation: str) -> None:
    from memwrap.fused.kernels.batch_norm import batch_norm

    own_means = mean * torch.arange(1, runs + 1, device=DEVICE).repeat_interleave(IMAGES).view(-1, 1, 1, 1)
    maps = twin(maps_of(runs * IMAGES, channels, side, side) + own_means)
    weight, bias = (torch.randn(runs, channels, device=DEVICE, requires_grad=True) for _ in range(2))
    running = torch.randn(runs, channels, device=DEVICE), torch.rand(runs, channels, device=DEVICE)
    slow_running = running[0].double(), running[1].double()
    inputs = [twin(each.double()) for each in (maps, weight, bias)]
    expected = reference_batch_norm(*inputs, slow_running, activation, first)
    out = batch_norm(maps, Norm(weight, bias, *running, 0.1, 1e-5), activation, None if first == IMAGES else first)
    found, wanted = with_gradients(out, maps, weight, bias), with_gradients(expected, *inputs)
    for one, other in zip(found, wanted, strict=True):
        assert_close(one.double(), other, atol=2e-4, rtol=1e-4)
    assert_close(running[0].double(), slow_running[0], atol=1e-5, rtol=1e-5)
    assert_close(running[1].double(), slow_running[1], atol=1e-5, rtol=1e-4)


@needs_triton
@pytest.mark.parametrize(
    ("runs", "channels", "side", "mean", "first", "activation"),
    [
        (1, 24, 6, 0.0, 5, "none"),
        (2, 24, 6, 0.0, 3, "relu"),
        (1, 24, 6, 0.0, 1, "silu"),
        (1, 96, 3, 50.0, 5, "silu"),  # far from zero
        (2, 40, 3, 300.0, 2, "relu"),
        (3, 20, 4, -3.0, 4, "relu"),  # rows that are not aligned
        (3, 3, 1, 0.0, 3, "none"),
        (1, 65, 5, 1.0, 3, "silu"),
    ],
)
def test_both_parts_with_activation(
    runs: int, channels: int, side: int, mean: float, first: int, activation: str
) -> None:
    check_normalisation(runs, channels, side, mean, first, activation)


@needs_triton
@pytest.mark.parametrize(("activation", "first"), [("none", 2), ("relu", IMAGES), ("silu", 3)])
def test_maps_in_bfloat16_are_rounded_once(activation: str, first: int) -> None:
    from memwrap.fused.kernels.batch_norm import batch_norm

    maps = maps_of(2 * IMAGES, 24, 3, 3).detach().bfloat16().requires_grad_()
    weight, bias = (torch.randn(2, 24, device=DEVICE, requires_grad=True) for _ in range(2))
    running = torch.zeros(2, 24, device=DEVICE), torch.ones(2, 24, device=DEVICE)
    inputs = [twin(each.double()) for each in (maps, weight, bias)]
    expected = reference_batch_norm(*inputs, (running[0].double(), running[1].double()), activation, first)
    out = batch_norm(maps, Norm(weight, bias, *running, 0.1, 1e-5), activation, first)
    assert out.dtype == torch.bfloat16
    once = torch.finfo(torch.bfloat16).eps / (1 if INTERPRETED else 2)  # the interpreter truncates
    assert_close(out.double(), expected, atol=1e-5, rtol=once + 1e-5)
    gradient = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    found = torch.autograd.grad(out, (maps, weight, bias), gradient)
    wanted = torch.autograd.grad(expected, inputs, gradient.double())
    assert_close(found[0].double(), wanted[0], atol=1e-4, rtol=once + 1e-4)
    for one, other in zip(found[1:], wanted[1:], strict=True):
        assert_close(one.double(), other, atol=1e-3, rtol=1e-4)


@needs_triton
@pytest.mark.parametrize(("activation", "first"), [("none", IMAGES), ("none", 2), ("relu", IMAGES), ("relu", 3)])
def test_a_shortcut_is_added_before_the_activation(activation: str, first: int) -> None:
    from memwrap.fused.kernels.batch_norm import batch_norm

    runs, channels = 2, 20
    maps, added = maps_of(runs * IMAGES, channels, 3, 2), twin(maps_of(runs * IMAGES, channels, 2, 3).mT)
    weight, bias = (torch.randn(runs, channels, device=DEVICE, requires_grad=True) for _ in range(2))
    running = torch.zeros(runs, channels, device=DEVICE), torch.ones(runs, channels, device=DEVICE)
    inputs = [twin(each.double()) for each in (maps, weight, bias, added)]
    slow_running = running[0].double(), running[1].double()
    expected = reference_batch_norm(*inputs[:3], slow_running, "none", first) + inputs[3]
    if activation == "relu":
        expected = expected.relu()
    out = batch_norm(maps, Norm(weight, bias, *running, 0.1, 1e-5), activation, first, added)
    found, wanted = with_gradients(out, maps, weight, bias, added), with_gradients(expected, *inputs)
    for one, other in zip(found, wanted, strict=True):
        assert_close(one.double(), other, atol=2e-4, rtol=1e-4)


@needs_triton
def test_many_chunks_of_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The division of large maps, with small tiles."""
    from memwrap.fused.kernels import batch_norm as module

    monkeypatch.setattr(module, "_TILE", 256)
    monkeypatch.setitem(module._REDUCING, "tile", 256)
    monkeypatch.setitem(module._REDUCING, "programs", 10)
    monkeypatch.setattr(module, "_PARTIALS", 2)
    split = module.RowGrid(2, IMAGES * 16, 3 * 16, 24)
    assert (split.chunk, split.first_chunks, split.chunks) == (2 * split.reduced_r, 3, 5)
    check_normalisation(2, 24, 4, 100.0, 3, "relu")


@needs_triton
def test_running_statistics_must_be_contiguous() -> None:
    from memwrap.fused.kernels.batch_norm import batch_norm

    maps, room = maps_of(4, 8, 2, 2), torch.rand(2, 2 * 8, device=DEVICE)
    weight, bias = room[:, :8], room[:, 8:]
    running = torch.zeros(2, 8, device=DEVICE), torch.ones(2, 8, device=DEVICE)
    expected = batch_norm(maps, Norm(weight.clone(), bias.clone(), *running, 0.1, 1e-5))
    assert batch_norm(maps, Norm(weight, bias, *running, 0.1, 1e-5)).equal(expected)
    with pytest.raises(InputError, match="running statistics"):
        batch_norm(maps, Norm(weight, bias, running[0], room[:, :8], 0.1, 1e-5))
