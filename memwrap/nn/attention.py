"""Sparse attention: from similarity scores to weights, and from weights to the memory as one input sees it.

The letters in all shapes of this package: B inputs, M memory samples, D length of an encoding, C classes.

The samples of positive weight *are* the explanation of a prediction, so rounding must not choose them: scores and
sparsemax are computed in float32 at least, whatever autocast and TF32 are set to.
"""

from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor  # inside vmap, `requires_grad` is not reliable

from memwrap.nn.precision import to_full_precision, without_autocast
from memwrap.nn.tracing import checks_enabled

# From this many scores on, the largest few are tried before all are sorted: a trained model's support lies in them.
MANY_SCORES = 1024
FIRST_TRIED = 64
TRY_MORE = 8  # times as many, where those did not suffice


def sparsemax(scores: Tensor, dim: int = -1) -> Tensor:
    """Project `scores` onto the probability simplex along `dim`: weights that sum to one, with exact zeros.

    A score of -inf gets weight zero, as long as another score of its row is finite. Same shape, float32 at least.

    >>> sparsemax(torch.tensor([1.0, 0.8, -1.0]))
    tensor([0.6000, 0.4000, 0.0000])
    """
    scores = to_full_precision(scores)
    learns = torch.is_grad_enabled() and (scores.requires_grad or is_batchedtensor(scores))
    if not learns or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return _Sparsemax.forward(scores, dim)  # keeps nothing for autograd; a trace is the same with and without it
    weights: Tensor = _Sparsemax.apply(scores, dim)
    return weights


def memory_vector(weights: Tensor, memory: Tensor) -> Tensor:
    """Sum the memory samples by weight (paper, eq. 3).

    weights (B, M), memory (M, D) or (B, M, D) -> (B, D), float32 at least

    >>> memory_vector(torch.tensor([[0.25, 0.75]]), torch.tensor([[4.0, 0.0], [0.0, 4.0]]))
    tensor([[1., 3.]])
    """
    with without_autocast(weights):
        memory = memory.to(weights.dtype)
        if memory.ndim == 2:
            return weights @ memory
        return (weights.unsqueeze(1) @ memory).squeeze(1)


def weights_from_top(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (B, K) from the highest scores (B, K) alone, descending, and for which inputs these suffice, bool (B,).

    Others need more of their scores. Without gradients.
    """
    scores = scores - scores[:, :1]
    threshold = _threshold_of_sorted(scores, 1)
    return (scores - threshold).clamp(min=0), _suffices(scores[:, -1], threshold.squeeze(1))


def memory_vector_of_some(weights: Tensor, samples: Tensor, memory: Tensor) -> Tensor:
    """The memory vector (B, D) of weights (B, K) for samples (B, K) of memory (M, D). Without gradients."""
    samples = torch.where(weights > 0, samples, samples[:, :1])  # spares reading those of weight zero
    if memory.dtype != weights.dtype:  # converting all would take more room than the memory
        used, samples = samples.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        memory = memory[used].to(weights.dtype)
    return torch.nn.functional.embedding_bag(samples, memory, mode="sum", per_sample_weights=weights)


class _Sparsemax(torch.autograd.Function):
    """Sparsemax by sorting. Its gradient needs the support alone: neither sort nor sums are differentiated."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, dim: int) -> Tensor:
        # Measured from the largest score, sums stay small and a memory of one gets exactly one.
        shifted = scores - scores.amax(dim, keepdim=True)
        # Not in place: compiled by torch 2.11, that gave wrong gradients.
        return (shifted - _threshold(shifted, dim)).clamp(min=0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.dim = inputs[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        support = (weights > 0).to(weights.dtype)
        inside = gradients[0] * support
        mean = inside.sum(ctx.dim, keepdim=True) / support.sum(ctx.dim, keepdim=True)
        return inside - support * mean, None


def _threshold(scores: Tensor, dim: int) -> Tensor:
    """What sparsemax subtracts from each score, so that the positive rest sums to one; `dim` shrinks to length 1."""
    count = scores.shape[dim]
    if checks_enabled(scores) and count >= MANY_SCORES:  # in this order: a trace must not depend on the count
        tried = FIRST_TRIED
        while tried * TRY_MORE <= count:
            largest = scores.topk(tried, dim).values
            threshold = _threshold_of_sorted(largest, dim)
            if bool(_suffices(largest.narrow(dim, -1, 1), threshold).all()):
                return threshold
            tried *= TRY_MORE
    return _threshold_of_sorted(scores.sort(dim, descending=True).values, dim)


def _suffices(smallest: Tensor, threshold: Tensor) -> Tensor:
    """Whether the largest scores suffice: if the smallest of them is below their threshold, so are all others."""
    return smallest <= threshold


def _threshold_of_sorted(descending: Tensor, dim: int) -> Tensor:
    """The threshold of scores that are sorted along `dim`, the largest first."""
    counts = torch.arange(1, descending.shape[dim] + 1, device=descending.device, dtype=descending.dtype)
    if dim not in (-1, descending.ndim - 1):
        counts = counts.reshape([-1 if axis == dim % descending.ndim else 1 for axis in range(descending.ndim)])
    # The n largest alone would set the threshold (their sum - 1) / n. That rises with n while the next score lies above
    # it, and falls from there on: its maximum is the threshold of all.
    return ((descending.cumsum(dim) - 1) / counts).amax(dim, keepdim=True)
