"""What layers with a memory share: attention over the memory, and the result of reading it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from memwrap.nn.attention import TRY_MORE, memory_vector
from memwrap.nn.checks import (
    AsyncScalars,
    NormBound,
    ValueCheck,
    check_encodings,
    check_keep,
    check_labels,
    check_memory,
    check_norms,
)
from memwrap.nn.precision import exact_linear, exact_products, to_full_precision
from memwrap.nn.queue import Queue
from memwrap.nn.similarity import CosineSimilarity, Similarity, Vectors
from memwrap.nn.tracing import checks_enabled
from memwrap.nn.voting import sum_by_label

LARGE_MEMORY = 4096  # samples: from here on it pays to compute weights from the highest scores alone
FIRST_TRIED = 256  # of these scores; few inputs use more samples

DecidedBy = Literal["head", "vote", "classifier"]


@dataclass(frozen=True)
class Reading:
    """What the layer computed for each input, and from which memory samples.

    logits (B, C): of what decides. weights (B, M): rows sum to one; the samples of positive weight are the ones used.
    memory_vector (B, D), or (B, project): the memory samples summed by weight. votes (B, C): weights summed by the
    label of the samples; None if labels are not known. head_logits (B, C'): of a head next to the memory, for the
    classes that it was trained on; None where a head reads the memory.
    """

    logits: Tensor
    weights: Tensor
    memory_vector: Tensor
    votes: Tensor | None = None
    head_logits: Tensor | None = None
    similarity: Tensor | None = None  # (B,): the largest cosine with a memory sample; with head_logits


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
    labels: Tensor | None = None  # (M,); None if they are not known

    def __len__(self) -> int:
        return len(self.keys)


class FullPrecisionLinear(nn.Linear):
    """A linear layer that computes in float32 at least, whatever autocast and TF32 are set to."""

    def forward(self, vectors: Tensor) -> Tensor:
        """vectors (..., in_features) -> (..., out_features)"""
        return exact_linear(vectors, self.weight, self.bias)


class MemoryLayer(nn.Module, ABC):
    """Attention over an encoded memory. A subclass makes logits of the weights: `classify`.

    project: a linear map takes the encodings to this many dimensions before they are compared; None leaves them as they
    are. scale: of the cosine similarity.
    """

    variant: str
    decided_by: DecidedBy
    head: nn.Module

    def __init__(self, in_features: int, num_classes: int, project: int | None, scale: float) -> None:
        super().__init__()
        # Numbers of NumPy and torch become Python's, which can be saved.
        self.in_features, self.num_classes = int(in_features), int(num_classes)
        self.project = None if project is None else int(project)
        self.similarity: Similarity = CosineSimilarity(scale)
        self.width = self.project or self.in_features
        self.projection = FullPrecisionLinear(self.in_features, self.project) if self.project else None

    if TYPE_CHECKING:  # nn.Module says Any

        def __call__(
            self, encodings: Tensor, memory: Tensor | PreparedMemory | Queue | str | None = None
        ) -> Tensor: ...

    @property
    @abstractmethod
    def reference(self) -> Tensor:
        """A weight, which has the layer's dtype and device."""

    @property
    @abstractmethod
    def hidden_width(self) -> int:
        """How many numbers classifying holds for each input, besides the weights."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The arguments that build such a layer."""

    @abstractmethod
    def classify(
        self, queries: Tensor, weights: Tensor, memory: PreparedMemory, input_hidden: Tensor | None = None
    ) -> Tensor:
        """Logits (B, C) of inputs that give the memory these weights (B, M); queries (B, width) are from `compared`.

        input_hidden (B, H): from `input_hidden`, for callers that classify the same queries several times.
        """

    @abstractmethod
    def input_hidden(self, queries: Tensor, memory: PreparedMemory) -> Tensor:
        """The part of `classify` that depends on the inputs alone: queries (B, width) -> (B, H)"""

    @abstractmethod
    def exchange(self, encodings: Tensor, others: Reading) -> Tensor:
        """Logits (B, C) of inputs, encodings (B, D), that are given what others, a row for each, read in the memory."""

    @abstractmethod
    def shares(self, keys: Tensor, weights: Tensor) -> Tensor | None:
        """What samples (n, width) of these weights (n,) add to each logit, (n, C); None if that is not a sum."""

    def read(self, encodings: Tensor, memory: Tensor | PreparedMemory, keep: Tensor | None = None) -> Reading:
        """Logits with the weight of each memory sample, and the memory vector.

        memory: encodings (M, D) or (B, M, D), or a prepared memory. keep: bool (M,) or (B, M); False removes a sample.
        """
        logits, weights, memory = self._read(encodings, memory, keep)
        votes = None if memory.labels is None else sum_by_label(weights, memory.labels, self.num_classes)
        return Reading(logits, weights, memory_vector(weights, memory.keys.values), votes)

    def prepare(self, memory: Tensor, labels: Tensor | None = None) -> PreparedMemory:
        """Compute what depends on a memory (M, D) alone, for as long as it and the layer's weights stay as they are.

        labels (M,): of its samples, if they are known; integers from 0, on any device.
        """
        if checked := checks_enabled(memory):
            check_memory(memory, self.in_features)
            if labels is not None:
                check_labels(labels, len(memory), self.num_classes)
        if labels is not None:
            labels = labels.to(memory.device, torch.int64)
        with exact_products(memory):
            keys = self.similarity.vectors(self.compared(memory))
            if checked:
                check_norms("memory", keys.inverse_norms)
            return self._prepare(keys, labels, checked)

    def compared(self, encodings: Tensor) -> Tensor:
        """encodings (..., D) -> what attention compares and sums, (..., width): themselves, or their projection"""
        return encodings if self.projection is None else self.projection(encodings)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.settings().items())

    def _prepare(self, keys: Vectors, labels: Tensor | None, checked: bool) -> PreparedMemory:
        return PreparedMemory(keys, labels=labels)

    def _read(
        self, encodings: Tensor, memory: Tensor | PreparedMemory, keep: Tensor | None
    ) -> tuple[Tensor, Tensor, PreparedMemory]:
        """Attention, then the logits: logits (B, C), weights (B, M), and the memory that they belong to."""
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

    def _uses_top(self, encodings: Tensor, memory: object) -> bool:
        """Whether logits are computed from the highest scores alone: for a large memory, without gradients."""
        return (
            isinstance(memory, PreparedMemory)
            and len(memory) >= LARGE_MEMORY
            and checks_enabled(encodings)
            and not (torch.is_grad_enabled() and encodings.requires_grad)
        )

    def _forward_top(self, encodings: Tensor, memory: PreparedMemory, tried: int | None = None) -> Tensor:
        """`forward` for a large memory, from the highest scores alone: `tried` of them, or more where needed."""
        tried = tried or FIRST_TRIED
        queries = self.similarity.vectors(self.compared(encodings))
        summed, enough = self._sum_top(queries, memory, tried)
        check, all_enough = ValueCheck(encodings=queries.inverse_norms), AsyncScalars(enough.all())
        logits = self._classify_sum(queries.values, summed)
        check.finish(logits, memory.bound)
        if not all_enough.numbers()[0]:
            left = (~enough).nonzero().squeeze(1)
            logits[left] = self._forward_top(encodings[left], memory, TRY_MORE * tried)
        return logits

    @abstractmethod
    def _sum_top(self, queries: Vectors, memory: PreparedMemory, tried: int) -> tuple[Tensor, Tensor]:
        """What `_classify_sum` takes, from the `tried` highest scores, and for which inputs these suffice."""

    @abstractmethod
    def _classify_sum(self, queries: Tensor, summed: Tensor) -> Tensor:
        """Logits (B, C) from what samples add up to, weight by weight."""
