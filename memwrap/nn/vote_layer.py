"""A head next to a memory: the memory samples vote by their labels, or the head decides and they stand beside it."""

import warnings
from typing import Any, Literal, get_args

from torch import Tensor, nn

from memwrap.errors import InputError, NoMemoryError
from memwrap.nn.attention import memory_vector
from memwrap.nn.checks import check_encodings, check_logits, check_sizes
from memwrap.nn.reading import DecidedBy, MemoryLayer, PreparedMemory, Reading
from memwrap.nn.similarity import Vectors
from memwrap.nn.tracing import checks_enabled
from memwrap.nn.voting import sum_by_label, vote_logits

VOTE: Literal["vote"] = "vote"  # the variant
Decide = Literal["vote", "head"]
# A fitted network maps the images of a class to nearly one point: with a scale of 1 an input uses nearly all of them.
SCALE = 16.0


class VoteLayer(MemoryLayer):
    """A head that is trained without a memory, and predictions by the vote of a memory.

    A vote is the attention weights summed by the label of the memory samples. decide: "vote", or "head" for predictions
    by the head, with the memory samples next to it. head: a module (B, D) -> (B, C); None makes a linear one. project,
    scale: as in `MemoryWrap`. head_classes: how many classes the head has, if a memory has more; 0 for no head, as next
    to a backbone without one.

    >>> layer = VoteLayer(in_features=8, num_classes=3)
    >>> memory = layer.prepare(torch.randn(5, 8), labels=torch.tensor([0, 0, 1, 1, 1]))
    >>> layer.read(torch.randn(2, 8), memory).votes[:, 2]
    tensor([0., 0.])
    """

    variant = VOTE

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        project: int | None = None,
        scale: float = SCALE,
        decide: str = "vote",
        head: nn.Module | None = None,
        head_classes: int | None = None,
    ) -> None:
        check_sizes(
            in_features=in_features, num_classes=num_classes, project=project, head_classes=head_classes or None
        )
        check_decide(decide)
        super().__init__(in_features, num_classes, project, scale)
        self.head_classes = self.num_classes if head_classes is None else int(head_classes)
        if self.head_classes > self.num_classes or (self.head_classes == 0 and decide == "head"):
            raise InputError(
                f"head_classes is {head_classes} with {num_classes} classes and decide={decide!r}; expected at most as "
                "many, and a head if it decides"
            )
        self.decide, self.is_attached = decide, head is not None
        self.head = _new_head(self.in_features, self.head_classes) if head is None else head

    @property
    def decided_by(self) -> DecidedBy:  # type: ignore[override]
        """The vote, or the classifier, whose head has not read the memory."""
        return "vote" if self.decide == "vote" else "classifier"

    @property
    def reference(self) -> Tensor:
        """A weight, which has the layer's dtype and device."""
        return next(self.head.parameters())

    @property
    def hidden_width(self) -> int:
        """The votes are all that classifying holds."""
        return self.num_classes

    def forward(self, encodings: Tensor, memory: Tensor | PreparedMemory | Literal["batch"] | None = None) -> Tensor:
        """encodings (B, D) -> logits (B, C): of the head without a memory, else of what decides

        Logits of a vote are logarithms of its shares. memory: prepared, with labels.
        """
        if memory is None:
            return self.head_logits(encodings)
        prepared = _with_labels(memory)
        if self.decide == "head":
            return self.head_logits(encodings)
        if self._uses_top(encodings, prepared):
            check_encodings(encodings, self.in_features)
            return self._forward_top(encodings, prepared)
        return self._read(encodings, prepared, None)[0]

    def read(self, encodings: Tensor, memory: Tensor | PreparedMemory, keep: Tensor | None = None) -> Reading:
        """Logits of what decides, the weight of each memory sample, the votes, and the head's logits; see `forward`."""
        logits, weights, prepared = self._read(encodings, _with_labels(memory), keep)
        head_logits = self.head_logits(encodings) if self.head_classes else None
        return Reading(
            logits if self.decide == "vote" or head_logits is None else head_logits,
            weights,
            memory_vector(weights, prepared.keys.values),
            self._votes(weights, prepared),
            head_logits,
            self._similarity(encodings, weights, prepared),
        )

    def head_logits(self, encodings: Tensor) -> Tensor:
        """encodings (B, D) -> logits (B, head_classes)"""
        if not self.head_classes:
            raise NoMemoryError(
                "the model has no head, only the vote of a memory: model.remember(images, labels) first"
            )
        if checks_enabled(encodings):
            check_encodings(encodings, self.in_features)
        is_convolution = isinstance(self.head, nn.Conv2d)  # a classifier's own, which takes (B, D, 1, 1)
        logits: Tensor = self.head(encodings[..., None, None] if is_convolution else encodings)
        logits = logits.flatten(1) if is_convolution else logits
        if checks_enabled(encodings):
            check_logits(logits, encodings)
        return logits

    def classify(
        self, queries: Tensor, weights: Tensor, memory: PreparedMemory, input_hidden: Tensor | None = None
    ) -> Tensor:
        """The logarithm of the votes, (B, C); see `MemoryLayer.classify`."""
        return vote_logits(self._votes(weights, memory))

    def input_hidden(self, queries: Tensor, memory: PreparedMemory) -> Tensor:
        """Nothing: a vote depends on the weights alone. (B, 0)"""
        return queries.new_empty(len(queries), 0)

    def exchange(self, encodings: Tensor, others: Reading) -> Tensor:
        """The other inputs' votes, or the inputs' own logits where the head decides: (B, C)"""
        return others.logits if self.decide == "vote" else self.head_logits(encodings)

    def shares(self, keys: Tensor, weights: Tensor) -> Tensor | None:
        """None: what a sample adds to a vote is its weight."""
        return None

    def add_classes(self, count: int) -> None:
        """Let the memory have this many more classes, or fewer; the head does not know them."""
        self.num_classes += count

    def settings(self) -> dict[str, Any]:
        """The arguments that build such a layer, besides a head that is a classifier's own."""
        return {
            "in_features": self.in_features,
            "num_classes": self.num_classes,
            "variant": self.variant,
            "project": self.project,
            "scale": self.similarity.scale,
            "decide": self.decide,
            "head_classes": self.head_classes,
            "attached": self.is_attached,
        }

    def _votes(self, weights: Tensor, memory: PreparedMemory) -> Tensor:
        labels = memory.labels
        assert labels is not None
        return sum_by_label(weights, labels, self.num_classes)

    def _similarity(self, encodings: Tensor, weights: Tensor, memory: PreparedMemory) -> Tensor:
        """The cosine (B,) with the strongest sample."""
        top = weights.argmax(1)
        keys = Vectors(memory.keys.values[top].unsqueeze(1), memory.keys.inverse_norms[top].unsqueeze(1))
        queries = self.similarity.vectors(self.compared(encodings))
        return self.similarity.scores(queries, keys).squeeze(1) / self.similarity.scale

    def _sum_top(self, queries: Vectors, memory: PreparedMemory, tried: int) -> tuple[Tensor, Tensor]:
        assert memory.labels is not None
        weights, samples, enough = self.similarity.weigh_top(queries, memory.keys, tried)
        return sum_by_label(weights, memory.labels[samples], self.num_classes), enough

    def _classify_sum(self, queries: Tensor, summed: Tensor) -> Tensor:
        return vote_logits(summed)


def _new_head(in_features: int, num_classes: int) -> nn.Linear:
    if num_classes:
        return nn.Linear(in_features, num_classes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about weights without elements: this has a dtype and device alone
        return nn.Linear(in_features, 0)


def without_head(layer: MemoryLayer) -> VoteLayer:
    """A layer like this one that votes and has no head."""
    like, scale = layer.reference, layer.similarity.scale
    return VoteLayer(layer.in_features, layer.num_classes, layer.project, scale, head_classes=0).to(like)


def check_decide(decide: str) -> None:
    """An InputError unless this says what decides."""
    if decide not in get_args(Decide):
        raise InputError(f"decide is {decide!r}; expected {' or '.join(map(repr, get_args(Decide)))}")


def _with_labels(memory: Tensor | PreparedMemory | Literal["batch"]) -> PreparedMemory:
    if not isinstance(memory, PreparedMemory) or memory.labels is None:
        raise InputError(
            "a vote needs the labels of its memory: let the model remember it, model.remember(images, labels), or give "
            "the layer what layer.prepare(encodings, labels) returns"
        )
    return memory
