"""Dropout that draws from seeds which lie on the GPU: in a captured graph, each step has draws of its own.

The batch may consist of several runs, each with a seed of its own: what a run draws does not depend on the others.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from memwrap.fused.kernels.blocks import check_count, images_of_each
from memwrap.nn.gpu import LAUNCH_OPTIONS

_BLOCK = 1024


def dropout(values: Tensor, share: float, seeds: Tensor, number: int) -> Tensor:
    """Each value is zero with this probability, and scaled up otherwise. values (S * N, ...): S runs of N images each.

    seeds (S,), int64: what each run draws from. number: which layer asks.
    """
    images_of_each(values, len(seeds))
    check_count(values)
    out: Tensor = _Dropout.apply(values, share, seeds, number)
    return out


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, share: float, seeds: Tensor, number: int) -> Tensor:
        ctx.drawn = share, seeds.clone(), number  # the seeds' place holds others in the next step
        return _masked(values, *ctx.drawn)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _masked(gradients[0], *ctx.drawn), None, None, None


def _masked(values: Tensor, share: float, seeds: Tensor, number: int) -> Tensor:
    values = values.contiguous()
    out = torch.empty_like(values)
    runs = len(seeds)
    count = values.numel() // runs
    _mask[(triton.cdiv(count, _BLOCK), runs)](values, out, seeds, number, count, share, BLOCK=_BLOCK, **LAUNCH_OPTIONS)
    return out


@triton.jit
def _mask(values, out, seeds, number, count, share, BLOCK: tl.constexpr):
    """Places are counted within a run, `count` of them: its draws are those it has when it is alone."""
    run = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    drawn = tl.rand(tl.load(seeds + run) + number, place)
    value = tl.load(values + run * count + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + run * count + place, tl.where(drawn < share, 0.0, value / (1 - share)), mask=inside)
