"""How kernels share maps in channels_last among their programs: each takes some rows of a block of channels."""

import triton
import triton.language as tl

_WIDTHS = (64, 32, 16)  # channels
_MOST_IDLE = 0.15  # of a block's lanes, if a narrower block can do better


def width_of(channels: int) -> int:
    """How many channels a program takes: many, but with few lanes that have none."""
    idle = {width: triton.cdiv(channels, width) * width / channels - 1 for width in _WIDTHS}
    return next((width for width in _WIDTHS if idle[width] <= _MOST_IDLE), min(_WIDTHS, key=lambda width: idle[width]))


@triton.jit
def own_part(channels, BLOCK_C: tl.constexpr):
    """The number of this program's rows, and its channels. Programs that follow each other take the same rows: what
    lies together in memory is read at the same time."""
    columns = tl.cdiv(channels, BLOCK_C)
    program = tl.program_id(0)
    return program // columns, program % columns * BLOCK_C + tl.arange(0, BLOCK_C)
