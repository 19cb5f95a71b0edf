"""Dropout that draws from a seed which lies on the GPU: in a captured graph, each step has draws of its own."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


def dropout(values: Tensor, share: float, seed: Tensor, number: int) -> Tensor:
    """Each value is zero with this probability, and scaled up otherwise. seed (1,), int64; number: which layer asks."""
    out: Tensor = _Dropout.apply(values, share, seed, number)
    return out


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, share: float, seed: Tensor, number: int) -> Tensor:
        ctx.drawn = share, seed.clone(), number  # the seed's place holds another one in the next step
        return _masked(values, *ctx.drawn)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _masked(gradients[0], *ctx.drawn), None, None, None


def _masked(values: Tensor, share: float, seed: Tensor, number: int) -> Tensor:
    values = values.contiguous()
    out = torch.empty_like(values)
    count = values.numel()
    _mask[(triton.cdiv(count, _BLOCK),)](values, out, seed, number, count, share, BLOCK=_BLOCK)
    return out


@triton.jit
def _mask(values, out, seed, number, count, share, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    drawn = tl.rand(tl.load(seed) + number, place)
    value = tl.load(values + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, tl.where(drawn < share, 0.0, value / (1 - share)), mask=inside)
