"""Depthwise convolutions in training, for maps in torch's channels_last layout.

Each number of the maps is multiplied a handful of times, so time goes where bytes go; torch's kernels for them reach a
small part of what the memory can give. The batch may consist of several runs, each with weights of its own.

A program asks for all that it reads before it writes anything: a load after a store would wait for it, as both might
mean the same place. It makes strips of the result, several rows high and two columns wide: a number that it has read
and converted serves most of the places in a strip.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from memwrap.errors import InputError
from memwrap.kernels.blocks import images_of_each, in_rows, own_part, width_of
from memwrap.kernels.streams import at_once


def depthwise(maps: Tensor, weight: Tensor, stride: int = 1) -> Tensor:
    """maps (S * N, C, H, W) in channels_last: S runs of N images each; weight (S, C, 1, K, K), K 3 or 5, padded by
    K // 2; stride 1 or 2 -> (S * N, C, H / stride, ...)"""
    channels = maps.shape[1]
    if weight.shape[1:] not in ((channels, 1, 3, 3), (channels, 1, 5, 5)) or stride not in (1, 2):
        raise InputError(
            f"weights of shape {tuple(weight.shape)} with stride {stride} for maps of shape {tuple(maps.shape)}; "
            f"expected (runs, {channels}, 1, 3, 3) or (runs, {channels}, 1, 5, 5), and stride 1 or 2"
        )
    out: Tensor = _Depthwise.apply(maps, weight, stride)
    return out


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor, stride: int) -> Tensor:
        maps, taps = in_rows(maps), _taps_first(weight)
        ctx.save_for_backward(maps, weight, taps)
        ctx.stride = stride
        count, channels, height, width = maps.shape
        shape = (count, channels, triton.cdiv(height, stride), triton.cdiv(width, stride))
        out = torch.empty(shape, device=maps.device, dtype=maps.dtype, memory_format=torch.channels_last)
        return _convolve(maps, taps, out, stride)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        maps, weight, taps = ctx.saved_tensors
        gradient = in_rows(gradients[0])
        of_maps, of_weight = at_once(
            [
                lambda: _for_maps(gradient, taps, torch.empty_like(maps), ctx.stride),
                lambda: _for_weight(gradient, maps, weight, ctx.stride),
            ],
            maps.device,
        )
        return of_maps, of_weight, None


# The numbers that a program holds of one place of its strip, the warps that share them, the rows of a strip (4, 2
# or 1; of stride 2 half as many), and about how many programs reduce, for all runs together. A thread has 4 or 8 of
# the numbers, which one load brings; measured on an H200.
_STRIPS = {"tile": 512, "warps": 4, "rows": 4}
_SPREADING = {"tile": 1024, "warps": 4}
_STRIPS_FOR_WEIGHT = {  # by the kernel's side
    3: {"tile": 512, "warps": 2, "rows": 4, "programs": 1024},
    5: {"tile": 256, "warps": 2, "rows": 2, "programs": 1024},
}
_PARTIALS = 256  # results of programs that are added up at a time
_MERGED = 16  # taps of channels of which one program adds them up
_UNROLL = 4  # such turns whose loads may be under way at the same time

# Kernels are compiled once for all numbers and sizes of images, and for all ways to share them among programs.
_COUNTS = ["images", "height", "width", "down", "across", "chunks", "turns"]


def _taps_first(weight: Tensor) -> Tensor:
    """weight (S, C, 1, K, K) -> (S, K * K, C) in float32: one load brings a tap of neighbouring channels, as it does
    numbers of the maps, and none has to be converted."""
    taps = weight.flatten(2).mT
    return taps.to(torch.float32, memory_format=torch.contiguous_format).contiguous()


def _side_of(taps: Tensor) -> int:
    """taps (S, K * K, C) -> K"""
    return math.isqrt(taps.shape[1])


