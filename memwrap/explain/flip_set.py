"""The fewest memory samples that a prediction hangs on: taken out, they change it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from memwrap.explain.ablation import Ablation
from memwrap.metrics import predict_classes

EXACT = 3  # samples: all sets up to this size are tried, as long as there are not too many
MOST_SETS = 500_000  # of one size that are tried; a memory of 100 has 161,700 of three
MOST_REMOVED = 30  # beyond which a set tells nobody anything


@dataclass(frozen=True)
class FlipSet:
    """Memory samples whose removal changes the prediction.

    indices: strongest first; None if no such set was found. prediction: what the input is then taken for.
    proven: that no smaller set does, or for None that no set at all does; otherwise it is what a greedy search found,
    which takes out at most MOST_REMOVED. tried: sets of up to so many samples were all tried, in vain; fewer than EXACT
    if there were more than MOST_SETS of a size.
    """

    indices: tuple[int, ...] | None
    prediction: int | None
    proven: bool
    tried: int


def find_flip_set(ablation: Ablation, row: int, prediction: int) -> FlipSet:
    """The smallest such set for one input, if it has up to three samples; a larger one by greedy search.

    A sample matters only if it has a weight when those before it are out. So a smallest set can be put in an order in
    which each has one, and sets are grown by such samples alone; those of one size are tried from the strongest on.
    """
    most = len(ablation.memory) - 1  # as one has to be left
    sets = torch.empty(1, 0, dtype=torch.int64, device=ablation.encodings.device)
    strength = _weights(ablation, row, sets)[0]
    tried = 0
    for size in range(1, min(EXACT, most) + 1):
        grown = _grown(ablation, row, sets, strength)
        if grown is None:
            break
        sets = grown
        for part in torch.split(sets, ablation.at_once):
            classes = predict_classes(_logits(ablation, row, part))
            if len(found := (classes != prediction).nonzero()):
                first = int(found[0])
                return FlipSet(tuple(part[first].tolist()), int(classes[first]), proven=True, tried=tried)
        tried = size
    if tried == most:
        return FlipSet(None, None, proven=True, tried=tried)
    return _greedy(ablation, row, prediction, strength, tried)


def _grown(ablation: Ablation, row: int, sets: Tensor, strength: Tensor) -> Tensor | None:
    """Each set (S, R) with each sample that has a weight without it, each result once: (S', R + 1); None if too many.

    The strongest samples come first, in a set and among the sets; of equal ones the lower index.
    """
    order = strength.argsort(descending=True, stable=True)
    rank = order.argsort()
    grown, count = [], 0
    for part in torch.split(sets, ablation.at_once):
        rows, added = _weights(ablation, row, part).nonzero(as_tuple=True)
        grown.append(torch.cat([rank[part[rows]], rank[added].unsqueeze(1)], dim=1))
        count += len(added)
        if count > MOST_SETS * grown[0].shape[1]:  # a set of n samples comes up n times at most
            return None
    ranks = torch.unique(torch.cat(grown).sort(dim=1).values, dim=0)
    return None if len(ranks) > MOST_SETS else order[ranks]


def _greedy(ablation: Ablation, row: int, prediction: int, strength: Tensor, tried: int) -> FlipSet:
    """Take out one sample after another, each time the one that costs the predicted class most."""
    most = min(len(ablation.memory) - 1, MOST_REMOVED)
    removed = torch.empty(1, 0, dtype=torch.int64, device=strength.device)
    while removed.shape[1] < most:
        used = _weights(ablation, row, removed)[0].nonzero()
        sets = torch.cat([removed.expand(len(used), -1), used], dim=1)
        logits = _logits(ablation, row, sets)
        best = int(logits.log_softmax(dim=1)[:, prediction].argmin())
        removed = sets[best : best + 1]
        if int(predict_classes(logits[best : best + 1])) != prediction:
            return _without_needless(ablation, row, prediction, removed[0], strength, tried)
    return FlipSet(None, None, proven=False, tried=tried)


def _without_needless(
    ablation: Ablation, row: int, prediction: int, removed: Tensor, strength: Tensor, tried: int
) -> FlipSet:
    """The set (R,) less what it can spare, the weakest first."""
    ordered = removed.sort().values
    ordered = ordered[strength[ordered].argsort(descending=True, stable=True)]
    while (count := len(ordered)) > 1:
        others = ~torch.eye(count, dtype=torch.bool, device=ordered.device)
        fewer = ordered.expand(count, -1)[others].reshape(count, count - 1)
        needless = (predict_classes(_logits(ablation, row, fewer)) != prediction).nonzero()
        if not len(needless):
            break
        ordered = fewer[int(needless[-1])]
    other = int(predict_classes(_logits(ablation, row, ordered.unsqueeze(0))))
    smallest = len(ordered) == tried + 1  # as all smaller ones were tried in vain
    return FlipSet(tuple(ordered.tolist()), other, proven=smallest, tried=tried)


def _logits(ablation: Ablation, row: int, sets: Tensor) -> Tensor:
    """Of one input without each of these sets (S, R): (S, C)"""
    return ablation.logits(torch.full((len(sets),), row, device=sets.device), sets)


def _weights(ablation: Ablation, row: int, sets: Tensor) -> Tensor:
    """Likewise: (S, M)"""
    return ablation.judge(torch.full((len(sets),), row, device=sets.device), sets)[1]
