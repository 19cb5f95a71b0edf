"""The layer that replaces a classifier's last one: attention over a memory, then a head (paper, sec. 3.1)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from memwrap.errors import InputError
from memwrap.nn.attention import TRY_MORE, memory_vector, sparsemax
from memwrap.nn.checks import (
    AsyncScalars,
    NormBound,
    ValueCheck,
    check_encodings,
    check_keep,
    check_memory,
    check_norms,
    check_sizes,
)
from memwrap.nn.precision import exact_linear, exact_products, to_full_precision, without_autocast
from memwrap.nn.similarity import CosineSimilarity, Similarity, Vectors
from memwrap.nn.tracing import checks_enabled

VARIANTS = ("memory_wrap", "only_memory")
HEADS = ("mlp", "linear")

LARGE_MEMORY = 4096  # samples: from here on it pays to compute weights from the highest scores alone
FIRST_TRIED = 256  # of these scores; few inputs use more samples

BATCH: Literal["batch"] = "batch"  # as a memory: each half of the batch is the memory of the other half


@dataclass(frozen=True)
class Reading:
    """What the layer computed for each input, and from which memory samples.

    logits (B, C). weights (B, M): rows sum to one; the samples of positive weight are the ones used. memory_vector
    (B, D), or (B, project): the memory samples summed by weight.
    """

    logits: Tensor
    weights: Tensor
    memory_vector: Tensor


@dataclass(frozen=True)
class PreparedMemory:
    """A memory with everything that can be computed before an input is seen."""

    keys: Vectors  # (M, D), or (M, project)
    # (M, H): each sample's part in the hidden layer of the head, per unit of weight. None for a memory so large that it
    # takes less work to sum the encodings first.
    hidden: Tensor | None = None
    # (D, H), with it: the part of the head's first layer that takes the input's encoding, laid out for single inputs.
    input_weight: Tensor | None = None
    bound: NormBound | None = None  # of what the head computes from it; None if values are not checked

    def __len__(self) -> int:
        return len(self.keys)


def first_half(batch: int) -> int:
    """How many of a batch belong to its first half; the second may have one fewer."""
    return (batch + 1) // 2


class FullPrecisionLinear(nn.Linear):
    """A linear layer that computes in float32 at least, whatever autocast and TF32 are set to."""

    def forward(self, vectors: Tensor) -> Tensor:
        """vectors (..., in_features) -> (..., out_features)"""
        return exact_linear(vectors, self.weight, self.bias)


class Head(nn.Module):
    """The paper's last layer: a linear layer, then ReLU and another one unless it is to stay linear."""

    def __init__(self, in_features: int, num_classes: int, linear: bool) -> None:
        super().__init__()
        # Twice as wide as its input, as in the paper (app. "Final Layer").
        self.first = nn.Linear(in_features, num_classes if linear else 2 * in_features)
        self.second = None if linear else nn.Linear(2 * in_features, num_classes)

    def forward(self, features: Tensor) -> Tensor:
        """features (B, in_features) -> logits (B, C)"""
        return self.from_hidden(self.first(features.to(self.first.weight.dtype)))

    def from_hidden(self, hidden: Tensor) -> Tensor:
        """The output of the first linear layer, (B, H) -> logits (B, C)"""
        return hidden if self.second is None else self.second(functional.relu(hidden))

    def bound(self) -> NormBound:
        """A bound on what the head computes, from the norms of its weights."""
        # One is added, as the inputs of a product have to be finite as well: they may be cast to a shorter type.
        weight, bias = 1 + _norm(self.first.weight), _norm(self.first.bias)
        if self.second is None:
            return NormBound(weight, bias)
        further = 1 + _norm(self.second.weight)
        return NormBound(weight * further, bias * further + _norm(self.second.bias))


