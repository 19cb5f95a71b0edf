"""How good a model is, from encodings: every image has been encoded once, and what follows are small matrix products.

Results are JSON values, shares from 0 to 1. Two accuracies are told apart: with the remembered memory, which is what
`predict` uses, and with memories drawn at random for each batch, which is how the paper measures.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from memwrap import metrics
from memwrap.data import RandomMemory
from memwrap.metrics.checks import first_argmax
from memwrap.nn.checks import check_logits
from memwrap.nn.layer import MemoryWrap, Reading
from memwrap.nn.similarity import SCORES_AT_ONCE
from memwrap.nn.tracing import checks_disabled

# The paper's: test batches of 500, a new memory for each, and the whole five times.
BATCH_SIZE = 500
REPEATS = 5
BATCHES_AT_ONCE = 20  # on a GPU, which one batch leaves idle, unless its memory is large


@dataclass(frozen=True)
class Encoded:
    """Images as a model has encoded them, encodings (N, D), and their labels (N,), on the same device."""

    encodings: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


def standard_scores(layer: nn.Module, test: Encoded) -> dict[str, Any]:
    """Of a classifier without a memory."""
    return _judgement(_in_batches(layer, test.encodings), test.labels)


def remembered_scores(
    layer: MemoryWrap, test: Encoded, memory: Encoded, memory_predictions: Tensor | None
) -> dict[str, Any]:
    """With one memory for all. memory_predictions (M,): the model's own class for each of its samples, if known."""
    batches = torch.split(test.encodings, BATCH_SIZE)
    parts = [_part(layer.read(batch, memory.encodings), memory_predictions) for batch in batches]
    found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    judgement = {"memory_size": len(memory), **_judgement(found["logits"], test.labels)}
    if memory_predictions is None:
        return judgement
    flags, outcome = found["doubtful"], (metrics.predict_classes(found["logits"]), test.labels)
    one_minus_confidence = metrics.one_minus_confidence(found["logits"])
    return {
        **judgement,
        **asdict(metrics.explanation_scores(flags, *outcome)),
        "majority_vote_accuracy": metrics.accuracy(found["votes"], test.labels),
        "selective": {
            **judgement["selective"],
            "counterfactual_weight": asdict(metrics.selective_scores(found["counterfactual_weight"], *outcome)),
            "flag": asdict(metrics.flag_scores(flags, one_minus_confidence, *outcome)),
        },
        "memory_use": asdict(metrics.memory_use(found["total_weights"].sum(0), found["used_samples"])),
    }


def _part(reading: Reading, memory_predictions: Tensor | None) -> dict[str, Tensor]:
    """What is kept of a batch: small tensors whose first dimension joins them, (B, ...), or (1, M) for a sum."""
    if memory_predictions is None:
        return {"logits": reading.logits}
    predictions, weights = metrics.predict_classes(reading.logits), reading.weights
    return {
        "logits": reading.logits,
        "doubtful": metrics.top_is_counterfactual(weights, predictions, memory_predictions),
        "votes": metrics.majority_vote(weights, memory_predictions, reading.logits.shape[1]),
        "counterfactual_weight": metrics.counterfactual_weight(weights, predictions, memory_predictions),
        "used_samples": (weights > 0).sum(1),
        "total_weights": weights.double().sum(0, keepdim=True),
    }


def drawn_scores(layer: MemoryWrap, test: Encoded, source: Encoded, draws: Tensor) -> dict[str, Any]:
    """With memories drawn from a source of training images, as the paper measures: the mean and spread over repeats.

    draws (n, M): as `draws_of` makes them. A batch has one draw for its memory, and another by which the memory's own
    predictions are made.
    """
    memory_size = draws.shape[1]
    in_turn = iter(draws.to(source.labels.device))
    repeats = [_drawn_once(layer, test, source, memory_size, in_turn) for _ in range(REPEATS)]
    return {
        "memory_size": memory_size,
        "drawn_from": len(source),
        "batch_size": BATCH_SIZE,
        **{name: _summary([repeat[name] for repeat in repeats]) for name in repeats[0]},
    }


