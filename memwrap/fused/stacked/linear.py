"""Linear layers of S runs, each with its own weights (S, O, I), as one batched matrix product."""

from typing import Any

import torch
from torch import Tensor

from memwrap.fused.kernels.streams import run_concurrently

_MIN_ROWS = 1792  # of each part, when a long sum is split; measured on an H200


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """rows (S * N, ..., I), weight (S, O, I), bias (S, O) -> (S * N, ..., O)"""
    runs, outputs, inputs = weight.shape
    out: Tensor = _BatchedProduct.apply(rows.to(weight.dtype).reshape(runs, -1, inputs), weight)
    if bias is not None:
        out = out + bias.unsqueeze(1)
    return out.reshape(*rows.shape[:-1], outputs)


class _BatchedProduct(torch.autograd.Function):
    """rows (S, R, I) @ weight (S, O, I).mT. The gradients have the memory layout of their operands."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return torch.bmm(rows, weight.mT)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor]:
        rows, weight = ctx.saved_tensors
        gradient = gradients[0]
        if not ctx.needs_input_grad[0]:
            return None, _split_product(gradient, rows)
        of_rows, of_weight = run_concurrently(
            [lambda: torch.bmm(gradient, weight), lambda: _split_product(gradient, rows)], rows.device
        )
        return of_rows, of_weight


def _split_product(left: Tensor, right: Tensor) -> Tensor:
    """left (S, R, O).mT @ right (S, R, I) -> (S, O, I)

    A long sum with a small result would occupy few of a GPU's multiprocessors, so the rows are split (split-K).
    """
    runs, rows, outputs = left.shape
    parts = 1
    while rows % (2 * parts) == 0 and rows // (2 * parts) >= _MIN_ROWS:
        parts *= 2
    if parts == 1:
        return torch.bmm(left.mT, right)
    left, right = (each.reshape(runs * parts, rows // parts, each.shape[2]) for each in (left, right))
    return torch.bmm(left.mT, right).reshape(runs, parts, outputs, -1).sum(1)