class MemoryWrap(nn.Module):
    """Logits from encodings and an encoded memory, in place of a classifier's last layer; see `memwrap.wrap`.

    variant: "memory_wrap" joins the input's encoding and its memory vector, "only_memory" takes the latter alone.
    head: "mlp" is the paper's; "linear" shows each sample's share in every logit, and needs lower learning rates.
    project: a learnt linear map takes the encodings to this many dimensions first; None leaves them as they are.
    scale: of the cosine similarity; the paper's is 1, and higher ones use fewer memory samples.

    >>> layer = MemoryWrap(in_features=8, num_classes=3)
    >>> layer(torch.randn(2, 8), torch.randn(5, 8)).shape
    torch.Size([2, 3])
    >>> layer.read(torch.randn(2, 8), torch.randn(5, 8)).weights.shape
    torch.Size([2, 5])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        variant: str = "memory_wrap",
        head: str = "mlp",
        project: int | None = None,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        check_options(variant, head, in_features=in_features, num_classes=num_classes, project=project)
        # Numbers of NumPy and torch become Python's, which can be saved.
        self.in_features, self.num_classes = int(in_features), int(num_classes)
        self.variant, self.head_kind = variant, head
        self.project = None if project is None else int(project)
        self.similarity: Similarity = CosineSimilarity(scale)
        self.width = self.project or self.in_features
        self.projection = FullPrecisionLinear(self.in_features, self.project) if self.project else None
        joined = 2 * self.width if variant == "memory_wrap" else self.width
        self.head = Head(joined, self.num_classes, linear=head == "linear")

    if TYPE_CHECKING:  # nn.Module says Any

        def __call__(self, encodings: Tensor, memory: Tensor | PreparedMemory | Literal["batch"]) -> Tensor: ...

    def forward(self, encodings: Tensor, memory: Tensor | PreparedMemory | Literal["batch"]) -> Tensor:
        """encodings (B, D) -> logits (B, C)

        memory: encodings (M, D), or (B, M, D) for one memory to each input; a prepared memory; or "batch", with which
        each half of the batch is the memory of the other half.
        """
        if isinstance(memory, str):
            return self._forward_halves(encodings, memory)
        if (
            isinstance(memory, PreparedMemory)
            and len(memory) >= LARGE_MEMORY
            and checks_enabled(encodings)
            and not (torch.is_grad_enabled() and encodings.requires_grad)
        ):
            check_encodings(encodings, self.in_features)
            return self._forward_top(encodings, memory, FIRST_TRIED)
        return self._read(encodings, memory, None)[0]

    def read(self, encodings: Tensor, memory: Tensor | PreparedMemory, keep: Tensor | None = None) -> Reading:
        """Logits with the weight of each memory sample, and the memory vector.

        memory: encodings (M, D) or (B, M, D), or a prepared memory. keep: bool (M,) or (B, M); False removes a sample.
        """
        logits, weights, memory = self._read(encodings, memory, keep)
        return Reading(logits, weights, memory_vector(weights, memory.keys.values))

    def prepare(self, memory: Tensor) -> PreparedMemory:
        """Compute what depends on a memory (M, D) alone, for as long as it and the layer's weights stay as they are."""
        if checked := checks_enabled(memory):
            check_memory(memory, self.in_features)
        with exact_products(memory):
            keys = self.similarity.vectors(self.compared(memory))
            bound = None
            if checked:
                check_norms("memory", keys.inverse_norms)
                bound = self.head.bound().with_memory(1 / keys.inverse_norms.min().item())
            hidden = self._fold(keys.values)
            return PreparedMemory(keys, hidden, None if hidden is None else self._input_weight().T.contiguous(), bound)

    def compared(self, encodings: Tensor) -> Tensor:
        """encodings (..., D) -> what attention compares and sums, (..., width): themselves, or their projection"""
        return encodings if self.projection is None else self.projection(encodings)

    def classify(
        self, queries: Tensor, weights: Tensor, memory: PreparedMemory, input_hidden: Tensor | None = None
    ) -> Tensor:
        """Logits (B, C) of inputs that give the memory these weights (B, M); queries (B, width) are from `compared`.

        input_hidden (B, H): from `input_hidden`, for callers that classify the same queries several times.
        """
        if memory.hidden is None and input_hidden is None:
            return self._classify_vector(queries, memory_vector(weights, memory.keys.values))
        if input_hidden is None:
            input_hidden = self.input_hidden(queries, memory)
        if memory.hidden is not None:
            hidden = torch.addmm(input_hidden, weights.to(memory.hidden.dtype), memory.hidden)
        else:
            weight = self.memory_weight()
            hidden = torch.addmm(input_hidden, memory_vector(weights, memory.keys.values).to(weight.dtype), weight.T)
        return self.head.from_hidden(hidden)

    def input_hidden(self, queries: Tensor, memory: PreparedMemory) -> Tensor:
        """The inputs' own part in the head's hidden layer, its bias included: queries (B, width) -> (B, H)"""
        bias = self.head.first.bias
        if self.variant == "only_memory":
            return bias.expand(len(queries), -1)
        weight = self._input_weight().T if memory.input_weight is None else memory.input_weight
        return torch.addmm(bias, queries.to(weight.dtype), weight)

    def memory_weight(self) -> Tensor:
        """The part of the head's first layer that takes the memory vector: (H, width)"""
        return self.head.first.weight[:, -self.width :]

    def _input_weight(self) -> Tensor:
        """The part of the head's first layer that takes the input's encoding: (H, width), or (H, 0)"""
        return self.head.first.weight[:, : -self.width]

    def settings(self) -> dict[str, int | float | str | None]:
        """The arguments that build such a layer."""
        return {
            "in_features": self.in_features,
            "num_classes": self.num_classes,
            "variant": self.variant,
            "head": self.head_kind,
            "project": self.project,
            "scale": self.similarity.scale,
        }

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.settings().items())

    def _read(
        self, encodings: Tensor, memory: Tensor | PreparedMemory, keep: Tensor | None
    ) -> tuple[Tensor, Tensor, PreparedMemory]:
        """Attention, then the head: logits (B, C), weights (B, M), and the memory that they belong to."""
        if checked := checks_enabled(encodings):
            check_encodings(encodings, self.in_features)
            if not isinstance(memory, PreparedMemory):
                check_memory(memory, self.in_features, encodings)
        new_norms = {}
        if not isinstance(memory, PreparedMemory):
            memory = PreparedMemory(self.similarity.vectors(self.compared(to_full_precision(memory))))
            new_norms["memory"] = memory.keys.inverse_norms
        if checked:
            check_keep(keep, len(encodings), len(memory))
        queries = self.compared(to_full_precision(encodings))
        weights, norms = self.similarity.attend(queries, memory.keys, keep)
        check = ValueCheck(encodings=norms, **new_norms) if checked else None
        logits = self.classify(queries, weights, memory)
        if check is not None:
            check.finish(logits, memory.bound)
        return logits, weights, memory

    def _forward_halves(self, encodings: Tensor, memory: str) -> Tensor:
        """Two calls of `forward`, in which both halves share their scores and go through the head together."""
        if memory != BATCH:
            raise InputError(f"memory is {memory!r}; expected a tensor (M, D) or (B, M, D), or {BATCH!r}")
        if checked := checks_enabled(encodings):
            check_encodings(encodings, self.in_features)
            if len(encodings) < 2:
                raise InputError("a batch of one has no halves; expected at least two encodings")
        queries = self.similarity.vectors(self.compared(to_full_precision(encodings)))
        first, second = queries.split(first_half(len(encodings)))
        scores = self.similarity.scores(first, second)
        vectors = [memory_vector(sparsemax(scores), second.values), memory_vector(sparsemax(scores.mT), first.values)]
        logits = self._classify_vector(queries.values, torch.cat(vectors))
        if checked:
            ValueCheck(encodings=queries.inverse_norms).finish(logits)
        return logits

    def _forward_top(self, encodings: Tensor, memory: PreparedMemory, tried: int) -> Tensor:
        """`forward` for a large memory, from the highest scores alone: `tried` of them, or more where needed."""
        queries = self.similarity.vectors(self.compared(encodings))
        vector, enough = self.similarity.attend_to_top(queries, memory.keys, tried)
        check, all_enough = ValueCheck(encodings=queries.inverse_norms), AsyncScalars(enough.all())
        logits = self._classify_vector(queries.values, vector)
        check.finish(logits, memory.bound)
        if not all_enough.numbers()[0]:
            left = (~enough).nonzero().squeeze(1)
            logits[left] = self._forward_top(encodings[left], memory, TRY_MORE * tried)
        return logits

    def _classify_vector(self, queries: Tensor, vector: Tensor) -> Tensor:
        """The head on the input's encoding and the memory vector, or on the latter alone: (B, width) -> (B, C)"""
        alone = self.variant == "only_memory"
        logits: Tensor = self.head(vector if alone else torch.cat([queries.to(vector.dtype), vector], dim=1))
        return logits

    def _fold(self, keys: Tensor) -> Tensor | None:
        """The memory multiplied into the head's first layer, (M, H), as (w K) W = w (K W); None if it saves no work."""
        count, hidden = len(keys), self.head.first.out_features
        # Multiplications for each input: count * hidden, or to sum the encodings first count * width + width * hidden.
        if count * (hidden - self.width) > self.width * hidden:
            return None
        weight = self.memory_weight()
        with without_autocast(keys):
            return functional.linear(keys.to(weight.dtype), weight)


def _norm(weights: Tensor) -> float:
    return float(weights.detach().float().norm())


def check_options(variant: str, head: str, **sizes: int | None) -> None:
    """Known variant and head, and whole numbers of at least one where sizes are given."""
    for name, given, known in (("variant", variant, VARIANTS), ("head", head, HEADS)):
        if given not in known:
            shown = repr(given) if isinstance(given, str) else f"a {type(given).__name__}"
            raise InputError(f"{name} is {shown}; expected one of {', '.join(map(repr, known))}")
    check_sizes(**sizes)
