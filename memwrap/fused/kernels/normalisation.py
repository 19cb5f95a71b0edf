"""Batch normalisation in training, with the activation that follows it, for maps in torch's channels_last layout.

torch reads and writes the maps for the normalisation and once more for the activation; here one kernel does both, and
the backward pass recomputes the activation instead of having stored it. The batch may consist of several runs, and the
images of each run of two parts, inputs and memory: each part of each run has statistics of its own, as if it had gone
through its network in a pass by itself.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from memwrap.errors import InputError
from memwrap.fused.kernels.blocks import images_of_each, in_rows, own_part, width_of
from memwrap.fused.kernels.norms import Norm
from memwrap.nn.gpu import LAUNCH_OPTIONS

ACTIVATIONS = {"none": 0, "relu": 1, "silu": 2}

# Kernels are compiled once for all sizes but that of a row, whose alignment decides how many numbers a load takes.
_SIZES = ["rows", "first_rows", "first_tiles", "tiles", "chunk", "first_chunks", "chunks"]

_TILE = 4096  # numbers that a program takes that gives as many
# Of programs that reduce: numbers held at a time, the warps that share them, tiles whose loads may be under way at the
# same time, and about how many programs there are, for all runs together; measured on an H200.
_REDUCING = {"tile": 1024, "warps": 2, "stages": 4, "programs": 1056}
_PARTIALS = 512  # results of chunks that are added up at a time: those of a run, mostly
_MERGED_C = 4  # channels of which one program adds them up


def batch_norm(
    maps: Tensor,
    norm: Norm,
    activation: str = "none",
    first: int | None = None,
    added: Tensor | None = None,
    moments: "Sums | None" = None,
) -> Tensor:
    """activation(normalised maps + added), maps (S * N, C, H, W) in channels_last: S runs of N images each.

    norm: of S runs, with contiguous running statistics.
    first: how many images of each run belong to the first part; the others are the second. All of them if left out.
    added: as maps, from a shortcut; not before silu.
    moments: of the maps, if they are known already.
    """
    first = checked_first(maps, norm, activation, first)
    if added is not None and (activation == "silu" or added.shape != maps.shape):
        raise InputError(
            f"{activation} of normalised maps {tuple(maps.shape)} and {tuple(added.shape)}; expected the same shape, "
            "and relu or none"
        )
    out: Tensor = _BatchNorm.apply(maps, norm.weight, norm.bias, norm, ACTIVATIONS[activation], first, added, moments)
    return out


def checked_first(maps: Tensor, norm: Norm, activation: str, first: int | None) -> int:
    """How many images of each run the first part has, if all is as `batch_norm` takes it; else an InputError."""
    images = images_of_each(maps, len(norm.weight))
    first = images if first is None else first
    if not 0 <= first <= images:
        raise InputError(f"a first part of {first} images in runs of {images}; expected 0 to {images}, of each run")
    if activation not in ACTIVATIONS:
        raise InputError(f"activation is {activation!r}; expected one of {', '.join(ACTIVATIONS)}")
    if not (norm.running_mean.is_contiguous() and norm.running_var.is_contiguous()):
        raise InputError("running statistics with gaps in memory; expected contiguous ones: they are updated in place")
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
        maps, weight, bias = in_rows(maps), weight.contiguous(), bias.contiguous()
        split = Split.of(maps, len(weight), first)
        statistics = resolve_settings(maps, split, norm._replace(weight=weight, bias=bias), moments)
        out = applied(maps, split, statistics, activation, added)
        # After a sum, what came out tells where relu lets gradients pass; else that is computed again.
        ctx.save_for_backward(maps, weight, statistics, out if added is not None and activation else None)
        ctx.split, ctx.activation, ctx.added = split, activation, added is not None
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        maps, weight, statistics, activated = ctx.saved_tensors
        split: Split = ctx.split
        gradient, activation = in_rows(gradients[0]), ctx.activation
        passed = gradient if activated is None else torch.empty_like(gradient)
        sums = split.empty_sums(maps.device)
        _backward_sums[split.grid](
            gradient,
            maps,
            statistics,
            maps if activated is None else activated,
            passed,
            sums.values,
            *split.sizes(sums),
            ACTIVATION=activation,
            ACTIVATED=activated is not None,
            **split.reducing(),
        )
        left = activation if activated is None else ACTIVATIONS["none"]
        of_maps, of_weight, of_bias = gradients_of(passed, maps, split, statistics, sums, weight, left)
        of_added = passed if ctx.added else None
        return of_maps, of_weight, of_bias, None, None, None, of_added, None


@dataclass(frozen=True)
class Sums:
    """Two sums for each channel of each chunk of a run's images, those of the first part before those of the second.

    Of gradients, and of their products with the numbers' distances from the mean; or of the numbers' distances from a
    pivot, and of their squares.
    """

    values: Tensor  # (S, chunks, 2, C)
    first_chunks: int
    pivots: Tensor | None = None  # (S, 2, C), of each part; None: the number that the part begins with

    @classmethod
    def empty(cls, runs: int, chunks: int, channels: int, first_chunks: int, device: torch.device) -> "Sums":
        """Room for them."""
        return cls(torch.empty(runs, chunks, 2, channels, device=device, dtype=torch.float32), first_chunks)


class Split:
    """Maps as rows of channels, those of each run cut into chunks of rows, none of which belongs to both parts.

    Rows, tiles and chunks are counted within a run: the runs are all alike.
    """

    def __init__(self, runs: int, rows: int, first_rows: int, channels: int) -> None:
        self.runs, self.rows, self.first_rows, self.channels = runs, rows, first_rows, channels
        self.block_c = width_of(channels)
        self.block_r = _TILE // self.block_c
        columns = triton.cdiv(channels, self.block_c)
        self.first_tiles = triton.cdiv(first_rows, self.block_r)
        self.tiles = self.first_tiles + triton.cdiv(rows - first_rows, self.block_r)
        self.reduced_r = _REDUCING["tile"] // self.block_c
        per_program = triton.cdiv(runs * triton.cdiv(rows, self.reduced_r) * columns, _REDUCING["programs"])
        self.chunk = self.reduced_r * max(1, per_program)
        self.first_chunks = triton.cdiv(first_rows, self.chunk)
        self.chunks = self.first_chunks + triton.cdiv(rows - first_rows, self.chunk)
        self.grid = (runs * self.chunks * columns,)
        self.tile_grid = (runs * self.tiles * columns,)
        self.channel_grid = (triton.cdiv(channels, _MERGED_C), runs)

    @classmethod
    def of(cls, maps: Tensor, runs: int, first: int) -> "Split":
        count, channels, height, width = maps.shape
        return cls(runs, count // runs * height * width, first * height * width, channels)

    def empty_for_parts(self, numbers: int, device: torch.device) -> Tensor:
        """Room for some numbers of each channel in each part of each run: (S, 2, numbers, C)"""
        return torch.empty(self.runs, 2, numbers, self.channels, device=device, dtype=torch.float32)

    def empty_sums(self, device: torch.device) -> Sums:
        """Room for the sums of its chunks"""
        return Sums.empty(self.runs, self.chunks, self.channels, self.first_chunks, device)

    def sizes(self, sums: Sums) -> tuple[int, int, int, int, int, int]:
        """sums: by chunks of its own or others"""
        return self.rows, self.channels, self.first_rows, self.chunk, sums.first_chunks, sums.values.shape[1]

    def tile_sizes(self) -> tuple[int, int, int, int, int]:
        return self.rows, self.channels, self.first_rows, self.first_tiles, self.tiles

    def blocks(self) -> dict[str, int]:
        return {"BLOCK_R": self.block_r, "BLOCK_C": self.block_c, "ALIGNED": self.channels % 8 == 0, **LAUNCH_OPTIONS}

    def reducing(self) -> dict[str, int]:
        options = {"STAGES": _REDUCING["stages"], "num_warps": _REDUCING["warps"]}
        return {**self.blocks(), "BLOCK_R": self.reduced_r, **options}


def resolve_settings(maps: Tensor, split: Split, norm: Norm, moments: Sums | None = None) -> Tensor:
    """Of each part: mean, one over the deviation, and the factor and summand that they make of a number, (S, 2, 4, C);
    the running statistics are updated. moments: of the maps, if they are known"""
    statistics = split.empty_for_parts(4, maps.device)
    if moments is None:
        moments = split.empty_sums(maps.device)
        _moments[split.grid](maps, moments.values, *split.sizes(moments), **split.reducing())
    _settle[split.channel_grid](
        maps,
        maps if moments.pivots is None else moments.pivots,
        moments.values,
        statistics,
        *norm,
        *split.sizes(moments),
        PIVOTS=moments.pivots is not None,
        BLOCK_P=_PARTIALS,
        BLOCK_C=_MERGED_C,
        **LAUNCH_OPTIONS,
    )
    return statistics


def applied(maps: Tensor, split: Split, statistics: Tensor, activation: int, added: Tensor | None = None) -> Tensor:
    """activation(normalised maps + added)"""
    out = torch.empty_like(maps)
    _apply[split.tile_grid](
        maps,
        statistics,
        maps if added is None else in_rows(added),
        out,
        *split.tile_sizes(),
        ACTIVATION=activation,
        ADDED=added is not None,
        **split.blocks(),
    )
    return out


def gradients_of(
    gradient: Tensor, maps: Tensor, split: Split, statistics: Tensor, sums: Sums, weight: Tensor, activation: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Those of maps, weight and bias, from that of the activated ones, and its sums behind the activation"""
    # Of each part what the gradient, the number itself and one are multiplied by.
    factors = split.empty_for_parts(3, maps.device)
    of_weight, of_bias = torch.empty_like(weight), torch.empty_like(weight)
    _settle_backward[split.channel_grid](
        sums.values,
        statistics,
        factors,
        of_weight,
        of_bias,
        *split.sizes(sums),
        BLOCK_P=_PARTIALS,
        BLOCK_C=_MERGED_C,
        **LAUNCH_OPTIONS,
    )
    of_maps = torch.empty_like(maps)
    _apply_backward[split.tile_grid](
        gradient,
        maps,
        statistics,
        factors,
        of_maps,
        *split.tile_sizes(),
        ACTIVATION=activation,
        **split.blocks(),
    )
    return of_maps, of_weight, of_bias


