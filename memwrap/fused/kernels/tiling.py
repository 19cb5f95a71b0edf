"""How kernels divide maps in channels_last among programs: each takes some rows of a block of channels.

A batch may hold several runs of the same network, one after the other, each with its own images and weights. One launch
computes all of them. No program has rows of more than one run.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from memwrap.errors import InputError

_CHANNEL_BLOCKS = (64, 32, 16)
_MAX_IDLE = 0.15  # share of a block's lanes without a channel, if a narrower block has fewer

_MAX_ELEMENTS = 2**31  # kernels use 32-bit indices, which are faster


def to_channels_last(maps: Tensor) -> Tensor:
    """maps (N, C, H, W) -> the same in channels_last, which the kernels read as rows of channels"""
    check_size(maps)
    return maps.contiguous(memory_format=torch.channels_last)


def check_size(tensor: Tensor) -> None:
    """Raise an InputError if a tensor has too many elements for 32-bit indices."""
    if tensor.numel() >= _MAX_ELEMENTS:
        raise InputError(
            f"a tensor of shape {tuple(tensor.shape)} has {tensor.numel()} elements; the kernels take fewer than "
            f"{_MAX_ELEMENTS}: use smaller batches or images"
        )


def images_per_run(batch: Tensor, runs: int) -> int:
    """N of a batch (S * N, ...) of S runs"""
    if len(batch) % runs:
        raise InputError(
            f"a batch of {len(batch)} images for {runs} runs; expected the same number for each run, "
            f"so a multiple of {runs}"
        )
    return len(batch) // runs


def channel_block(channels: int) -> int:
    """How many channels a program takes: as many as possible with few idle lanes."""
    idle = {block: triton.cdiv(channels, block) * block / channels - 1 for block in _CHANNEL_BLOCKS}
    return next(
        (block for block in _CHANNEL_BLOCKS if idle[block] <= _MAX_IDLE), min(_CHANNEL_BLOCKS, key=idle.__getitem__)
    )


def is_aligned(channels: int) -> bool:
    """Whether every row starts at a multiple of 16 bytes: the `ALIGNED` of the kernels."""
    return channels % 8 == 0


@triton.jit
def align(channels, ALIGNED: tl.constexpr):
    """`channels`, which the compiler then knows to be a multiple of 8 if ALIGNED: it uses wider loads."""
    if ALIGNED:
        channels = channels // 8 * 8
    return channels


@triton.jit
def program_block(channels, BLOCK_C: tl.constexpr, REVERSE: tl.constexpr = False):
    """The number of this program's block of rows, and its channels.

    Consecutive programs take the same rows, so that neighbouring memory is read at the same time. REVERSE: the last
    rows come first. After a kernel that read the same maps from the front, their end is still in the cache, and the
    front of the output stays in the cache for the next kernel.
    """
    columns = tl.cdiv(channels, BLOCK_C)
    program = tl.program_id(0)
    if REVERSE:
        program = tl.num_programs(0) - 1 - program
    return program // columns, program % columns * BLOCK_C + tl.arange(0, BLOCK_C)
