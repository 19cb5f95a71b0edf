"""Batch normalisation in training mode, fused with the activation after it, for maps in channels_last.

torch reads and writes the maps once for the normalisation and once more for the activation. Here one kernel does both,
and the backward pass recomputes the activation instead of storing it. The batch may hold several runs, and the images
of each run two parts, inputs and memory. Each part of each run has its own statistics, as in a separate pass.

Forward: `_moments` (partial sums per chunk of rows), `_finish_statistics`, `_apply`. Backward: `_backward_sums`,
`_finish_backward`, `_apply_backward`.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from memwrap.errors import InputError
from memwrap.fused.kernels.norm import Norm
from memwrap.fused.kernels.tiling import (
    align,
    channel_block,
    images_per_run,
    is_aligned,
    program_block,
    to_channels_last,
)
from memwrap.nn.gpu import LAUNCH_OPTIONS

ACTIVATIONS = {"none": 0, "relu": 1, "silu": 2}

# Kernels are compiled once for all sizes except the number of channels, whose alignment decides the width of loads.
_SIZES = ["rows", "first_rows", "first_tiles", "tiles", "chunk", "first_chunks", "chunks"]

_TILE = 4096  # elements per program of the elementwise kernels
# Reductions: elements held at a time, warps, pipeline stages, and the approximate number of programs of all runs
# together. Measured on an H200.
_REDUCING = {"tile": 1024, "warps": 2, "stages": 4, "programs": 1056}
_PARTIALS = 512  # chunks whose sums are added at a time: usually all of a run
_MERGED_C = 4  # channels per program that adds them


def batch_norm(
    maps: Tensor,
    norm: Norm,
    activation: str = "none",
    first: int | None = None,
    added: Tensor | None = None,
    moments: "Sums | None" = None,
) -> Tensor:
    """activation(batch_norm(maps) + added), maps (S * N, C, H, W) in channels_last: S runs of N images each.

    norm: of S runs, with contiguous running statistics.
    first: how many images of each run form the first part; the others form the second. None: all images.
    added: a shortcut with the shape of maps; not with silu.
    moments: of the maps, if they are known already.
    """
    first = check_arguments(maps, norm, activation, first)
    if added is not None and (activation == "silu" or added.shape != maps.shape):
        raise InputError(
            f"maps {tuple(maps.shape)} and a shortcut {tuple(added.shape)} with activation {activation}; expected the "
            "same shape, and relu or none"
        )
    out: Tensor = _BatchNorm.apply(maps, norm.weight, norm.bias, norm, ACTIVATIONS[activation], first, added, moments)
    return out


def check_arguments(maps: Tensor, norm: Norm, activation: str, first: int | None) -> int:
    """Check the arguments of `batch_norm`, and return how many images of each run the first part has."""
    images = images_per_run(maps, len(norm.weight))
    first = images if first is None else first
    if not 0 <= first <= images:
        raise InputError(f"a first part of {first} images in runs of {images} images; expected 0 to {images}")
    if activation not in ACTIVATIONS:
        raise InputError(f"activation is {activation!r}; expected one of {', '.join(ACTIVATIONS)}")
    if not (norm.running_mean.is_contiguous() and norm.running_var.is_contiguous()):
        raise InputError("running statistics are not contiguous; expected contiguous ones, updated in place")
    return first


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        maps: Tensor,
        weight: Tensor,
        bias: Tensor,
        norm: Norm,
        activation: int,
        first: int,
        added: Tensor | None,
        moments: "Sums | None",
    ) -> Tensor:
        maps, weight, bias = to_channels_last(maps), weight.contiguous(), bias.contiguous()
        grid = RowGrid.of(maps, len(weight), first)
        statistics = compute_statistics(maps, grid, norm._replace(weight=weight, bias=bias), moments)
        out = normalise(maps, grid, statistics, activation, added)
        # After a shortcut, the output shows where relu passes gradients; otherwise the backward pass recomputes that.
        ctx.save_for_backward(maps, weight, statistics, out if added is not None and activation else None)
        ctx.grid, ctx.activation, ctx.added = grid, activation, added is not None
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        maps, weight, statistics, activated = ctx.saved_tensors
        grid: RowGrid = ctx.grid
        gradient, activation = to_channels_last(gradients[0]), ctx.activation
        passed = gradient if activated is None else torch.empty_like(gradient)
        sums = grid.empty_sums(maps.device)
        _backward_sums[grid.chunk_grid](
            gradient,
            maps,
            statistics,
            maps if activated is None else activated,
            passed,
            sums.values,
            *grid.sizes(sums),
            ACTIVATION=activation,
            ACTIVATED=activated is not None,
            **grid.reducing(),
        )
        left = activation if activated is None else ACTIVATIONS["none"]
        of_maps, of_weight, of_bias = batch_norm_backward(passed, maps, grid, statistics, sums, weight, left)
        of_added = passed if ctx.added else None
        return of_maps, of_weight, of_bias, None, None, None, of_added, None


@dataclass(frozen=True)
class Sums:
    """Two partial sums per channel and chunk of rows; the chunks of a run's first part come before those of its second.

    Forward (moments): of the differences from a pivot, and of their squares. Backward: of the gradients, and of their
    products with the differences from the mean.
    """

    values: Tensor  # (S, chunks, 2, C)
    first_chunks: int
    pivots: Tensor | None = None  # (S, 2, C), of each part; None: the first row of the part

    @classmethod
    def empty(cls, runs: int, chunks: int, channels: int, first_chunks: int, device: torch.device) -> "Sums":
        return cls(torch.empty(runs, chunks, 2, channels, device=device, dtype=torch.float32), first_chunks)


class RowGrid:
    """How the rows of each run are divided into tiles and chunks, none of which spans both parts.

    Rows, tiles and chunks are counted within a run: all runs have the same number.
    """

    def __init__(self, runs: int, rows: int, first_rows: int, channels: int) -> None:
        self.runs, self.rows, self.first_rows, self.channels = runs, rows, first_rows, channels
        self.block_c = channel_block(channels)
        self.block_r = _TILE // self.block_c
        columns = triton.cdiv(channels, self.block_c)
        self.first_tiles = triton.cdiv(first_rows, self.block_r)
        self.tiles = self.first_tiles + triton.cdiv(rows - first_rows, self.block_r)
        self.reduced_r = _REDUCING["tile"] // self.block_c
        per_program = triton.cdiv(runs * triton.cdiv(rows, self.reduced_r) * columns, _REDUCING["programs"])
        self.chunk = self.reduced_r * max(1, per_program)
        self.first_chunks = triton.cdiv(first_rows, self.chunk)
        self.chunks = self.first_chunks + triton.cdiv(rows - first_rows, self.chunk)
        self.chunk_grid = (runs * self.chunks * columns,)
        self.tile_grid = (runs * self.tiles * columns,)
        self.channel_grid = (triton.cdiv(channels, _MERGED_C), runs)

    @classmethod
    def of(cls, maps: Tensor, runs: int, first: int) -> "RowGrid":
        count, channels, height, width = maps.shape
        return cls(runs, count // runs * height * width, first * height * width, channels)

    def empty_for_parts(self, numbers: int, device: torch.device) -> Tensor:
        """An uninitialised tensor of values per part and channel: (S, 2, numbers, C)"""
        return torch.empty(self.runs, 2, numbers, self.channels, device=device, dtype=torch.float32)

    def empty_sums(self, device: torch.device) -> Sums:
        return Sums.empty(self.runs, self.chunks, self.channels, self.first_chunks, device)

    def sizes(self, sums: Sums) -> tuple[int, int, int, int, int, int]:
        """The size arguments of a reduction. sums: over the chunks of this grid or of another."""
        return self.rows, self.channels, self.first_rows, self.chunk, sums.first_chunks, sums.values.shape[1]

    def tile_sizes(self) -> tuple[int, int, int, int, int]:
        return self.rows, self.channels, self.first_rows, self.first_tiles, self.tiles

    def blocks(self) -> dict[str, int]:
        return {
            "BLOCK_R": self.block_r,
            "BLOCK_C": self.block_c,
            "ALIGNED": is_aligned(self.channels),
            **LAUNCH_OPTIONS,
        }

    def reducing(self) -> dict[str, int]:
        options = {"STAGES": _REDUCING["stages"], "num_warps": _REDUCING["warps"]}
        return {**self.blocks(), "BLOCK_R": self.reduced_r, **options}


def compute_statistics(maps: Tensor, grid: RowGrid, norm: Norm, moments: Sums | None = None) -> Tensor:
    """Mean, 1 / std, scale and shift of each part, (S, 2, 4, C); updates the running statistics.

    The normalised maps are maps * scale + shift. moments: of the maps, if they are known.
    """
    statistics = grid.empty_for_parts(4, maps.device)
    if moments is None:
        moments = grid.empty_sums(maps.device)
        _moments[grid.chunk_grid](maps, moments.values, *grid.sizes(moments), **grid.reducing())
    _finish_statistics[grid.channel_grid](
        maps,
        maps if moments.pivots is None else moments.pivots,
        moments.values,
        statistics,
        *norm,
        *grid.sizes(moments),
        PIVOTS=moments.pivots is not None,
        BLOCK_P=_PARTIALS,
        BLOCK_C=_MERGED_C,
        **LAUNCH_OPTIONS,
    )
    return statistics


def normalise(maps: Tensor, grid: RowGrid, statistics: Tensor, activation: int, added: Tensor | None = None) -> Tensor:
    """activation(maps * scale + shift + added)"""
    out = torch.empty_like(maps)
    _apply[grid.tile_grid](
        maps,
        statistics,
        maps if added is None else to_channels_last(added),
        out,
        *grid.tile_sizes(),
        ACTIVATION=activation,
        ADDED=added is not None,
        **grid.blocks(),
    )
    return out


def batch_norm_backward(
    gradient: Tensor, maps: Tensor, grid: RowGrid, statistics: Tensor, sums: Sums, weight: Tensor, activation: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of maps, weight and bias. sums: of the gradient before the activation."""
    # The gradient of the maps is factors[0] * gradient + factors[1] * maps + factors[2], for each part.
    factors = grid.empty_for_parts(3, maps.device)
    of_weight, of_bias = torch.empty_like(weight), torch.empty_like(weight)
    _finish_backward[grid.channel_grid](
        sums.values,
        statistics,
        factors,
        of_weight,
        of_bias,
        *grid.sizes(sums),
        BLOCK_P=_PARTIALS,
        BLOCK_C=_MERGED_C,
        **LAUNCH_OPTIONS,
    )
    of_maps = torch.empty_like(maps)
    _apply_backward[grid.tile_grid](
        gradient,
        maps,
        statistics,
        factors,
        of_maps,
        *grid.tile_sizes(),
        ACTIVATION=activation,
        **grid.blocks(),
    )
    return of_maps, of_weight, of_bias


