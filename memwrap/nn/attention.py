"""Sparse content attention: which memory samples an input uses, and how much of each.

The letters in all shapes of this package: B inputs, M memory samples, D length of an encoding, C classes.

The samples of positive weight *are* the explanation of a prediction, so rounding must not choose them: similarities
and sparsemax are computed in float32 at least (float64 stays float64), whatever autocast says, and not in TF32, unless
three such products make up for what one of them rounds off.
"""

import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import (
    is_batchedtensor,  # within vmap, a tensor does not tell whether it requires gradients
    is_functorch_wrapped_tensor,
)
from torch.autograd.forward_ad import unpack_dual

from memwrap.errors import brief
from memwrap.nn import gpu
from memwrap.nn.precision import exact_matmul, to_full_precision, without_autocast
from memwrap.nn.tracing import checks_enabled

# Under the root of a squared norm, as in the published code: a zero encoding is similar to nothing, not NaN.
EPSILON = 1e-6

# From so many scores on, the largest few are looked at before all are sorted: a trained model's support lies in them.
MANY_SCORES = 1024
LARGEST = 64
MORE = 8  # times as many, if they were not enough

# A memory of so many samples at most is attended to by one kernel, where there is one.
SMALL_MEMORY = 512

# Beyond so many scores of a batch, they are computed a part of the memory at a time and never held together.
SCORES_AT_ONCE = 1 << 26


def sparsemax(scores: Tensor, dim: int = -1) -> Tensor:
    """The point of the probability simplex nearest to `scores` along `dim`: sums to one, with exact zeros.

    A score of -inf gets weight zero, as long as another score of its row is finite. Same shape, float32 at least.
    """
    scores = to_full_precision(scores)
    if not (torch.is_grad_enabled() and (scores.requires_grad or is_batchedtensor(scores))):
        return _Sparsemax.forward(scores, dim)  # the same, less what autograd would keep
    weights: Tensor = _Sparsemax.apply(scores, dim)
    return weights


def content_weights(
    queries: Tensor, query_scales: Tensor, keys: Tensor, key_scales: Tensor, keep: Tensor | None = None
) -> Tensor:
    """Weigh each memory sample for each input by sparsemax of their cosine similarity (paper, eq. 2).

    queries (B, D), keys (M, D) or (B, M, D) -> weights (B, M); rows sum to one and may hold exact zeros.
    query_scales (B,), key_scales (M,) or (B, M): their `inverse_norms`. keep: bool (M,) or (B, M); False takes a sample
    out.
    """
    scores = similarities(queries, query_scales, keys, key_scales)
    if keep is not None:
        scores = scores.masked_fill(~keep, -torch.inf)
    # Sparsemax ignores a constant added to a row, so similarity serves as well as the paper's minus distance.
    return sparsemax(scores)


def joined_weights(
    queries: Tensor, keys: Tensor, key_scales: Tensor, keep: Tensor | None, with_queries: bool
) -> tuple[Tensor, Tensor]:
    """`content_weights` for a shared memory, (B, M), or (B, M + D) with the queries behind them; and the queries'
    `inverse_norms`, (B,)."""
    if keep is None and _kernel_takes(queries, keys):
        from memwrap.nn.attention_kernel import weights_and_queries  # Triton is there where there is a GPU

        with torch.cuda.device(queries.device):  # the one that Triton launches on
            return weights_and_queries(to_full_precision(queries), keys, key_scales, EPSILON, with_queries)
    scales = inverse_norms(queries)
    weights = content_weights(queries, scales, keys, key_scales, keep)
    return torch.cat([weights, queries.to(weights.dtype)], dim=1) if with_queries else weights, scales


def _kernel_takes(queries: Tensor, keys: Tensor) -> bool:
    """eager comes first: a trace must not depend on how many keys there are."""
    return (
        queries.is_cuda
        and checks_enabled(queries)
        and keys.device == queries.device
        and len(keys) <= SMALL_MEMORY
        and queries.dtype != torch.float64
        and keys.dtype == torch.float32
        and not (_is_differentiated(queries) or _is_differentiated(keys))
        and _kernel_works(queries.device)
    )


def _is_differentiated(tensor: Tensor) -> bool:
    """Backwards, forwards, or by torch.func."""
    return (
        (torch.is_grad_enabled() and tensor.requires_grad)
        or is_functorch_wrapped_tensor(tensor)
        or unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]
    )


@cache
def _kernel_works(device: torch.device) -> bool:
    """Tried once: to compile it takes a C compiler, Python's headers and a place to write, which a machine may lack."""
    if not gpu.kernels_run_on(device):
        return False
    try:
        from memwrap.nn.attention_kernel import weights_and_queries

        memory = torch.ones(100, 16, device=device)
        with torch.cuda.device(device):
            weights_and_queries(memory, memory, memory[:, 0], EPSILON, with_queries=True)
    except Exception as error:
        warnings.warn(
            f"the kernel for small memories cannot be used on {device} ({brief(error)}); torch takes its place, which "
            "is a little slower",
            stacklevel=2,
        )
        return False
    return True


def similarities(queries: Tensor, query_scales: Tensor, keys: Tensor, key_scales: Tensor) -> Tensor:
    """The cosine similarity (B, M) of each input with each memory sample; arguments as for `content_weights`."""
    queries, keys = to_full_precision(queries), to_full_precision(keys)
    with without_autocast(queries):
        # The keys are scaled after the product: that spares a normalised copy of a large memory, and its gradient.
        return _products(queries * query_scales.unsqueeze(-1), keys) * key_scales


