"""How good predictions are."""

import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from memwrap.errors import InputError, NonFiniteError
from memwrap.metrics.checks import (
    as_classes,
    as_count,
    as_probabilities,
    check_form,
    check_pair,
    correct_ones,
    first_largest,
    is_finite,
    share,
)


def predict_classes(logits: Tensor) -> Tensor:
    """The class that a model gives each input, the first of equally likely ones. logits (B, C) -> (B,), int64"""
    check_form("logits", logits, "(B, C)", "floating point")
    if not bool((nan := logits.isnan().any(1)).logical_not().all()):
        raise NonFiniteError(f"logits of {int(nan.sum())} of {len(nan)} inputs are NaN; there is no class to predict")
    return first_largest(logits.detach())


def accuracy(predictions: Tensor, labels: Tensor) -> float:
    """The share of inputs whose prediction is their label. predictions (B,), labels (B,)"""
    return share(correct_ones(predictions, labels))


def confusion(predictions: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """How often each class was taken for each: entry [i, j] counts inputs of class i that were predicted as j.

    predictions (B,), labels (B,) -> counts (C, C), int64
    """
    num_classes = as_count("num_classes", num_classes)
    predictions = as_classes("predictions", predictions, num_classes)
    labels = as_classes("labels", labels, num_classes)
    check_pair("input", {"predictions": predictions, "labels": labels})
    counts = torch.bincount(labels * num_classes + predictions, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def class_accuracies(confusion_counts: Tensor) -> list[float | None]:
    """The accuracy on the inputs of each class, None for a class without inputs. confusion_counts (C, C)"""
    check_form("confusion_counts", confusion_counts, "(C, C)", "integer")
    if len(confusion_counts) != confusion_counts.shape[1] or bool((confusion_counts < 0).any()):
        raise InputError(
            f"confusion_counts has shape {tuple(confusion_counts.shape)} and entries from {int(confusion_counts.min())}"
            "; expected as many rows as columns and no negative count: give what `confusion` returns"
        )
    correct, total = confusion_counts.diagonal().tolist(), confusion_counts.sum(1).tolist()
    return [right / count if count else None for right, count in zip(correct, total, strict=True)]


def calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 15) -> float:
    """The expected calibration error: how far confidence and accuracy are apart, on average over the inputs.

    Confidence is the largest probability. Its range is cut into bins of equal width, which own their upper edge; each
    counts by its share of the inputs (Guo et al. 2017, eq. 3). probabilities (B, C), labels (B,)
    """
    bins, probabilities = as_count("bins", bins), as_probabilities(probabilities)
    labels = as_classes("labels", labels, probabilities.shape[1])
    check_pair("input", {"rows of probabilities": probabilities, "labels": labels})
    correct = (first_largest(probabilities) == labels).cpu().double()
    confidences = probabilities.amax(1).cpu()
    # The edges are rounded as the confidences are, so that a confidence of 0.2 lies on the edge 3/15 in any dtype.
    edges = torch.tensor([edge / bins for edge in range(1, bins)], dtype=confidences.dtype).double()
    confidences = confidences.double().clamp(max=1)
    # A bin's share times its gap, |accuracy - confidence|, is the sum of its inputs' differences over the count of all.
    # On the CPU, as a GPU adds them in an order that changes from call to call.
    gaps = torch.bincount(torch.bucketize(confidences, edges), weights=correct - confidences, minlength=bins)
    return float(gaps.abs().sum()) / len(labels)


def one_minus_confidence(logits: Tensor) -> Tensor:
    """A model's doubt by its own probabilities: what all classes but the predicted one have together.

    It is one minus the confidence, and tells apart even confidences that round to one. logits (B, C) -> (B,), float64
    """
    predictions = predict_classes(logits).unsqueeze(1)
    return logits.detach().double().softmax(1).scatter(1, predictions, 0).sum(1)


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation of, say, the accuracies of several runs.

    The deviation is that of the values themselves (ddof = 0), as the paper reports it, not an estimate for all possible
    runs: of five, it is smaller than the other by a tenth. A single value has none, 0.
    """
    if len(values) == 0:
        raise InputError("values is empty; expected at least one number")
    for place, value in enumerate(values):
        if not is_finite(value):
            raise InputError(
                f"values[{place}] is {value!r}; expected finite numbers: leave out runs in which the value does not "
                "exist, and say how many are left"
            )
    numbers = [float(value) for value in values]
    return statistics.fmean(numbers), statistics.pstdev(numbers)