def _convolve(source: Tensor, taps: Tensor, out: Tensor, stride: int) -> Tensor:
    runs, images = len(taps), images_of_each(source, len(taps))
    channels, down, across = out.shape[1:]
    block_c = width_of(channels)
    block_p, rows = _STRIPS["tile"] // block_c, _STRIPS["rows"] // stride
    strips, columns = _strips_of(images, down, across, rows, block_p), triton.cdiv(channels, block_c)
    _strip[(strips * columns, runs)](
        source,
        taps,
        out,
        images,
        channels,
        *source.shape[2:],
        down,
        across,
        STRIDE=stride,
        K=_side_of(taps),
        ROWS=rows,
        BLOCK_P=block_p,
        BLOCK_C=block_c,
        ALIGNED=channels % 8 == 0,
        num_warps=_STRIPS["warps"],
    )
    return out


def _spread(gradient: Tensor, taps: Tensor, out: Tensor) -> Tensor:
    runs, images = len(taps), images_of_each(gradient, len(taps))
    channels, down, across = gradient.shape[1:]
    block_c = width_of(channels)
    block_p = _SPREADING["tile"] // block_c
    tiles, columns = triton.cdiv(images * down * across, block_p), triton.cdiv(channels, block_c)
    _spread_in_squares[(tiles * columns, runs)](
        gradient,
        taps,
        out,
        images,
        channels,
        *out.shape[2:],
        down,
        across,
        K=_side_of(taps),
        BLOCK_P=block_p,
        BLOCK_C=block_c,
        ALIGNED=channels % 8 == 0,
        num_warps=_SPREADING["warps"],
    )
    return out


def _for_maps(gradient: Tensor, taps: Tensor, out: Tensor, stride: int) -> Tensor:
    """The gradient of maps, into its place."""
    return _convolve(gradient, taps.flip(1), out, stride=1) if stride == 1 else _spread(gradient, taps, out)


def _for_weight(gradient: Tensor, maps: Tensor, weight: Tensor, stride: int) -> Tensor:
    runs, images = len(weight), images_of_each(maps, len(weight))
    channels, down, across = gradient.shape[1:]
    side = weight.shape[-1]
    config = _STRIPS_FOR_WEIGHT[side]
    block_c = width_of(channels)
    block_p, rows = config["tile"] // block_c, config["rows"] // stride
    strips, columns = _strips_of(images, down, across, rows, block_p), triton.cdiv(channels, block_c)
    # Each program takes `turns` strips of a run, one after the other.
    turns = triton.cdiv(runs * strips * columns, config["programs"])
    chunks = triton.cdiv(strips, turns)
    partial = torch.empty(runs, chunks, side * side, channels, device=maps.device, dtype=torch.float32)
    _strips_for_weight[(chunks * columns, runs)](
        gradient,
        maps,
        partial,
        images,
        channels,
        *maps.shape[2:],
        down,
        across,
        chunks,
        turns,
        STRIDE=stride,
        K=side,
        ROWS=rows,
        BLOCK_P=block_p,
        BLOCK_C=block_c,
        ALIGNED=channels % 8 == 0,
        num_warps=config["warps"],
    )
    return _merged(partial, weight)


def _strips_of(images: int, down: int, across: int, rows: int, block_p: int) -> int:
    """How many strips it takes, each of block_p pairs of columns, for images of down x across"""
    return int(triton.cdiv(images * triton.cdiv(across, 2), block_p) * triton.cdiv(down, rows))


def _merged(partial: Tensor, weight: Tensor) -> Tensor:
    """The weight's gradient, (S, C, 1, K, K), from those of chunks, (S, chunks, K * K, C)."""
    runs, chunks, taps, channels = partial.shape
    out = torch.empty(weight.shape, device=weight.device, dtype=weight.dtype)
    _merge_taps[(triton.cdiv(taps * channels, _MERGED), runs)](
        partial, out, channels, chunks, TAPS=taps, BLOCK_P=_PARTIALS, BLOCK_L=_MERGED, UNROLL=_UNROLL
    )
    return out


@triton.jit
def _numbers_at(corner, top, left, i, j, height, width, channels, inside):
    """What maps, height x width, have i rows below and j places right of (top, left), where `corner` points to; zero
    outside: (P, C). The kernels ask for the same numbers many times: as they store last, the compiler loads them once.
    """
    row, place = top + i, left + j
    valid = inside & ((place >= 0) & (place < width))[:, None] & ((row >= 0) & (row < height))[:, None]
    return tl.load(corner + (i * width + j) * channels, mask=valid, other=0.0).to(tl.float32)


