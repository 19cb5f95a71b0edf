"""Depthwise convolutions in training, for maps in torch's channels_last layout.

Each number of the maps is multiplied a handful of times, so time goes where bytes go; torch's kernels for them reach a
small part of what the memory can give.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from memwrap.kernels.blocks import in_rows, own_part, width_of


def depthwise(maps: Tensor, weight: Tensor, stride: int = 1) -> Tensor:
    """maps (N, C, H, W) in channels_last, weight (C, 1, K, K), K odd, padded by K // 2 -> (N, C, H / stride, ...)"""
    out: Tensor = _Depthwise.apply(maps, weight, stride)
    return out


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, weight: Tensor, stride: int) -> Tensor:
        maps = in_rows(maps)
        ctx.save_for_backward(maps, weight)
        ctx.stride = stride
        count, channels, height, width = maps.shape
        shape = (count, channels, triton.cdiv(height, stride), triton.cdiv(width, stride))
        out = torch.empty(shape, device=maps.device, dtype=maps.dtype, memory_format=torch.channels_last)
        if stride == 1 and weight.shape[-1] == 3:
            return _slide(maps, weight, out, flipped=False)
        return _gather(maps, weight, out, stride, backward=False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        maps, weight = ctx.saved_tensors
        stride, kernel = ctx.stride, weight.shape[-1]
        gradient = in_rows(gradients[0])
        of_maps = torch.empty_like(maps)
        if stride == 1 and kernel == 3:
            _slide(gradient, weight, of_maps, flipped=True)
            return of_maps, _slide_for_weight(gradient, maps, weight), None
        _gather(gradient, weight, of_maps, stride, backward=True)
        return of_maps, _gather_for_weight(gradient, maps, weight, stride), None


# Numbers that a program holds at a time, the warps that share them, and about how many programs reduce; measured on an
# H200.
_SLIDING = {"tile": 1024, "warps": 2}
_SLIDING_FOR_WEIGHT = {"tile": 512, "warps": 2, "programs": 4096}
_GATHERING = {"tile": 2048, "warps": 4}
_GATHERING_FOR_WEIGHT = {"tile": 1024, "warps": 4, "programs": 1024}
_STRIP = 8  # rows of a map that a program goes down


def _slide(maps: Tensor, weight: Tensor, out: Tensor, flipped: bool) -> Tensor:
    count, channels, height, width = maps.shape
    block_c = width_of(channels)
    block_p = _SLIDING["tile"] // block_c
    strips = triton.cdiv(height, _STRIP)
    _slide_down[(triton.cdiv(count * width, block_p) * triton.cdiv(channels, block_c), strips)](
        maps,
        weight,
        out,
        count * width,
        channels,
        height,
        width,
        FLIPPED=flipped,
        STRIP=_STRIP,
        BLOCK_P=block_p,
        BLOCK_C=block_c,
        ALIGNED=channels % 8 == 0,
        num_warps=_SLIDING["warps"],
    )
    return out


def _slide_for_weight(gradient: Tensor, maps: Tensor, weight: Tensor) -> Tensor:
    count, channels, height, width = maps.shape
    block_c = width_of(channels)
    block_p = _SLIDING_FOR_WEIGHT["tile"] // block_c
    across, columns = triton.cdiv(count * width, block_p), triton.cdiv(channels, block_c)
    # Each program goes down `turns` tiles, one after the other.
    turns = max(1, triton.cdiv(across * columns, _SLIDING_FOR_WEIGHT["programs"]))
    chunks = triton.cdiv(across, turns)
    partial = torch.empty(chunks, 9, channels, device=maps.device, dtype=torch.float32)
    _slide_down_for_weight[(chunks * columns,)](
        gradient,
        maps,
        partial,
        count * width,
        channels,
        height,
        width,
        turns,
        BLOCK_P=block_p,
        BLOCK_C=block_c,
        ALIGNED=channels % 8 == 0,
        num_warps=_SLIDING_FOR_WEIGHT["warps"],
    )
    return partial.sum(0).t().reshape(weight.shape).to(weight.dtype)


def _gather(source: Tensor, weight: Tensor, out: Tensor, stride: int, backward: bool) -> Tensor:
    channels = source.shape[1]
    block_c = width_of(channels)
    block_p = _GATHERING["tile"] // block_c
    positions = out.shape[0] * out.shape[2] * out.shape[3]
    _gather_taps[(triton.cdiv(positions, block_p) * triton.cdiv(channels, block_c),)](
        source,
        weight,
        out,
        positions,
        channels,
        *source.shape[2:],
        *out.shape[2:],
        BACKWARD=backward,
        STRIDE=stride,
        K=weight.shape[-1],
        BLOCK_P=block_p,
        BLOCK_C=block_c,
        ALIGNED=channels % 8 == 0,
        num_warps=_GATHERING["warps"],
    )
    return out


def _gather_for_weight(gradient: Tensor, maps: Tensor, weight: Tensor, stride: int) -> Tensor:
    count, channels, height, width = maps.shape
    down, across = gradient.shape[2:]
    kernel = weight.shape[-1]
    block_c = width_of(channels)
    block_p = _GATHERING_FOR_WEIGHT["tile"] // block_c
    positions, columns = count * down * across, triton.cdiv(channels, block_c)
    chunk = block_p * max(
        1, triton.cdiv(triton.cdiv(positions, block_p) * columns * kernel, _GATHERING_FOR_WEIGHT["programs"])
    )
    chunks = triton.cdiv(positions, chunk)
    partial = torch.empty(chunks, kernel, kernel, channels, device=maps.device, dtype=torch.float32)
    _gather_taps_for_weight[(chunks * kernel * columns,)](
        gradient,
        maps,
        partial,
        positions,
        channels,
        height,
        width,
        down,
        across,
        chunk,
        STRIDE=stride,
        K=kernel,
        BLOCK_P=block_p,
        BLOCK_C=block_c,
        ALIGNED=channels % 8 == 0,
        num_warps=_GATHERING_FOR_WEIGHT["warps"],
    )
    return partial.sum(0).permute(2, 0, 1).unsqueeze(1).to(weight.dtype)


@triton.jit
def _row_of(maps, image, row, w, height, width, there, channels, column, inside):
    """Row `row` of the maps at the places w, zero outside: (P, C)"""
    h = row + tl.zeros_like(w)
    valid = there & (h >= 0) & (h < height) & (w >= 0) & (w < width)
    place = ((image * height + h) * width + w)[:, None] * channels + column[None, :]
    return tl.load(maps + place, mask=valid[:, None] & inside[None, :], other=0.0).to(tl.float32)


@triton.jit
def _slide_down(
    maps,
    weight,
    out,
    places,
    channels,
    height,
    width,
    FLIPPED: tl.constexpr,
    STRIP: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """A 3x3 convolution of stride 1. A program goes down a strip of rows; each row is read once for the three rows of
    the result that it is part of. FLIPPED: with the kernel turned around, as gradients go back."""
    if ALIGNED:
        channels = channels // 8 * 8  # so that the compiler knows
    number, column = own_part(channels, BLOCK_C)
    place = number * BLOCK_P + tl.arange(0, BLOCK_P)
    inside = column < channels
    there = place < places
    image, w = place // width, place % width
    k = weight + column * 9
    last: tl.constexpr = 8
    k00 = tl.load(k + (last if FLIPPED else 0), mask=inside, other=0.0).to(tl.float32)[None, :]
    k01 = tl.load(k + (last - 1 if FLIPPED else 1), mask=inside, other=0.0).to(tl.float32)[None, :]
    k02 = tl.load(k + (last - 2 if FLIPPED else 2), mask=inside, other=0.0).to(tl.float32)[None, :]
    k10 = tl.load(k + (last - 3 if FLIPPED else 3), mask=inside, other=0.0).to(tl.float32)[None, :]
    k11 = tl.load(k + 4, mask=inside, other=0.0).to(tl.float32)[None, :]
    k12 = tl.load(k + (last - 5 if FLIPPED else 5), mask=inside, other=0.0).to(tl.float32)[None, :]
    k20 = tl.load(k + (last - 6 if FLIPPED else 6), mask=inside, other=0.0).to(tl.float32)[None, :]
    k21 = tl.load(k + (last - 7 if FLIPPED else 7), mask=inside, other=0.0).to(tl.float32)[None, :]
    k22 = tl.load(k + (last - 8 if FLIPPED else 8), mask=inside, other=0.0).to(tl.float32)[None, :]
    top = tl.program_id(1) * STRIP
    above = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)  # the result's row before the one that is read
    here = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for step in range(STRIP + 2):
        row = top + step - 1
        left = _row_of(maps, image, row, w - 1, height, width, there, channels, column, inside)
        middle = _row_of(maps, image, row, w, height, width, there, channels, column, inside)
        right = _row_of(maps, image, row, w + 1, height, width, there, channels, column, inside)
        above += left * k20 + middle * k21 + right * k22
        here += left * k10 + middle * k11 + right * k12
        done_row = row - 1 + tl.zeros_like(w)
        target = ((image * height + done_row) * width + w)[:, None] * channels + column[None, :]
        done = there & (done_row >= top) & (done_row < height)
        tl.store(out + target, above, mask=done[:, None] & inside[None, :])
        above = here
        here = left * k00 + middle * k01 + right * k02


@triton.jit
def _slide_down_for_weight(
    gradients,
    maps,
    partial,
    places,
    channels,
    height,
    width,
    turns,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """The gradient of a 3x3 kernel, of some columns of the maps: partial (chunks, 9, C)."""
    if ALIGNED:
        channels = channels // 8 * 8  # so that the compiler knows
    number, column = own_part(channels, BLOCK_C)
    inside = column < channels
    a00 = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    a01 = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    a02 = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    a10 = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    a11 = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    a12 = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    a20 = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    a21 = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    a22 = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for turn in range(turns):
        place = (number * turns + turn) * BLOCK_P + tl.arange(0, BLOCK_P)
        there = place < places
        image, w = place // width, place % width
        before = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
        now = _row_of(gradients, image, 0, w, height, width, there, channels, column, inside)
        for row in range(height):
            after = _row_of(gradients, image, row + 1, w, height, width, there, channels, column, inside)
            left = _row_of(maps, image, row, w - 1, height, width, there, channels, column, inside)
            a00 += left * after
            a10 += left * now
            a20 += left * before
            middle = _row_of(maps, image, row, w, height, width, there, channels, column, inside)
            a01 += middle * after
            a11 += middle * now
            a21 += middle * before
            right = _row_of(maps, image, row, w + 1, height, width, there, channels, column, inside)
            a02 += right * after
            a12 += right * now
            a22 += right * before
            before = now
            now = after
    target = partial + number * 9 * channels + column
    tl.store(target, tl.sum(a00, axis=0), mask=inside)
    tl.store(target + channels, tl.sum(a01, axis=0), mask=inside)
    tl.store(target + 2 * channels, tl.sum(a02, axis=0), mask=inside)
    tl.store(target + 3 * channels, tl.sum(a10, axis=0), mask=inside)
    tl.store(target + 4 * channels, tl.sum(a11, axis=0), mask=inside)
    tl.store(target + 5 * channels, tl.sum(a12, axis=0), mask=inside)
    tl.store(target + 6 * channels, tl.sum(a20, axis=0), mask=inside)
    tl.store(target + 7 * channels, tl.sum(a21, axis=0), mask=inside)
    tl.store(target + 8 * channels, tl.sum(a22, axis=0), mask=inside)


@triton.jit
def _gather_taps(
    source,
    weight,
    out,
    positions,
    channels,
    height,
    width,
    down,
    across,
    BACKWARD: tl.constexpr,
    STRIDE: tl.constexpr,
    K: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Any convolution: the result, down x across, by the places of the source, height x width, that are its neighbours.

    BACKWARD: the source is the gradient of what came out, and the result that of the maps.
    """
    if ALIGNED:
        channels = channels // 8 * 8  # so that the compiler knows
    number, column = own_part(channels, BLOCK_C)
    position = number * BLOCK_P + tl.arange(0, BLOCK_P)
    inside = column < channels
    there = position < positions
    image, rest = position // (down * across), position % (down * across)
    y, x = rest // across, rest % across
    total = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for i in tl.static_range(K):
        for j in tl.static_range(K):
            if BACKWARD:
                h, w = y + K // 2 - i, x + K // 2 - j
                valid = there & (h >= 0) & (w >= 0) & (h % STRIDE == 0) & (w % STRIDE == 0)
                h, w = h // STRIDE, w // STRIDE
            else:
                h, w = y * STRIDE + i - K // 2, x * STRIDE + j - K // 2
                valid = there & (h >= 0) & (w >= 0)
            valid = valid & (h < height) & (w < width)
            place = ((image * height + h) * width + w)[:, None] * channels + column[None, :]
            value = tl.load(source + place, mask=valid[:, None] & inside[None, :], other=0.0).to(tl.float32)
            factor = tl.load(weight + column * (K * K) + i * K + j, mask=inside, other=0.0).to(tl.float32)
            total += value * factor[None, :]
    target = position[:, None] * channels + column[None, :]
    tl.store(out + target, total, mask=there[:, None] & inside[None, :])


@triton.jit
def _gather_taps_for_weight(
    gradients,
    maps,
    partial,
    positions,
    channels,
    height,
    width,
    down,
    across,
    chunk,
    STRIDE: tl.constexpr,
    K: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """One row of the kernel, over one chunk of positions: partial (chunks, K, K, C)."""
    if ALIGNED:
        channels = channels // 8 * 8  # so that the compiler knows
    number, column = own_part(channels, BLOCK_C)
    i, number = number % K, number // K
    inside = column < channels
    start = number * chunk
    end = tl.minimum(start + chunk, positions)
    a0 = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    a1 = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    a2 = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    a3 = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    a4 = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for top in range(start, end, BLOCK_P):
        position = top + tl.arange(0, BLOCK_P)
        there = position < end
        image, rest = position // (down * across), position % (down * across)
        h = (rest // across) * STRIDE + i - K // 2
        w = (rest % across) * STRIDE - K // 2
        place = position[:, None] * channels + column[None, :]
        gradient = tl.load(gradients + place, mask=there[:, None] & inside[None, :], other=0.0).to(tl.float32)
        a0 += gradient * _row_of(maps, image, h, w, height, width, there, channels, column, inside)
        a1 += gradient * _row_of(maps, image, h, w + 1, height, width, there, channels, column, inside)
        a2 += gradient * _row_of(maps, image, h, w + 2, height, width, there, channels, column, inside)
        if K == 5:
            a3 += gradient * _row_of(maps, image, h, w + 3, height, width, there, channels, column, inside)
            a4 += gradient * _row_of(maps, image, h, w + 4, height, width, there, channels, column, inside)
    target = partial + ((number * K + i) * K) * channels + column
    tl.store(target, tl.sum(a0, axis=0), mask=inside)
    tl.store(target + channels, tl.sum(a1, axis=0), mask=inside)
    tl.store(target + 2 * channels, tl.sum(a2, axis=0), mask=inside)
    if K == 5:
        tl.store(target + 3 * channels, tl.sum(a3, axis=0), mask=inside)
        tl.store(target + 4 * channels, tl.sum(a4, axis=0), mask=inside)
