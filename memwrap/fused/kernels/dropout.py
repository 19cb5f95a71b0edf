"""Dropout from seeds that lie on the GPU, so that each replay of a captured graph draws anew.

The batch may hold several runs, each with its own seed: the draws of a run do not depend on the others.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from memwrap.fused.kernels.tiling import check_size, images_per_run
from memwrap.nn.gpu import LAUNCH_OPTIONS

_BLOCK = 1024


def dropout(values: Tensor, share: float, seeds: Tensor, number: int) -> Tensor:
    """Set values to zero with probability `share` and scale the others up. values (S * N, ...): S runs of N images.

    seeds (S,), int64: one for each run. number: of the layer, so that layers draw differently from one seed.
    """
    images_per_run(values, len(seeds))
    check_size(values)
    out: Tensor = _Dropout.apply(values, share, seeds, number)
    return out


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, share: float, seeds: Tensor, number: int) -> Tensor:
        ctx.drawn = share, seeds.clone(), number  # the caller overwrites the seeds before the next step
        return _apply_mask(values, *ctx.drawn)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _apply_mask(gradients[0], *ctx.drawn), None, None, None


def _apply_mask(values: Tensor, share: float, seeds: Tensor, number: int) -> Tensor:
    values = values.contiguous()
    out = torch.empty_like(values)
    runs = len(seeds)
    count = values.numel() // runs
    _mask[(triton.cdiv(count, _BLOCK), runs)](values, out, seeds, number, count, share, BLOCK=_BLOCK, **LAUNCH_OPTIONS)
    return out


@triton.jit
def _mask(values, out, seeds, number, count, share, BLOCK: tl.constexpr):
    """Positions are counted within a run, so that a run draws the same alone and among others."""
    run = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    drawn = tl.rand(tl.load(seeds + run) + number, place)
    value = tl.load(values + run * count + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + run * count + place, tl.where(drawn < share, 0.0, value / (1 - share)), mask=inside)
