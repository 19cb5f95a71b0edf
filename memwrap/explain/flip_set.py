"""The smallest set of memory samples whose removal changes a prediction."""

from dataclasses import dataclass

import torch
from torch import Tensor

from memwrap.explain.ablation import Ablation
from memwrap.metrics import predict_classes

EXACT_SIZE = 3  # samples: all sets up to this size are tried, as long as there are not too many
MAX_SETS = 500_000  # of one size that are tried; a memory of 100 has 161,700 sets of three
MAX_REMOVED = 30  # samples: a larger set explains nothing


@dataclass(frozen=True)
class FlipSet:
    """Memory samples whose removal changes the prediction.

    indices: strongest first; None if no such set was found. prediction: the class predicted without them. proven: no
    smaller set changes the prediction, or for None no set at all; otherwise a greedy search found it, which removes at
    most MAX_REMOVED. tried: all sets of up to this size were tried without success; less than EXACT_SIZE if there were
    more than MAX_SETS of a size.
    """

    indices: tuple[int, ...] | None
    prediction: int | None
    proven: bool
    tried: int


def find_flip_set(ablation: Ablation, row: int, prediction: int) -> FlipSet:
    """The smallest such set for one input, if it has up to three samples; a larger one by greedy search.

    A sample matters only if it has a weight once those before it are removed. So a smallest set has an order in which
    each has one, and sets are extended by such samples alone; those of one size are tried from the strongest on.
    """
    largest = ablation.memory_size - 1  # one has to be left
    sets = torch.empty(1, 0, dtype=torch.int64, device=ablation.encodings.device)
    strength = _weights(ablation, row, sets)[0]
    tried = 0
    for size in range(1, min(EXACT_SIZE, largest) + 1):
        extended = _extend(ablation, row, sets, strength)
        if extended is None:
            break
        sets = extended
        for part in torch.split(sets, ablation.at_once):
            classes = predict_classes(_logits(ablation, row, part))
            if len(found := (classes != prediction).nonzero()):
                first = int(found[0])
                return FlipSet(tuple(part[first].tolist()), int(classes[first]), proven=True, tried=tried)
        tried = size
    if tried == largest:
        return FlipSet(None, None, proven=True, tried=tried)
    return _greedy(ablation, row, prediction, strength, tried)


def _extend(ablation: Ablation, row: int, sets: Tensor, strength: Tensor) -> Tensor | None:
    """Each set (S, R) with each sample that then has a weight, without duplicates: (S', R + 1); None if too many.

    The strongest samples come first, in a set and among the sets; of equal ones the lower index.
    """
    order = strength.argsort(descending=True, stable=True)
    rank = order.argsort()
    extended, count = [], 0
    for part in torch.split(sets, ablation.at_once):
        rows, added = _weights(ablation, row, part).nonzero(as_tuple=True)
        extended.append(torch.cat([rank[part[rows]], rank[added].unsqueeze(1)], dim=1))
        count += len(added)
        if count > MAX_SETS * extended[0].shape[1]:  # a set of n samples occurs up to n times
            return None
    ranks = torch.unique(torch.cat(extended).sort(dim=1).values, dim=0)
    return None if len(ranks) > MAX_SETS else order[ranks]


def _greedy(ablation: Ablation, row: int, prediction: int, strength: Tensor, tried: int) -> FlipSet:
    """Remove one sample after another, each time the one that costs the predicted class most."""
    largest = min(ablation.memory_size - 1, MAX_REMOVED)
    removed = torch.empty(1, 0, dtype=torch.int64, device=strength.device)
    while removed.shape[1] < largest:
        used = _weights(ablation, row, removed)[0].nonzero()
        sets = torch.cat([removed.expand(len(used), -1), used], dim=1)
        logits = _logits(ablation, row, sets)
        best = int(logits.log_softmax(dim=1)[:, prediction].argmin())
        removed = sets[best : best + 1]
        if int(predict_classes(logits[best : best + 1])) != prediction:
            return _minimize(ablation, row, prediction, removed[0], strength, tried)
    return FlipSet(None, None, proven=False, tried=tried)


def _minimize(ablation: Ablation, row: int, prediction: int, removed: Tensor, strength: Tensor, tried: int) -> FlipSet:
    """The set (R,) without the samples that are not needed, the weakest dropped first."""
    ordered = removed.sort().values
    ordered = ordered[strength[ordered].argsort(descending=True, stable=True)]
    while (count := len(ordered)) > 1:
        others = ~torch.eye(count, dtype=torch.bool, device=ordered.device)
        fewer = ordered.expand(count, -1)[others].reshape(count, count - 1)
        unneeded = (predict_classes(_logits(ablation, row, fewer)) != prediction).nonzero()
        if not len(unneeded):
            break
        ordered = fewer[int(unneeded[-1])]
    other = int(predict_classes(_logits(ablation, row, ordered.unsqueeze(0))))
    smallest = len(ordered) == tried + 1  # all smaller sets were tried
    return FlipSet(tuple(ordered.tolist()), other, proven=smallest, tried=tried)


def _logits(ablation: Ablation, row: int, sets: Tensor) -> Tensor:
    """Logits (S, C) of one input without each of these sets (S, R)."""
    return ablation.logits(torch.full((len(sets),), row, device=sets.device), sets)


def _weights(ablation: Ablation, row: int, sets: Tensor) -> Tensor:
    """Weights (S, M) of one input without each of these sets (S, R)."""
    return ablation.read(torch.full((len(sets),), row, device=sets.device), sets)[1]