@triton.jit
def _chunk_rows(number, rows, first_rows, chunk, first_chunks, chunks):
    """The part of a chunk (counted over all runs), the part's first row, and the start and end of the chunk's rows"""
    run, number = number // chunks, number % chunks
    second = number >= first_chunks
    begin = run * rows + tl.where(second, first_rows, 0)
    start = begin + tl.where(second, number - first_chunks, number) * chunk
    end = tl.minimum(start + chunk, run * rows + tl.where(second, rows, first_rows))
    return run * 2 + tl.where(second, 1, 0), begin, start, end


@triton.jit
def activate(z, ACTIVATION: tl.constexpr):
    if ACTIVATION == 1:
        z = tl.maximum(z, 0.0)
    if ACTIVATION == 2:
        z = z * tl.sigmoid(z)
    return z


@triton.jit
def activate_backward(gradient, z, ACTIVATION: tl.constexpr):
    if ACTIVATION == 1:
        gradient = tl.where(z > 0, gradient, 0.0)
    if ACTIVATION == 2:
        gate = tl.sigmoid(z)
        gradient = gradient * gate * (1 + z * (1 - gate))
    return gradient


@triton.jit
def store_sums(partial, number, one, other, channels, column):
    """Store the sums of `one` and `other` (R, C) over the rows in partial (chunks, 2, C)"""
    target, inside = partial + number * 2 * channels + column, column < channels
    tl.store(target, tl.sum(one, axis=0), mask=inside)
    tl.store(target + channels, tl.sum(other, axis=0), mask=inside)


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
    STAGES: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """The sums of the differences from the pivot, and of their squares, per chunk: partial (S, chunks, 2, C).

    The pivot is the first row of the chunk's part. Relative to it, a mean far from zero loses hardly any digits, and as
    all chunks of a part share it, their sums can be added.
    """
    channels = align(channels, ALIGNED)
    number, column = program_block(channels, BLOCK_C)
    _, begin, start, end = _chunk_rows(number, rows, first_rows, chunk, first_chunks, chunks)
    inside = column < channels
    pivot = tl.load(maps + begin * channels + column, mask=inside, other=0.0).to(tl.float32)
    sums = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    squares = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for top in tl.range(start, end, BLOCK_R, num_stages=STAGES):
        row = top + tl.arange(0, BLOCK_R)
        mask = (row < end)[:, None] & inside[None, :]
        place = row[:, None] * channels + column[None, :]
        value = tl.load(maps + place, mask=mask, other=0.0).to(tl.float32)
        value = tl.where(mask, value - pivot[None, :], 0.0)
        sums += value
        squares += value * value
    store_sums(partial, number, sums, squares, channels, column)


