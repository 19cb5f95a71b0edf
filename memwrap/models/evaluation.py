"""Scores of a model from encodings: every image is encoded once, and the rest is small matrix products.

Results are JSON values; shares go from 0 to 1. There are two accuracies: with the remembered memory, as `predict` uses
it, and with memories drawn at random for each batch, as the paper measures.
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
from memwrap.nn.calibration import VoteCalibration
from memwrap.nn.checks import check_logits
from memwrap.nn.memory import RememberedMemory
from memwrap.nn.probabilities import Calibration, reading_probabilities, temperature_of
from memwrap.nn.reading import MemoryLayer, Reading
from memwrap.nn.similarity import SCORES_AT_ONCE
from memwrap.nn.tracing import checks_disabled

# As in the paper: test batches of 500, a new memory for each, and five repeats.
BATCH_SIZE = 500
REPEATS = 5
BATCHES_AT_ONCE = 20  # on a GPU, where one batch with a small memory is too little work


@dataclass(frozen=True)
class Encoded:
    """Encoded images: encodings (N, D) and labels (N,), on the same device."""

    encodings: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


def standard_scores(layer: nn.Module, test: Encoded, calibration: Calibration | None = None) -> dict[str, Any]:
    """Scores of a classifier without a memory."""
    logits = torch.cat([layer(batch) for batch in torch.split(test.encodings, BATCH_SIZE)])
    return _classification_scores(logits, logits / temperature_of(calibration), test.labels, calibration)


def remembered_scores(
    layer: MemoryLayer, test: Encoded, memory: RememberedMemory, calibration: Calibration | None = None
) -> dict[str, Any]:
    """Scores with one memory for all inputs, which the layer has prepared."""
    classes, batches = memory.classes, torch.split(test.encodings, BATCH_SIZE)
    parts = [_part(layer.read(batch, memory.prepared), memory, classes, calibration) for batch in batches]
    found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    scores = {
        "memory_size": len(memory),
        **_classification_scores(found["logits"], found["shown"], test.labels, calibration),
        **_deciders(found, test.labels, layer),
    }
    if classes is None:
        return scores
    flags, outcome = found["doubtful"], (metrics.predict_classes(found["logits"]), test.labels)
    return {
        **scores,
        **asdict(metrics.explanation_scores(flags, *outcome)),
        "majority_vote_accuracy": metrics.accuracy(found["majority"], test.labels),
        "selective": {
            **scores["selective"],
            "counterfactual_weight": asdict(metrics.selective_scores(found["counterfactual_weight"], *outcome)),
            "flag": asdict(metrics.flag_scores(flags, metrics.one_minus_confidence(found["shown"]), *outcome)),
        },
        "memory_use": asdict(metrics.memory_use(found["total_weights"].sum(0), found["used_samples"])),
    }


def _part(
    reading: Reading, memory: RememberedMemory, classes: Tensor | None, calibration: Calibration | None
) -> dict[str, Tensor]:
    """What is kept of a batch: small tensors (B, ...) to concatenate, or (1, M) to sum."""
    assert reading.votes is not None  # the memory has labels
    logits = reading.logits
    is_vote = isinstance(calibration, VoteCalibration)
    shown = reading_probabilities(reading, calibration).log() if is_vote else logits / temperature_of(calibration)
    found = {"logits": logits, "shown": shown, "votes": reading.votes}
    if reading.head_logits is not None:
        found["head_logits"] = reading.head_logits
    if classes is None:
        return found
    predictions, weights, doubtful = metrics.predict_classes(logits), reading.weights, memory.is_uncertain(reading)
    assert doubtful is not None
    return {
        **found,
        "doubtful": doubtful,
        "majority": metrics.majority_vote(weights, classes, logits.shape[1]),
        "counterfactual_weight": metrics.counterfactual_weight(weights, predictions, classes),
        "used_samples": (weights > 0).sum(1),
        "total_weights": weights.double().sum(0, keepdim=True),
    }


def _deciders(found: dict[str, Tensor], labels: Tensor, layer: MemoryLayer) -> dict[str, float | None]:
    """The accuracy of the vote and of the head, and how often they predict the same class; None without a head."""
    vote = metrics.predict_classes(found["votes"])
    scores: dict[str, float | None] = {"vote_accuracy": metrics.accuracy(vote, labels)}
    logits = found["logits"] if layer.decided_by == "head" else found.get("head_logits")
    if logits is None:
        return {**scores, "head_accuracy": None, "agreement": None}
    head = metrics.predict_classes(logits)
    return {**scores, "head_accuracy": metrics.accuracy(head, labels), "agreement": metrics.accuracy(head, vote)}


def drawn_scores(layer: MemoryLayer, test: Encoded, source: Encoded, draws: Tensor) -> dict[str, Any]:
    """Scores with memories drawn from training images, as the paper measures: mean and spread over repeats.

    draws (n, M): from `draw_memories`. A batch takes one draw as its memory, and another to predict the class of each
    sample of that memory.
    """
    memory_size = draws.shape[1]
    in_turn = iter(draws.to(source.labels.device))
    repeats = [_scores_of_repeat(layer, test, source, memory_size, in_turn) for _ in range(REPEATS)]
    return {
        "memory_size": memory_size,
        "drawn_from": len(source),
        "batch_size": BATCH_SIZE,
        **{name: _summarize([repeat[name] for repeat in repeats]) for name in repeats[0]},
    }


def draw_memories(inputs: int, labels: Tensor, memory_size: int, generator: torch.Generator) -> Tensor:
    """All draws that `drawn_scores` needs, two for each batch, from images with these labels (N,): (n, M)"""
    sampler, labels = RandomMemory(memory_size), labels.cpu()
    draws = 2 * REPEATS * math.ceil(inputs / BATCH_SIZE)
    return torch.stack([sampler.draw(labels, labels, generator) for _ in range(draws)])


def _scores_of_repeat(
    layer: MemoryLayer, test: Encoded, source: Encoded, memory_size: int, draws: Iterator[Tensor]
) -> dict[str, float | None]:
    def read(batch: Tensor, memory: Tensor, others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (B, C), weights (B, M), and the predictions of the memory (B, M)"""
        reading = layer.read(batch, memory)
        return reading.logits, reading.weights, first_argmax(layer(memory, others)).expand(len(batch), -1)

    found = []
    with checks_disabled():  # values are checked once, at the end: on a GPU a check takes longer than a batch
        for batches in _group_batches(test.encodings, _batches_at_once(test.encodings, memory_size)):
            pairs = [source.encodings[torch.stack([next(draws), next(draws)])] for _ in batches]
            memories, others = torch.stack(pairs, dim=1)
            found.append([each.flatten(0, 1) for each in vmap(read)(batches, memories, others)])
    all_logits, all_weights, memory_predictions = (torch.cat(each) for each in zip(*found, strict=True))
    check_logits(all_logits)
    predictions = metrics.predict_classes(all_logits)
    doubtful = metrics.top_is_counterfactual(all_weights, predictions, memory_predictions)
    votes = metrics.majority_vote(all_weights, memory_predictions, all_logits.shape[1])
    return {
        "accuracy": metrics.accuracy(predictions, test.labels),
        **asdict(metrics.explanation_scores(doubtful, predictions, test.labels)),
        "majority_vote_accuracy": metrics.accuracy(votes, test.labels),
    }


