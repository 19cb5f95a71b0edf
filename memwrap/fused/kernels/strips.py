"""Depthwise convolutions in strips, there and back: what `memwrap.fused.kernels.depthwise` launches.

A program makes strips, several rows high and two columns wide: a number that it has read and converted serves most of
the places in a strip. For each it asks for all that it reads before it writes anything: a load after a store would wait
for it, as both might mean the same place. No program has images of both parts of a run.
"""

import math
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from memwrap.fused.kernels.blocks import images_of_each, own_part, width_of
from memwrap.fused.kernels.normalisation import Sums, activation_of, store_sums, through_activation
from memwrap.nn.gpu import LAUNCH_OPTIONS

_AS_THEY_ARE = -1  # how numbers are seen, in the place of an activation

# By the kernel's side and the stride: the numbers that a program holds of one place of its strip, the warps that share
# them, the rows of a strip, of the result or on the way back of the maps, and sometimes how many registers a thread may
# take; and about how many programs go back, for all runs together. Measured on an H200.
_THERE = {
    (3, 1): {"tile": 256, "warps": 4, "rows": 8},
    (3, 2): {"tile": 256, "warps": 2, "rows": 2},
    (5, 1): {"tile": 256, "warps": 2, "rows": 4, "registers": 160},
    (5, 2): {"tile": 512, "warps": 2, "rows": 2},
}
_BACK = {
    (3, 1): {"tile": 128, "warps": 2, "rows": 4, "programs": 3168},
    (3, 2): {"tile": 256, "warps": 4, "rows": 4, "programs": 3168, "registers": 96},
    (5, 1): {"tile": 128, "warps": 2, "rows": 2, "programs": 2112},
    (5, 2): {"tile": 128, "warps": 4, "rows": 4, "programs": 2112, "registers": 128},
}
_PARTIALS = 256  # results of programs that are added up at a time
_MERGED = 16  # taps of channels of which one program adds them up
_UNROLL = 4  # such turns whose loads may be under way at the same time
_PIVOTS = 128  # channels whose pivots one program finds

# Kernels are compiled once for all numbers of images, for all sizes whose strips are of one kind, and for all ways to
# share them among programs.
_COUNTS = ["images", "first", "height", "width", "down", "across", "first_chunks", "chunks", "turns"]


@dataclass(frozen=True)
class Seen:
    """What a convolution sees: maps (S * N, C, H, W), as they are or normalised and activated.

    first: how many images of each run belong to the first part. statistics (S, 2, 4, C): of both, if they are
    normalised by them.
    """

    maps: Tensor
    first: int
    statistics: Tensor | None = None
    activation: int = _AS_THEY_ARE


class _Strips:
    """How S runs of images, height x width, are cut into strips, and these shared among programs: each takes `turns` of
    a part's, one after the other."""

    def __init__(self, maps: Tensor, seen: Seen, runs: int, config: dict[str, int]) -> None:
        _, self.channels, height, width = maps.shape
        self.runs, self.images = runs, images_of_each(maps, runs)
        self.rows = min(config["rows"], triton.next_power_of_2(height))
        self.block_c = width_of(self.channels)
        self.block_p, self.warps = config["tile"] // self.block_c, config["warps"]
        self.registers = config.get("registers")
        self.even = height % self.rows == 0 and width % 2 == 0
        parts = seen.first, self.images - seen.first
        pairs, below = triton.cdiv(width, 2), triton.cdiv(height, self.rows)
        strips = [triton.cdiv(own * pairs, self.block_p) * below for own in parts]
        columns = triton.cdiv(self.channels, self.block_c)
        programs = config.get("programs")
        self.turns = 1 if programs is None else max(1, triton.cdiv(runs * sum(strips) * columns, programs))
        self.first_chunks, second = (triton.cdiv(own, self.turns) for own in strips)
        self.chunks = self.first_chunks + second
        self.grid = (self.chunks * columns, runs)

    def empty_sums(self, device: torch.device) -> Sums:
        """Room for those of its chunks"""
        return Sums.empty(self.runs, self.chunks, self.channels, self.first_chunks, device)

    def options(self) -> dict[str, int | None]:
        return {
            "ROWS": self.rows,
            "EVEN": self.even,
            "BLOCK_P": self.block_p,
            "BLOCK_C": self.block_c,
            "ALIGNED": self.channels % 8 == 0,
            "num_warps": self.warps,
            "maxnreg": self.registers,
            **LAUNCH_OPTIONS,
        }