@triton.jit
def _sum_chunks(
    partial, run, first_chunks, chunks, channels, column, inside, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Both sums over a run's chunks, for the first part and for the second. All loads are issued before any is used."""
    sums = tl.zeros((BLOCK_C,), tl.float32)
    products = tl.zeros((BLOCK_C,), tl.float32)
    second_sums = tl.zeros((BLOCK_C,), tl.float32)
    second_products = tl.zeros((BLOCK_C,), tl.float32)
    for top in range(0, chunks, BLOCK_P):
        number = top + tl.arange(0, BLOCK_P)
        mask = (number < chunks)[:, None] & inside[None, :]
        place = partial + (run * chunks + number)[:, None] * 2 * channels + column[None, :]
        one = tl.load(place, mask=mask, other=0.0)
        other = tl.load(place + channels, mask=mask, other=0.0)
        first = (number < first_chunks)[:, None]
        sums += tl.sum(tl.where(first, one, 0.0), axis=0)
        products += tl.sum(tl.where(first, other, 0.0), axis=0)
        second_sums += tl.sum(tl.where(first, 0.0, one), axis=0)
        second_products += tl.sum(tl.where(first, 0.0, other), axis=0)
    return sums, products, second_sums, second_products


@triton.jit(do_not_specialize=_SIZES)
def _finish_statistics(
    maps,
    pivots,
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
    PIVOTS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """The statistics (S, 2, 4, C) of both parts. The running statistics are updated by the first, then the second.

    PIVOTS: `pivots` (S, 2, C) is given; otherwise the pivots are those of `_moments`.
    """
    run = tl.program_id(1)
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = column < channels
    own = run * channels + column
    weight = tl.load(weights + own, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(biases + own, mask=inside, other=0.0).to(tl.float32)
    new_mean = tl.load(running_mean + own, mask=inside, other=0.0)
    new_var = tl.load(running_var + own, mask=inside, other=0.0)
    # A part without images reads values that are not used.
    own_pivots, second_pivots = maps + run * rows * channels, tl.minimum(first_rows, rows - 1) * channels
    if PIVOTS:
        own_pivots, second_pivots = pivots + run * 2 * channels, channels
    pivot = tl.load(own_pivots + column, mask=inside, other=0.0).to(tl.float32)
    second_pivot = tl.load(own_pivots + second_pivots + column, mask=inside, other=0.0).to(tl.float32)
    sums, squares, second_sums, second_squares = _sum_chunks(
        partial, run, first_chunks, chunks, channels, column, inside, BLOCK_P, BLOCK_C
    )
    for part in tl.static_range(2):
        count = first_rows
        if part == 1:
            count = rows - first_rows
            pivot, sums, squares = second_pivot, second_sums, second_squares
        if count > 0:
            offset = sums / count.to(tl.float32)
            mean = pivot + offset
            var = tl.maximum(squares / count.to(tl.float32) - offset * offset, 0.0)
            inverse = 1.0 / tl.sqrt(var + epsilon)
            factor = weight * inverse
            target = statistics + (run * 2 + part) * 4 * channels + column
            tl.store(target, mean, mask=inside)
            tl.store(target + channels, inverse, mask=inside)
            tl.store(target + 2 * channels, factor, mask=inside)
            tl.store(target + 3 * channels, bias - mean * factor, mask=inside)
            unbiased = var * (count.to(tl.float32) / tl.maximum(count - 1, 1).to(tl.float32))
            new_mean += momentum * (mean - new_mean)
            new_var += momentum * (unbiased - new_var)
    tl.store(running_mean + own, new_mean, mask=inside)
    tl.store(running_var + own, new_var, mask=inside)


@triton.jit(do_not_specialize=_SIZES)
def _apply(
    maps,
    statistics,
    added,
    out,
    rows,
    channels,
    first_rows,
    first_tiles,
    tiles,
    ACTIVATION: tl.constexpr,
    ADDED: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    channels = align(channels, ALIGNED)
    number, column = program_block(channels, BLOCK_C, REVERSE=True)
    part, _, start, end = _chunk_rows(number, rows, first_rows, BLOCK_R, first_tiles, tiles)
    row = start + tl.arange(0, BLOCK_R)
    inside = column < channels
    mask = (row < end)[:, None] & inside[None, :]
    place = row[:, None] * channels + column[None, :]
    own = statistics + part * 4 * channels + column
    factor = tl.load(own + 2 * channels, mask=inside, other=0.0)
    shift = tl.load(own + 3 * channels, mask=inside, other=0.0)
    value = tl.load(maps + place, mask=mask, other=0.0).to(tl.float32)
    z = value * factor[None, :] + shift[None, :]
    if ADDED:
        z += tl.load(added + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + place, activate(z, ACTIVATION), mask=mask)


@triton.jit(do_not_specialize=_SIZES)
def _backward_sums(
    gradients,
    maps,
    statistics,
    activated,
    passed,
    partial,
    rows,
    channels,
    first_rows,
    chunk,
    first_chunks,
    chunks,
    ACTIVATION: tl.constexpr,
    ACTIVATED: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    STAGES: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """The sums of the gradient, and of the gradient times the difference from the mean, per chunk: (S, chunks, 2, C).

    ACTIVATED: the output of relu is given, and the gradient before relu is written to `passed`.
    """
    channels = align(channels, ALIGNED)
    number, column = program_block(channels, BLOCK_C)
    part, _, start, end = _chunk_rows(number, rows, first_rows, chunk, first_chunks, chunks)
    inside = column < channels
    own = statistics + part * 4 * channels + column
    mean = tl.load(own, mask=inside, other=0.0)
    factor = tl.load(own + 2 * channels, mask=inside, other=0.0)
    shift = tl.load(own + 3 * channels, mask=inside, other=0.0)
    sums = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    products = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    for top in tl.range(start, end, BLOCK_R, num_stages=STAGES):
        row = top + tl.arange(0, BLOCK_R)
        mask = (row < end)[:, None] & inside[None, :]
        place = row[:, None] * channels + column[None, :]
        value = tl.load(maps + place, mask=mask, other=0.0).to(tl.float32)
        gradient = tl.load(gradients + place, mask=mask, other=0.0).to(tl.float32)
        if ACTIVATED:
            gradient = tl.where(tl.load(activated + place, mask=mask, other=0.0) > 0, gradient, 0.0)
            tl.store(passed + place, gradient, mask=mask)
        else:
            gradient = activate_backward(gradient, value * factor[None, :] + shift[None, :], ACTIVATION)
        sums += gradient
        products += gradient * (value - mean[None, :])
    store_sums(partial, number, sums, products, channels, column)


@triton.jit
def _load_statistics(part, statistics, channels, column, inside):
    """Mean, 1 / std and scale of a part; undefined if it has no images."""
    own = statistics + part * 4 * channels + column
    mean = tl.load(own, mask=inside, other=0.0)
    inverse = tl.load(own + channels, mask=inside, other=0.0)
    return mean, inverse, tl.load(own + 2 * channels, mask=inside, other=0.0)


@triton.jit(do_not_specialize=_SIZES)
def _finish_backward(
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
    """The gradients of weight and bias (S, C), and the factors of each part for `_apply_backward`, (S, 2, 3, C)."""
    run = tl.program_id(1)
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = column < channels
    # Loaded before the sums, so that the loads overlap.
    mean, inverse, factor = _load_statistics(run * 2, statistics, channels, column, inside)
    second_mean, second_inverse, second_factor = _load_statistics(run * 2 + 1, statistics, channels, column, inside)
    sums, products, second_sums, second_products = _sum_chunks(
        partial, run, first_chunks, chunks, channels, column, inside, BLOCK_P, BLOCK_C
    )
    weight_gradient = tl.zeros((BLOCK_C,), tl.float32)
    bias_gradient = tl.zeros((BLOCK_C,), tl.float32)
    for part in tl.static_range(2):
        count = first_rows
        if part == 1:
            count = rows - first_rows
            sums, products = second_sums, second_products
            mean, inverse, factor = second_mean, second_inverse, second_factor
        if count > 0:
            of_value = -factor * inverse * inverse * products / count.to(tl.float32)
            target = factors + (run * 2 + part) * 3 * channels + column
            tl.store(target, factor, mask=inside)
            tl.store(target + channels, of_value, mask=inside)
            tl.store(target + 2 * channels, -factor * sums / count.to(tl.float32) - of_value * mean, mask=inside)
            weight_gradient += products * inverse
            bias_gradient += sums
    tl.store(of_weight + run * channels + column, weight_gradient, mask=inside)
    tl.store(of_bias + run * channels + column, bias_gradient, mask=inside)


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
    tiles,
    ACTIVATION: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    channels = align(channels, ALIGNED)
    number, column = program_block(channels, BLOCK_C, REVERSE=True)
    part, _, start, end = _chunk_rows(number, rows, first_rows, BLOCK_R, first_tiles, tiles)
    row = start + tl.arange(0, BLOCK_R)
    inside = column < channels
    mask = (row < end)[:, None] & inside[None, :]
    place = row[:, None] * channels + column[None, :]
    own = statistics + part * 4 * channels + column
    factor = tl.load(own + 2 * channels, mask=inside, other=0.0)
    shift = tl.load(own + 3 * channels, mask=inside, other=0.0)
    ours = factors + part * 3 * channels + column
    of_gradient = tl.load(ours, mask=inside, other=0.0)
    of_value = tl.load(ours + channels, mask=inside, other=0.0)
    constant = tl.load(ours + 2 * channels, mask=inside, other=0.0)
    value = tl.load(maps + place, mask=mask, other=0.0).to(tl.float32)
    gradient = tl.load(gradients + place, mask=mask, other=0.0).to(tl.float32)
    gradient = activate_backward(gradient, value * factor[None, :] + shift[None, :], ACTIVATION)
    result = of_gradient[None, :] * gradient + of_value[None, :] * value + constant[None, :]
    tl.store(out + place, result, mask=mask)
