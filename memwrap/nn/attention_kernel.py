"""Attention over a small memory as one kernel: torch takes some twenty, each shorter than what it costs to start it."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from memwrap.nn.gpu import LAUNCH_OPTIONS

_INPUTS = 16  # that a program takes
# Numbers of encodings at a time, and the warps that share them, for up to 128 samples and for more: on an H200.
# With longer tiles, or more stages, 512 samples would not fit into the shared memory of smaller GPUs.
_OF_FEW = {"length": 64, "warps": 4}
_OF_MORE = {"length": 32, "warps": 8}
_STAGES = 2


def weights_and_queries(
    queries: Tensor, keys: Tensor, key_scales: Tensor, epsilon: float, with_queries: bool
) -> tuple[Tensor, Tensor]:
    """Sparsemax of cosine similarities, (B, M), or (B, M + D) with the queries behind it; and one over their lengths.

    queries (B, D), keys (M, D), key_scales (M,), one over the keys' lengths: float32. epsilon: under the root of a
    squared length. NaN in a query gives NaN. The memory is small: a program holds the scores of all of it.
    """
    (inputs, length), samples = queries.shape, len(keys)
    queries, keys, key_scales = queries.contiguous(), keys.contiguous(), key_scales.contiguous()
    joined = torch.empty(inputs, samples + length * with_queries, device=queries.device, dtype=torch.float32)
    scales = torch.empty(inputs, device=queries.device, dtype=torch.float32)
    block_m = max(16, triton.next_power_of_2(samples))
    tile = _OF_FEW if block_m <= 128 else _OF_MORE
    _attend[(triton.cdiv(inputs, _INPUTS),)](
        queries,
        keys,
        key_scales,
        joined,
        scales,
        epsilon,
        inputs,
        samples,
        length,
        WITH_QUERIES=with_queries,
        BLOCK_B=_INPUTS,
        BLOCK_M=block_m,
        BLOCK_D=tile["length"],
        num_warps=tile["warps"],
        num_stages=_STAGES,
        **LAUNCH_OPTIONS,
    )
    return joined, scales


@triton.jit(do_not_specialize=["inputs", "samples"])
def _attend(
    queries,
    keys,
    key_scales,
    joined,
    scales,
    epsilon,
    inputs,
    samples,
    length,
    WITH_QUERIES: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    sample = tl.arange(0, BLOCK_M)
    there, known = row < inputs, sample < samples
    row = row.to(tl.int64)  # of inputs there may be very many
    width = samples
    if WITH_QUERIES:
        width += length
    own = joined + row[:, None] * width
    scores = tl.zeros((BLOCK_B, BLOCK_M), tl.float32)
    squares = tl.zeros((BLOCK_B, BLOCK_D), tl.float32)
    for start in range(0, length, BLOCK_D):
        place = start + tl.arange(0, BLOCK_D)
        inside = place < length
        mask = there[:, None] & inside[None, :]
        query = tl.load(queries + row[:, None] * length + place[None, :], mask=mask, other=0.0)
        if WITH_QUERIES:
            tl.store(own + samples + place[None, :], query, mask=mask)
        squares += query * query
        key = tl.load(
            keys + sample[None, :] * length + place[:, None], mask=known[None, :] & inside[:, None], other=0.0
        )
        scores = tl.dot(query, key, scores, input_precision="tf32x3")
    scale = 1.0 / tl.sqrt(tl.sum(squares, axis=1) + epsilon)
    tl.store(scales + row, scale, mask=there)
    of_keys = tl.load(key_scales + sample, mask=known, other=0.0)
    scores = tl.where(known[None, :], scores * scale[:, None] * of_keys[None, :], -float("inf"))
    scores -= tl.max(scores, axis=1)[:, None]
    # The scores above a threshold set the next one; it grows until none of them lies below it. They only ever become
    # fewer, so that rounding cannot keep this going.
    used = tl.zeros((BLOCK_B, BLOCK_M), tl.int1) | known[None, :]
    count = tl.sum(used.to(tl.int32), axis=1)
    threshold = (tl.sum(tl.where(used, scores, 0.0), axis=1) - 1) / count.to(tl.float32)
    fewer = True
    while fewer:
        used = used & (scores > threshold[:, None])
        left = tl.sum(used.to(tl.int32), axis=1)
        threshold = (tl.sum(tl.where(used, scores, 0.0), axis=1) - 1) / left.to(tl.float32)
        fewer = tl.sum(count - left, axis=0) > 0
        count = left
    weights = tl.where(used, scores - threshold[:, None], 0.0)
    weights = tl.where(scores == scores, weights, scores)  # what is no number stays that
    tl.store(own + sample[None, :], weights, mask=there[:, None] & known[None, :])
