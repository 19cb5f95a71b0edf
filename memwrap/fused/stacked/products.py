"""Linear maps of several runs, each with weights of its own, as one product: S runs, weights (S, O, I)."""

from typing import Any

import torch
from torch import Tensor

from memwrap.fused.kernels.streams import at_once

_ROWS_OF_A_PART = 1792  # at least, of a long sum that is cut into parts; measured on an H200


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """rows (S * N, ..., I), weight (S, O, I), bias (S, O) -> (S * N, ..., O)"""
    runs, outputs, inputs = weight.shape
    out: Tensor = _Product.apply(rows.to(weight.dtype).reshape(runs, -1, inputs), weight)
    if bias is not None:
        out = out + bias.unsqueeze(1)
    return out.reshape(*rows.shape[:-1], outputs)


class _Product(torch.autograd.Function):
    """rows (S, R, I) times weight (S, O, I), transposed. Its gradients lie in memory as their operands do."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return torch.bmm(rows, weight.mT)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor]:
        rows, weight = ctx.saved_tensors
        gradient = gradients[0]
        if not ctx.needs_input_grad[0]:
            return None, _summed_product(gradient, rows)
        of_rows, of_weight = at_once(
            [lambda: torch.bmm(gradient, weight), lambda: _summed_product(gradient, rows)], rows.device
        )
        return of_rows, of_weight


def _summed_product(left: Tensor, right: Tensor) -> Tensor:
    """left (S, R, O), transposed, times right (S, R, I) -> (S, O, I)

    With many rows and a small result, a GPU would have few places to work at: the rows are cut into parts.
    """
    runs, rows, outputs = left.shape
    parts = 1
    while rows % (2 * parts) == 0 and rows // (2 * parts) >= _ROWS_OF_A_PART:
        parts *= 2
    if parts == 1:
        return torch.bmm(left.mT, right)
    cut = [each.reshape(runs * parts, rows // parts, each.shape[2]) for each in (left, right)]
    return torch.bmm(cut[0].mT, cut[1]).reshape(runs, parts, outputs, -1).sum(1)