def convolve(seen: Seen, taps: Tensor, out: Tensor, stride: int) -> None:
    """Into its place; taps (S, K * K, C)"""
    _convolve(_Strips(out, seen, len(taps), _THERE[_side_of(taps), stride]), seen, taps, out, stride, None)


def convolve_with_moments(seen: Seen, taps: Tensor, out: Tensor, stride: int) -> Sums:
    """The same, and the moments of what comes out"""
    strips = _Strips(out, seen, len(taps), _THERE[_side_of(taps), stride])
    pivots = torch.empty(strips.runs, 2, strips.channels, device=taps.device, dtype=torch.float32)
    _first_results[(triton.cdiv(strips.channels, _PIVOTS), 2 * strips.runs)](
        seen.maps,
        taps,
        pivots if seen.statistics is None else seen.statistics,
        pivots,
        strips.images,
        seen.first,
        strips.channels,
        *seen.maps.shape[2:],
        K=_side_of(taps),
        SEEN=seen.activation,
        BLOCK_C=_PIVOTS,
        **LAUNCH_OPTIONS,
    )
    moments = replace(strips.empty_sums(out.device), pivots=pivots)
    _convolve(strips, seen, taps, out, stride, moments)
    return moments


def _convolve(strips: _Strips, seen: Seen, taps: Tensor, out: Tensor, stride: int, moments: Sums | None) -> None:
    _strip[strips.grid](
        seen.maps,
        taps,
        taps if seen.statistics is None else seen.statistics,
        taps if moments is None else moments.pivots,
        out,
        taps if moments is None else moments.values,
        strips.images,
        seen.first,
        strips.channels,
        *seen.maps.shape[2:],
        *out.shape[2:],
        strips.first_chunks,
        strips.chunks,
        STRIDE=stride,
        K=_side_of(taps),
        SEEN=seen.activation,
        MOMENTS=moments is not None,
        **strips.options(),
    )


def go_back(gradient: Tensor, seen: Seen, taps: Tensor, stride: int) -> tuple[Tensor, Tensor, Sums]:
    """From the gradient of what came out: that of the maps, behind their activation if they have one; that of the taps,
    by chunks, (S, chunks, K * K, C); and the sums that normalised maps need, which mean nothing for others."""
    side = _side_of(taps)
    strips = _Strips(seen.maps, seen, len(taps), _BACK[side, stride])
    out, sums = torch.empty_like(seen.maps), strips.empty_sums(taps.device)
    of_taps = torch.empty(len(taps), strips.chunks, *taps.shape[1:], device=taps.device, dtype=torch.float32)
    _strips_back[strips.grid](
        gradient,
        taps,
        seen.maps,
        sums.values if seen.statistics is None else seen.statistics,
        out,
        of_taps,
        sums.values,
        strips.images,
        seen.first,
        strips.channels,
        *seen.maps.shape[2:],
        *gradient.shape[2:],
        strips.first_chunks,
        strips.chunks,
        strips.turns,
        STRIDE=stride,
        K=side,
        SEEN=seen.activation,
        **strips.options(),
    )
    return out, of_taps, sums


def _side_of(taps: Tensor) -> int:
    """taps (S, K * K, C) -> K"""
    return math.isqrt(taps.shape[1])


def merged(partial: Tensor, weight: Tensor) -> Tensor:
    """The weight's gradient, (S, C, 1, K, K), from those of chunks, (S, chunks, K * K, C)."""
    runs, chunks, taps, channels = partial.shape
    out = torch.empty(weight.shape, device=weight.device, dtype=weight.dtype)
    _merge_taps[(triton.cdiv(taps * channels, _MERGED), runs)](
        partial, out, channels, chunks, TAPS=taps, BLOCK_P=_PARTIALS, BLOCK_L=_MERGED, UNROLL=_UNROLL, **LAUNCH_OPTIONS
    )
    return out


@triton.jit
def _numbers_at(base, y, x, v, u, size, inside, other):
    """What maps of a size (height, width, channels) have v rows below and u places right of (y, x), where `base` points
    to; `other` outside: (P, C)"""
    row, place = y + v, x + u
    valid = inside & ((place >= 0) & (place < size[1]))[:, None] & ((row >= 0) & (row < size[0]))[:, None]
    return tl.load(base + (v * size[1] + u) * size[2], mask=valid, other=other).to(tl.float32)


