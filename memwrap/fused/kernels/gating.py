"""The means of maps and their gating, as squeeze-and-excitation does both, for maps in torch's channels_last layout.

Hardly anything is computed, so time goes where bytes go; torch takes small steps through them, and brings the gradients
of means in another layout, which slows down all that follows. Here each kernel reads and writes its maps once, and one
makes both gradients of the gating.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from memwrap.errors import InputError
from memwrap.fused.kernels.blocks import in_rows, own_part, width_of
from memwrap.nn.gpu import LAUNCH_OPTIONS

_TILE = 4096  # numbers that a program holds at a time
_WARPS = 4

# Kernels are compiled once for all sizes but that of a row, whose alignment decides how many numbers a load takes.
_SIZES = ["images", "positions", "rows"]


def means(maps: Tensor) -> Tensor:
    """The means over all positions: maps (N, C, H, W) in channels_last -> (N, C, 1, 1), in the dtype of maps"""
    out: Tensor = _Means.apply(maps)
    return out


def gated(maps: Tensor, gates: Tensor) -> Tensor:
    """maps * gates: (N, C, H, W) in channels_last, (N, C, 1, 1) -> (N, C, H, W), in the dtype of maps"""
    if gates.shape != (*maps.shape[:2], 1, 1):
        raise InputError(
            f"gates of shape {tuple(gates.shape)} for maps of shape {tuple(maps.shape)}; expected one gate for each "
            f"channel of each image: {(*maps.shape[:2], 1, 1)}"
        )
    out: Tensor = _Gated.apply(maps, gates)
    return out


class _Means(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor) -> Tensor:
        maps = in_rows(maps)
        ctx.shape = maps.shape
        out = torch.empty((*maps.shape[:2], 1, 1), device=maps.device, dtype=maps.dtype)
        _average[_image_grid(maps)](maps, out, *_image_sizes(maps), **_image_blocks(maps))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gradient = gradients[0].contiguous()
        of_maps = torch.empty(
            ctx.shape, device=gradient.device, dtype=gradient.dtype, memory_format=torch.channels_last
        )
        _spread[_row_grid(of_maps)](gradient, of_maps, *_row_sizes(of_maps), **_row_blocks(of_maps))
        return of_maps


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, gates: Tensor) -> Tensor:
        maps, gates = in_rows(maps), gates.contiguous()
        ctx.save_for_backward(maps, gates)
        out = torch.empty_like(maps)
        _gate[_row_grid(maps)](maps, gates, out, *_row_sizes(maps), **_row_blocks(maps))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        maps, gates = ctx.saved_tensors
        of_maps, of_gates = torch.empty_like(maps), torch.empty_like(gates)
        _gate_backward[_image_grid(maps)](
            in_rows(gradients[0]), maps, gates, of_maps, of_gates, *_image_sizes(maps), **_image_blocks(maps)
        )
        return of_maps, of_gates


# Kernels that sum over positions: a program has all those of its images, so that no other has to add up.


def _image_grid(maps: Tensor) -> tuple[int]:
    blocks = _image_blocks(maps)
    return (triton.cdiv(len(maps), blocks["BLOCK_I"]) * triton.cdiv(maps.shape[1], blocks["BLOCK_C"]),)


def _image_sizes(maps: Tensor) -> tuple[int, int, int]:
    images, channels, height, width = maps.shape
    return images, height * width, channels


def _image_blocks(maps: Tensor) -> dict[str, int]:
    """Of small images a program takes several; through a large one it goes tile by tile."""
    _, positions, channels = _image_sizes(maps)
    block_c = width_of(channels)
    block_p = min(triton.next_power_of_2(positions), _TILE // block_c)
    return {
        "BLOCK_I": _TILE // (block_p * block_c),
        "BLOCK_P": block_p,
        "BLOCK_C": block_c,
        "ALIGNED": channels % 8 == 0,
        "num_warps": _WARPS,
        **LAUNCH_OPTIONS,
    }


# Kernels that do the same with each row, whichever image it is of.


def _row_grid(maps: Tensor) -> tuple[int]:
    rows, _, channels = _row_sizes(maps)
    blocks = _row_blocks(maps)
    return (triton.cdiv(rows, blocks["BLOCK_R"]) * triton.cdiv(channels, blocks["BLOCK_C"]),)


def _row_sizes(maps: Tensor) -> tuple[int, int, int]:
    images, positions, channels = _image_sizes(maps)
    return images * positions, positions, channels


def _row_blocks(maps: Tensor) -> dict[str, int]:
    channels = maps.shape[1]
    block_c = width_of(channels)
    return {
        "BLOCK_R": _TILE // block_c,
        "BLOCK_C": block_c,
        "ALIGNED": channels % 8 == 0,
        "num_warps": _WARPS,
        **LAUNCH_OPTIONS,
    }


@triton.jit
def _own_images(images, channels, BLOCK_I: tl.constexpr, BLOCK_C: tl.constexpr):
    """This program's images (I,) and channels (C,), and which of both there are: (I, C)"""
    number, column = own_part(channels, BLOCK_C)
    image = number * BLOCK_I + tl.arange(0, BLOCK_I)
    return image, column, (image < images)[:, None] & (column < channels)[None, :]


