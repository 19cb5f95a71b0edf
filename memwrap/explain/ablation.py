"""Predictions with part of the memory removed, at little cost: nothing is encoded again."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor

from memwrap.errors import StaleMemoryError
from memwrap.nn.attention import sparsemax
from memwrap.nn.memory import RememberedMemory
from memwrap.nn.precision import exact_products, to_full_precision, without_autocast
from memwrap.nn.reading import MemoryLayer
from memwrap.nn.staleness import WeightSnapshot

# How many numbers one pass may hold, counting memory samples or hidden units: what fits a CPU's cache, and more on a
# GPU, where each pass has its price.
NUMBERS_AT_ONCE, TIMES_ON_GPU = 1 << 20, 16


class Ablation:
    """Classifies B inputs with samples of the remembered memory removed.

    encodings (B, D): of the inputs. keep: bool (M,); False removes a sample for good, None keeps all. Scores and the
    inputs' part in the head are computed once; each removal then costs a sparsemax and the rest of the head. Valid as
    long as the layer's weights stay as they are.
    """

    def __init__(
        self, layer: MemoryLayer, encodings: Tensor, memory: RememberedMemory, keep: Tensor | None = None
    ) -> None:
        self.layer, self.encodings, self.memory, self.keep = layer, encodings, memory, keep
        self._prepared = memory.prepared
        self._snapshot, self._placement = WeightSnapshot(layer), _placement(layer)

    @property
    def memory_size(self) -> int:
        """How many memory samples are kept."""
        return len(self.memory) if self.keep is None else int(self.keep.sum())

    @property
    def at_once(self) -> int:
        """How many removals are classified in one pass."""
        numbers = NUMBERS_AT_ONCE * (TIMES_ON_GPU if self.encodings.is_cuda else 1)
        return max(1, numbers // max(len(self.memory), self.layer.hidden_width))

    def read(self, inputs: Tensor, removed: Tensor) -> tuple[Tensor, Tensor]:
        """Classify input inputs[n] without the memory samples removed[n], for each n.

        inputs (N,), removed (N, R) -> logits (N, C) and weights (N, M). At least one sample has to be left.
        """
        parts = list(self._parts(inputs, removed))
        return torch.cat([logits for logits, _ in parts]), torch.cat([weights for _, weights in parts])

    def logits(self, inputs: Tensor, removed: Tensor) -> Tensor:
        """The logits (N, C) of `read` without the weights, which take much room for a large memory."""
        return torch.cat([logits for logits, _ in self._parts(inputs, removed)])

    def logits_with_only(self, row: int, samples: Tensor) -> Tensor:
        """Logits (C,) of one input with a memory of these samples (n,) alone."""
        self.check_unchanged()
        with _full_precision(self.encodings):
            memory = self.layer.prepare(self.memory.encodings[samples], self.memory.labels[samples])
            return self.layer(self.encodings[row : row + 1], memory)[0]

    def shares(self, samples: Tensor, weights: Tensor) -> Tensor | None:
        """What memory samples (n,) of these weights (n,) add to every logit, (n, C); None if that is not a sum."""
        with _full_precision(self.encodings):
            shares = self.layer.shares(self._prepared.keys.values[samples], weights)
        if shares is not None:
            self.check_unchanged()
        return shares

    def check_unchanged(self) -> None:
        """A StaleMemoryError if the layer has changed: its answers would belong to another prediction."""
        if not self._snapshot.holds(self.layer) or _placement(self.layer) != self._placement:
            raise StaleMemoryError(
                "the model has changed or moved since this explanation was made; explain the images again"
            )

    def _parts(self, inputs: Tensor, removed: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        self.check_unchanged()
        for rows, samples in zip(torch.split(inputs, self.at_once), torch.split(removed, self.at_once), strict=True):
            with _full_precision(self.encodings):
                weights = sparsemax(self._scores[rows].scatter(1, samples, -torch.inf))
                logits = self.layer.classify(self._queries[rows], weights, self._prepared, self._input_hidden[rows])
            yield logits, weights

    @cached_property
    def _queries(self) -> Tensor:
        """(B, width)"""
        return self.layer.compared(to_full_precision(self.encodings))

    @cached_property
    def _scores(self) -> Tensor:
        """(B, M)"""
        similarity = self.layer.similarity
        scores = similarity.scores(similarity.vectors(self._queries), self._prepared.keys)
        return scores if self.keep is None else scores.masked_fill(~self.keep, -torch.inf)

    @cached_property
    def _input_hidden(self) -> Tensor:
        """(B, H)"""
        return self.layer.input_hidden(self._queries, self._prepared)


def _placement(layer: MemoryLayer) -> tuple[torch.dtype, torch.device]:
    return layer.reference.dtype, layer.reference.device


@contextmanager
def _full_precision(encodings: Tensor) -> Iterator[None]:
    """Without gradients, and whatever autocast and TF32 are set to."""
    with torch.no_grad(), without_autocast(encodings), exact_products(encodings):
        yield