def memory_vector(weights: Tensor, memory: Tensor) -> Tensor:
    """The memory as one input sees it: its samples summed by weight (paper, eq. 3).

    weights (B, M), memory (M, D) or (B, M, D) -> (B, D), float32 at least
    """
    with without_autocast(weights):
        memory = memory.to(weights.dtype)
        if memory.ndim == 2:
            return weights @ memory
        return (weights.unsqueeze(1) @ memory).squeeze(1)


def large_memory_vector(
    queries: Tensor, query_scales: Tensor, keys: Tensor, key_scales: Tensor, looked_at: int
) -> tuple[Tensor, Tensor]:
    """What `memory_vector` gives for the `content_weights`, from so many samples of the highest scores; and for which
    inputs these were enough: for others it is something else.

    Neither all scores nor all weights are held at a time. queries (B, D), keys (M, D), query_scales (B,), key_scales
    (M,): their `inverse_norms` -> (B, D), and bool (B,). Without gradients.
    """
    rows = max(1, SCORES_AT_ONCE // (2 * looked_at))
    if len(queries) > rows:
        parts = zip(torch.split(queries, rows), torch.split(query_scales, rows), strict=True)
        found = [large_memory_vector(*part, keys, key_scales, looked_at) for part in parts]
        return torch.cat([vectors for vectors, _ in found]), torch.cat([enough for _, enough in found])
    scores, samples = _largest_scores(queries, query_scales, keys, key_scales, min(looked_at, len(keys)))
    scores = scores - scores[:, :1]
    threshold = _threshold_of_sorted(scores, 1)
    weights = (scores - threshold).clamp(min=0)
    samples = torch.where(weights > 0, samples, samples[:, :1])  # those of no weight need not be read from memory
    table = keys
    if keys.dtype != weights.dtype:  # only those that are used: a copy of all would take more room than the memory
        used, samples = samples.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        table = keys[used].to(weights.dtype)
    vectors = torch.nn.functional.embedding_bag(samples, table, mode="sum", per_sample_weights=weights)
    enough = _suffice(scores[:, -1], threshold.squeeze(1))
    return vectors, enough if looked_at < len(keys) else torch.ones_like(enough)


def _largest_scores(
    queries: Tensor, query_scales: Tensor, keys: Tensor, key_scales: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """The largest similarities (B, count), falling, and the samples that they are with, (B, count)."""
    at_once = max(count, SCORES_AT_ONCE // len(queries))
    found: tuple[Tensor, Tensor] | None = None
    for start in range(0, len(keys), at_once):
        part = slice(start, start + at_once)
        scores = similarities(queries, query_scales, keys[part], key_scales[part])
        largest, samples = scores.topk(min(count, scores.shape[1]), dim=1)
        samples = samples + start
        if found is not None:
            largest, samples = torch.cat([found[0], largest], dim=1), torch.cat([found[1], samples], dim=1)
            largest, places = largest.topk(min(count, largest.shape[1]), dim=1)
            samples = samples.gather(1, places)
        found = largest, samples
    assert found is not None  # as a memory has samples
    return found


def inverse_norms(vectors: Tensor) -> Tensor:
    """One over each vector's length, (..., D) -> (...), float32 at least.

    Zero or NaN for a vector that holds NaN or infinity, or that is too long for its length to be squared.
    """
    return to_full_precision(vectors).square().sum(-1).add_(EPSILON).rsqrt_()


class _Sparsemax(torch.autograd.Function):
    """Sparsemax by sorting; its gradient needs the support alone, so neither sort nor sums are differentiated."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, dim: int) -> Tensor:
        # Measured from the largest score, sums stay small and a memory of one gets exactly one; nothing else changes.
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
    """What sparsemax takes off each score, so that the positive rest sums to one; `dim` shrinks to length 1."""
    count = scores.shape[dim]
    if checks_enabled(scores) and count >= MANY_SCORES:  # in this order, as a trace must not depend on the count
        looked_at = LARGEST
        while looked_at * MORE <= count:
            largest = scores.topk(looked_at, dim).values
            threshold = _threshold_of_sorted(largest, dim)
            if bool(_suffice(largest.narrow(dim, -1, 1), threshold).all()):
                return threshold
            looked_at *= MORE
    return _threshold_of_sorted(scores.sort(dim, descending=True).values, dim)


def _suffice(least: Tensor, threshold: Tensor) -> Tensor:
    """Where even the least of the largest scores lies below their threshold, so do all that were left out."""
    return least <= threshold


def _threshold_of_sorted(descending: Tensor, dim: int) -> Tensor:
    """The threshold of scores that fall along `dim`."""
    counts = torch.arange(1, descending.shape[dim] + 1, device=descending.device, dtype=descending.dtype)
    if dim not in (-1, descending.ndim - 1):
        counts = counts.reshape([-1 if axis == dim % descending.ndim else 1 for axis in range(descending.ndim)])
    # The n largest alone would set the threshold (their sum - 1) / n. That grows with n as long as the next score lies
    # above it, and falls from there on: its maximum is the threshold of all.
    return ((descending.cumsum(dim) - 1) / counts).amax(dim, keepdim=True)


def _products(queries: Tensor, keys: Tensor) -> Tensor:
    """Scalar products (B, M) of queries (B, D) with keys (M, D) or (B, M, D)."""
    if keys.ndim == 2:
        return exact_matmul(queries, keys.mT)
    return exact_matmul(queries.unsqueeze(1), keys.mT).squeeze(1)
