"""Depthwise convolutions, forward and backward: the kernels that `memwrap.fused.kernels.depthwise` launches.

A program computes strips of the output, several rows high and two columns wide, so that each value it loads serves most
positions of a strip. It issues all loads of a strip before it stores anything: a load after a store to an unknown
address would wait for it. No program has images of both parts of a run.
"""

import math
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from memwrap.fused.kernels.batch_norm import Sums, activate, activate_backward, store_sums
from memwrap.fused.kernels.tiling import align, channel_block, images_per_run, is_aligned, program_block
from memwrap.nn.gpu import LAUNCH_OPTIONS

_RAW = -1  # in the place of an activation: the input is not normalised

# By kernel size and stride: elements per position of a strip, warps, rows of a strip (of the output, or backward of the
# maps), for some the maximum number of registers per thread, and backward the approximate number of programs. Measured
# on an H200.
_FORWARD = {
    (3, 1): {"tile": 256, "warps": 4, "rows": 8},
    (3, 2): {"tile": 256, "warps": 2, "rows": 2},
    (5, 1): {"tile": 256, "warps": 2, "rows": 4, "registers": 160},
    (5, 2): {"tile": 512, "warps": 2, "rows": 2},
}
_BACKWARD = {
    (3, 1): {"tile": 128, "warps": 2, "rows": 4, "programs": 3168},
    (3, 2): {"tile": 256, "warps": 4, "rows": 4, "programs": 3168, "registers": 96},
    (5, 1): {"tile": 128, "warps": 2, "rows": 2, "programs": 2112},
    (5, 2): {"tile": 128, "warps": 4, "rows": 4, "programs": 2112, "registers": 128},
}
_PARTIALS = 256  # chunks whose tap gradients are added at a time
_MERGED = 16  # taps of channels per program that adds them
_UNROLL = 4  # iterations of that loop whose loads overlap
_PIVOTS = 128  # channels per program that computes pivots

# Kernels are compiled once for all numbers of images, sizes of maps, and divisions among programs.
_COUNTS = ["images", "first", "height", "width", "down", "across", "first_chunks", "chunks", "turns"]


@dataclass(frozen=True)
class ConvInput:
    """The input of a convolution: maps (S * N, C, H, W), raw, or to be normalised and activated as they are read.

    first: how many images of each run form the first part. statistics (S, 2, 4, C): of both parts; None for raw maps.
    """

    maps: Tensor
    first: int
    statistics: Tensor | None = None
    activation: int = _RAW


class _StripGrid:
    """How the maps of S runs are divided into strips, and the strips among programs. A program takes `turns` strips."""

    def __init__(self, maps: Tensor, source: ConvInput, runs: int, config: dict[str, int]) -> None:
        _, self.channels, height, width = maps.shape
        self.runs, self.images = runs, images_per_run(maps, runs)
        self.rows = min(config["rows"], triton.next_power_of_2(height))
        self.block_c = channel_block(self.channels)
        self.block_p, self.warps = config["tile"] // self.block_c, config["warps"]
        self.registers = config.get("registers")
        self.even = height % self.rows == 0 and width % 2 == 0
        parts = source.first, self.images - source.first
        pairs, below = triton.cdiv(width, 2), triton.cdiv(height, self.rows)
        strips = [triton.cdiv(own * pairs, self.block_p) * below for own in parts]
        columns = triton.cdiv(self.channels, self.block_c)
        programs = config.get("programs")
        self.turns = 1 if programs is None else max(1, triton.cdiv(runs * sum(strips) * columns, programs))
        self.first_chunks, second = (triton.cdiv(own, self.turns) for own in strips)
        self.chunks = self.first_chunks + second
        self.grid = (self.chunks * columns, runs)

    def empty_sums(self, device: torch.device) -> Sums:
        return Sums.empty(self.runs, self.chunks, self.channels, self.first_chunks, device)

    def options(self) -> dict[str, int | None]:
        return {
            "ROWS": self.rows,
            "EVEN": self.even,
            "BLOCK_P": self.block_p,
            "BLOCK_C": self.block_c,
            "ALIGNED": is_aligned(self.channels),
            "num_warps": self.warps,
            "maxnreg": self.registers,
            **LAUNCH_OPTIONS,
        }


