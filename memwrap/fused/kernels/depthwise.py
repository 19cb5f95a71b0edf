"""Depthwise convolutions in training mode, fused with the normalisations around them, for maps in channels_last.

A depthwise convolution is bound by memory bandwidth, of which torch's kernels reach a small part. Here the forward pass
normalises and activates the maps as it reads them, so they are not written, and sums the moments that the next
normalisation needs. The backward pass sums what the gradient of the previous normalisation needs. The batch may hold
several runs, each with its own weights.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from memwrap.errors import InputError
from memwrap.fused.kernels.batch_norm import (
    ACTIVATIONS,
    RowGrid,
    Sums,
    batch_norm_backward,
    check_arguments,
    compute_statistics,
    normalise,
)
from memwrap.fused.kernels.depthwise_kernels import (
    ConvInput,
    convolve,
    convolve_backward,
    convolve_with_moments,
    merge_weight_gradient,
)
from memwrap.fused.kernels.norm import Norm
from memwrap.fused.kernels.streams import run_concurrently
from memwrap.fused.kernels.tiling import images_per_run, to_channels_last


def depthwise(maps: Tensor, weight: Tensor, stride: int = 1) -> Tensor:
    """maps (S * N, C, H, W) in channels_last, weight (S, C, 1, K, K) -> (S * N, C, ceil(H / stride), ceil(W / stride))

    S runs of N images each. K is 3 or 5, the padding K // 2, the stride 1 or 2.
    """
    _check(maps, weight, stride)
    out: Tensor = _Depthwise.apply(maps, weight, stride)
    return out


def normalised_depthwise(
    maps: Tensor, norm: Norm, activation: str, first: int | None, kernel: Tensor, stride: int
) -> tuple[Tensor, Sums]:
    """`depthwise(batch_norm(maps), kernel)`, kernel (S, C, 1, K, K), and its moments for the next `batch_norm`."""
    _check(maps, kernel, stride)
    runs = len(norm.weight)
    if len(kernel) != runs:
        raise InputError(f"kernels of {len(kernel)} runs after a normalisation of {runs} runs; expected {runs}")
    first = check_arguments(maps, norm, activation, first)
    found: tuple[Tensor, Sums] = _NormalisedDepthwise.apply(
        maps, norm.weight, norm.bias, norm, ACTIVATIONS[activation], first, kernel, stride
    )
    return found


def _check(maps: Tensor, weight: Tensor, stride: int) -> None:
    channels = maps.shape[1]
    if weight.shape[1:] not in ((channels, 1, 3, 3), (channels, 1, 5, 5)) or stride not in (1, 2):
        raise InputError(
            f"weights of shape {tuple(weight.shape)} with stride {stride} for maps of shape {tuple(maps.shape)}; "
            f"expected (runs, {channels}, 1, 3, 3) or (runs, {channels}, 1, 5, 5), and stride 1 or 2"
        )


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor, stride: int) -> Tensor:
        maps, taps = to_channels_last(maps), _taps_first(weight)
        ctx.save_for_backward(maps, weight, taps)
        ctx.stride = stride
        out = _empty_output(maps, stride)
        convolve(ConvInput(maps, images_per_run(maps, len(taps))), taps, out, stride)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        maps, weight, taps = ctx.saved_tensors
        source = ConvInput(maps, images_per_run(maps, len(taps)))
        of_maps, of_taps, _ = convolve_backward(to_channels_last(gradients[0]), source, taps, ctx.stride)
        return of_maps, merge_weight_gradient(of_taps, weight), None


class _NormalisedDepthwise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        maps: Tensor,
        weight: Tensor,
        bias: Tensor,
        norm: Norm,
        activation: int,
        first: int,
        kernel: Tensor,
        stride: int,
    ) -> tuple[Tensor, Sums]:
        maps, weight, bias, taps = to_channels_last(maps), weight.contiguous(), bias.contiguous(), _taps_first(kernel)
        grid = RowGrid.of(maps, len(weight), first)
        statistics = compute_statistics(maps, grid, norm._replace(weight=weight, bias=bias))
        ctx.save_for_backward(maps, weight, statistics, kernel, taps)
        ctx.grid, ctx.activation, ctx.first, ctx.stride = grid, activation, first, stride
        source = ConvInput(maps, first, statistics, activation)
        if activation == ACTIVATIONS["silu"]:
            # Each value is used several times, and silu is slower to recompute than to read.
            source = ConvInput(normalise(maps, grid, statistics, activation), first)
        out = _empty_output(maps, stride)
        return out, convolve_with_moments(source, taps, out, stride)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        maps, weight, statistics, kernel, taps = ctx.saved_tensors
        source = ConvInput(maps, ctx.first, statistics, ctx.activation)
        passed, of_taps, sums = convolve_backward(to_channels_last(gradients[0]), source, taps, ctx.stride)
        none = ACTIVATIONS["none"]  # `convolve_backward` has passed the activation
        (of_maps, of_weight, of_bias), (of_kernel,) = run_concurrently(
            [
                lambda: batch_norm_backward(passed, maps, ctx.grid, statistics, sums, weight, none),
                lambda: (merge_weight_gradient(of_taps, kernel),),
            ],
            maps.device,
        )
        return of_maps, of_weight, of_bias, None, None, None, of_kernel, None


def _taps_first(weight: Tensor) -> Tensor:
    """weight (S, C, 1, K, K) -> (S, K * K, C) in float32

    A load brings one tap of neighbouring channels, in the layout of the maps and without a conversion.
    """
    taps = weight.flatten(2).mT
    return taps.to(torch.float32, memory_format=torch.contiguous_format).contiguous()


def _empty_output(maps: Tensor, stride: int) -> Tensor:
    count, channels, height, width = maps.shape
    shape = (count, channels, triton.cdiv(height, stride), triton.cdiv(width, stride))
    return torch.empty(shape, device=maps.device, dtype=maps.dtype, memory_format=torch.channels_last)
