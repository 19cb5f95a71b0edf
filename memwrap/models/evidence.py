"""Whether the memory decides: what a model predicts with memory samples taken away, or with those of another input."""

from dataclasses import dataclass

import torch
from torch import Tensor

from memwrap.metrics import DeletionCurve, deletion_curve, predict_classes, samples_for_half, specificity
from memwrap.models.evaluation import BATCH_SIZE
from memwrap.nn.memory import RememberedMemory
from memwrap.nn.reading import MemoryLayer

REMOVED = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)  # shares of the memory: points of a curve
CURVE_INPUTS = 1000  # spread evenly over the test images


@dataclass(frozen=True)
class EvidenceScores:
    """How far predictions rest on the memory. All shares from 0 to 1."""

    survives_without_examples: float | None  # predictions that stay without all samples of their class
    follows_memory: float | None  # of inputs with the memory part of one of another class: predicted as that class
    follows_input: float | None  # the same: predicted as before
    specificity: float | None
    samples_for_half: float  # mean number of samples that carry half of the weight
    deletion: DeletionCurve


@torch.no_grad()
def evidence_scores(layer: MemoryLayer, encodings: Tensor, memory: RememberedMemory) -> EvidenceScores:
    """Score how far predictions for encoded inputs (B, D) rest on a memory, which the layer has prepared.

    Values are None where nothing could be removed or exchanged: with a memory or predictions of one class.
    """
    readings = [layer.read(batch, memory.prepared) for batch in torch.split(encodings, BATCH_SIZE)]
    predictions = predict_classes(torch.cat([reading.logits for reading in readings]))
    weights = torch.cat([reading.weights for reading in readings])
    follows_memory, follows_input = _follow(layer, encodings, memory, predictions)
    return EvidenceScores(
        survives_without_examples=_survive(layer, encodings, memory, predictions),
        follows_memory=follows_memory,
        follows_input=follows_input,
        specificity=specificity(weights, predictions),
        samples_for_half=float(samples_for_half(weights).double().mean()),
        deletion=_delete(layer, encodings, memory, predictions),
    )


def _survive(layer: MemoryLayer, encodings: Tensor, memory: RememberedMemory, predictions: Tensor) -> float | None:
    """The share of predictions that stay if all examples are removed: the samples of the predicted class."""
    classes = memory.classes
    if classes is None:
        return None
    stayed, tried = 0, 0
    for chosen in predictions.unique():  # type: ignore[no-untyped-call]
        keep = classes != chosen
        if not bool(keep.any()):
            continue
        for batch in torch.split(encodings[predictions == chosen], BATCH_SIZE):
            logits = layer.read(batch, memory.prepared, keep).logits
            stayed, tried = stayed + int((predict_classes(logits) == chosen).sum()), tried + len(batch)
    return stayed / tried if tried else None


def _follow(
    layer: MemoryLayer, encodings: Tensor, memory: RememberedMemory, predictions: Tensor
) -> tuple[float | None, float | None]:
    """How often an input that is given another one's memory part is predicted as that one, and how often as itself.

    Each input meets one other, drawn at random; pairs of the same predicted class tell nothing and are left out.
    """
    others = torch.randperm(len(encodings), generator=torch.Generator().manual_seed(0)).to(encodings.device)
    rows = (predictions != predictions[others]).nonzero().squeeze(1)
    if not len(rows):
        return None, None
    found = []
    for batch in torch.split(rows, BATCH_SIZE):
        reading = layer.read(encodings[others[batch]], memory.prepared)
        found.append(predict_classes(layer.exchange(encodings[batch], reading)))
    exchanged = torch.cat(found)
    return tuple(float((exchanged == each[rows]).double().mean()) for each in (predictions[others], predictions))  # type: ignore[return-value]


def _delete(layer: MemoryLayer, encodings: Tensor, memory: RememberedMemory, predictions: Tensor) -> DeletionCurve:
    count, size = min(len(encodings), CURVE_INPUTS), len(memory)
    rows = torch.arange(count, device=encodings.device) * len(encodings) // count
    encodings, places = encodings[rows], predictions[rows].unsqueeze(1)
    draws = torch.rand(count, size, generator=torch.Generator().manual_seed(0)).to(encodings.device)
    queries = layer.similarity.vectors(layer.compared(encodings))
    # By score, so that samples of no weight are in order, too: they get some once the others are gone.
    orders = layer.similarity.scores(queries, memory.prepared.keys), draws
    curves = []
    for order in orders:
        ranks = order.argsort(dim=1, descending=True, stable=True).argsort(1)
        curves.append([_probability(layer, encodings, memory, places, ranks >= gone) for gone in _counts(size)])
    return deletion_curve(REMOVED, *curves)


def _counts(size: int) -> list[int]:
    """How many samples of a memory are removed, at each point; one is always left."""
    return [min(round(share * size), size - 1) for share in REMOVED]


def _probability(
    layer: MemoryLayer, encodings: Tensor, memory: RememberedMemory, places: Tensor, keep: Tensor
) -> float:
    """The mean probability of the classes at places (B, 1), if each input (B, D) keeps some samples, keep (B, M)."""
    parts = zip(*(torch.split(each, BATCH_SIZE) for each in (encodings, places, keep)), strict=True)
    found = [
        layer.read(batch, memory.prepared, kept).logits.double().softmax(1).gather(1, place)
        for batch, place, kept in parts
    ]
    return float(torch.cat(found).mean())
