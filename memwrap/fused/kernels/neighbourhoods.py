"""The neighbourhoods of all places of images, side by side, so that a convolution becomes one product.

A neighbourhood holds each number of an image as often as a kernel has taps, so time goes into writing. torch joins
slices, one for each tap, by small steps that are far apart in memory. Here a thread reads the whole neighbourhood of
one place: its neighbours have the places beside it, so that each load brings numbers that lie side by side, and nothing
but a few additions is left to find them. A block of neighbourhoods is then written as one piece.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from memwrap.fused.kernels.blocks import check_count
from memwrap.nn.gpu import LAUNCH_OPTIONS

_PLACES = 128  # that a program takes: one for each thread
_WARPS = 4

# The kernel is compiled once for all numbers, sizes and layouts of images.
_SIZES = [
    "places",
    "height",
    "width",
    "down",
    "across",
    "padding_down",
    "padding_across",
    "image_step",
    "channel_step",
    "row_step",
    "column_step",
]


def neighbourhoods(
    maps: Tensor, kernel: Sequence[int], padding: Sequence[int], missing: int, dtype: torch.dtype
) -> Tensor:
    """maps (N, C, H, W), in any layout -> what a convolution of stride 1 sees from each of its places, rounded to
    dtype: (N, height, width, taps * C + missing), contiguous

    kernel, padding: by height and width. Outside the maps, and in the missing columns, is zero. No gradient goes back.
    """
    images, channels, *sides = maps.shape
    down, across = (side + 2 * own - length + 1 for side, own, length in zip(sides, padding, kernel, strict=True))
    numbers = kernel[0] * kernel[1] * channels
    shape = (images, down, across, numbers + missing)
    check_count(maps)
    check_count(torch.empty(shape, device="meta"))
    maps = _within_reach(maps)
    out = torch.empty(shape, device=maps.device, dtype=dtype)
    places = images * down * across
    _gather[(triton.cdiv(places, _PLACES),)](
        maps,
        out,
        places,
        *sides,
        down,
        across,
        *padding,
        *maps.stride(),
        KERNEL_WIDTH=kernel[1],
        CHANNELS=channels,
        NUMBERS=numbers,
        COLUMNS=numbers + missing,
        BLOCK_P=_PLACES,
        BLOCK_C=triton.next_power_of_2(numbers + missing),
        num_warps=_WARPS,
        **LAUNCH_OPTIONS,
    )
    return out


def _within_reach(maps: Tensor) -> Tensor:
    """Maps whose last number is not too far from the first to count in 32 bits, as it can be in a part of others."""
    distance = sum((side - 1) * step for side, step in zip(maps.shape, maps.stride(), strict=True))
    return maps if distance <= torch.iinfo(torch.int32).max else maps.contiguous()


@triton.jit(do_not_specialize=_SIZES)
def _gather(
    maps,
    out,
    places,
    height,
    width,
    down,
    across,
    padding_down,
    padding_across,
    image_step,
    channel_step,
    row_step,
    column_step,
    KERNEL_WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    NUMBERS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """From maps, height x width, with so many numbers from one image, channel, row or column to the next in memory, to
    the neighbourhoods of down x across places of each image."""
    place = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    there = place < places
    image, rest = place // (down * across), place % (down * across)
    top, left = rest // across - padding_down, rest % across - padding_across
    corner = maps + image * image_step + top * row_step + left * column_step
    top = tl.where(there, top, height)  # what is not there sees nothing
    view = (corner, top, left, height, width, channel_step, row_step, column_step)
    found = _columns(view, 0, 1, KERNEL_WIDTH, CHANNELS, NUMBERS, BLOCK_C, out.dtype.element_ty)
    column = tl.arange(0, BLOCK_C)
    target = out + place[:, None] * COLUMNS + column[None, :]
    tl.store(target, tl.reshape(found, (BLOCK_P, BLOCK_C)), mask=there[:, None] & (column < COLUMNS)[None, :])


@triton.jit
def _columns(
    view,
    FIRST: tl.constexpr,
    APART: tl.constexpr,
    KERNEL_WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    NUMBERS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """The columns FIRST, FIRST + APART, FIRST + 2 * APART, ..., of all places: (P, 2, ..., 2), in this order.

    A join puts its two parts beside each other in a last axis: so it takes every second column of these, and the
    others. All columns of a place stay in one thread, which knows when it is compiled what tap each of them is of.
    """
    if APART < BLOCK_C:
        even = _columns(view, FIRST, 2 * APART, KERNEL_WIDTH, CHANNELS, NUMBERS, BLOCK_C, DTYPE)
        odd = _columns(view, FIRST + APART, 2 * APART, KERNEL_WIDTH, CHANNELS, NUMBERS, BLOCK_C, DTYPE)
        found = tl.join(even, odd)
    elif FIRST < NUMBERS:
        tap: tl.constexpr = FIRST // CHANNELS
        found = _numbers_at(view, tap // KERNEL_WIDTH, tap % KERNEL_WIDTH, FIRST % CHANNELS).to(DTYPE)
    else:
        found = tl.zeros(view[1].shape, DTYPE)
    return found


@triton.jit
def _numbers_at(view, i, j, channel):
    """What one channel has i rows below and j columns right of the corner that each place sees; zero outside: (P,)"""
    corner, top, left, height, width, channel_step, row_step, column_step = view
    row, column = top + i, left + j
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    return tl.load(corner + (i * row_step + j * column_step + channel * channel_step), mask=inside, other=0)
