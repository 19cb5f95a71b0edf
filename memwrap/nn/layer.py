"""The layer that replaces a classifier's last one: attention over a memory, then a head (paper, sec. 3.1)."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from memwrap.errors import InputError
from memwrap.nn.attention import memory_vector, sparsemax
from memwrap.nn.checks import NormBound, ValueCheck, check_encodings, check_sizes
from memwrap.nn.precision import to_full_precision, without_autocast
from memwrap.nn.queue import Queue
from memwrap.nn.reading import DecidedBy, MemoryLayer, PreparedMemory, Reading
from memwrap.nn.similarity import Vectors
from memwrap.nn.tracing import checks_enabled

VARIANTS = ("memory_wrap", "only_memory")
HEADS = ("mlp", "linear")

BATCH: Literal["batch"] = "batch"  # as a memory: each half of the batch is the memory of the other half


def first_half(batch: int) -> int:
    """How many of a batch belong to its first half; the second may have one fewer."""
    return (batch + 1) // 2


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


class MemoryWrap(MemoryLayer):
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

    decided_by: DecidedBy = "head"
    head: Head

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        variant: str = "memory_wrap",
        head: str = "mlp",
        project: int | None = None,
        scale: float = 1.0,
    ) -> None:
        check_options(variant, head, in_features=in_features, num_classes=num_classes, project=project)
        super().__init__(in_features, num_classes, project, scale)
        self.variant, self.head_kind = variant, head
        joined = 2 * self.width if variant == "memory_wrap" else self.width
        self.head = Head(joined, self.num_classes, linear=head == "linear")

    @property
    def reference(self) -> Tensor:
        """A weight, which has the layer's dtype and device."""
        return self.head.first.weight

    @property
    def hidden_width(self) -> int:
        """The width of the head's hidden layer."""
        return self.head.first.out_features

    def forward(self, encodings: Tensor, memory: Tensor | PreparedMemory | Queue | Literal["batch"]) -> Tensor:
        """encodings (B, D) -> logits (B, C)

        memory: encodings (M, D), or (B, M, D) for one memory to each input; a prepared memory; "batch", with which
        each half of the batch is the memory of the other half; or a queue, which joins the other half.
        """
        if isinstance(memory, str):
            if memory != BATCH:
                raise InputError(f"memory is {memory!r}; expected a tensor (M, D) or (B, M, D), or {BATCH!r}")
            return self._forward_halves(encodings, None)
        if isinstance(memory, Queue):
            return self._forward_halves(encodings, memory)
        if isinstance(memory, PreparedMemory) and self._uses_top(encodings, memory):
            check_encodings(encodings, self.in_features)
            return self._forward_top(encodings, memory)
        return self._read(encodings, memory, None)[0]

    def classify(
        self, queries: Tensor, weights: Tensor, memory: PreparedMemory, input_hidden: Tensor | None = None
    ) -> Tensor:
        """The head on input and memory: logits (B, C); see `MemoryLayer.classify`."""
        if memory.hidden is None and input_hidden is None:
            return self._classify_sum(queries, memory_vector(weights, memory.keys.values))
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

    def exchange(self, encodings: Tensor, others: Reading) -> Tensor:
        """The head on each input and another one's memory vector: (B, C); see `MemoryLayer.exchange`."""
        return self._classify_sum(self.compared(to_full_precision(encodings)), others.memory_vector)

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

    def shares(self, keys: Tensor, weights: Tensor) -> Tensor | None:
        """What samples (n, width) of these weights (n,) add to each logit of a linear head, (n, C); else None."""
        if self.head_kind != "linear":
            return None
        weight = self.memory_weight()
        rows = functional.linear(keys.to(weight.dtype), weight)
        return weights.unsqueeze(1).to(rows.dtype) * rows

    def _prepare(self, keys: Vectors, labels: Tensor | None, checked: bool) -> PreparedMemory:
        bound = self.head.bound().with_memory(1 / keys.inverse_norms.min().item()) if checked else None
        hidden = self._fold(keys.values)
        input_weight = None if hidden is None else self._input_weight().T.contiguous()
        return PreparedMemory(keys, hidden, input_weight, bound, labels)

    def _forward_halves(self, encodings: Tensor, queue: Queue | None) -> Tensor:
        """Two calls of `forward`, in which both halves share their scores and go through the head together."""
        if checked := checks_enabled(encodings):
            check_encodings(encodings, self.in_features)
            if len(encodings) < 2:
                raise InputError("a batch of one has no halves; expected at least two encodings")
        queries = self.similarity.vectors(self.compared(to_full_precision(encodings)))
        vectors = self._attend_to_halves(queries) if queue is None else self._attend_to_queue(queries, queue)
        logits = self._classify_sum(queries.values, vectors)
        if checked:
            ValueCheck(encodings=queries.inverse_norms).finish(logits)
        return logits

    def _attend_to_halves(self, queries: Vectors) -> Tensor:
        """The memory vectors (B, width) of inputs whose memory is the other half of the batch."""
        first, second = queries.split(first_half(len(queries)))
        scores = self.similarity.scores(first, second)
        vectors = [memory_vector(sparsemax(scores), second.values), memory_vector(sparsemax(scores.mT), first.values)]
        return torch.cat(vectors)

    def _attend_to_queue(self, queries: Vectors, queue: Queue) -> Tensor:
        """The same, if a queue joins the other half. All are compared at once, which takes fewer operations."""
        kept = self.similarity.vectors(self.compared(queue.encodings.to(queries.values.dtype)))
        keys = Vectors(torch.cat([queries.values, kept.values]), torch.cat([queries.inverse_norms, kept.inverse_norms]))
        inputs = len(queries)
        is_first = torch.arange(inputs, device=queue.labels.device) < first_half(inputs)
        known = torch.cat([is_first.unsqueeze(1) != is_first, queue.filled.expand(inputs, -1)], dim=1)
        weights = sparsemax(self.similarity.scores(queries, keys).masked_fill(~known, -torch.inf))
        return memory_vector(weights, keys.values)

    def _sum_top(self, queries: Vectors, memory: PreparedMemory, tried: int) -> tuple[Tensor, Tensor]:
        return self.similarity.attend_to_top(queries, memory.keys, tried)

    def _classify_sum(self, queries: Tensor, summed: Tensor) -> Tensor:
        """The head on the input's encoding and the memory vector, or on the latter alone: (B, width) -> (B, C)"""
        alone = self.variant == "only_memory"
        logits: Tensor = self.head(summed if alone else torch.cat([queries.to(summed.dtype), summed], dim=1))
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
