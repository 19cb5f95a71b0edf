"""Batch normalisation in training, with the activation that follows it, for maps in torch's channels_last layout.

torch reads and writes the maps for the normalisation and once more for the activation; here one kernel does both, and
the backward pass recomputes the activation instead of having stored it. The batch may consist of two parts, inputs and
memory: each has statistics of its own, as if each had gone through the network in a pass by itself.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from memwrap.kernels.blocks import in_rows, own_part, width_of

ACTIVATIONS = {"none": 0, "relu": 1, "silu": 2}

# Kernels are compiled once for all sizes but that of a row, whose alignment decides how many numbers a load takes.
_SIZES = ["rows", "first_rows", "first_tiles", "chunk", "first_chunks", "chunks"]

_TILE = 4096  # numbers that a program holds at a time
_PROGRAMS = 1024  # that reduce, about: enough for every multiprocessor of a large GPU
_WARPS = 4
_UNROLL = 4  # tiles of a chunk whose loads may be under way at the same time
_PARTIALS = 256  # results of chunks that are merged at a time
_MERGED_C = 4  # channels of which one program merges them


def batch_norm(
    maps: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    epsilon: float,
    activation: str = "none",
    first: int | None = None,
) -> Tensor:
    """activation(normalised maps), maps (N, C, H, W) in channels_last; updates the running statistics (C,).

    first: how many images belong to the first part; the others are the second. All of them if left out.
    """
    first = len(maps) if first is None else first
    out: Tensor = _BatchNorm.apply(
        maps, weight, bias, running_mean, running_var, momentum, epsilon, ACTIVATIONS[activation], first
    )
    return out


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        maps: Tensor,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        momentum: float,
        epsilon: float,
        activation: int,
        first: int,
    ) -> Tensor:
        maps = in_rows(maps)
        split = _Split.of(maps, first)
        # Of each part: mean, one over the deviation, and the factor and summand that they make of a number.
        statistics = torch.empty(2, 4, split.channels, device=maps.device, dtype=torch.float32)
        partial = torch.empty(split.chunks, 2, split.channels, device=maps.device, dtype=torch.float32)
        _moments[split.grid](maps, partial, *split.sizes(), **split.blocks(), UNROLL=_UNROLL, num_warps=_WARPS)
        _settle[split.channel_grid](
            partial,
            statistics,
            weight,
            bias,
            running_mean,
            running_var,
            momentum,
            epsilon,
            *split.sizes(),
            BLOCK_P=_PARTIALS,
            BLOCK_C=_MERGED_C,
        )
        out = torch.empty_like(maps)
        _apply[split.tile_grid](
            maps,
            statistics,
            out,
            split.rows,
            split.channels,
            split.first_rows,
            split.first_tiles,
            ACTIVATION=activation,
            **split.blocks(),
        )
        ctx.save_for_backward(maps, weight, statistics)
        ctx.split, ctx.activation = split, activation
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        maps, weight, statistics = ctx.saved_tensors
        split: _Split = ctx.split
        gradient = in_rows(gradients[0])
        partial = torch.empty(split.chunks, 2, split.channels, device=maps.device, dtype=torch.float32)
        _backward_sums[split.grid](
            gradient,
            maps,
            statistics,
            partial,
            *split.sizes(),
            ACTIVATION=ctx.activation,
            **split.blocks(),
            UNROLL=_UNROLL,
            num_warps=_WARPS,
        )
        # Of each part what the gradient, the number itself and one are multiplied by.
        factors = torch.empty(2, 3, split.channels, device=maps.device, dtype=torch.float32)
        of_weight, of_bias = torch.empty_like(weight), torch.empty_like(weight)
        _settle_backward[split.channel_grid](
            partial, statistics, factors, of_weight, of_bias, *split.sizes(), BLOCK_P=_PARTIALS, BLOCK_C=_MERGED_C
        )
        of_maps = torch.empty_like(maps)
        _apply_backward[split.tile_grid](
            gradient,
            maps,
            statistics,
            factors,
            of_maps,
            split.rows,
            split.channels,
            split.first_rows,
            split.first_tiles,
            ACTIVATION=ctx.activation,
            **split.blocks(),
        )
        return of_maps, of_weight, of_bias, None, None, None, None, None, None


class _Split:
    """Maps as rows of channels, cut into chunks of rows, none of which belongs to both parts."""

    def __init__(self, rows: int, first_rows: int, channels: int) -> None:
        self.rows, self.first_rows, self.channels = rows, first_rows, channels
        self.block_c = width_of(channels)
        self.block_r = _TILE // self.block_c
        columns = triton.cdiv(channels, self.block_c)
        self.first_tiles = triton.cdiv(first_rows, self.block_r)
        tiles = self.first_tiles + triton.cdiv(rows - first_rows, self.block_r)
        self.chunk = self.block_r * max(1, triton.cdiv(tiles * columns, _PROGRAMS))
        self.first_chunks = triton.cdiv(first_rows, self.chunk)
        self.chunks = self.first_chunks + triton.cdiv(rows - first_rows, self.chunk)
        self.grid = (self.chunks * columns,)
        self.tile_grid = (tiles * columns,)
        self.channel_grid = (triton.cdiv(channels, _MERGED_C),)

    @classmethod
    def of(cls, maps: Tensor, first: int) -> "_Split":
        count, channels, height, width = maps.shape
        return cls(count * height * width, first * height * width, channels)

    def sizes(self) -> tuple[int, int, int, int, int, int]:
        return self.rows, self.channels, self.first_rows, self.chunk, self.first_chunks, self.chunks

    def blocks(self) -> dict[str, int]:
        return {"BLOCK_R": self.block_r, "BLOCK_C": self.block_c, "ALIGNED": self.channels % 8 == 0}


@triton.jit
def _bounds(chunk_number, rows, first_rows, chunk, first_chunks):
    """The rows of a chunk: from, to."""
    second = chunk_number >= first_chunks
    start = tl.where(second, first_rows + (chunk_number - first_chunks) * chunk, chunk_number * chunk)
    end = tl.minimum(start + chunk, tl.where(second, rows, first_rows))
    return start, end


@triton.jit
def _activated(z, ACTIVATION: tl.constexpr):
    if ACTIVATION == 1:
        z = tl.maximum(z, 0.0)
    if ACTIVATION == 2:
        z = z * tl.sigmoid(z)
    return z


@triton.jit
def _through_activation(gradient, z, ACTIVATION: tl.constexpr):
    if ACTIVATION == 1:
        gradient = tl.where(z > 0, gradient, 0.0)
    if ACTIVATION == 2:
        gate = tl.sigmoid(z)
        gradient = gradient * gate * (1 + z * (1 - gate))
    return gradient


@triton.jit(do_not_specialize=_SIZES)
def _moments(
    maps,
    partial,
    rows,
    channels,
    first_rows,
    chunk,
    first_chunks,
    chunks,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    UNROLL: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Mean and summed squares around it, of each chunk: partial (chunks, 2, C)."""
    if ALIGNED:
        channels = channels // 8 * 8  # so that the compiler knows
    number, column = own_part(channels, BLOCK_C)
    start, end = _bounds(number, rows, first_rows, chunk, first_chunks)
    inside = column < channels
    # Measured from one of the numbers, so that a mean far from zero costs no digits.
    pivot = tl.load(maps + start * channels + column, mask=inside, other=0.0).to(tl.float32)
    sums = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    squares = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for top in tl.range(start, end, BLOCK_R, loop_unroll_factor=UNROLL):
        row = top + tl.arange(0, BLOCK_R)
        mask = (row < end)[:, None] & inside[None, :]
        place = row[:, None] * channels + column[None, :]
        value = tl.load(maps + place, mask=mask, other=0.0).to(tl.float32)
        value = tl.where(mask, value - pivot[None, :], 0.0)
        sums += value
        squares += value * value
    count = (end - start).to(tl.float32)
    total = tl.sum(sums, axis=0)
    target = partial + number * 2 * channels + column
    tl.store(target, pivot + total / count, mask=inside)
    tl.store(target + channels, tl.maximum(tl.sum(squares, axis=0) - total * total / count, 0.0), mask=inside)


