"""How inputs are compared with the memory. Another similarity is another subclass of `Similarity`."""

import math
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd.forward_ad import unpack_dual

from memwrap.errors import InputError, brief
from memwrap.nn import gpu
from memwrap.nn.attention import memory_vector_of_some, sparsemax, weights_from_top
from memwrap.nn.precision import exact_matmul, to_full_precision, without_autocast
from memwrap.nn.tracing import checks_enabled

# Added to a squared norm before its root is taken, as in the published code: a zero encoding is similar to nothing.
EPSILON = 1e-6

# Up to this many samples, one kernel attends to a memory on a GPU.
SMALL_MEMORY = 512

# Beyond this many scores of a batch, a part of the memory is compared at a time and never all scores are held.
SCORES_AT_ONCE = 1 << 26


@dataclass(frozen=True)
class Vectors:
    """Encodings with what the similarity needs of each, computed once."""

    values: Tensor  # (N, D), or (B, M, D): one memory to each input
    inverse_norms: Tensor  # (N,), or (B, M); zero or NaN where a vector holds NaN, infinity or overflows when squared

    def __len__(self) -> int:
        return self.values.shape[-2]

    def split(self, size: int) -> "list[Vectors]":
        """Parts of at most `size` vectors, of (N, D)."""
        parts = zip(torch.split(self.values, size), torch.split(self.inverse_norms, size), strict=True)
        return [Vectors(*part) for part in parts]