def convolve(source: ConvInput, taps: Tensor, out: Tensor, stride: int) -> None:
    """Write the convolution into `out`. taps (S, K * K, C)"""
    _launch(_StripGrid(out, source, len(taps), _FORWARD[_side_of(taps), stride]), source, taps, out, stride, None)


def convolve_with_moments(source: ConvInput, taps: Tensor, out: Tensor, stride: int) -> Sums:
    """Write the convolution into `out`, and return its moments."""
    strips = _StripGrid(out, source, len(taps), _FORWARD[_side_of(taps), stride])
    pivots = torch.empty(strips.runs, 2, strips.channels, device=taps.device, dtype=torch.float32)
    _first_outputs[(triton.cdiv(strips.channels, _PIVOTS), 2 * strips.runs)](
        source.maps,
        taps,
        pivots if source.statistics is None else source.statistics,
        pivots,
        strips.images,
        source.first,
        strips.channels,
        *source.maps.shape[2:],
        K=_side_of(taps),
        ACTIVATION=source.activation,
        BLOCK_C=_PIVOTS,
        **LAUNCH_OPTIONS,
    )
    moments = replace(strips.empty_sums(out.device), pivots=pivots)
    _launch(strips, source, taps, out, stride, moments)
    return moments


def _launch(
    strips: _StripGrid, source: ConvInput, taps: Tensor, out: Tensor, stride: int, moments: Sums | None
) -> None:
    _convolve_strip[strips.grid](
        source.maps,
        taps,
        taps if source.statistics is None else source.statistics,
        taps if moments is None else moments.pivots,
        out,
        taps if moments is None else moments.values,
        strips.images,
        source.first,
        strips.channels,
        *source.maps.shape[2:],
        *out.shape[2:],
        strips.first_chunks,
        strips.chunks,
        STRIDE=stride,
        K=_side_of(taps),
        ACTIVATION=source.activation,
        MOMENTS=moments is not None,
        **strips.options(),
    )


def convolve_backward(gradient: Tensor, source: ConvInput, taps: Tensor, stride: int) -> tuple[Tensor, Tensor, Sums]:
    """The gradients of the maps (before their activation) and of the taps by chunks (S, chunks, K * K, C), from that of
    the output; and the sums for `batch_norm_backward`, undefined for raw maps."""
    side = _side_of(taps)
    strips = _StripGrid(source.maps, source, len(taps), _BACKWARD[side, stride])
    out, sums = torch.empty_like(source.maps), strips.empty_sums(taps.device)
    of_taps = torch.empty(len(taps), strips.chunks, *taps.shape[1:], device=taps.device, dtype=torch.float32)
    _convolve_strips_backward[strips.grid](
        gradient,
        taps,
        source.maps,
        sums.values if source.statistics is None else source.statistics,
        out,
        of_taps,
        sums.values,
        strips.images,
        source.first,
        strips.channels,
        *source.maps.shape[2:],
        *gradient.shape[2:],
        strips.first_chunks,
        strips.chunks,
        strips.turns,
        STRIDE=stride,
        K=side,
        ACTIVATION=source.activation,
        **strips.options(),
    )
    return out, of_taps, sums


def _side_of(taps: Tensor) -> int:
    """taps (S, K * K, C) -> K"""
    return math.isqrt(taps.shape[1])


def merge_weight_gradient(partial: Tensor, weight: Tensor) -> Tensor:
    """Sum tap gradients over chunks: (S, chunks, K * K, C) -> the gradient of the weight (S, C, 1, K, K)"""
    runs, chunks, taps, channels = partial.shape
    out = torch.empty(weight.shape, device=weight.device, dtype=weight.dtype)
    _merge_taps[(triton.cdiv(taps * channels, _MERGED), runs)](
        partial, out, channels, chunks, TAPS=taps, BLOCK_P=_PARTIALS, BLOCK_L=_MERGED, UNROLL=_UNROLL, **LAUNCH_OPTIONS
    )
    return out