@triton.jit
def _merged(partial, begin, stop, rows, channels, chunk, column, inside, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    """Mean and variance of one part, from those of its chunks `begin` to `stop`."""
    total = tl.zeros((BLOCK_C,), tl.float32)
    for top in range(begin, stop, BLOCK_P):
        number = top + tl.arange(0, BLOCK_P)
        mask = (number < stop)[:, None] & inside[None, :]
        means = tl.load(partial + number[:, None] * 2 * channels + column[None, :], mask=mask, other=0.0)
        count = tl.minimum(chunk, rows - (number - begin) * chunk).to(tl.float32)
        total += tl.sum(tl.where(mask, means * count[:, None], 0.0), axis=0)
    mean = total / rows.to(tl.float32)
    squares = tl.zeros((BLOCK_C,), tl.float32)
    for top in range(begin, stop, BLOCK_P):
        number = top + tl.arange(0, BLOCK_P)
        mask = (number < stop)[:, None] & inside[None, :]
        place = partial + number[:, None] * 2 * channels + column[None, :]
        means = tl.load(place, mask=mask, other=0.0)
        own = tl.load(place + channels, mask=mask, other=0.0)
        count = tl.minimum(chunk, rows - (number - begin) * chunk).to(tl.float32)
        away = means - mean[None, :]
        squares += tl.sum(tl.where(mask, own + count[:, None] * away * away, 0.0), axis=0)
    return mean, squares / rows.to(tl.float32)


@triton.jit(do_not_specialize=_SIZES)
def _settle(
    partial,
    statistics,
    weights,
    biases,
    running_mean,
    running_var,
    momentum,
    epsilon,
    rows,
    channels,
    first_rows,
    chunk,
    first_chunks,
    chunks,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """The statistics (2, 4, C) of both parts, and the running ones, updated by one part after the other."""
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = column < channels
    weight = tl.load(weights + column, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(biases + column, mask=inside, other=0.0).to(tl.float32)
    long_mean = tl.load(running_mean + column, mask=inside, other=0.0)
    long_var = tl.load(running_var + column, mask=inside, other=0.0)
    for part in tl.static_range(2):
        begin = 0 if part == 0 else first_chunks
        stop = first_chunks if part == 0 else chunks
        count = first_rows if part == 0 else rows - first_rows
        if count > 0:
            mean, var = _merged(partial, begin, stop, count, channels, chunk, column, inside, BLOCK_P, BLOCK_C)
            inverse = 1.0 / tl.sqrt(var + epsilon)
            factor = weight * inverse
            target = statistics + part * 4 * channels + column
            tl.store(target, mean, mask=inside)
            tl.store(target + channels, inverse, mask=inside)
            tl.store(target + 2 * channels, factor, mask=inside)
            tl.store(target + 3 * channels, bias - mean * factor, mask=inside)
            unbiased = var * (count.to(tl.float32) / tl.maximum(count - 1, 1).to(tl.float32))
            long_mean += momentum * (mean - long_mean)
            long_var += momentum * (unbiased - long_var)
    tl.store(running_mean + column, long_mean, mask=inside)
    tl.store(running_var + column, long_var, mask=inside)


@triton.jit(do_not_specialize=_SIZES)
def _apply(
    maps,
    statistics,
    out,
    rows,
    channels,
    first_rows,
    first_tiles,
    ACTIVATION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    if ALIGNED:
        channels = channels // 8 * 8  # so that the compiler knows
    number, column = own_part(channels, BLOCK_C)
    start, end = _bounds(number, rows, first_rows, BLOCK_R, first_tiles)
    row = start + tl.arange(0, BLOCK_R)
    inside = column < channels
    mask = (row < end)[:, None] & inside[None, :]
    place = row[:, None] * channels + column[None, :]
    own = statistics + tl.where(number >= first_tiles, 4 * channels, 0) + column
    factor = tl.load(own + 2 * channels, mask=inside, other=0.0)
    summand = tl.load(own + 3 * channels, mask=inside, other=0.0)
    value = tl.load(maps + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + place, _activated(value * factor[None, :] + summand[None, :], ACTIVATION), mask=mask)


@triton.jit(do_not_specialize=_SIZES)
def _backward_sums(
    gradients,
    maps,
    statistics,
    partial,
    rows,
    channels,
    first_rows,
    chunk,
    first_chunks,
    chunks,
    ACTIVATION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    UNROLL: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Of each chunk the sums of the gradient, and of the gradient times the distance from the mean: (chunks, 2, C)."""
    if ALIGNED:
        channels = channels // 8 * 8  # so that the compiler knows
    number, column = own_part(channels, BLOCK_C)
    start, end = _bounds(number, rows, first_rows, chunk, first_chunks)
    inside = column < channels
    own = statistics + tl.where(number >= first_chunks, 4 * channels, 0) + column
    mean = tl.load(own, mask=inside, other=0.0)
    factor = tl.load(own + 2 * channels, mask=inside, other=0.0)
    summand = tl.load(own + 3 * channels, mask=inside, other=0.0)
    sums = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    products = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for top in tl.range(start, end, BLOCK_R, loop_unroll_factor=UNROLL):
        row = top + tl.arange(0, BLOCK_R)
        mask = (row < end)[:, None] & inside[None, :]
        place = row[:, None] * channels + column[None, :]
        value = tl.load(maps + place, mask=mask, other=0.0).to(tl.float32)
        gradient = tl.load(gradients + place, mask=mask, other=0.0).to(tl.float32)
        gradient = _through_activation(gradient, value * factor[None, :] + summand[None, :], ACTIVATION)
        sums += gradient
        products += gradient * (value - mean[None, :])
    target = partial + number * 2 * channels + column
    tl.store(target, tl.sum(sums, axis=0), mask=inside)
    tl.store(target + channels, tl.sum(products, axis=0), mask=inside)


@triton.jit(do_not_specialize=_SIZES)
def _settle_backward(
    partial,
    statistics,
    factors,
    of_weight,
    of_bias,
    rows,
    channels,
    first_rows,
    chunk,
    first_chunks,
    chunks,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """The gradients of weight and bias (C,), and what `_apply_backward` needs of each part, (2, 3, C)."""
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = column < channels
    weight_gradient = tl.zeros((BLOCK_C,), tl.float32)
    bias_gradient = tl.zeros((BLOCK_C,), tl.float32)
    for part in tl.static_range(2):
        begin = 0 if part == 0 else first_chunks
        stop = first_chunks if part == 0 else chunks
        count = first_rows if part == 0 else rows - first_rows
        if count > 0:
            sums = tl.zeros((BLOCK_C,), tl.float32)
            products = tl.zeros((BLOCK_C,), tl.float32)
            for top in range(begin, stop, BLOCK_P):
                number = top + tl.arange(0, BLOCK_P)
                mask = (number < stop)[:, None] & inside[None, :]
                place = partial + number[:, None] * 2 * channels + column[None, :]
                sums += tl.sum(tl.load(place, mask=mask, other=0.0), axis=0)
                products += tl.sum(tl.load(place + channels, mask=mask, other=0.0), axis=0)
            own = statistics + part * 4 * channels + column
            mean = tl.load(own, mask=inside, other=0.0)
            inverse = tl.load(own + channels, mask=inside, other=0.0)
            factor = tl.load(own + 2 * channels, mask=inside, other=0.0)
            of_number = -factor * inverse * inverse * products / count.to(tl.float32)
            target = factors + part * 3 * channels + column
            tl.store(target, factor, mask=inside)
            tl.store(target + channels, of_number, mask=inside)
            tl.store(target + 2 * channels, -factor * sums / count.to(tl.float32) - of_number * mean, mask=inside)
            weight_gradient += products * inverse
            bias_gradient += sums
    tl.store(of_weight + column, weight_gradient, mask=inside)
    tl.store(of_bias + column, bias_gradient, mask=inside)


@triton.jit(do_not_specialize=_SIZES)
def _apply_backward(
    gradients,
    maps,
    statistics,
    factors,
    out,
    rows,
    channels,
    first_rows,
    first_tiles,
    ACTIVATION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    if ALIGNED:
        channels = channels // 8 * 8  # so that the compiler knows
    number, column = own_part(channels, BLOCK_C)
    start, end = _bounds(number, rows, first_rows, BLOCK_R, first_tiles)
    row = start + tl.arange(0, BLOCK_R)
    inside = column < channels
    mask = (row < end)[:, None] & inside[None, :]
    place = row[:, None] * channels + column[None, :]
    second = number >= first_tiles
    own = statistics + tl.where(second, 4 * channels, 0) + column
    factor = tl.load(own + 2 * channels, mask=inside, other=0.0)
    summand = tl.load(own + 3 * channels, mask=inside, other=0.0)
    ours = factors + tl.where(second, 3 * channels, 0) + column
    of_gradient = tl.load(ours, mask=inside, other=0.0)
    of_number = tl.load(ours + channels, mask=inside, other=0.0)
    constant = tl.load(ours + 2 * channels, mask=inside, other=0.0)
    value = tl.load(maps + place, mask=mask, other=0.0).to(tl.float32)
    gradient = tl.load(gradients + place, mask=mask, other=0.0).to(tl.float32)
    gradient = _through_activation(gradient, value * factor[None, :] + summand[None, :], ACTIVATION)
    result = of_gradient[None, :] * gradient + of_number[None, :] * value + constant[None, :]
    tl.store(out + place, result, mask=mask)
