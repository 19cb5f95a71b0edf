"""im2col: the patches of images as rows, so that a convolution becomes one matrix product.

A patch repeats each pixel as often as the kernel has taps, so time goes into writing. torch concatenates one slice per
tap, with short, scattered writes. Here a thread reads the patch of one position. The threads next to it have the
neighbouring positions, so each load is coalesced, and a block of patches is written as one contiguous piece.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from memwrap.fused.kernels.tiling import check_size
from memwrap.nn.gpu import LAUNCH_OPTIONS

_POSITIONS = 128  # per program: one for each thread
_WARPS = 4

# The kernel is compiled once for all numbers, sizes and layouts of images.
_SIZES = [
    "positions",
    "height",
    "width",
    "out_height",
    "out_width",
    "pad_height",
    "pad_width",
    "image_stride",
    "channel_stride",
    "row_stride",
    "column_stride",
]


def im2col(
    maps: Tensor, kernel: Sequence[int], padding: Sequence[int], zero_columns: int, dtype: torch.dtype
) -> Tensor:
    """maps (N, C, H, W), in any layout -> patches of a convolution of stride 1, (N, height, width, taps * C +
    zero_columns), contiguous, in `dtype`

    kernel, padding: by height and width. The padding and the zero columns are zero. There is no backward pass.
    """
    images, channels, *sides = maps.shape
    out_sides = [side + 2 * own - length + 1 for side, own, length in zip(sides, padding, kernel, strict=True)]
    numbers = kernel[0] * kernel[1] * channels
    shape = (images, *out_sides, numbers + zero_columns)
    check_size(maps)
    check_size(torch.empty(shape, device="meta"))
    maps = _within_int32(maps)
    out = torch.empty(shape, device=maps.device, dtype=dtype)
    positions = images * out_sides[0] * out_sides[1]
    _im2col[(triton.cdiv(positions, _POSITIONS),)](
        maps,
        out,
        positions,
        *sides,
        *out_sides,
        *padding,
        *maps.stride(),
        KERNEL_WIDTH=kernel[1],
        CHANNELS=channels,
        NUMBERS=numbers,
        COLUMNS=numbers + zero_columns,
        BLOCK_P=_POSITIONS,
        BLOCK_C=triton.next_power_of_2(numbers + zero_columns),
        num_warps=_WARPS,
        **LAUNCH_OPTIONS,
    )
    return out


def _within_int32(maps: Tensor) -> Tensor:
    """The maps, copied if their strides reach further than 32-bit offsets, as views of larger tensors may."""
    distance = sum((side - 1) * step for side, step in zip(maps.shape, maps.stride(), strict=True))
    return maps if distance <= torch.iinfo(torch.int32).max else maps.contiguous()


@triton.jit(do_not_specialize=_SIZES)
def _im2col(
    maps,
    out,
    positions,
    height,
    width,
    out_height,
    out_width,
    pad_height,
    pad_width,
    image_stride,
    channel_stride,
    row_stride,
    column_stride,
    KERNEL_WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    NUMBERS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    position = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    exists = position < positions
    image, rest = position // (out_height * out_width), position % (out_height * out_width)
    top, left = rest // out_width - pad_height, rest % out_width - pad_width
    corner = maps + image * image_stride + top * row_stride + left * column_stride
    top = tl.where(exists, top, height)  # positions that do not exist load nothing
    view = (corner, top, left, height, width, channel_stride, row_stride, column_stride)
    patches = _columns(view, 0, 1, KERNEL_WIDTH, CHANNELS, NUMBERS, BLOCK_C, out.dtype.element_ty)
    column = tl.arange(0, BLOCK_C)
    target = out + position[:, None] * COLUMNS + column[None, :]
    tl.store(target, tl.reshape(patches, (BLOCK_P, BLOCK_C)), mask=exists[:, None] & (column < COLUMNS)[None, :])


@triton.jit
def _columns(
    view,
    FIRST: tl.constexpr,
    STEP: tl.constexpr,
    KERNEL_WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    NUMBERS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """The columns FIRST, FIRST + STEP, FIRST + 2 * STEP, ... of all positions: (P, 2, ..., 2), in this order.

    `tl.join` interleaves two tensors in a new last axis, so it gets the even and the odd columns of these. All columns
    of a position stay in one thread, and the tap of each column is known at compile time.
    """
    if STEP < BLOCK_C:
        even = _columns(view, FIRST, 2 * STEP, KERNEL_WIDTH, CHANNELS, NUMBERS, BLOCK_C, DTYPE)
        odd = _columns(view, FIRST + STEP, 2 * STEP, KERNEL_WIDTH, CHANNELS, NUMBERS, BLOCK_C, DTYPE)
        found = tl.join(even, odd)
    elif FIRST < NUMBERS:
        tap: tl.constexpr = FIRST // CHANNELS
        found = _load_tap(view, tap // KERNEL_WIDTH, tap % KERNEL_WIDTH, FIRST % CHANNELS).to(DTYPE)
    else:
        found = tl.zeros(view[1].shape, DTYPE)
    return found


@triton.jit
def _load_tap(view, i, j, channel):
    """One channel, i rows below and j columns right of the corner of each position's patch; zero outside: (P,)"""
    corner, top, left, height, width, channel_stride, row_stride, column_stride = view
    row, column = top + i, left + j
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    return tl.load(corner + (i * row_stride + j * column_stride + channel * channel_stride), mask=inside, other=0)