@triton.jit
def _load_shifted(base, y, x, v, u, size, inside, other):
    """The values v rows below and u columns right of (y, x), where `base` points; `other` outside: (P, C)

    size: height, width and channels of the maps.
    """
    row, col = y + v, x + u
    valid = inside & ((col >= 0) & (col < size[1]))[:, None] & ((row >= 0) & (row < size[0]))[:, None]
    return tl.load(base + (v * size[1] + u) * size[2], mask=valid, other=other).to(tl.float32)


@triton.jit
def _broadcast_lanes(values, column, BLOCK_P: tl.constexpr):
    """Pointers (P, C) to per-channel values, the same for each position.

    Every thread loads the values it needs itself, in the layout of the maps, so none are exchanged between threads.
    """
    return values + column[None, :] + tl.zeros((BLOCK_P, 1), tl.int32)


@triton.jit
def _chunk_images(chunk, first_chunks, images, first):
    """The part that a chunk belongs to, the part's first image, its number of images, and the chunk's number in it."""
    second = chunk >= first_chunks
    begin, count = tl.where(second, first, 0), tl.where(second, images - first, first)
    return tl.where(second, 1, 0), begin, count, tl.where(second, chunk - first_chunks, chunk)


@triton.jit
def _load_part_statistics(
    statistics, run, part, channels, column, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, ACTIVATION: tl.constexpr
):
    """Mean, scale and shift of a part, (P, C) each; zeros for raw maps."""
    mean = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    factor, shift = mean, mean
    if ACTIVATION >= 0:
        own = _broadcast_lanes(statistics + (run * 2 + part) * 4 * channels, column, BLOCK_P)
        inside = (column < channels)[None, :]
        mean = tl.load(own, mask=inside, other=0.0)
        factor = tl.load(own + 2 * channels, mask=inside, other=0.0)
        shift = tl.load(own + 3 * channels, mask=inside, other=0.0)
    return mean, factor, shift


@triton.jit
def _strip_origin(number, images, height, width, ROWS: tl.constexpr, BLOCK_P: tl.constexpr):
    """The images, y and x where the strips of block `number` of a part start, and whether they exist.

    Consecutive blocks are below each other: they load some of the same rows.
    """
    strips, pairs = tl.cdiv(height, ROWS), tl.cdiv(width, 2)
    place = number // strips * BLOCK_P + tl.arange(0, BLOCK_P)
    y = number % strips * ROWS + tl.zeros_like(place)
    return place // pairs, y, place % pairs * 2, place < images * pairs


@triton.constexpr_function
def _tap_index(position: int, v: int, u: int, stride: int, side: int, rows: int, backward: bool) -> int:
    """The tap that connects the input at (v, u), relative to a strip's start, with a position of the strip; -1 if none.

    Forward, a strip is of the output and the input are the maps. Backward, a strip is of the maps' gradient and the
    input is the gradient of the output.
    """
    half, row, column = side // 2, position % rows, position // rows
    i, j = (
        (row + half - stride * v, column + half - stride * u)
        if backward
        else (v + half - stride * row, u + half - stride * column)
    )
    return i * side + j if 0 <= i < side and 0 <= j < side else -1


@triton.jit
def _accumulate(
    strip,
    number,
    v: tl.constexpr,
    u: tl.constexpr,
    taps,
    channels,
    inside,
    STRIDE: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BACKWARD: tl.constexpr,
):
    """Add the contribution of the input at (v, u) to a strip, a tuple of its left column and then its right one."""
    new = ()
    for place in tl.static_range(2 * ROWS):
        if _tap_index(place, v, u, STRIDE, K, ROWS, BACKWARD) >= 0:
            own = taps + _tap_index(place, v, u, STRIDE, K, ROWS, BACKWARD) * channels
            factor = tl.load(own, mask=inside, other=0.0)  # positions that do not exist stay zero
            new = new + (strip[place] + factor * number,)
        else:
            new = new + (strip[place],)
    return new