def draws_of(inputs: int, labels: Tensor, memory_size: int, generator: torch.Generator) -> Tensor:
    """All draws of `drawn_scores` for so many inputs, two for each batch, from images with these labels (N,): (n, M)"""
    sampler, labels = RandomMemory(memory_size), labels.cpu()
    draws = 2 * REPEATS * math.ceil(inputs / BATCH_SIZE)
    return torch.stack([sampler.draw(labels, labels, generator) for _ in range(draws)])


def _drawn_once(
    layer: MemoryWrap, test: Encoded, source: Encoded, memory_size: int, draws: Iterator[Tensor]
) -> dict[str, float | None]:
    def read(batch: Tensor, memory: Tensor, others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, weights and the memory's own predictions, (B, C), (B, M), (B, M)"""
        reading = layer.read(batch, memory)
        return reading.logits, reading.weights, first_argmax(layer(memory, others)).expand(len(batch), -1)

    found = []
    with checks_disabled():  # all at the end: on a GPU, each look would take longer than the batch
        for batches in _groups(test.encodings, _batches_at_once(test.encodings, memory_size)):
            pairs = [source.encodings[torch.stack([next(draws), next(draws)])] for _ in batches]
            memories, others = torch.stack(pairs, dim=1)
            found.append([each.flatten(0, 1) for each in vmap(read)(batches, memories, others)])
    all_logits, all_weights, memory_predictions = (torch.cat(each) for each in zip(*found, strict=True))
    check_logits(all_logits)
    judged = metrics.predict_classes(all_logits)
    doubtful = metrics.top_is_counterfactual(all_weights, judged, memory_predictions)
    votes = metrics.majority_vote(all_weights, memory_predictions, all_logits.shape[1])
    return {
        "accuracy": metrics.accuracy(judged, test.labels),
        **asdict(metrics.explanation_scores(doubtful, judged, test.labels)),
        "majority_vote_accuracy": metrics.accuracy(votes, test.labels),
    }


def _batches_at_once(encodings: Tensor, memory_size: int) -> int:
    """As many as a GPU can well hold the scores of: those of the inputs, and those of the memory itself."""
    if not encodings.is_cuda:
        return 1
    scores = memory_size * max(BATCH_SIZE, memory_size)
    return max(1, min(BATCHES_AT_ONCE, SCORES_AT_ONCE // scores))


def _groups(encodings: Tensor, most: int) -> Iterator[Tensor]:
    """Batches of one size, no more than so many at a time: (N, D) -> (n, B, D), until all have been given"""
    whole = len(encodings) - len(encodings) % BATCH_SIZE
    if whole:
        yield from torch.split(encodings[:whole].reshape(-1, BATCH_SIZE, encodings.shape[1]), most)
    if whole < len(encodings):
        yield encodings[whole:].unsqueeze(0)


def _judgement(logits: Tensor, labels: Tensor) -> dict[str, Any]:
    predictions = metrics.predict_classes(logits)
    table = metrics.confusion(predictions, labels, logits.shape[1])
    return {
        "accuracy": metrics.accuracy(predictions, labels),
        "class_accuracies": metrics.class_accuracies(table),
        "confusion": table.tolist(),
        "calibration_error": metrics.calibration_error(logits.double().softmax(dim=1), labels),
        "selective": {
            "confidence": asdict(metrics.selective_scores(metrics.one_minus_confidence(logits), predictions, labels))
        },
    }


def _in_batches(layer: nn.Module, encodings: Tensor) -> Tensor:
    return torch.cat([layer(batch) for batch in torch.split(encodings, BATCH_SIZE)])


def _summary(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean and spread of the repeats that have a value; a repeat without counterfactuals has no accuracy on them."""
    known = [value for value in values if value is not None]
    if not known:
        return {"mean": None, "spread": None, "repeats": list(values)}
    mean, spread = metrics.mean_and_spread(known)
    return {"mean": mean, "spread": spread, "repeats": list(values)}
