"""How specific the evidence of a prediction is: which memory samples inputs share, and how many carry the weight."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from memwrap.metrics.checks import check_classes, check_lengths, check_weights, first_argmax

MOST_COMPARED = 1000  # inputs of a class whose used samples are compared, each with each


def specificity(weights: Tensor, predictions: Tensor) -> float | None:
    """1 minus the mean overlap of the used samples of two inputs of the same predicted class; None without such a pair.

    The overlap of two sets is their intersection over their union (Jaccard). 0: all inputs of a class use the same
    samples; 1: no two inputs share one. weights (B, M), predictions (B,). Of each class, up to 1,000 inputs are
    compared, evenly over their order.

    >>> specificity(torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]]), predictions=torch.tensor([1, 1]))
    0.6666666666666667
    """
    weights, predictions = check_weights(weights), check_classes("predictions", predictions)
    check_lengths(weights=weights, predictions=predictions)
    overlap, pairs = 0.0, 0
    for chosen in predictions.unique():  # type: ignore[no-untyped-call]
        rows = (predictions == chosen).nonzero().squeeze(1)
        count = min(len(rows), MOST_COMPARED)
        rows = rows[torch.arange(count, device=rows.device) * len(rows) // count]
        used = (weights[rows] > 0).float()
        shared, sizes = (used @ used.mT).double(), used.sum(1).double()  # whole numbers, which float32 holds
        jaccard = shared / (sizes.unsqueeze(1) + sizes - shared)
        overlap += float(jaccard.sum()) - count  # without each input and itself
        pairs += count * (count - 1)
    return 1 - overlap / pairs if pairs else None


def samples_for_half(weights: Tensor) -> Tensor:
    """How many of the strongest samples carry at least half of an input's weight: weights (B, M) -> (B,), int64

    >>> samples_for_half(torch.tensor([[0.25, 0.5, 0.25], [0.4, 0.3, 0.3]]))
    tensor([1, 2])
    """
    ordered = check_weights(weights).double().sort(1, descending=True).values.cumsum(1)
    # Half of equal weights has to be reached by half of the samples, though their sum is rounded.
    return first_argmax((ordered >= ordered[:, -1:] / 2 * (1 - 1e-6)).to(torch.int32)) + 1


@dataclass(frozen=True)
class DeletionCurve:
    """The mean probability of the predicted class, as more and more of the memory is removed."""

    removed: list[float]  # shares of the memory, from 0 to 1; of 1, a single sample is left
    strongest_first: list[float]
    random_order: list[float]
    area: float  # between the two: random order less strongest first. 0 if the memory does not decide


def deletion_curve(
    removed: Sequence[float], strongest_first: Sequence[float], random_order: Sequence[float]
) -> DeletionCurve:
    """The curve of these points, with its area, by the trapezoidal rule.

    >>> deletion_curve([0.0, 0.5, 1.0], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0]).area
    0.5
    """
    points = torch.tensor([list(removed), list(strongest_first), list(random_order)], dtype=torch.float64)
    area = float(torch.trapezoid(points[2] - points[1], points[0]))
    return DeletionCurve(list(removed), list(strongest_first), list(random_order), area)