@triton.jit
def _own_positions(image, column, there, top, positions, channels, BLOCK_P: tl.constexpr):
    """Where the numbers of the positions from `top` on lie, and which there are: both (P, I, C). In this order threads
    share images and channels before they share positions, and have less to add up among each other."""
    position = top + tl.arange(0, BLOCK_P)
    row = image[None, :] * positions + position[:, None]
    place = row[:, :, None] * channels + column[None, None, :]
    return place, (position < positions)[:, None, None] & there[None, :, :]


@triton.jit
def _own_rows(rows, positions, channels, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """Where the numbers of this program's rows lie, where those of their images, and which there are: all (R, C)"""
    number, column = own_part(channels, BLOCK_C)
    row = number * BLOCK_R + tl.arange(0, BLOCK_R)
    place = row[:, None] * channels + column[None, :]
    of_image = (row // positions)[:, None] * channels + column[None, :]
    return place, of_image, (row < rows)[:, None] & (column < channels)[None, :]


@triton.jit(do_not_specialize=_SIZES)
def _average(
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
    if ALIGNED:
        channels = channels // 8 * 8  # so that the compiler knows
    image, column, there = _own_images(images, channels, BLOCK_I, BLOCK_C)
    sums = tl.zeros((BLOCK_P, BLOCK_I, BLOCK_C), tl.float32)
    for top in range(0, positions, BLOCK_P):
        place, mask = _own_positions(image, column, there, top, positions, channels, BLOCK_P)
        sums += tl.load(maps + place, mask=mask, other=0.0).to(tl.float32)
    target = image[:, None] * channels + column[None, :]
    tl.store(out + target, tl.sum(sums, axis=0) / positions, mask=there)


@triton.jit(do_not_specialize=_SIZES)
def _spread(
    gradients,
    of_maps,
    rows,
    positions,
    channels,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """The way back from means: each position has the same share of the gradient."""
    if ALIGNED:
        channels = channels // 8 * 8  # so that the compiler knows
    place, of_image, mask = _own_rows(rows, positions, channels, BLOCK_R, BLOCK_C)
    gradient = tl.load(gradients + of_image, mask=mask, other=0.0).to(tl.float32)
    tl.store(of_maps + place, gradient / positions, mask=mask)


@triton.jit(do_not_specialize=_SIZES)
def _gate(
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
    if ALIGNED:
        channels = channels // 8 * 8  # so that the compiler knows
    place, of_image, mask = _own_rows(rows, positions, channels, BLOCK_R, BLOCK_C)
    value = tl.load(maps + place, mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(gates + of_image, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + place, value * gate, mask=mask)


@triton.jit(do_not_specialize=_SIZES)
def _gate_backward(
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
    if ALIGNED:
        channels = channels // 8 * 8  # so that the compiler knows
    image, column, there = _own_images(images, channels, BLOCK_I, BLOCK_C)
    own = image[:, None] * channels + column[None, :]
    gate = tl.load(gates + own, mask=there, other=0.0).to(tl.float32)
    sums = tl.zeros((BLOCK_P, BLOCK_I, BLOCK_C), tl.float32)
    for top in range(0, positions, BLOCK_P):
        place, mask = _own_positions(image, column, there, top, positions, channels, BLOCK_P)
        gradient = tl.load(gradients + place, mask=mask, other=0.0).to(tl.float32)
        value = tl.load(maps + place, mask=mask, other=0.0).to(tl.float32)
        tl.store(of_maps + place, gradient * gate[None, :, :], mask=mask)
        sums += gradient * value
    tl.store(of_gates + own, tl.sum(sums, axis=0), mask=there)
