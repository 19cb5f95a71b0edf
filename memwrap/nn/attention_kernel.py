"""Attention over a small memory in one Triton kernel. torch launches about twenty, each shorter than its launch."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from memwrap.nn.gpu import LAUNCH_OPTIONS

_INPUTS = 16  # per program
# Features per tile and warps, for up to 128 samples and for more; measured on an H200. With longer tiles or more
# stages, 512 samples would not fit into the shared memory of smaller GPUs.
_UP_TO_128 = {"length": 64, "warps": 4}
_MORE = {"length": 32, "warps": 8}
_STAGES = 2


def attend(
    queries: Tensor, keys: Tensor, key_inverse_norms: Tensor, epsilon: float, scale: float
) -> tuple[Tensor, Tensor]:
    """Sparsemax of scaled cosine similarities, (B, M), and the queries' inverse norms, (B,).

    queries (B, D), keys (M, D), key_inverse_norms (M,): float32. epsilon: added to a squared norm before its root is
    taken. NaN in a query gives NaN. The memory is small: a program holds the scores of all of it.
    """
    (inputs, length), samples = queries.shape, len(keys)
    queries, keys, key_inverse_norms = queries.contiguous(), keys.contiguous(), key_inverse_norms.contiguous()
    weights = torch.empty(inputs, samples, device=queries.device, dtype=torch.float32)
    inverse_norms = torch.empty(inputs, device=queries.device, dtype=torch.float32)
    block_m = max(16, triton.next_power_of_2(samples))
    tile = _UP_TO_128 if block_m <= 128 else _MORE
    _attend[(triton.cdiv(inputs, _INPUTS),)](
        queries,
        keys,
        key_inverse_norms,
        weights,
        inverse_norms,
        epsilon,
        scale,
        inputs,
        samples,
        length,
        BLOCK_B=_INPUTS,
        BLOCK_M=block_m,
        BLOCK_D=tile["length"],
        num_warps=tile["warps"],
        num_stages=_STAGES,
        **LAUNCH_OPTIONS,
    )
    return weights, inverse_norms


@triton.jit(do_not_specialize=["inputs", "samples", "scale"])
def _attend(
    queries,
    keys,
    key_inverse_norms,
    weights,
    inverse_norms,
    epsilon,
    scale,
    inputs,
    samples,
    length,
    BLOCK_B: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    sample = tl.arange(0, BLOCK_M)
    exists, known = row < inputs, sample < samples
    row = row.to(tl.int64)  # row * samples may exceed 32 bits
    scores = tl.zeros((BLOCK_B, BLOCK_M), tl.float32)
    squares = tl.zeros((BLOCK_B, BLOCK_D), tl.float32)
    for start in range(0, length, BLOCK_D):
        place = start + tl.arange(0, BLOCK_D)
        inside = place < length
        query = tl.load(
            queries + row[:, None] * length + place[None, :], mask=exists[:, None] & inside[None, :], other=0.0
        )
        squares += query * query
        key = tl.load(
            keys + sample[None, :] * length + place[:, None], mask=known[None, :] & inside[:, None], other=0.0
        )
        scores = tl.dot(query, key, scores, input_precision="tf32x3")
    inverse_norm = 1.0 / tl.sqrt(tl.sum(squares, axis=1) + epsilon)
    tl.store(inverse_norms + row, inverse_norm, mask=exists)
    of_keys = tl.load(key_inverse_norms + sample, mask=known, other=0.0)
    scores = tl.where(known[None, :], scores * (scale * inverse_norm)[:, None] * of_keys[None, :], -float("inf"))
    scores -= tl.max(scores, axis=1)[:, None]
    # Sparsemax by fixed-point iteration (Michelot 1986): the scores above the threshold give the next threshold. The
    # support only shrinks, so the loop ends whatever rounding does.
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
    found = tl.where(used, scores - threshold[:, None], 0.0)
    found = tl.where(scores == scores, found, scores)  # NaN stays NaN
    tl.store(weights + row[:, None] * samples + sample[None, :], found, mask=exists[:, None] & known[None, :])