@dataclass(frozen=True)
class Similarity(ABC):
    """How inputs are compared with the memory. A subclass defines `scores`; a higher score is more alike.

    scale: multiplies the scores. A higher one makes attention use fewer samples.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        try:
            scale = math.nan if isinstance(self.scale, bool | str) else float(self.scale)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            scale = math.nan
        if not (math.isfinite(scale) and scale > 0):
            raise InputError(f"scale is {self.scale!r}; expected a finite number above 0")
        object.__setattr__(self, "scale", scale)  # Python's, which can be saved

    @abstractmethod
    def scores(self, queries: Vectors, keys: Vectors) -> Tensor:
        """Compare each query (B, D) with each key (M, D), or with its own keys (B, M, D): scores (B, M).

        In float32 at least. Symmetric, as with the batch as memory both halves share their scores.
        """

    def vectors(self, encodings: Tensor) -> Vectors:
        """encodings (..., D) -> the same with their inverse norms"""
        norms = to_full_precision(encodings).square().sum(-1).add_(EPSILON).rsqrt_()
        return Vectors(encodings, norms)

    def attend(self, queries: Tensor, keys: Vectors, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Weigh each memory sample for each input by sparsemax of their scores (paper, eq. 2).

        queries (B, D), keys (M, D) or (B, M, D) -> weights (B, M), and the queries' inverse norms (B,). Rows sum to one
        and may hold exact zeros. keep: bool (M,) or (B, M); False removes a sample.
        """
        compared = self.vectors(queries)
        scores = self.scores(compared, keys)
        if keep is not None:
            scores = scores.masked_fill(~keep, -torch.inf)
        return sparsemax(scores), compared.inverse_norms

    def attend_to_top(self, queries: Vectors, keys: Vectors, count: int) -> tuple[Tensor, Tensor]:
        """The memory vector of a large memory from the `count` highest scores, and for which inputs these suffice.

        Never holds all scores or weights at a time. queries (B, D), keys (M, D) -> (B, D), and bool (B,). Without
        gradients.
        """
        parts = []
        for part in queries.split(max(1, SCORES_AT_ONCE // (2 * count))):
            weights, samples, enough = self.weigh_top(part, keys, count)
            parts.append((memory_vector_of_some(weights, samples, keys.values), enough))
        return torch.cat([vectors for vectors, _ in parts]), torch.cat([enough for _, enough in parts])

    def weigh_top(self, queries: Vectors, keys: Vectors, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The weights (B, K) of the `count` highest scores, their samples (B, K), and for which inputs these suffice.

        queries (B, D), keys (M, D); K is `count`, or M if that is less. Without gradients.
        """
        scores, samples = self._largest_scores(queries, keys, min(count, len(keys)))
        weights, enough = weights_from_top(scores)
        return weights, samples, enough if count < len(keys) else torch.ones_like(enough)

    def _largest_scores(self, queries: Vectors, keys: Vectors, count: int) -> tuple[Tensor, Tensor]:
        """The largest scores (B, count), descending, and the samples that have them (B, count)."""
        largest = queries.inverse_norms.new_empty(len(queries), 0)
        samples = torch.empty(len(queries), 0, dtype=torch.int64, device=largest.device)
        start = 0
        for part in keys.split(max(count, SCORES_AT_ONCE // len(queries))):
            top = self.scores(queries, part).topk(min(count, len(part)), dim=1)
            largest = torch.cat([largest, top.values], dim=1)
            samples = torch.cat([samples, top.indices + start], dim=1)
            start += len(part)
            largest, places = largest.topk(min(count, largest.shape[1]), dim=1)
            samples = samples.gather(1, places)
        return largest, samples


class CosineSimilarity(Similarity):
    """scale * cosine; the paper's has scale 1.

    Sparsemax ignores a constant added to a row, so similarity serves as well as the paper's minus distance.
    """

    def scores(self, queries: Vectors, keys: Vectors) -> Tensor:
        """Cosine similarities times the scale, (B, M); see `Similarity.scores`."""
        values, others = to_full_precision(queries.values), to_full_precision(keys.values)
        with without_autocast(values):
            factors = queries.inverse_norms if self.scale == 1 else self.scale * queries.inverse_norms
            # The keys are scaled after the product: that spares a normalised copy of a large memory, and its gradient.
            return _products(values * factors.unsqueeze(-1), others) * keys.inverse_norms

    def attend(self, queries: Tensor, keys: Vectors, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As `Similarity.attend`, by one kernel for small memories on a GPU."""
        if keep is not None or not _kernel_applies(queries, keys.values):
            return super().attend(queries, keys, keep)
        from memwrap.nn.attention_kernel import attend  # Triton is installed where there is a GPU

        with torch.cuda.device(queries.device):  # Triton launches on the current device
            return attend(to_full_precision(queries), keys.values, keys.inverse_norms, EPSILON, self.scale)


def _products(queries: Tensor, keys: Tensor) -> Tensor:
    """Scalar products (B, M) of queries (B, D) with keys (M, D) or (B, M, D)."""
    if keys.ndim == 2:
        return exact_matmul(queries, keys.mT)
    return exact_matmul(queries.unsqueeze(1), keys.mT).squeeze(1)


def _kernel_applies(queries: Tensor, keys: Tensor) -> bool:
    # Whether checks are enabled comes first: a trace must not depend on the number of keys.
    return (
        queries.is_cuda
        and checks_enabled(queries)
        and keys.device == queries.device
        and keys.ndim == 2
        and len(keys) <= SMALL_MEMORY
        and queries.dtype != torch.float64
        and keys.dtype == torch.float32
        and not (_is_differentiated(queries) or _is_differentiated(keys))
        and _kernel_compiles(queries.device)
    )


def _is_differentiated(tensor: Tensor) -> bool:
    """Backward, forward, or by torch.func."""
    return (
        (torch.is_grad_enabled() and tensor.requires_grad)
        or is_functorch_wrapped_tensor(tensor)
        or unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]
    )


@cache
def _kernel_compiles(device: torch.device) -> bool:
    """Try once: compiling takes a C compiler, Python's headers and a writable folder, which a machine may lack."""
    if not gpu.kernels_run_on(device):
        return False
    try:
        from memwrap.nn.attention_kernel import attend

        memory = torch.ones(100, 16, device=device)
        with torch.cuda.device(device):
            attend(memory, memory, memory[:, 0], EPSILON, scale=1.0)
    except Exception as error:
        warnings.warn(
            f"the kernel for small memories cannot be used on {device} ({brief(error)}); "
            "torch's operators replace it, which is a little slower",
            stacklevel=2,
        )
        return False
    return True