@triton.jit
def _lanes_of(values, column, BLOCK_P: tl.constexpr):
    """Where channels have their values, for each place by itself, (P, C): so these come to the threads that need them,
    as the maps do, and are not moved from thread to thread."""
    return values + column[None, :] + tl.zeros((BLOCK_P, 1), tl.int32)


@triton.jit
def _own_images(chunk, first_chunks, images, first):
    """The part that a chunk belongs to, the first image of that and how many it has, and the chunk's number in it."""
    second = chunk >= first_chunks
    begin, count = tl.where(second, first, 0), tl.where(second, images - first, first)
    return tl.where(second, 1, 0), begin, count, tl.where(second, chunk - first_chunks, chunk)


@triton.jit
def _own_statistics(
    statistics, run, part, channels, column, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, SEEN: tl.constexpr
):
    """Mean, factor and summand of a part, (P, C) each; zeros if numbers are seen as they are."""
    mean = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    factor, summand = mean, mean
    if SEEN >= 0:
        own = _lanes_of(statistics + (run * 2 + part) * 4 * channels, column, BLOCK_P)
        inside = (column < channels)[None, :]
        mean = tl.load(own, mask=inside, other=0.0)
        factor = tl.load(own + 2 * channels, mask=inside, other=0.0)
        summand = tl.load(own + 3 * channels, mask=inside, other=0.0)
    return mean, factor, summand


@triton.jit
def _strip_at(number, images, height, width, ROWS: tl.constexpr, BLOCK_P: tl.constexpr):
    """The places where strip `number` of a part begins: their images, y, x, and whether they exist. Strips that follow
    each other lie below each other: they need some of the same rows."""
    strips, pairs = tl.cdiv(height, ROWS), tl.cdiv(width, 2)
    place = number // strips * BLOCK_P + tl.arange(0, BLOCK_P)
    y = number % strips * ROWS + tl.zeros_like(place)
    return place // pairs, y, place % pairs * 2, place < images * pairs


@triton.constexpr_function
def _tap(place: int, v: int, u: int, stride: int, side: int, rows: int, back: bool) -> int:
    """The number of the tap that leads from (v, u), counted from where a strip begins, to a place of the strip; -1 if
    none does. A convolution goes from maps to its result's places; back, it is from its result to places of the maps.
    """
    half, row, column = side // 2, place % rows, place // rows
    i, j = (
        (row + half - stride * v, column + half - stride * u)
        if back
        else (v + half - stride * row, u + half - stride * column)
    )
    return i * side + j if 0 <= i < side and 0 <= j < side else -1


@triton.jit
def _added(
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
    BACK: tl.constexpr,
):
    """A strip, its left column and then its right one, with what the number at (v, u) adds to its places."""
    new = ()
    for place in tl.static_range(2 * ROWS):
        if _tap(place, v, u, STRIDE, K, ROWS, BACK) >= 0:
            own = taps + _tap(place, v, u, STRIDE, K, ROWS, BACK) * channels
            factor = tl.load(own, mask=inside, other=0.0)  # so places that do not exist stay zero
            new = new + (strip[place] + factor * number,)
        else:
            new = new + (strip[place],)
    return new