def _batches_at_once(encodings: Tensor, memory_size: int) -> int:
    """How many batches a GPU can hold the scores of, those of the memory's own predictions included."""
    if not encodings.is_cuda:
        return 1
    scores = memory_size * max(BATCH_SIZE, memory_size)
    return max(1, min(BATCHES_AT_ONCE, SCORES_AT_ONCE // scores))


def _group_batches(encodings: Tensor, size: int) -> Iterator[Tensor]:
    """Groups of up to `size` batches of equal length: (N, D) -> (n, B, D), one after the other"""
    whole = len(encodings) - len(encodings) % BATCH_SIZE
    if whole:
        yield from torch.split(encodings[:whole].reshape(-1, BATCH_SIZE, encodings.shape[1]), size)
    if whole < len(encodings):
        yield encodings[whole:].unsqueeze(0)


def _classification_scores(
    logits: Tensor, shown: Tensor, labels: Tensor, calibration: Calibration | None
) -> dict[str, Any]:
    """logits (B, C), and those (B, C) whose softmax is shown, of the same classes"""
    predictions = metrics.predict_classes(logits)
    table = metrics.confusion(predictions, labels, logits.shape[1])
    scores = {
        "accuracy": metrics.accuracy(predictions, labels),
        "class_accuracies": metrics.class_accuracies(table),
        "confusion": table.tolist(),
        **_confidence_scores(shown, predictions, labels),
    }
    if calibration is None:
        return scores
    before = _confidence_scores(logits, predictions, labels)
    return {
        **scores,
        "uncalibrated": {
            "calibration_error": before["calibration_error"],
            "area": before["selective"]["confidence"]["area"],
        },
    }


def _confidence_scores(logits: Tensor, predictions: Tensor, labels: Tensor) -> dict[str, Any]:
    """How far the largest probability of these logits (B, C) can be trusted."""
    uncertainty = metrics.one_minus_confidence(logits)
    return {
        "calibration_error": metrics.calibration_error(logits.double().softmax(dim=1), labels),
        "selective": {"confidence": asdict(metrics.selective_scores(uncertainty, predictions, labels))},
    }


def _summarize(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean and spread of the repeats that have a value: without counterfactuals there is no accuracy on them."""
    known = [value for value in values if value is not None]
    if not known:
        return {"mean": None, "spread": None, "repeats": list(values)}
    mean, spread = metrics.mean_and_spread(known)
    return {"mean": mean, "spread": spread, "repeats": list(values)}