@triton.jit
def _first_tap(taps, run, channels, column, BLOCK_P: tl.constexpr, K: tl.constexpr):
    """Where a run has the factors of the first tap, for each place by itself, (P, C): they come to the threads that
    need them as the maps do, and are not moved from thread to thread."""
    return taps + run * K * K * channels + column[None, :] + tl.zeros((BLOCK_P, 1), tl.int32)


@triton.jit
def _factor_at(first, i, j, channels, inside, K: tl.constexpr):
    """The factors of tap (i, j), (P, C); anything outside, of which nothing is stored."""
    return tl.load(first + (i * K + j) * channels, mask=inside)


@triton.jit
def _strip_at(number, images, down, across, ROWS: tl.constexpr, BLOCK_P: tl.constexpr):
    """The places where strip `number` of a run begins in the result: their images, y, x, and whether they exist. Strips
    that follow each other lie below each other: they need some of the same rows."""
    strips, pairs = tl.cdiv(down, ROWS), tl.cdiv(across, 2)
    place = number // strips * BLOCK_P + tl.arange(0, BLOCK_P)
    y = number % strips * ROWS + tl.zeros_like(place)
    return place // pairs, y, place % pairs * 2, place < images * pairs


@triton.jit(do_not_specialize=_COUNTS)
def _strip(
    source,
    taps,
    out,
    images,
    channels,
    height,
    width,
    down,
    across,
    STRIDE: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """A strip of a convolution's result, down x across, from a source, height x width: left columns, a, and right ones,
    b."""
    if ALIGNED:
        channels = channels // 8 * 8  # so that the compiler knows
    number, column = own_part(channels, BLOCK_C)
    run = tl.program_id(1)
    image, y, x, there = _strip_at(number, images, down, across, ROWS, BLOCK_P)
    image += run * images
    inside = there[:, None] & (column < channels)[None, :]
    top, left = y * STRIDE - K // 2, x * STRIDE - K // 2
    corner = source + ((image * height + top) * width + left)[:, None] * channels + column[None, :]
    first = _first_tap(taps, run, channels, column, BLOCK_P, K)
    none = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    a0, a1, a2, a3 = none, none, none, none
    b0, b1, b2, b3 = none, none, none, none
    for j in tl.static_range(K + STRIDE):  # columns of the source, which both may need
        for i in tl.static_range(K):
            if j < K:
                factor = _factor_at(first, i, j, channels, inside, K)
                a0, a1, a2, a3 = _tap_added(
                    a0, a1, a2, a3, factor, corner, top, left, i, j, height, width, channels, inside, STRIDE, ROWS
                )
            if j >= STRIDE:
                factor = _factor_at(first, i, j - STRIDE, channels, inside, K)
                b0, b1, b2, b3 = _tap_added(
                    b0, b1, b2, b3, factor, corner, top, left, i, j, height, width, channels, inside, STRIDE, ROWS
                )
    target = out + ((image * down + y) * across + x)[:, None] * channels + column[None, :]
    _store_rows(target, a0, a1, a2, a3, y, down, across * channels, inside, ROWS)
    inside = inside & (x + 1 < across)[:, None]
    _store_rows(target + channels, b0, b1, b2, b3, y, down, across * channels, inside, ROWS)


@triton.jit
def _tap_added(
    a0,
    a1,
    a2,
    a3,
    factor,
    corner,
    top,
    left,
    i,
    j,
    height,
    width,
    channels,
    inside,
    STRIDE: tl.constexpr,
    ROWS: tl.constexpr,
):
    """A column of a strip, with what a tap adds to it that meets its first row at (i, j) from the corner."""
    a0 += factor * _numbers_at(corner, top, left, i, j, height, width, channels, inside)
    if ROWS > 1:
        a1 += factor * _numbers_at(corner, top, left, i + STRIDE, j, height, width, channels, inside)
    if ROWS > 2:
        a2 += factor * _numbers_at(corner, top, left, i + 2 * STRIDE, j, height, width, channels, inside)
        a3 += factor * _numbers_at(corner, top, left, i + 3 * STRIDE, j, height, width, channels, inside)
    return a0, a1, a2, a3


@triton.jit
def _store_rows(target, a0, a1, a2, a3, y, down, row, inside, ROWS: tl.constexpr):
    """A column of a strip. row: how far rows are from each other"""
    tl.store(target, a0, mask=inside)
    if ROWS > 1:
        tl.store(target + row, a1, mask=inside & (y + 1 < down)[:, None])
    if ROWS > 2:
        tl.store(target + 2 * row, a2, mask=inside & (y + 2 < down)[:, None])
        tl.store(target + 3 * row, a3, mask=inside & (y + 3 < down)[:, None])


@triton.jit(do_not_specialize=_COUNTS)
def _spread_in_squares(
    gradient,
    taps,
    out,
    images,
    channels,
    height,
    width,
    down,
    across,
    K: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """The gradient of maps, height x width, from that of a result of stride 2, down x across: for each place of the
    result, of the square of four places of the maps that begins in the middle of its kernel."""
    if ALIGNED:
        channels = channels // 8 * 8  # so that the compiler knows
    number, column = own_part(channels, BLOCK_C)
    run = tl.program_id(1)
    places = images * down * across
    place = number * BLOCK_P + tl.arange(0, BLOCK_P)
    inside = (place < places)[:, None] & (column < channels)[None, :]
    image, rest = run * images + place // (down * across), place % (down * across)
    y, x = rest // across, rest % across
    corner = gradient + (run * places + place)[:, None] * channels + column[None, :]
    first = _first_tap(taps, run, channels, column, BLOCK_P, K)
    none = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    a00 = _reached(none, 0, 0, first, corner, y, x, down, across, channels, inside, K)
    a01 = _reached(none, 0, 1, first, corner, y, x, down, across, channels, inside, K)
    a10 = _reached(none, 1, 0, first, corner, y, x, down, across, channels, inside, K)
    a11 = _reached(none, 1, 1, first, corner, y, x, down, across, channels, inside, K)
    target = out + ((image * height + 2 * y) * width + 2 * x)[:, None] * channels + column[None, :]
    right, below = (2 * x + 1 < width)[:, None], (2 * y + 1 < height)[:, None]  # odd maps end before
    tl.store(target, a00, mask=inside)
    tl.store(target + channels, a01, mask=inside & right)
    tl.store(target + width * channels, a10, mask=inside & below)
    tl.store(target + (width + 1) * channels, a11, mask=inside & right & below)


@triton.jit
def _reached(
    total,
    a: tl.constexpr,
    b: tl.constexpr,
    first,
    corner,
    y,
    x,
    down,
    across,
    channels,
    inside,
    K: tl.constexpr,
):
    """total, with what the places around (y, x) of the result add to (2 * y + a, 2 * x + b) of the maps: tap (i, j) of
    the place (v, u) away reaches (2 * v + i, 2 * u + j) - K // 2 from (2 * y, 2 * x)."""
    for v in tl.static_range(-1, 2):
        for u in tl.static_range(-1, 2):
            i, j = a + K // 2 - 2 * v, b + K // 2 - 2 * u
            if i >= 0 and i < K and j >= 0 and j < K:
                factor = _factor_at(first, i, j, channels, inside, K)
                total += factor * _numbers_at(corner, y, x, v, u, down, across, channels, inside)
    return total


@triton.jit(do_not_specialize=_COUNTS)
def _strips_for_weight(
    gradient,
    maps,
    partial,
    images,
    channels,
    height,
    width,
    down,
    across,
    chunks,
    turns,
    STRIDE: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """The gradient of a kernel, from `turns` strips of the result's gradient: partial (S, chunks, K * K, C)."""
    if ALIGNED:
        channels = channels // 8 * 8  # so that the compiler knows
    chunk, column = own_part(channels, BLOCK_C)
    run = tl.program_id(1)
    none = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    a00, a10, a20, a30, a40 = none, none, none, none, none
    a01, a11, a21, a31, a41 = none, none, none, none, none
    a02, a12, a22, a32, a42 = none, none, none, none, none
    a03, a13, a23, a33, a43 = none, none, none, none, none
    a04, a14, a24, a34, a44 = none, none, none, none, none
    for turn in range(turns):
        image, y, x, there = _strip_at(chunk * turns + turn, images, down, across, ROWS, BLOCK_P)
        image += run * images
        inside = there[:, None] & (column < channels)[None, :]
        own = gradient + ((image * down + y) * across + x)[:, None] * channels + column[None, :]
        top, left = y * STRIDE - K // 2, x * STRIDE - K // 2
        seen = maps + ((image * height + top) * width + left)[:, None] * channels + column[None, :]
        a00, a10, a20, a30, a40 = _column_added(
            a00, a10, a20, a30, a40, 0, own, seen, y, x, down, across, height, width, channels, inside, STRIDE, K, ROWS
        )
        a01, a11, a21, a31, a41 = _column_added(
            a01, a11, a21, a31, a41, 1, own, seen, y, x, down, across, height, width, channels, inside, STRIDE, K, ROWS
        )
        a02, a12, a22, a32, a42 = _column_added(
            a02, a12, a22, a32, a42, 2, own, seen, y, x, down, across, height, width, channels, inside, STRIDE, K, ROWS
        )
        a03, a13, a23, a33, a43 = _column_added(
            a03, a13, a23, a33, a43, 3, own, seen, y, x, down, across, height, width, channels, inside, STRIDE, K, ROWS
        )
        a04, a14, a24, a34, a44 = _column_added(
            a04, a14, a24, a34, a44, 4, own, seen, y, x, down, across, height, width, channels, inside, STRIDE, K, ROWS
        )
    target = partial + (run * chunks + chunk) * K * K * channels + column
    inside = column < channels
    _store_sums(target, a00, a10, a20, a30, a40, 0, channels, inside, K)
    _store_sums(target, a01, a11, a21, a31, a41, 1, channels, inside, K)
    _store_sums(target, a02, a12, a22, a32, a42, 2, channels, inside, K)
    _store_sums(target, a03, a13, a23, a33, a43, 3, channels, inside, K)
    _store_sums(target, a04, a14, a24, a34, a44, 4, channels, inside, K)


@triton.jit
def _column_added(
    a0,
    a1,
    a2,
    a3,
    a4,
    j: tl.constexpr,
    own,
    seen,
    y,
    x,
    down,
    across,
    height,
    width,
    channels,
    inside,
    STRIDE: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Column j of a kernel's gradient, if it has that, with what a strip adds. own: where the strip's gradient begins;
    seen: the corner of what the kernel saw of the maps from there."""
    if j < K:
        top, left = y * STRIDE - K // 2, x * STRIDE - K // 2
        for side in tl.static_range(2):
            place = j + side * STRIDE
            for row in tl.static_range(ROWS):
                g = _numbers_at(own, y, x, row, side, down, across, channels, inside)
                i = row * STRIDE
                a0 += g * _numbers_at(seen, top, left, i, place, height, width, channels, inside)
                a1 += g * _numbers_at(seen, top, left, i + 1, place, height, width, channels, inside)
                a2 += g * _numbers_at(seen, top, left, i + 2, place, height, width, channels, inside)
                if K == 5:
                    a3 += g * _numbers_at(seen, top, left, i + 3, place, height, width, channels, inside)
                    a4 += g * _numbers_at(seen, top, left, i + 4, place, height, width, channels, inside)
    return a0, a1, a2, a3, a4


@triton.jit
def _store_sums(partial, a0, a1, a2, a3, a4, j: tl.constexpr, channels, inside, K: tl.constexpr):
    """Column j of a kernel's gradient, if it has that, summed over the places."""
    if j < K:
        tl.store(partial + j * channels, tl.sum(a0, axis=0), mask=inside)
        tl.store(partial + (K + j) * channels, tl.sum(a1, axis=0), mask=inside)
        tl.store(partial + (2 * K + j) * channels, tl.sum(a2, axis=0), mask=inside)
        if K == 5:
            tl.store(partial + (3 * K + j) * channels, tl.sum(a3, axis=0), mask=inside)
            tl.store(partial + (4 * K + j) * channels, tl.sum(a4, axis=0), mask=inside)


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