@triton.jit
def _exists(place: tl.constexpr, y, x, size, inside, ROWS: tl.constexpr, EVEN: tl.constexpr):
    """Whether maps of a size have a place of a strip that begins at (y, x): (P, C). EVEN: if they have one, then all"""
    if not EVEN:
        inside = inside & ((y + place % ROWS < size[0]) & (x + place // ROWS < size[1]))[:, None]
    return inside


@triton.jit
def _stored(target, strip, y, x, size, inside, ROWS: tl.constexpr, EVEN: tl.constexpr):
    for place in tl.static_range(2 * ROWS):
        away = (place % ROWS * size[1] + place // ROWS) * size[2]
        tl.store(target + away, strip[place], mask=_exists(place, y, x, size, inside, ROWS, EVEN))


@triton.jit(do_not_specialize=_COUNTS)
def _first_results(
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
    SEEN: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """The number that each part of a convolution's result begins with, (S, 2, C); some number if it has no images."""
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    run, part = tl.program_id(1) // 2, tl.program_id(1) % 2
    within = column < channels
    image = run * images + tl.minimum(part * first, images - 1)
    own = statistics + (run * 2 + part) * 4 * channels + column
    total = tl.zeros((BLOCK_C,), tl.float32)
    for v in tl.static_range(K // 2 + 1):
        for u in tl.static_range(K // 2 + 1):
            row, across = v + tl.zeros_like(column), u + tl.zeros_like(column)
            there = within & (row < height) & (across < width)
            place = ((image * height + row) * width + across) * channels + column
            z = tl.load(source + place, mask=there, other=0.0).to(tl.float32)
            if SEEN >= 0:
                factor = tl.load(own + 2 * channels, mask=within, other=0.0)
                summand = tl.load(own + 3 * channels, mask=within, other=0.0)
                z = tl.where(there, activation_of(z * factor + summand, SEEN), 0.0)
            tap = (run * K * K + (v + K // 2) * K + u + K // 2) * channels + column
            total += z * tl.load(taps + tap, mask=within, other=0.0)
    tl.store(out + tl.program_id(1) * channels + column, total, mask=within)


@triton.jit(do_not_specialize=_COUNTS)
def _strip(
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
    SEEN: tl.constexpr,
    MOMENTS: tl.constexpr,
    ROWS: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """A strip of a convolution's result, down x across, from a source, height x width; and its moments (S, chunks, 2,
    C): the sums of the distances from the pivots, and of their squares."""
    if ALIGNED:
        channels = channels // 8 * 8  # so that the compiler knows
    chunk, column = own_part(channels, BLOCK_C)
    run = tl.program_id(1)
    part, begin, count, number = _own_images(chunk, first_chunks, images, first)
    image, y, x, there = _strip_at(number, count, down, across, ROWS, BLOCK_P)
    image += run * images + begin
    inside = there[:, None] & (column < channels)[None, :]
    _, factor, summand = _own_statistics(statistics, run, part, channels, column, BLOCK_P, BLOCK_C, SEEN)
    # Outside, what is seen must be zero: of such a number relu makes that without being asked.
    nothing = 0.0
    if SEEN == 1:
        nothing = tl.where(factor > 0, float("-inf"), float("inf")).to(source.dtype.element_ty)
    size, seen = (height, width, channels), (y * STRIDE, x * STRIDE)
    base = source + ((image * height + seen[0]) * width + seen[1])[:, None] * channels + column[None, :]
    own_taps = _lanes_of(taps + run * K * K * channels, column, BLOCK_P)
    strip = ()
    for _ in tl.static_range(2 * ROWS):
        strip = strip + (tl.zeros((BLOCK_P, BLOCK_C), tl.float32),)
    for u in tl.static_range(-(K // 2), STRIDE + K // 2 + 1):
        for v in tl.static_range(-(K // 2), STRIDE * (ROWS - 1) + K // 2 + 1):
            z = _numbers_at(base, seen[0], seen[1], v, u, size, inside, nothing)
            if SEEN >= 0:
                z = activation_of(z * factor + summand, SEEN)
            if SEEN == 0:
                row, place = seen[0] + v, seen[1] + u
                z = tl.where(((row >= 0) & (row < height) & (place >= 0) & (place < width))[:, None], z, 0.0)
            strip = _added(strip, z, v, u, own_taps, channels, inside, STRIDE, K, ROWS, False)
    target = out + ((image * down + y) * across + x)[:, None] * channels + column[None, :]
    size = (down, across, channels)
    if MOMENTS:
        # Places that do not exist are zero if strips are even, and so shall be their distance.
        pivot = tl.load(_lanes_of(pivots + (run * 2 + part) * channels, column, BLOCK_P), mask=inside, other=0.0)
        sums = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
        squares = sums
        for place in tl.static_range(2 * ROWS):
            away = strip[place].to(out.dtype.element_ty).to(tl.float32) - pivot  # of what will be read again
            if not EVEN:
                away = tl.where(_exists(place, y, x, size, inside, ROWS, EVEN), away, 0.0)
            sums += away
            squares += away * away
        store_sums(moments, run * chunks + chunk, sums, squares, channels, column)
    _stored(target, strip, y, x, size, inside, ROWS, EVEN)


@triton.jit(do_not_specialize=_COUNTS)
def _strips_back(
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
    SEEN: tl.constexpr,
    ROWS: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """`turns` strips of the gradient of maps, height x width, from that of a result, down x across; what they add to
    that of the taps, (S, chunks, K * K, C); and their sums, as normalisation needs them, (S, chunks, 2, C).

    A tap that leads from a place of the result back to one of the maps is what the number there was multiplied by, for
    the result: so the gradient of each is the other times that of the result.
    """
    if ALIGNED:
        channels = channels // 8 * 8  # so that the compiler knows
    chunk, column = own_part(channels, BLOCK_C)
    run = tl.program_id(1)
    part, begin, count, number = _own_images(chunk, first_chunks, images, first)
    mean, factor, summand = _own_statistics(statistics, run, part, channels, column, BLOCK_P, BLOCK_C, SEEN)
    own_taps = _lanes_of(taps + run * K * K * channels, column, BLOCK_P)
    size = (height, width, channels)
    none = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    one, other = none, none
    found = ()
    for _ in tl.static_range(K * K):
        found = found + (none,)
    for turn in range(turns):
        image, y, x, there = _strip_at(number * turns + turn, count, height, width, ROWS, BLOCK_P)
        image += run * images + begin
        inside = there[:, None] & (column < channels)[None, :]
        place = ((image * height + y) * width + x)[:, None] * channels + column[None, :]
        # Places that do not exist have no gradient if strips are even, so it does not matter what is seen there.
        numbers, seen, strip = (), (), ()
        for at in tl.static_range(2 * ROWS):
            exists = _exists(at, y, x, size, inside, ROWS, EVEN)
            away = (at % ROWS * width + at // ROWS) * channels
            z = tl.load(maps + place + away, mask=exists, other=0.0).to(tl.float32)
            numbers = numbers + (z,)
            if SEEN >= 0:
                z = activation_of(z * factor + summand, SEEN)
            if SEEN >= 0 and not EVEN:
                z = tl.where(exists, z, 0.0)
            seen, strip = seen + (z,), strip + (none,)
        met_y, met_x = y // STRIDE, x // STRIDE
        base = gradient + ((image * down + met_y) * across + met_x)[:, None] * channels + column[None, :]
        for u in tl.static_range(-(K // 2 // STRIDE), (1 + K // 2) // STRIDE + 1):
            for v in tl.static_range(-(K // 2 // STRIDE), (ROWS - 1 + K // 2) // STRIDE + 1):
                met = _numbers_at(base, met_y, met_x, v, u, (down, across, channels), inside, 0.0)
                strip = _added(strip, met, v, u, own_taps, channels, inside, STRIDE, K, ROWS, True)
                found = _added_to_taps(found, met, v, u, seen, STRIDE, K, ROWS)
        if SEEN >= 0:
            passed = ()
            for at in tl.static_range(2 * ROWS):
                gone = through_activation(strip[at], numbers[at] * factor + summand, SEEN)
                if not EVEN:
                    gone = tl.where(_exists(at, y, x, size, inside, ROWS, EVEN), gone, 0.0)
                passed = passed + (gone,)
                one += gone
                other += gone * (numbers[at] - mean)
            strip = passed
        _stored(out + place, strip, y, x, size, inside, ROWS, EVEN)
    target, within = of_taps + (run * chunks + chunk) * K * K * channels + column, column < channels
    for tap in tl.static_range(K * K):
        tl.store(target + tap * channels, tl.sum(found[tap], axis=0), mask=within)
    if SEEN >= 0:
        store_sums(sums, run * chunks + chunk, one, other, channels, column)


@triton.jit
def _added_to_taps(
    found, met, v: tl.constexpr, u: tl.constexpr, seen, STRIDE: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr
):
    """The gradients of taps, with what they add that lead from a gradient met at (v, u) to the places of a strip."""
    new = ()
    for tap in tl.static_range(K * K):
        if _place(tap, v, u, STRIDE, K, ROWS) >= 0:
            new = new + (found[tap] + seen[_place(tap, v, u, STRIDE, K, ROWS)] * met,)
        else:
            new = new + (found[tap],)
    return new


@triton.constexpr_function
def _place(tap: int, v: int, u: int, stride: int, side: int, rows: int) -> int:
    """The place of a strip that a tap leads back to from (v, u); -1 if to none"""
    return next((place for place in range(2 * rows) if _tap(place, v, u, stride, side, rows, True) == tap), -1)


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
    """Add up what the chunks of each run found, partial (S, chunks, TAPS, C), in the order of weights: (S, C, TAPS)."""
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
