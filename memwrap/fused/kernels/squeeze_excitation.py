"""Global average pooling and channel scaling, the two parts of squeeze-and-excitation, for maps in channels_last.

Both are bound by memory bandwidth. torch uses several kernels with narrow loads, and returns the gradient of a mean in
another layout, which slows down the kernels after it. Here each kernel reads and writes the maps once, and one kernel
computes both gradients of the scaling.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from memwrap.errors import InputError
from memwrap.fused.kernels.tiling import align, channel_block, is_aligned, program_block, to_channels_last
from memwrap.nn.gpu import LAUNCH_OPTIONS

_TILE = 4096  # elements that a program holds at a time
_WARPS = 4

# Kernels are compiled once for all sizes except the number of channels, whose alignment decides the width of loads.
_SIZES = ["images", "positions", "rows"]


def global_average_pool(maps: Tensor) -> Tensor:
    """maps (N, C, H, W) in channels_last -> means over all positions (N, C, 1, 1), in the dtype of maps"""
    out: Tensor = _GlobalAveragePool.apply(maps)
    return out


def scale_channels(maps: Tensor, gates: Tensor) -> Tensor:
    """maps * gates: (N, C, H, W) in channels_last, (N, C, 1, 1) -> (N, C, H, W), in the dtype of maps"""
    if gates.shape != (*maps.shape[:2], 1, 1):
        raise InputError(
            f"gates of shape {tuple(gates.shape)} for maps of shape {tuple(maps.shape)}; expected one gate for each "
            f"channel of each image: {(*maps.shape[:2], 1, 1)}"
        )
    out: Tensor = _ScaleChannels.apply(maps, gates)
    return out


class _GlobalAveragePool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor) -> Tensor:
        maps = to_channels_last(maps)
        ctx.shape = maps.shape
        out = torch.empty((*maps.shape[:2], 1, 1), device=maps.device, dtype=maps.dtype)
        _pool[_image_grid(maps)](maps, out, *_image_sizes(maps), **_image_blocks(maps))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gradient = gradients[0].contiguous()
        of_maps = torch.empty(
            ctx.shape, device=gradient.device, dtype=gradient.dtype, memory_format=torch.channels_last
        )
        _pool_backward[_row_grid(of_maps)](gradient, of_maps, *_row_sizes(of_maps), **_row_blocks(of_maps))
        return of_maps


class _ScaleChannels(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, gates: Tensor) -> Tensor:
        maps, gates = to_channels_last(maps), gates.contiguous()
        ctx.save_for_backward(maps, gates)
        out = torch.empty_like(maps)
        _scale[_row_grid(maps)](maps, gates, out, *_row_sizes(maps), **_row_blocks(maps))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        maps, gates = ctx.saved_tensors
        of_maps, of_gates = torch.empty_like(maps), torch.empty_like(gates)
        _scale_backward[_image_grid(maps)](
            to_channels_last(gradients[0]), maps, gates, of_maps, of_gates, *_image_sizes(maps), **_image_blocks(maps)
        )
        return of_maps, of_gates


# Kernels that sum over positions: a program has all positions of its images, so no second reduction is needed.


def _image_grid(maps: Tensor) -> tuple[int]:
    blocks = _image_blocks(maps)
    return (triton.cdiv(len(maps), blocks["BLOCK_I"]) * triton.cdiv(maps.shape[1], blocks["BLOCK_C"]),)


def _image_sizes(maps: Tensor) -> tuple[int, int, int]:
    images, channels, height, width = maps.shape
    return images, height * width, channels


def _image_blocks(maps: Tensor) -> dict[str, int]:
    """A program takes several small images, or goes through a large one tile by tile."""
    _, positions, channels = _image_sizes(maps)
    block_c = channel_block(channels)
    block_p = min(triton.next_power_of_2(positions), _TILE // block_c)
    return {"BLOCK_I": _TILE // (block_p * block_c), "BLOCK_P": block_p, **_common_options(channels)}


# Elementwise kernels: a program takes rows, of any image.


def _row_grid(maps: Tensor) -> tuple[int]:
    rows, _, channels = _row_sizes(maps)
    blocks = _row_blocks(maps)
    return (triton.cdiv(rows, blocks["BLOCK_R"]) * triton.cdiv(channels, blocks["BLOCK_C"]),)


def _row_sizes(maps: Tensor) -> tuple[int, int, int]:
    images, positions, channels = _image_sizes(maps)
    return images * positions, positions, channels


def _row_blocks(maps: Tensor) -> dict[str, int]:
    channels = maps.shape[1]
    return {"BLOCK_R": _TILE // channel_block(channels), **_common_options(channels)}


def _common_options(channels: int) -> dict[str, int]:
    return {
        "BLOCK_C": channel_block(channels),
        "ALIGNED": is_aligned(channels),
        "num_warps": _WARPS,
        **LAUNCH_OPTIONS,
    }


@triton.jit
def _program_images(images, channels, BLOCK_I: tl.constexpr, BLOCK_C: tl.constexpr):
    """This program's images (I,) and channels (C,), and which of them exist (I, C)"""
    number, column = program_block(channels, BLOCK_C)
    image = number * BLOCK_I + tl.arange(0, BLOCK_I)
    return image, column, (image < images)[:, None] & (column < channels)[None, :]


