"""The layer that takes the place of a classifier's last one: attention over a memory, then a head (paper, sec. 3.1)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from memwrap.errors import InputError
from memwrap.nn.attention import (
    MORE,
    content_weights,
    inverse_norms,
    joined_weights,
    large_memory_vector,
    memory_vector,
    similarities,
    sparsemax,
)
from memwrap.nn.checks import (
    AsyncScalars,
    NormBound,
    check_encodings,
    check_glanced,
    check_judgement,
    check_keep,
    check_memory,
    check_scales,
    check_sizes,
)
from memwrap.nn.precision import exact_products, to_full_precision, without_autocast
from memwrap.nn.tracing import checks_enabled

VARIANTS = ("memory_wrap", "only_memory")
HEADS = ("mlp", "linear")

LARGE_MEMORY = 4096  # samples: from here on it pays to look at the highest scores alone
LOOKED_AT = 256  # of its samples, as few use more; eight times as many if they do


@dataclass(frozen=True)
class Reading:
    """What the layer made of each input, and from which memory samples.

    logits (B, C). weights (B, M): rows sum to one, and the samples of positive weight are the ones that were used.
    memory_vector (B, D), or (B, project): the memory samples summed by weight.
    """

    logits: Tensor
    weights: Tensor
    memory_vector: Tensor


@dataclass(frozen=True)
class PreparedMemory:
    """A shared memory with all that can be computed before an input is seen."""

    encodings: Tensor  # (M, D), or (M, project)
    scales: Tensor  # (M,): one over each encoding's length
    # (M + D, H), or (M, H) for "only_memory": the head's first layer, for weights and encoding instead of memory vector
    # and encoding. Row m is sample m's part in the hidden layer, per unit of weight. None for a memory so large that
    # summing its encodings first takes less work.
    first_layer: Tensor | None
    growth: NormBound | None  # how large what the head makes of it may become; None if that has not been looked at


def first_half(batch: int) -> int:
    """How many of a batch belong to its first half; the second may have one fewer."""
    return (batch + 1) // 2


class Head(nn.Module):
    """The last layer of the paper: a linear layer, then ReLU and another one unless it is to stay linear."""

    def __init__(self, in_features: int, num_classes: int, linear: bool) -> None:
        super().__init__()
        # Twice as wide as its input, as in the paper (app. "Final Layer").
        self.first = nn.Linear(in_features, num_classes if linear else 2 * in_features)
        self.second = None if linear else nn.Linear(2 * in_features, num_classes)

    def forward(self, features: Tensor) -> Tensor:
        """features (B, in_features) -> logits (B, C)"""
        return self.after_first(self.first(features.to(self.first.weight.dtype)))

    def after_first(self, hidden: Tensor) -> Tensor:
        """What the first linear layer gives, (B, H) -> logits (B, C)"""
        return hidden if self.second is None else self.second(functional.relu(hidden))

    def growth(self) -> NormBound:
        """Of what it makes of features: by the lengths of its weights, as a product is at most that of the lengths."""
        # One more than that, as what is multiplied has to be finite as well: it may be rounded to a shorter type.
        weight, bias = 1 + _length(self.first.weight), _length(self.first.bias)
        if self.second is None:
            return NormBound(weight, bias)
        further = 1 + _length(self.second.weight)
        return NormBound(weight * further, bias * further + _length(self.second.bias))


class MemoryWrap(nn.Module):
    """Logits from encodings and an encoded memory, in place of a classifier's last layer; `memwrap.wrap` puts it there.

    variant: "memory_wrap" joins the input's encoding and its memory vector, "only_memory" judges by the latter alone.
    head: "mlp" is the paper's; "linear" shows each sample's share in every logit, and wants lower learning rates.
    project: a learnt linear map takes the encodings to so many dimensions first; None leaves them as they are.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        variant: str = "memory_wrap",
        head: str = "mlp",
        project: int | None = None,
    ) -> None:
        super().__init__()
        check_options(variant, head, in_features=in_features, num_classes=num_classes, project=project)
        # Numbers of NumPy and torch become Python's, which can be saved.
        self.in_features, self.num_classes = int(in_features), int(num_classes)
        self.variant, self.head_kind = variant, head
        self.project = None if project is None else int(project)
        self.width = self.project or self.in_features
        self.projection = nn.Linear(self.in_features, self.project) if self.project else None
        joined = 2 * self.width if variant == "memory_wrap" else self.width
        self.head = Head(joined, self.num_classes, linear=head == "linear")

    def forward(self, encodings: Tensor, memory: Tensor | Literal["batch"]) -> Tensor:
        """encodings (B, D), memory (M, D) or (B, M, D) -> logits (B, C); memory "batch": see `forward_by_halves`."""
        return self.forward_by_halves(encodings) if isinstance(memory, str) else self.read(encodings, memory).logits

    def read(self, encodings: Tensor, memory: Tensor, keep: Tensor | None = None) -> Reading:
        """The same with weights. keep: bool (M,) or (B, M); False takes a sample out, None keeps all."""
        if checked := checks_enabled(encodings):
            check_encodings(encodings, self.in_features)
            check_memory(memory, self.in_features, encodings)
            check_keep(keep, len(encodings), memory.shape[-2])
        # Rounded or not, here once: attention needs them in full in several places.
        queries, keys = self._projected(to_full_precision(encodings)), self._projected(to_full_precision(memory))
        query_scales, key_scales = inverse_norms(queries), inverse_norms(keys)
        weights = content_weights(queries, query_scales, keys, key_scales, keep)
        vector = memory_vector(weights, keys)
        logits: Tensor = self.head(self._features(queries, vector))
        if checked:
            check_judgement(logits, encodings=query_scales, memory=key_scales)
        return Reading(logits, weights, vector)

    def forward_by_halves(self, encodings: Tensor) -> Tensor:
        """encodings (B, D) -> logits (B, C); the memory of each half of the batch is the other half

        The same as two calls of `forward`, but both halves share their similarities and go through the head together.
        """
        if checked := checks_enabled(encodings):
            check_encodings(encodings, self.in_features)
            if len(encodings) < 2:
                raise InputError("a batch of one has no halves; expected at least two encodings")
        queries, scales = self.projected(to_full_precision(encodings))
        half = first_half(len(encodings))
        (first, second), (first_scales, second_scales) = (each.tensor_split([half]) for each in (queries, scales))
        scores = similarities(first, first_scales, second, second_scales)
        vectors = [memory_vector(sparsemax(scores), second), memory_vector(sparsemax(scores.mT), first)]
        logits: Tensor = self.head(self._features(queries, torch.cat(vectors)))
        if checked:
            check_judgement(logits, encodings=scales)
        return logits

    def prepare(self, memory: Tensor) -> PreparedMemory:
        """Do the part of the arithmetic that a memory (M, D) needs, once for as long as it and the weights stay.

        With other weights, predictions from it mean nothing, and it is not even sure that NaN among them is noticed.
        """
        if checked := checks_enabled(memory):
            check_memory(memory, self.in_features)
        with exact_products(memory):  # once, for all later predictions and explanations
            keys, scales = self.projected(memory)
            growth = None
            if checked:
                check_scales("memory", scales)
                growth = self.head.growth().beside(1 / scales.min().item())
            return PreparedMemory(keys, scales, self._first_layer_after(keys), growth)

    def read_prepared(self, encodings: Tensor, memory: PreparedMemory, keep: Tensor | None = None) -> Reading:
        """encodings (B, D) -> what `read` gives for the memory that was prepared, for less work"""
        logits, weights = self._judge(encodings, memory, keep)
        return Reading(logits, weights.contiguous(), memory_vector(weights, memory.encodings))

    def forward_prepared(self, encodings: Tensor, memory: PreparedMemory) -> Tensor:
        """encodings (B, D) -> what `forward` gives for the memory that was prepared, logits (B, C)

        Without gradients, a memory may be so large that its weights for a batch would fit nowhere.
        """
        if (
            len(memory.encodings) >= LARGE_MEMORY
            and checks_enabled(encodings)
            and not (torch.is_grad_enabled() and encodings.requires_grad)
        ):
            return self._judge_by_few(encodings, memory, LOOKED_AT)
        return self._judge(encodings, memory, None)[0]

    def _judge_by_few(self, encodings: Tensor, memory: PreparedMemory, looked_at: int) -> Tensor:
        """The same, from so many samples of the highest scores, or more: encodings (B, D) -> logits (B, C)"""
        check_encodings(encodings, self.in_features)
        queries, scales = self.projected(encodings)
        vector, enough = large_memory_vector(queries, scales, memory.encodings, memory.scales, looked_at)
        glance = AsyncScalars(scales.min(), enough.all())
        logits: Tensor = self.head(self._features(queries, vector))
        least, all_enough = glance.numbers()
        check_glanced(least, memory.growth, logits, scales)
        if not all_enough:
            left = (~enough).nonzero().squeeze(1)
            logits[left] = self._judge_by_few(encodings[left], memory, MORE * looked_at)
        return logits

    def _judge(self, encodings: Tensor, memory: PreparedMemory, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        """encodings (B, D) -> logits (B, C) and weights (B, M)"""
        if checked := checks_enabled(encodings):
            check_encodings(encodings, self.in_features)
            check_keep(keep, len(encodings), len(memory.encodings))
        queries = self._projected(encodings)
        both = memory.first_layer is not None and self.variant != "only_memory"
        joined, scales = joined_weights(queries, memory.encodings, memory.scales, keep, with_queries=both)
        weights = joined[:, : len(memory.encodings)]
        glance = AsyncScalars(scales.min()) if checked else None
        if memory.first_layer is None:
            logits: Tensor = self.head(self._features(queries, memory_vector(weights, memory.encodings)))
        else:
            features = joined.to(memory.first_layer.dtype)
            logits = self.head.after_first(torch.addmm(self.head.first.bias, features, memory.first_layer))
        if glance is not None:
            (least,) = glance.numbers()  # while the head is still at work
            check_glanced(least, memory.growth, logits, scales)
        return logits, weights

    def projected(self, encodings: Tensor) -> tuple[Tensor, Tensor]:
        """encodings (..., D) -> what attention compares, (..., width), and one over their lengths, (...)"""
        encodings = self._projected(encodings)
        return encodings, inverse_norms(encodings)

    def _projected(self, encodings: Tensor) -> Tensor:
        if self.projection is None:
            return encodings
        projected: Tensor = self.projection(encodings.to(self.projection.weight.dtype))
        return projected

    def _features(self, queries: Tensor, vector: Tensor) -> Tensor:
        """What the head takes: (B, 2 D), the input's encoding first, or (B, D)."""
        return vector if self.variant == "only_memory" else torch.cat([queries.to(vector.dtype), vector], dim=1)

    def _first_layer_after(self, keys: Tensor) -> Tensor | None:
        """The head's first layer with the memory multiplied into it: (w M) W = w (M W)."""
        count, weight = len(keys), self.head.first.weight
        hidden = len(weight)
        # Multiplications for each input: count * hidden, or to sum the encodings first count * width + width * hidden.
        if count * (hidden - self.width) > self.width * hidden:
            return None
        own, share = self.halves_of_first()
        with without_autocast(keys):
            return torch.cat([functional.linear(keys.to(share.dtype), share), own.T])

    def halves_of_first(self) -> tuple[Tensor, Tensor]:
        """The head's first layer: what it does to the input's encoding (H, width or 0), and to the memory vector."""
        weight = self.head.first.weight
        return weight[:, : -self.width], weight[:, -self.width :]

    def settings(self) -> dict[str, int | str | None]:
        """The arguments that build such a layer."""
        return {
            "in_features": self.in_features,
            "num_classes": self.num_classes,
            "variant": self.variant,
            "head": self.head_kind,
            "project": self.project,
        }

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.settings().items())


def _length(weights: Tensor) -> float:
    """All of them as one vector."""
    return float(weights.detach().float().norm())


def check_options(variant: str, head: str, **sizes: int | None) -> None:
    """Known variant and head, and whole numbers of at least one where sizes are given."""
    for name, given, known in (("variant", variant, VARIANTS), ("head", head, HEADS)):
        if given not in known:
            shown = repr(given) if isinstance(given, str) else f"a {type(given).__name__}"
            raise InputError(f"{name} is {shown}; expected one of {', '.join(map(repr, known))}")
    check_sizes(**sizes)