@triton.jit
def _own_rows(number, rows, first_rows, chunk, first_chunks, chunks):
    """Which part a chunk belongs to, counted over those of all runs; the row that part begins with; the chunk's rows,
    from and to."""
    run, number = number // chunks, number % chunks
    second = number >= first_chunks
    begin = run * rows + tl.where(second, first_rows, 0)
    start = begin + tl.where(second, number - first_chunks, number) * chunk
    end = tl.minimum(start + chunk, run * rows + tl.where(second, rows, first_rows))
    return run * 2 + tl.where(second, 1, 0), begin, start, end


@triton.jit
def activation_of(z, ACTIVATION: tl.constexpr):
    if ACTIVATION == 1:
        z = tl.maximum(z, 0.0)
    if ACTIVATION == 2:
        z = z * tl.sigmoid(z)
    return z


@triton.jit
def through_activation(gradient, z, ACTIVATION: tl.constexpr):
    if ACTIVATION == 1:
        gradient = tl.where(z > 0, gradient, 0.0)
    if ACTIVATION == 2:
        gate = tl.sigmoid(z)
        gradient = gradient * gate * (1 + z * (1 - gate))
    return gradient


@triton.jit
def store_sums(partial, number, one, other, channels, column):
    """Both sums of a chunk over its rows, one and other (R, C): partial (chunks, 2, C)"""
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
    """Of each chunk the sums of the distances from the pivot, and of their squares: partial (S, chunks, 2, C).

    The pivot is the number that the chunk's part begins with: measured from there, a mean far from zero costs hardly a
    digit; and as all chunks of a part measure from the same, their sums just add up.
    """
    if ALIGNED:
        channels = channels // 8 * 8  # so that the compiler knows
    number, column = own_part(channels, BLOCK_C)
    _, begin, start, end = _own_rows(number, rows, first_rows, chunk, first_chunks, chunks)
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
def _added_up(
    partial, run, first_chunks, chunks, channels, column, inside, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Both sums of a run's chunks, for its first part and for its second. All are read at once: what waits for memory
    waits a single time."""
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
def _settle(
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
    """The statistics (S, 2, 4, C) of both parts, and the running ones, updated by one part after the other.

    PIVOTS: what distances were measured from is there, (S, 2, C); else it is as in `_moments`.
    """
    run = tl.program_id(1)
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = column < channels
    own = run * channels + column
    weight = tl.load(weights + own, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(biases + own, mask=inside, other=0.0).to(tl.float32)
    long_mean = tl.load(running_mean + own, mask=inside, other=0.0)
    long_var = tl.load(running_var + own, mask=inside, other=0.0)
    # For a part without images, some numbers that are not used.
    own_pivots, second_pivots = maps + run * rows * channels, tl.minimum(first_rows, rows - 1) * channels
    if PIVOTS:
        own_pivots, second_pivots = pivots + run * 2 * channels, channels
    pivot = tl.load(own_pivots + column, mask=inside, other=0.0).to(tl.float32)
    second_pivot = tl.load(own_pivots + second_pivots + column, mask=inside, other=0.0).to(tl.float32)
    sums, squares, second_sums, second_squares = _added_up(
        partial, run, first_chunks, chunks, channels, column, inside, BLOCK_P, BLOCK_C
    )
    for part in tl.static_range(2):
        count = first_rows
        if part == 1:
            count = rows - first_rows
            pivot, sums, squares = second_pivot, second_sums, second_squares
        if count > 0:
            away = sums / count.to(tl.float32)
            mean = pivot + away
            var = tl.maximum(squares / count.to(tl.float32) - away * away, 0.0)
            inverse = 1.0 / tl.sqrt(var + epsilon)
            factor = weight * inverse
            target = statistics + (run * 2 + part) * 4 * channels + column
            tl.store(target, mean, mask=inside)
            tl.store(target + channels, inverse, mask=inside)
            tl.store(target + 2 * channels, factor, mask=inside)
            tl.store(target + 3 * channels, bias - mean * factor, mask=inside)
            unbiased = var * (count.to(tl.float32) / tl.maximum(count - 1, 1).to(tl.float32))
            long_mean += momentum * (mean - long_mean)
            long_var += momentum * (unbiased - long_var)
    tl.store(running_mean + own, long_mean, mask=inside)
    tl.store(running_var + own, long_var, mask=inside)


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
    if ALIGNED:
        channels = channels // 8 * 8  # so that the compiler knows
    number, column = own_part(channels, BLOCK_C, BACK=True)
    part, _, start, end = _own_rows(number, rows, first_rows, BLOCK_R, first_tiles, tiles)
    row = start + tl.arange(0, BLOCK_R)
    inside = column < channels
    mask = (row < end)[:, None] & inside[None, :]
    place = row[:, None] * channels + column[None, :]
    own = statistics + part * 4 * channels + column
    factor = tl.load(own + 2 * channels, mask=inside, other=0.0)
    summand = tl.load(own + 3 * channels, mask=inside, other=0.0)
    value = tl.load(maps + place, mask=mask, other=0.0).to(tl.float32)
    z = value * factor[None, :] + summand[None, :]
    if ADDED:
        z += tl.load(added + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + place, activation_of(z, ACTIVATION), mask=mask)


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
    """Of each chunk the sums of the gradient, and of the gradient times the distance from the mean: partial
    (S, chunks, 2, C).

    ACTIVATED: what relu gave is there, and the gradient that passes through it is written out.
    """
    if ALIGNED:
        channels = channels // 8 * 8  # so that the compiler knows
    number, column = own_part(channels, BLOCK_C)
    part, _, start, end = _own_rows(number, rows, first_rows, chunk, first_chunks, chunks)
    inside = column < channels
    own = statistics + part * 4 * channels + column
    mean = tl.load(own, mask=inside, other=0.0)
    factor = tl.load(own + 2 * channels, mask=inside, other=0.0)
    summand = tl.load(own + 3 * channels, mask=inside, other=0.0)
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
            gradient = through_activation(gradient, value * factor[None, :] + summand[None, :], ACTIVATION)
        sums += gradient
        products += gradient * (value - mean[None, :])
    store_sums(partial, number, sums, products, channels, column)


@triton.jit
def _statistics_of(part, statistics, channels, column, inside):
    """Mean, one over the deviation, and factor of a part; no numbers that mean anything if it has no images."""
    own = statistics + part * 4 * channels + column
    mean = tl.load(own, mask=inside, other=0.0)
    inverse = tl.load(own + channels, mask=inside, other=0.0)
    return mean, inverse, tl.load(own + 2 * channels, mask=inside, other=0.0)


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
    """The gradients of weight and bias (S, C), and what `_apply_backward` needs of each part, (S, 2, 3, C)."""
    run = tl.program_id(1)
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = column < channels
    # Before the sums, so that memory brings them meanwhile.
    mean, inverse, factor = _statistics_of(run * 2, statistics, channels, column, inside)
    second_mean, second_inverse, second_factor = _statistics_of(run * 2 + 1, statistics, channels, column, inside)
    sums, products, second_sums, second_products = _added_up(
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
            of_number = -factor * inverse * inverse * products / count.to(tl.float32)
            target = factors + (run * 2 + part) * 3 * channels + column
            tl.store(target, factor, mask=inside)
            tl.store(target + channels, of_number, mask=inside)
            tl.store(target + 2 * channels, -factor * sums / count.to(tl.float32) - of_number * mean, mask=inside)
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
    if ALIGNED:
        channels = channels // 8 * 8  # so that the compiler knows
    number, column = own_part(channels, BLOCK_C, BACK=True)
    part, _, start, end = _own_rows(number, rows, first_rows, BLOCK_R, first_tiles, tiles)
    row = start + tl.arange(0, BLOCK_R)
    inside = column < channels
    mask = (row < end)[:, None] & inside[None, :]
    place = row[:, None] * channels + column[None, :]
    own = statistics + part * 4 * channels + column
    factor = tl.load(own + 2 * channels, mask=inside, other=0.0)
    summand = tl.load(own + 3 * channels, mask=inside, other=0.0)
    ours = factors + part * 3 * channels + column
    of_gradient = tl.load(ours, mask=inside, other=0.0)
    of_number = tl.load(ours + channels, mask=inside, other=0.0)
    constant = tl.load(ours + 2 * channels, mask=inside, other=0.0)
    value = tl.load(maps + place, mask=mask, other=0.0).to(tl.float32)
    gradient = tl.load(gradients + place, mask=mask, other=0.0).to(tl.float32)
    gradient = through_activation(gradient, value * factor[None, :] + summand[None, :], ACTIVATION)
    result = of_gradient[None, :] * gradient + of_number[None, :] * value + constant[None, :]
    tl.store(out + place, result, mask=mask)