@triton.jit
def _own_positions(image, column, exists, top, positions, channels, BLOCK_P: tl.constexpr):
    """Offsets of the elements at the positions from `top` on, and which of them exist: (P, I, C) each

    With positions first, threads divide images and channels before positions, and exchange fewer partial sums.
    """
    position = top + tl.arange(0, BLOCK_P)
    row = image[None, :] * positions + position[:, None]
    place = row[:, :, None] * channels + column[None, None, :]
    return place, (position < positions)[:, None, None] & exists[None, :, :]


@triton.jit
def _program_rows(rows, positions, channels, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """Offsets of this program's elements, offsets of their images' channels, and which exist: (R, C) each"""
    number, column = program_block(channels, BLOCK_C)
    row = number * BLOCK_R + tl.arange(0, BLOCK_R)
    place = row[:, None] * channels + column[None, :]
    of_image = (row // positions)[:, None] * channels + column[None, :]
    return place, of_image, (row < rows)[:, None] & (column < channels)[None, :]


@triton.jit(do_not_specialize=_SIZES)
def _pool(
    maps,
    out,
    images,
    positions,
    channels,
    BLOCK_I: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    channels = align(channels, ALIGNED)
    image, column, exists = _program_images(images, channels, BLOCK_I, BLOCK_C)
    sums = tl.zeros((BLOCK_P, BLOCK_I, BLOCK_C), tl.float32)
    for top in range(0, positions, BLOCK_P):
        place, mask = _own_positions(image, column, exists, top, positions, channels, BLOCK_P)
        sums += tl.load(maps + place, mask=mask, other=0.0).to(tl.float32)
    target = image[:, None] * channels + column[None, :]
    tl.store(out + target, tl.sum(sums, axis=0) / positions, mask=exists)


@triton.jit(do_not_specialize=_SIZES)
def _pool_backward(
    gradients,
    of_maps,
    rows,
    positions,
    channels,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    channels = align(channels, ALIGNED)
    place, of_image, mask = _program_rows(rows, positions, channels, BLOCK_R, BLOCK_C)
    gradient = tl.load(gradients + of_image, mask=mask, other=0.0).to(tl.float32)
    tl.store(of_maps + place, gradient / positions, mask=mask)


@triton.jit(do_not_specialize=_SIZES)
def _scale(
    maps,
    gates,
    out,
    rows,
    positions,
    channels,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    channels = align(channels, ALIGNED)
    place, of_image, mask = _program_rows(rows, positions, channels, BLOCK_R, BLOCK_C)
    value = tl.load(maps + place, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(gates + of_image, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + place, value * gate, mask=mask)


@triton.jit(do_not_specialize=_SIZES)
def _scale_backward(
    gradients,
    maps,
    gates,
    of_maps,
    of_gates,
    images,
    positions,
    channels,
    BLOCK_I: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    channels = align(channels, ALIGNED)
    image, column, exists = _program_images(images, channels, BLOCK_I, BLOCK_C)
    own = image[:, None] * channels + column[None, :]
    gate = tl.load(gates + own, mask=exists, other=0.0).to(tl.float32)
    sums = tl.zeros((BLOCK_P, BLOCK_I, BLOCK_C), tl.float32)
    for top in range(0, positions, BLOCK_P):
        place, mask = _own_positions(image, column, exists, top, positions, channels, BLOCK_P)
        gradient = tl.load(gradients + place, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(maps + place, mask=mask, other=0.0).to(tl.float32)
        tl.store(of_maps + place, gradient * gate[None, :, :], mask=mask)
        sums += gradient * value
    tl.store(of_gates + own, tl.sum(sums, axis=0), mask=exists)
