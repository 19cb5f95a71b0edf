"""How kernels share maps in channels_last among their programs: each takes some rows of a block of channels.

A batch may hold several runs of the same network, one after the other, each with images and weights of its own: one
kernel does the work of all. No program has rows of more than one run.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from memwrap.errors import InputError

_WIDTHS = (64, 32, 16)  # channels
_MOST_IDLE = 0.15  # of a block's lanes, if a narrower block can do better

_MOST_NUMBERS = 2**31  # of maps: kernels count in 32 bits, which is faster


def in_rows(maps: Tensor) -> Tensor:
    """maps (N, C, H, W) -> the same in channels_last, as the kernels take them: rows of channels"""
    check_count(maps)
    return maps.contiguous(memory_format=torch.channels_last)


def check_count(maps: Tensor) -> None:
    """Maps, or other values, that are not too many to be counted."""
    if maps.numel() >= _MOST_NUMBERS:
        raise InputError(
            f"maps of shape {tuple(maps.shape)} hold {maps.numel()} numbers; the kernels take fewer than "
            f"{_MOST_NUMBERS}: give smaller batches or images"
        )


def images_of_each(batch: Tensor, runs: int) -> int:
    """How many images each run has in a batch (S * N, ...) of S runs: N"""
    if len(batch) % runs:
        raise InputError(
            f"a batch of {len(batch)} images for {runs} runs; expected the same number for each run, "
            f"so a multiple of {runs}"
        )
    return len(batch) // runs


def width_of(channels: int) -> int:
    """How many channels a program takes: many, but with few lanes that have none."""
    idle = {width: triton.cdiv(channels, width) * width / channels - 1 for width in _WIDTHS}
    return next((width for width in _WIDTHS if idle[width] <= _MOST_IDLE), min(_WIDTHS, key=lambda width: idle[width]))


@triton.jit
def own_part(channels, BLOCK_C: tl.constexpr, BACK: tl.constexpr = False):
    """The number of this program's rows, and its channels. Programs that follow each other take the same rows: what
    lies together in memory is read at the same time.

    BACK: the last rows come first. After a kernel that has read the same maps from the front, their end is still in the
    cache; and of what is written, so is the front, for the kernel after that.
    """
    columns = tl.cdiv(channels, BLOCK_C)
    program = tl.program_id(0)
    if BACK:
        program = tl.num_programs(0) - 1 - program
    return program // columns, program % columns * BLOCK_C + tl.arange(0, BLOCK_C)
