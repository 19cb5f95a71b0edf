"""Depthwise convolutions, alone and between normalisations, against torch in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.testing import assert_close

from memwrap import InputError
from memwrap.fused.kernels.norm import Norm
from tests.fused.kernels.reference import IMAGES, maps_of, reference_batch_norm, twin, with_gradients
from tests.with_kernels import DEVICE, needs_triton


def check_depthwise(
    runs: int,
    channels: int,
    height: int,
    width: int,
    kernel: int,
    stride: int,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Against torch, run by run. dtype: of the weight."""
    from memwrap.fused.kernels.depthwise import depthwise

    maps = maps_of(runs * 3, channels, height, width)
    weight = torch.randn(runs, channels, 1, kernel, kernel, device=DEVICE).to(dtype).requires_grad_()
    slow_maps, slow_weight = twin(maps.double()), twin(weight.double())
    expected = torch.cat(
        [
            functional.conv2d(images, own, None, stride, kernel // 2, groups=channels)
            for images, own in zip(slow_maps.split(3), slow_weight, strict=True)
        ]
    )
    out = depthwise(maps, weight, stride)
    assert out.is_contiguous(memory_format=torch.channels_last)
    found = with_gradients(out, maps, weight)
    wanted = with_gradients(expected, slow_maps, slow_weight)
    for one, other in zip(found[:2], wanted[:2], strict=True):
        assert_close(one.double(), other, atol=1e-4, rtol=1e-4)
    assert_close(found[2].double(), wanted[2], atol=1e-4, rtol=max(1e-4, torch.finfo(dtype).eps))


def cut_small(monkeypatch: pytest.MonkeyPatch, tile: int, rows: int, programs: int) -> None:
    """Divide small maps as large ones are divided."""
    from memwrap.fused.kernels import depthwise_kernels

    for stride in (1, 2):
        there = {"tile": tile, "warps": 2, "rows": 4 // stride}
        back = {"tile": tile, "warps": 2, "rows": rows, "programs": programs}
        monkeypatch.setitem(depthwise_kernels._FORWARD, (3, stride), there)
        monkeypatch.setitem(depthwise_kernels._BACKWARD, (3, stride), back)


# The interpreter warns of zero times infinity in the padding, of which relu makes zero.
quietly = pytest.mark.filterwarnings("ignore:invalid value encountered in multiply:RuntimeWarning")


def check_normalised_depthwise(
    runs: int, channels: int, height: int, width: int, kernel: int, first: int, activation: str, stride: int
) -> None:
    """Output, gradients and statistics against torch in double precision, part by part."""
    from memwrap.fused.kernels.batch_norm import batch_norm
    from memwrap.fused.kernels.depthwise import normalised_depthwise

    maps = maps_of(runs * IMAGES, channels, height, width)
    weights = [torch.randn(runs, channels, device=DEVICE) for _ in range(4)]
    weights[0][:, 1] = 0  # this channel is its bias inside the maps, and zero in the padding
    weights[1][:, 1] = 1
    weights[1][:, 2] = -30  # relu makes this channel zero
    weights = [twin(each) for each in weights]
    running = [torch.rand(runs, channels, device=DEVICE) for _ in range(4)]
    taps = torch.randn(runs, channels, 1, kernel, kernel, device=DEVICE, requires_grad=True)
    inputs = [twin(each.double()) for each in (maps, *weights, taps)]
    slow = [each.double() for each in running]
    before = reference_batch_norm(*inputs[:3], (slow[0], slow[1]), activation, first)
    between = torch.cat(
        [
            functional.conv2d(images, own, None, stride, kernel // 2, groups=channels)
            for images, own in zip(before.split(IMAGES), inputs[5], strict=True)
        ]
    )
    expected = reference_batch_norm(between, inputs[3], inputs[4], (slow[2], slow[3]), "relu", first)
    part = None if first == IMAGES else first
    found, moments = normalised_depthwise(
        maps, Norm(*weights[:2], *running[:2], 0.1, 1e-5), activation, part, taps, stride
    )
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert_close(found.double(), between, atol=2e-4, rtol=1e-4)
    out = batch_norm(found, Norm(*weights[2:], *running[2:], 0.1, 1e-5), "relu", part, moments=moments)
    for one, other in zip(with_gradients(out, maps, *weights, taps), with_gradients(expected, *inputs), strict=True):
        assert_close(one.double(), other, atol=1e-3, rtol=1e-3)
    for one, other in zip(running, slow, strict=True):
        assert_close(one.double(), other, atol=1e-4, rtol=1e-4)


@needs_triton
@pytest.mark.parametrize(
    ("runs", "channels", "height", "width", "kernel", "stride", "dtype"),
    [
        (1, 24, 8, 6, 3, 1, torch.float32),  # whole strips
        (1, 24, 8, 6, 3, 2, torch.float32),
        (1, 8, 4, 6, 5, 1, torch.float32),
        (1, 8, 4, 6, 5, 2, torch.float32),
        (2, 12, 3, 5, 3, 1, torch.bfloat16),  # rows that are not aligned
        (2, 12, 3, 5, 3, 2, torch.bfloat16),
        (1, 12, 5, 3, 5, 1, torch.bfloat16),
        (2, 12, 3, 5, 5, 2, torch.bfloat16),
        (1, 8, 1, 1, 3, 1, torch.float32),
        (1, 8, 1, 1, 3, 2, torch.float32),
        (1, 8, 1, 1, 5, 1, torch.float32),
        (1, 8, 1, 1, 5, 2, torch.float32),
        (3, 12, 2, 3, 3, 1, torch.float32),
        (1, 8, 5, 1, 3, 1, torch.float32),  # maps that end within a strip
        (1, 8, 9, 3, 3, 1, torch.float32),
        (1, 8, 9, 3, 3, 2, torch.float32),
        (1, 8, 5, 2, 5, 2, torch.float32),
        (1, 8, 8, 7, 3, 2, torch.float32),
        (1, 122, 2, 1, 3, 1, torch.float32),  # two blocks of channels
        (1, 122, 2, 1, 3, 2, torch.float32),
    ],
)
def test_forward_and_backward(
    runs: int, channels: int, height: int, width: int, kernel: int, stride: int, dtype: torch.dtype
) -> None:
    check_depthwise(runs, channels, height, width, kernel, stride, dtype)


@needs_triton
def test_maps_in_bfloat16_are_rounded_once() -> None:
    from memwrap.fused.kernels.depthwise import depthwise

    maps, weight = maps_of(2, 8, 4, 3).detach().bfloat16(), torch.randn(1, 8, 1, 3, 3, device=DEVICE).bfloat16()
    expected = functional.conv2d(maps.double(), weight[0].double(), None, 1, 1, groups=8)
    out = depthwise(maps, weight)
    assert out.dtype == torch.bfloat16
    assert_close(out.double(), expected, atol=1e-3, rtol=torch.finfo(torch.bfloat16).eps)


@needs_triton
@pytest.mark.parametrize(("stride", "tile"), [(1, 64), (2, 32)])
def test_many_tiles_and_chunks_of_several_strips(stride: int, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The division of large maps, with small tiles: 2 x 2 strips per run, in chunks of 3 and 1."""
    from memwrap.fused.kernels import depthwise, depthwise_kernels

    cut_small(monkeypatch, tile, rows=4, programs=3)
    monkeypatch.setattr(depthwise_kernels, "_PARTIALS", 2)
    chunks = []
    merge_weight_gradient = depthwise.merge_weight_gradient

    def noted(partial: Tensor, weight: Tensor) -> Tensor:
        chunks.append(partial.shape[1])
        return merge_weight_gradient(partial, weight)

    monkeypatch.setattr(depthwise, "merge_weight_gradient", noted)
    check_depthwise(2, 8, 5, 3, 3, stride)
    assert chunks == [2]


@needs_triton
def test_tap_gradients_are_summed_in_the_layout_and_dtype_of_the_weight() -> None:
    from memwrap.fused.kernels.depthwise_kernels import merge_weight_gradient

    partial, weight = torch.randn(2, 3, 9, 4, device=DEVICE), torch.zeros(2, 4, 1, 3, 3, device=DEVICE)
    expected = partial.sum(1).transpose(1, 2).reshape(weight.shape)
    assert_close(merge_weight_gradient(partial, weight), expected)
    assert_close(merge_weight_gradient(partial, weight.bfloat16()), expected.bfloat16())


@quietly
@needs_triton
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("runs", "channels", "height", "width", "kernel", "first", "activation"),
    [
        (1, 24, 8, 2, 3, IMAGES, "relu"),
        (2, 12, 3, 3, 3, 3, "relu"),  # rows that are not aligned
        (1, 8, 5, 3, 5, 2, "silu"),
        (1, 122, 4, 1, 3, 2, "none"),  # two blocks of channels
        (1, 8, 9, 3, 3, 4, "relu"),
        (1, 8, 1, 3, 5, 0, "silu"),
        (1, 24, 8, 4, 3, 2, "none"),  # whole strips, in programs with room for more
    ],
)
def test_between_two_normalisations(
    runs: int, channels: int, height: int, width: int, kernel: int, first: int, activation: str, stride: int
) -> None:
    check_normalised_depthwise(runs, channels, height, width, kernel, first, activation, stride)


@quietly
@needs_triton
@pytest.mark.parametrize("stride", [1, 2])
def test_between_two_normalisations_in_many_chunks(stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_small(monkeypatch, 32, rows=2, programs=5)
    check_normalised_depthwise(2, 8, 5, 3, 3, 2, "relu", stride)


@quietly
@needs_triton
@pytest.mark.parametrize("first", [IMAGES, 2])
def test_moments_of_values_far_from_zero(first: int) -> None:
    """1x1 maps with a large mean: moments about zero would lose half of the digits."""
    from memwrap.fused.kernels.batch_norm import batch_norm
    from memwrap.fused.kernels.depthwise import normalised_depthwise

    maps, ones = maps_of(2 * IMAGES, 8, 1, 1), torch.ones(2, 8, device=DEVICE)
    own = Norm(ones, 1000 * ones, 0 * ones, 1 * ones, 0.1, 1e-5)
    taps = torch.randn(2, 8, 1, 3, 3, device=DEVICE)
    found, moments = normalised_depthwise(maps, own, "relu", first, taps, 1)
    after = Norm(ones, 0 * ones, ones.clone(), ones.clone(), 0.1, 1e-5)
    exact = [each.double() if isinstance(each, Tensor) else each for each in after]
    expected = reference_batch_norm(found.double(), *exact[:2], (exact[2], exact[3]), "none", first)
    assert_close(batch_norm(found, after, "none", first, moments=moments).double(), expected, atol=1e-2, rtol=1e-2)


@quietly
@needs_triton
@pytest.mark.parametrize("gamma", [0.0, 0.01, 1.0])
def test_moments_are_of_the_rounded_maps(gamma: float) -> None:
    """Where all values are nearly equal, normalisation amplifies a difference by rounding."""
    from memwrap.fused.kernels.batch_norm import batch_norm
    from memwrap.fused.kernels.depthwise import normalised_depthwise

    maps, ones = maps_of(2 * IMAGES, 8, 1, 1).detach().bfloat16(), torch.ones(2, 8, device=DEVICE)
    own = Norm(gamma * ones, 1.3 * ones, 0 * ones, 1 * ones, 0.1, 1e-5)
    found, moments = normalised_depthwise(maps, own, "relu", 3, torch.randn(2, 8, 1, 3, 3, device=DEVICE).bfloat16(), 1)
    after = [Norm(ones, 0 * ones, 0 * ones, 1 * ones, 0.1, 1e-5) for _ in range(2)]
    expected = batch_norm(found, after[0], "none", 3)
    assert_close(batch_norm(found, after[1], "none", 3, moments=moments), expected, atol=2e-3, rtol=0.01)


@needs_triton
def test_too_many_elements_are_refused() -> None:
    from memwrap.fused.kernels.depthwise import depthwise

    maps = torch.zeros(1, 1, 1, 1).expand(2**16, 2**15, 1, 1)
    with pytest.raises(InputError, match="2147483648"):
        depthwise(maps, torch.zeros(1, 2**15, 1, 3, 3))


# Tensors are made on the device: to move one there makes it contiguous.
@needs_triton
@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        (lambda: {"first": 3}, "3 images in runs of 2"),
        (lambda: {"first": -1}, "-1 images in runs of 2"),
        (lambda: {"activation": "gelu"}, "'gelu'; expected one of none, relu, silu"),
        (lambda: {"running_var": torch.ones(2, 16, device=DEVICE)[:, :8]}, "running statistics are not contiguous"),
        (lambda: {"kernel": torch.ones(1, 8, 1, 3, 3, device=DEVICE)}, "kernels of 1 runs .* of 2 runs"),
        (lambda: {"stride": 3}, "stride 3"),
    ],
)
def test_invalid_arguments_are_refused(changes: Callable[[], dict[str, Any]], reported: str) -> None:
    from memwrap.fused.kernels.depthwise import normalised_depthwise

    norm = Norm(*(torch.ones(2, 8, device=DEVICE) for _ in range(4)), 0.1, 1e-5)
    given = {"activation": "relu", "first": 1, "stride": 1, "kernel": torch.ones(2, 8, 1, 3, 3, device=DEVICE)}
    given |= changes()
    norm = norm._replace(running_var=given.pop("running_var", norm.running_var))
    with pytest.raises(InputError, match=reported):
        normalised_depthwise(maps_of(4, 8, 2, 2), norm, **given)


@needs_triton
def test_batches_that_do_not_divide_by_runs_are_refused() -> None:
    from memwrap.fused.kernels.batch_norm import batch_norm
    from memwrap.fused.kernels.depthwise import depthwise
    from memwrap.fused.kernels.dropout import dropout

    maps, weight = maps_of(5, 8, 2, 2), torch.ones(2, 8, device=DEVICE)
    uneven = "5 images for 2 runs"
    with pytest.raises(InputError, match=uneven):
        batch_norm(maps, Norm(weight, weight, weight, weight, 0.1, 1e-5))
    with pytest.raises(InputError, match=uneven):
        depthwise(maps, torch.ones(2, 8, 1, 3, 3, device=DEVICE))
    with pytest.raises(InputError, match=uneven):
        dropout(maps, 0.2, torch.tensor([1, 2], device=DEVICE), 0)
    with pytest.raises(InputError, match="3 images in runs of 2"):
        batch_norm(maps[:4], Norm(weight, weight, weight, weight, 0.1, 1e-5), first=3)


@needs_triton
@pytest.mark.parametrize(("shape", "stride"), [((1, 8, 1, 7, 7), 1), ((1, 8, 1, 3, 3), 3), ((1, 4, 1, 3, 3), 1)])
def test_unsupported_kernels_and_strides_are_refused(shape: tuple[int, ...], stride: int) -> None:
    from memwrap.fused.kernels.depthwise import depthwise

    with pytest.raises(InputError, match=r"\(runs, 8, 1, 3, 3\) or \(runs, 8, 1, 5, 5\), and stride 1 or 2"):
        depthwise(maps_of(2, 8, 4, 4), torch.zeros(shape, device=DEVICE), stride)
