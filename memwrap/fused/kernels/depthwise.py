"""Depthwise convolutions in training, for maps in torch's channels_last layout, with the normalisation before them.

Each number of the maps is multiplied a handful of times, so time goes where bytes go; torch's kernels for them reach a
small part of what the memory can give. A convolution normalises and activates what it reads, so that nobody has to
write that down; it adds up what the normalisation after it needs; and on the way back it adds up what the one before it
needs. The batch may consist of several runs, each with weights of its own.
"""

from typing import Any

import torch
import triton
from torch import Tensor

from memwrap.errors import InputError
from memwrap.fused.kernels.blocks import images_of_each, in_rows
from memwrap.fused.kernels.normalisation import (
    ACTIVATIONS,
    Split,
    Sums,
    applied,
    checked_first,
    gradients_of,
    resolve_settings,
)
from memwrap.fused.kernels.norms import Norm
from memwrap.fused.kernels.streams import at_once
from memwrap.fused.kernels.strips import Seen, convolve, convolve_with_moments, go_back, merged


def depthwise(maps: Tensor, weight: Tensor, stride: int = 1) -> Tensor:
    """maps (S * N, C, H, W) in channels_last: S runs of N images each; weight (S, C, 1, K, K), K 3 or 5, padded by
    K // 2; stride 1 or 2 -> (S * N, C, H / stride, ...)"""
    _check(maps, weight, stride)
    out: Tensor = _Depthwise.apply(maps, weight, stride)
    return out


def normalised_depthwise(
    maps: Tensor, norm: Norm, activation: str, first: int | None, kernel: Tensor, stride: int
) -> tuple[Tensor, Sums]:
    """`depthwise` of what `batch_norm` makes of the maps, kernel (S, C, 1, K, K); and its moments, for the `batch_norm`
    after that."""
    _check(maps, kernel, stride)
    runs = len(norm.weight)
    if len(kernel) != runs:
        raise InputError(f"kernels of {len(kernel)} runs after a normalisation of {runs}; expected as many")
    first = checked_first(maps, norm, activation, first)
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
        maps, taps = in_rows(maps), _taps_first(weight)
        ctx.save_for_backward(maps, weight, taps)
        ctx.stride = stride
        out = _empty_result(maps, stride)
        convolve(Seen(maps, images_of_each(maps, len(taps))), taps, out, stride)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        maps, weight, taps = ctx.saved_tensors
        seen = Seen(maps, images_of_each(maps, len(taps)))
        of_maps, of_taps, _ = go_back(in_rows(gradients[0]), seen, taps, ctx.stride)
        return of_maps, merged(of_taps, weight), None


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
        maps, weight, bias, taps = in_rows(maps), weight.contiguous(), bias.contiguous(), _taps_first(kernel)
        split = Split.of(maps, len(weight), first)
        statistics = resolve_settings(maps, split, norm._replace(weight=weight, bias=bias))
        ctx.save_for_backward(maps, weight, statistics, kernel, taps)
        ctx.split, ctx.activation, ctx.first, ctx.stride = split, activation, first, stride
        seen = Seen(maps, first, statistics, activation)
        if activation == ACTIVATIONS["silu"]:
            # Which takes so long to compute that it is quicker to read what it gave, as a number is needed many times.
            seen = Seen(applied(maps, split, statistics, activation), first)
        out = _empty_result(maps, stride)
        return out, convolve_with_moments(seen, taps, out, stride)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        maps, weight, statistics, kernel, taps = ctx.saved_tensors
        seen = Seen(maps, ctx.first, statistics, ctx.activation)
        passed, of_taps, sums = go_back(in_rows(gradients[0]), seen, taps, ctx.stride)
        none = ACTIVATIONS["none"]  # is left to be passed
        (of_maps, of_weight, of_bias), (of_kernel,) = at_once(
            [
                lambda: gradients_of(passed, maps, ctx.split, statistics, sums, weight, none),
                lambda: (merged(of_taps, kernel),),
            ],
            maps.device,
        )
        return of_maps, of_weight, of_bias, None, None, None, of_kernel, None


def _taps_first(weight: Tensor) -> Tensor:
    """weight (S, C, 1, K, K) -> (S, K * K, C) in float32: one load brings a tap of neighbouring channels, as it does
    numbers of the maps, and none has to be converted."""
    taps = weight.flatten(2).mT
    return taps.to(torch.float32, memory_format=torch.contiguous_format).contiguous()


def _empty_result(maps: Tensor, stride: int) -> Tensor:
    """Room for what comes out, in channels_last."""
    count, channels, height, width = maps.shape
    shape = (count, channels, triton.cdiv(height, stride), triton.cdiv(width, stride))
    return torch.empty(shape, device=maps.device, dtype=maps.dtype, memory_format=torch.channels_last)