@triton.jit
def _exists(place: tl.constexpr, y, x, size, inside, ROWS: tl.constexpr, EVEN: tl.constexpr):
    """Whether a position of a strip that starts at (y, x) is in the maps: (P, C). EVEN: no strip crosses an edge."""
    if not EVEN:
        inside = inside & ((y + place % ROWS < size[0]) & (x + place // ROWS < size[1]))[:, None]
    return inside


@triton.jit
def _store_strip(target, strip, y, x, size, inside, ROWS: tl.constexpr, EVEN: tl.constexpr):
    for place in tl.static_range(2 * ROWS):
        offset = (place % ROWS * size[1] + place // ROWS) * size[2]
        tl.store(target + offset, strip[place], mask=_exists(place, y, x, size, inside, ROWS, EVEN))


@triton.jit(do_not_specialize=_COUNTS)
def _first_outputs(
    source,
    taps,
    statistics,
    out,
    images,
    first,
    channels,
    height,
    width,
    K: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """The first output position of each part, (S, 2, C), as the pivot of its moments; arbitrary without images."""
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    run, part = tl.program_id(1) // 2, tl.program_id(1) % 2
    within = column < channels
    image = run * images + tl.minimum(part * first, images - 1)
    own = statistics + (run * 2 + part) * 4 * channels + column
    total = tl.zeros((BLOCK_C,), tl.float32)
    for v in tl.static_range(K // 2 + 1):
        for u in tl.static_range(K // 2 + 1):
            row, across = v + tl.zeros_like(column), u + tl.zeros_like(column)
            valid = within & (row < height) & (across < width)
            place = ((image * height + row) * width + across) * channels + column
            z = tl.load(source + place, mask=valid, other=0.0).to(tl.float32)
            if ACTIVATION >= 0:
                factor = tl.load(own + 2 * channels, mask=within, other=0.0)
                shift = tl.load(own + 3 * channels, mask=within, other=0.0)
                z = tl.where(valid, activate(z * factor + shift, ACTIVATION), 0.0)
            tap = (run * K * K + (v + K // 2) * K + u + K // 2) * channels + column
            total += z * tl.load(taps + tap, mask=within, other=0.0)
    tl.store(out + tl.program_id(1) * channels + column, total, mask=within)


@triton.jit(do_not_specialize=_COUNTS)
def _convolve_strip(
    source,
    taps,
    statistics,
    pivots,
    out,
    moments,
    images,
    first,
    channels,
    height,
    width,
    down,
    across,
    first_chunks,
    chunks,
    STRIDE: tl.constexpr,
    K: tl.constexpr,
    ACTIVATION: tl.constexpr,
    MOMENTS: tl.constexpr,
    ROWS: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """One strip per position of the block: of the output, down x across, from the source, height x width.

    MOMENTS: also store the sums of the differences from the pivots, and of their squares, (S, chunks, 2, C).
    """
    channels = align(channels, ALIGNED)
    chunk, column = program_block(channels, BLOCK_C)
    run = tl.program_id(1)
    part, begin, count, number = _chunk_images(chunk, first_chunks, images, first)
    image, y, x, valid = _strip_origin(number, count, down, across, ROWS, BLOCK_P)
    image += run * images + begin
    inside = valid[:, None] & (column < channels)[None, :]
    _, factor, shift = _load_part_statistics(statistics, run, part, channels, column, BLOCK_P, BLOCK_C, ACTIVATION)
    # The padding must be zero after the activation. For relu, an infinite input with the right sign gives zero.
    padding = 0.0
    if ACTIVATION == 1:
        padding = tl.where(factor > 0, float("-inf"), float("inf")).to(source.dtype.element_ty)
    size, in_y, in_x = (height, width, channels), y * STRIDE, x * STRIDE
    base = source + ((image * height + in_y) * width + in_x)[:, None] * channels + column[None, :]
    own_taps = _broadcast_lanes(taps + run * K * K * channels, column, BLOCK_P)
    strip = ()
    for _ in tl.static_range(2 * ROWS):
        strip = strip + (tl.zeros((BLOCK_P, BLOCK_C), tl.float32),)
    for u in tl.static_range(-(K // 2), STRIDE + K // 2 + 1):
        for v in tl.static_range(-(K // 2), STRIDE * (ROWS - 1) + K // 2 + 1):
            z = _load_shifted(base, in_y, in_x, v, u, size, inside, padding)
            if ACTIVATION >= 0:
                z = activate(z * factor + shift, ACTIVATION)
            if ACTIVATION == 0:
                row, col = in_y + v, in_x + u
                z = tl.where(((row >= 0) & (row < height) & (col >= 0) & (col < width))[:, None], z, 0.0)
            strip = _accumulate(strip, z, v, u, own_taps, channels, inside, STRIDE, K, ROWS, False)
    target = out + ((image * down + y) * across + x)[:, None] * channels + column[None, :]
    size = (down, across, channels)
    if MOMENTS:
        # If EVEN, positions that do not exist are zero; a pivot of zero keeps their difference zero.
        pivot = tl.load(_broadcast_lanes(pivots + (run * 2 + part) * channels, column, BLOCK_P), mask=inside, other=0.0)
        sums = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
        squares = sums
        for place in tl.static_range(2 * ROWS):
            offset = (
                strip[place].to(out.dtype.element_ty).to(tl.float32) - pivot
            )  # of the rounded values, which are read again
            if not EVEN:
                offset = tl.where(_exists(place, y, x, size, inside, ROWS, EVEN), offset, 0.0)
            sums += offset
            squares += offset * offset
        store_sums(moments, run * chunks + chunk, sums, squares, channels, column)
    _store_strip(target, strip, y, x, size, inside, ROWS, EVEN)


@triton.jit(do_not_specialize=_COUNTS)
def _convolve_strips_backward(
    gradient,
    taps,
    maps,
    statistics,
    out,
    of_taps,
    sums,
    images,
    first,
    channels,
    height,
    width,
    down,
    across,
    first_chunks,
    chunks,
    turns,
    STRIDE: tl.constexpr,
    K: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """`turns` strips of the gradient of the maps, height x width, from that of the output, down x across; their
    contribution to the gradient of the taps, (S, chunks, K * K, C); and the sums for batch norm, (S, chunks, 2, C).

    A tap connects one position of the output with one of the maps. The gradient of the map's value is the tap times the
    output's gradient, and the gradient of the tap is the map's value times the output's gradient.
    """
    channels = align(channels, ALIGNED)
    chunk, column = program_block(channels, BLOCK_C)
    run = tl.program_id(1)
    part, begin, count, number = _chunk_images(chunk, first_chunks, images, first)
    mean, factor, shift = _load_part_statistics(statistics, run, part, channels, column, BLOCK_P, BLOCK_C, ACTIVATION)
    own_taps = _broadcast_lanes(taps + run * K * K * channels, column, BLOCK_P)
    size = (height, width, channels)
    none = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    one, other = none, none
    tap_grads = ()
    for _ in tl.static_range(K * K):
        tap_grads = tap_grads + (none,)
    for turn in range(turns):
        image, y, x, valid = _strip_origin(number * turns + turn, count, height, width, ROWS, BLOCK_P)
        image += run * images + begin
        inside = valid[:, None] & (column < channels)[None, :]
        place = ((image * height + y) * width + x)[:, None] * channels + column[None, :]
        # If EVEN, positions that do not exist have no gradient, so their input values do not matter.
        numbers, inputs, strip = (), (), ()
        for at in tl.static_range(2 * ROWS):
            exists = _exists(at, y, x, size, inside, ROWS, EVEN)
            offset = (at % ROWS * width + at // ROWS) * channels
            z = tl.load(maps + place + offset, mask=exists, other=0.0).to(tl.float32)
            numbers = numbers + (z,)
            if ACTIVATION >= 0:
                z = activate(z * factor + shift, ACTIVATION)
            if ACTIVATION >= 0 and not EVEN:
                z = tl.where(exists, z, 0.0)
            inputs, strip = inputs + (z,), strip + (none,)
        out_y, out_x = y // STRIDE, x // STRIDE
        base = gradient + ((image * down + out_y) * across + out_x)[:, None] * channels + column[None, :]
        for u in tl.static_range(-(K // 2 // STRIDE), (1 + K // 2) // STRIDE + 1):
            for v in tl.static_range(-(K // 2 // STRIDE), (ROWS - 1 + K // 2) // STRIDE + 1):
                grad = _load_shifted(base, out_y, out_x, v, u, (down, across, channels), inside, 0.0)
                strip = _accumulate(strip, grad, v, u, own_taps, channels, inside, STRIDE, K, ROWS, True)
                tap_grads = _accumulate_taps(tap_grads, grad, v, u, inputs, STRIDE, K, ROWS)
        if ACTIVATION >= 0:
            passed = ()
            for at in tl.static_range(2 * ROWS):
                gone = activate_backward(strip[at], numbers[at] * factor + shift, ACTIVATION)
                if not EVEN:
                    gone = tl.where(_exists(at, y, x, size, inside, ROWS, EVEN), gone, 0.0)
                passed = passed + (gone,)
                one += gone
                other += gone * (numbers[at] - mean)
            strip = passed
        _store_strip(out + place, strip, y, x, size, inside, ROWS, EVEN)
    target, within = of_taps + (run * chunks + chunk) * K * K * channels + column, column < channels
    for tap in tl.static_range(K * K):
        tl.store(target + tap * channels, tl.sum(tap_grads[tap], axis=0), mask=within)
    if ACTIVATION >= 0:
        store_sums(sums, run * chunks + chunk, one, other, channels, column)


@triton.jit
def _accumulate_taps(
    tap_grads, grad, v: tl.constexpr, u: tl.constexpr, inputs, STRIDE: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr
):
    """Add the contribution of the output gradient at (v, u) to the gradients of the taps."""
    new = ()
    for tap in tl.static_range(K * K):
        if _strip_position(tap, v, u, STRIDE, K, ROWS) >= 0:
            new = new + (tap_grads[tap] + inputs[_strip_position(tap, v, u, STRIDE, K, ROWS)] * grad,)
        else:
            new = new + (tap_grads[tap],)
    return new


@triton.constexpr_function
def _strip_position(tap: int, v: int, u: int, stride: int, side: int, rows: int) -> int:
    """The position of a strip that a tap connects with the output gradient at (v, u); -1 if none"""
    return next((own for own in range(2 * rows) if _tap_index(own, v, u, stride, side, rows, True) == tap), -1)


@triton.jit(do_not_specialize=_COUNTS)
def _merge_taps(
    partial,
    out,
    channels,
    chunks,
    TAPS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_L: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Sum over chunks: partial (S, chunks, TAPS, C) -> (S, C, TAPS)"""
    run = tl.program_id(1)
    lane = tl.program_id(0) * BLOCK_L + tl.arange(0, BLOCK_L)
    lanes = TAPS * channels
    inside = lane < lanes
    sums = tl.zeros((BLOCK_P, BLOCK_L), tl.float32)
    for top in tl.range(0, chunks, BLOCK_P, loop_unroll_factor=UNROLL):
        number = top + tl.arange(0, BLOCK_P)
        place = (run * chunks + number)[:, None] * lanes + lane[None, :]
        sums += tl.load(partial + place, mask=(number < chunks)[:, None] & inside[None, :], other=0.0)
    tap, channel = lane // channels, lane % channels
    tl.store(out + (run * channels + channel) * TAPS + tap, tl.sum(sums, axis=0), mask=inside)
