"""Global average pooling and channel scaling by kernels against torch in float64."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from memwrap import InputError
from tests.with_kernels import DEVICE, INTERPRETED, needs_triton

SHAPES = [
    (1, 8, 1, 1),
    (5, 20, 2, 2),  # rows that are not aligned
    (4, 65, 3, 5),
    (3, 8, 2, 2),
    (2, 96, 16, 16),  # more positions than a program takes at a time
]


def numbers(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """In channels_last, with a mean unlike zero, so that wrong sums show."""
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) + 0.5
    return drawn.to(DEVICE, dtype, memory_format=torch.channels_last)


def exactly(tensor: Tensor) -> Tensor:
    return tensor.detach().double().requires_grad_()


def assert_rounded(found: Tensor, exact: Tensor, numbers_added: int) -> None:
    """Rounded once, at the end, from float32."""
    once = torch.finfo(found.dtype).eps / (1 if INTERPRETED else 2)  # the interpreter truncates
    assert_close(found.double(), exact, rtol=once + 1e-6, atol=1e-6 * numbers_added)


def is_channels_last(maps: Tensor) -> bool:
    return maps.is_contiguous(memory_format=torch.channels_last)


def check_pool(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    from memwrap.fused.kernels.squeeze_excitation import global_average_pool

    maps = numbers(*shape, dtype=dtype).requires_grad_()
    exact_maps = exactly(maps)
    found, exact = global_average_pool(maps), exact_maps.mean(dim=(2, 3), keepdim=True)
    assert found.dtype == dtype
    assert_rounded(found, exact, numbers_added=1)
    gradient = numbers(*exact.shape, dtype=dtype, seed=1)
    (of_maps,) = torch.autograd.grad(found, maps, gradient)
    (exact_of_maps,) = torch.autograd.grad(exact, exact_maps, gradient.double())
    assert is_channels_last(of_maps)
    assert_rounded(of_maps, exact_of_maps, numbers_added=1)


def check_scale(shape: tuple[int, int, int, int], dtype: torch.dtype, gates_dtype: torch.dtype) -> None:
    from memwrap.fused.kernels.squeeze_excitation import scale_channels

    maps = numbers(*shape, dtype=dtype).requires_grad_()
    gates = numbers(*shape[:2], 1, 1, dtype=gates_dtype, seed=1).requires_grad_()
    exact_maps, exact_gates = exactly(maps), exactly(gates)
    found, exact = scale_channels(maps, gates), exact_maps * exact_gates
    assert found.dtype == dtype
    assert is_channels_last(found)
    assert_rounded(found, exact, numbers_added=1)
    gradient = numbers(*shape, dtype=dtype, seed=2)
    of_maps, of_gates = torch.autograd.grad(found, (maps, gates), gradient)
    exact_of_maps, exact_of_gates = torch.autograd.grad(exact, (exact_maps, exact_gates), gradient.double())
    assert of_gates.dtype == gates_dtype
    assert is_channels_last(of_maps)
    assert_rounded(of_maps, exact_of_maps, numbers_added=1)
    assert_rounded(of_gates, exact_of_gates, numbers_added=shape[2] * shape[3])


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_global_average_pool(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    check_pool(shape, dtype)


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_scale_channels(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    check_scale(shape, dtype, dtype)


@needs_triton
def test_maps_and_gates_may_differ_in_dtype() -> None:
    check_scale((2, 8, 2, 2), torch.bfloat16, torch.float32)
    check_scale((2, 8, 2, 2), torch.float32, torch.bfloat16)


@needs_triton
def test_several_programs_share_the_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """With small tiles: 2 images per program, and 1 for the last."""
    from memwrap.fused.kernels import squeeze_excitation

    monkeypatch.setattr(squeeze_excitation, "_TILE", 128)
    shape = (5, 40, 2, 2)
    assert squeeze_excitation._image_grid(torch.empty(shape)) == (3 * 3,)  # times blocks of channels
    check_pool(shape, torch.float32)
    check_scale(shape, torch.float32, torch.float32)


@needs_triton
def test_any_layout_gives_the_same() -> None:
    from memwrap.fused.kernels.squeeze_excitation import global_average_pool, scale_channels

    maps, gates = numbers(3, 8, 2, 3, dtype=torch.float32), numbers(3, 8, 1, 1, dtype=torch.float32, seed=1)
    turned = gates.flatten(1).t().contiguous().t().view(3, 8, 1, 1)
    among_others = numbers(3, 8, 2, 2, dtype=torch.float32)[:, :, :1, :1].copy_(gates)
    in_planes = maps.contiguous()
    assert not any(each.is_contiguous() for each in (turned, among_others))
    assert not is_channels_last(in_planes)
    expected = scale_channels(maps, gates)
    assert scale_channels(maps, turned).equal(expected)
    assert scale_channels(maps, among_others).equal(expected)
    assert scale_channels(in_planes, gates).equal(expected)
    assert is_channels_last(scale_channels(in_planes, gates))
    assert global_average_pool(in_planes).equal(global_average_pool(maps))


@needs_triton
def test_gradients_may_have_any_layout() -> None:
    """The gradient of a sum is one value, expanded."""
    from memwrap.fused.kernels.squeeze_excitation import global_average_pool, scale_channels

    maps = numbers(2, 8, 2, 3, dtype=torch.float32).requires_grad_()
    gates = numbers(2, 8, 1, 1, dtype=torch.float32, seed=1).requires_grad_()
    of_maps, of_gates = torch.autograd.grad(scale_channels(maps, gates).sum(), (maps, gates))
    assert of_maps.equal(gates.detach().expand_as(maps))
    assert_close(of_gates, maps.detach().sum(dim=(2, 3), keepdim=True))
    (of_maps,) = torch.autograd.grad(global_average_pool(maps).sum(), maps)
    assert_close(of_maps, torch.full_like(maps, 1 / 6))


@needs_triton
def test_gates_of_another_shape_are_refused() -> None:
    from memwrap.fused.kernels.squeeze_excitation import scale_channels

    maps = torch.zeros(2, 8, 2, 2, device=DEVICE)
    with pytest.raises(InputError, match=r"\(1, 8, 1, 1\) .* \(2, 8, 2, 2\)"):
        scale_channels(maps, torch.zeros(1, 8, 1, 1, device=DEVICE))


@needs_triton
def test_too_many_elements_are_refused() -> None:
    from memwrap.fused.kernels.squeeze_excitation import global_average_pool, scale_channels

    maps = torch.zeros(1, 1, 1, 1).expand(2**16, 2**15, 1, 1)
    with pytest.raises(InputError, match="2147483648"):
        global_average_pool(maps)
    with pytest.raises(InputError, match="2147483648"):
        scale_channels(maps, maps)
