"""Inputs judged again with some of the memory taken out, for little work: nothing is encoded anew."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from memwrap.errors import StaleMemoryError
from memwrap.nn.attention import memory_vector, similarities, sparsemax
from memwrap.nn.layer import MemoryWrap
from memwrap.nn.memory import RememberedMemory, Snapshot
from memwrap.nn.precision import exact_products, without_autocast

# How many numbers a pass over several questions may hold, for memory samples and for hidden units: what a cache takes,
# and on a GPU, where each pass has its price, many times that.
NUMBERS_AT_ONCE, TIMES_ON_GPU = 1 << 20, 16


class Ablation:
    """Asks what B inputs would be judged to be, had the remembered memory lacked some samples.

    encodings (B, D): the inputs'. Similarities and the inputs' half of the head's first layer are computed once; a
    question then costs a sparsemax and the rest of the head. Only as long as the layer's weights stay as they are.
    """

    def __init__(self, layer: MemoryWrap, encodings: Tensor, memory: RememberedMemory) -> None:
        self.layer, self.encodings, self.memory = layer, encodings, memory
        self._prepared = memory.prepared()
        self._snapshot, self._kind = Snapshot(layer), _kind(layer)

    @property
    def at_once(self) -> int:
        """How many questions are answered in one pass."""
        numbers = NUMBERS_AT_ONCE * (TIMES_ON_GPU if self.encodings.is_cuda else 1)
        return max(1, numbers // max(len(self.memory), self.layer.head.first.out_features))

    def judge(self, inputs: Tensor, removed: Tensor) -> tuple[Tensor, Tensor]:
        """What input inputs[n] is judged to be without the memory samples removed[n], for each n.

        inputs (N,), removed (N, R) -> logits (N, C) and weights (N, M). At least one sample has to be left.
        """
        parts = list(self._parts(inputs, removed))
        return torch.cat([logits for logits, _ in parts]), torch.cat([weights for _, weights in parts])

    def logits(self, inputs: Tensor, removed: Tensor) -> Tensor:
        """The same without the weights, which of a large memory fill much room: (N, C)"""
        return torch.cat([logits for logits, _ in self._parts(inputs, removed)])

    def judge_with_only(self, row: int, samples: Tensor) -> Tensor:
        """Logits (C,) of one input with a memory that holds these samples (n,) and nothing else."""
        self.refuse_if_changed()
        with _in_full_precision(self.encodings):
            return self.layer.read(self.encodings[row : row + 1], self.memory.encodings[samples]).logits[0]

    def shares(self, samples: Tensor, weights: Tensor) -> Tensor:
        """What memory samples (n,) of these weights (n,) add to every logit, with a linear head: (n, C)"""
        self.refuse_if_changed()
        _, share = self.layer.halves_of_first()
        with _in_full_precision(self.encodings):
            rows = functional.linear(self._prepared.encodings[samples].to(share.dtype), share)
            return weights.unsqueeze(1).to(rows.dtype) * rows

    def refuse_if_changed(self) -> None:
        """An answer by other weights would belong to another prediction."""
        if not self._snapshot.holds(self.layer) or _kind(self.layer) != self._kind:
            raise StaleMemoryError(
                "the model has changed or moved since this explanation was made; explain the images again"
            )

    def _parts(self, inputs: Tensor, removed: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        self.refuse_if_changed()
        for part in zip(torch.split(inputs, self.at_once), torch.split(removed, self.at_once), strict=True):
            with _in_full_precision(self.encodings):
                answers = self._judge(*part)
            yield answers

    def _judge(self, inputs: Tensor, removed: Tensor) -> tuple[Tensor, Tensor]:
        weights = sparsemax(self._scores[inputs].scatter(1, removed, -torch.inf))
        if self._prepared.first_layer is not None:
            features, first_layer = weights, self._prepared.first_layer[: weights.shape[1]]
        else:
            _, share = self.layer.halves_of_first()
            features, first_layer = memory_vector(weights, self._prepared.encodings), share.T
        hidden = torch.addmm(self._hidden_of_inputs[inputs], features.to(first_layer.dtype), first_layer)
        return self.layer.head.after_first(hidden), weights

    @cached_property
    def _queries(self) -> tuple[Tensor, Tensor]:
        return self.layer.projected(self.encodings)

    @cached_property
    def _scores(self) -> Tensor:
        """(B, M)"""
        return similarities(*self._queries, self._prepared.encodings, self._prepared.scales)

    @cached_property
    def _hidden_of_inputs(self) -> Tensor:
        """The inputs' part in the head's first layer, its bias included: (B, H)"""
        own, _ = self.layer.halves_of_first()
        if self.layer.variant == "only_memory":
            return self.layer.head.first.bias.expand(len(self.encodings), -1)
        return functional.linear(self._queries[0].to(own.dtype), own, self.layer.head.first.bias)


def _kind(layer: MemoryWrap) -> tuple[torch.dtype, torch.device]:
    weight = layer.head.first.weight
    return weight.dtype, weight.device


@contextmanager
def _in_full_precision(encodings: Tensor) -> Iterator[None]:
    """Without gradients, and whatever autocast and TF32 are set to."""
    with torch.no_grad(), without_autocast(encodings), exact_products(encodings):
        yield
