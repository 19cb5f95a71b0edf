"""Metrics of predictions."""

import statistics
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from memwrap.errors import InputError, NonFiniteError
from memwrap.metrics.checks import (
    check_classes,
    check_count,
    check_lengths,
    check_probabilities,
    check_tensor,
    correct_predictions,
    first_argmax,
    fraction,
)


def predict_classes(logits: Tensor) -> Tensor:
    """The most likely class of each input, the first of several. logits (B, C) -> (B,), int64

    >>> predict_classes(torch.tensor([[0.2, 0.9], [1.5, 1.5]]))
    tensor([1, 0])
    """
    check_tensor("logits", logits, "(B, C)", "floating point")
    if count := int((nan := logits.isnan().any(1)).sum()):
        raise NonFiniteError(f"logits of {count} of {len(nan)} inputs are NaN; there is no class to predict")
    return first_argmax(logits.detach())


def accuracy(predictions: Tensor, labels: Tensor) -> float:
    """The fraction of inputs whose prediction is their label. predictions (B,), labels (B,)

    >>> accuracy(torch.tensor([0, 1, 1, 2]), torch.tensor([0, 1, 2, 2]))
    0.75
    """
    return fraction(correct_predictions(predictions, labels))


def confusion(predictions: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """The confusion matrix: entry [i, j] counts inputs of class i that were predicted as j.

    predictions (B,), labels (B,) -> counts (C, C), int64

    >>> confusion(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), num_classes=2)
    tensor([[1, 1],
            [0, 1]])
    """
    num_classes = check_count("num_classes", num_classes)
    predictions = check_classes("predictions", predictions, num_classes)
    labels = check_classes("labels", labels, num_classes)
    check_lengths(predictions=predictions, labels=labels)
    counts = torch.bincount(labels * num_classes + predictions, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def class_accuracies(confusion_counts: Tensor) -> list[float | None]:
    """The accuracy on the inputs of each class, None for a class without inputs. confusion_counts (C, C)

    >>> class_accuracies(torch.tensor([[3, 1, 0], [0, 2, 0], [0, 0, 0]]))
    [0.75, 1.0, None]
    """
    check_tensor("confusion_counts", confusion_counts, "(C, C)", "integer")
    if len(confusion_counts) != confusion_counts.shape[1] or bool((confusion_counts < 0).any()):
        raise InputError(
            f"confusion_counts has shape {tuple(confusion_counts.shape)} and entries from {int(confusion_counts.min())}"
            "; expected a square matrix without negative counts: give what `confusion` returns"
        )
    correct, total = confusion_counts.diagonal().tolist(), confusion_counts.sum(1).tolist()
    return [right / count if count else None for right, count in zip(correct, total, strict=True)]


def calibration_error(probabilities: Tensor, labels: Tensor, bins: int = 15) -> float:
    """The expected calibration error: the mean gap between confidence and accuracy.

    Confidence is the largest probability. Its range is cut into bins of equal width, which include their upper edge;
    each counts by its share of the inputs (Guo et al. 2017, eq. 3). probabilities (B, C), labels (B,)

    >>> calibration_error(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1]))
    0.25
    """
    bins, probabilities = check_count("bins", bins), check_probabilities(probabilities)
    labels = check_classes("labels", labels, probabilities.shape[1])
    check_lengths(probabilities=probabilities, labels=labels)
    correct = (first_argmax(probabilities) == labels).cpu().double()
    confidences = probabilities.amax(1).cpu()
    # The edges are rounded as the confidences are, so that a confidence of 0.2 is on the edge 3/15 in any dtype.
    edges = torch.tensor([edge / bins for edge in range(1, bins)], dtype=confidences.dtype).double()
    confidences = confidences.double().clamp(max=1)
    # A bin's share times its gap, |accuracy - confidence|, is the sum of its inputs' differences over the count of all.
    # On the CPU, as a GPU adds them in an order that changes from call to call.
    gaps = torch.bincount(torch.bucketize(confidences, edges), weights=correct - confidences, minlength=bins)
    return float(gaps.abs().sum()) / len(labels)


def one_minus_confidence(logits: Tensor) -> Tensor:
    """The probability of all classes but the predicted one, as an uncertainty. logits (B, C) -> (B,), float64

    Summed over those classes, it distinguishes even confidences that round to one.

    >>> one_minus_confidence(torch.tensor([[0.0, 0.0]]))
    tensor([0.5000], dtype=torch.float64)
    """
    predictions = predict_classes(logits).unsqueeze(1)
    return logits.detach().double().softmax(1).scatter(1, predictions, 0).sum(1)


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation, for example of the accuracies of several runs.

    The deviation is that of the values themselves (ddof = 0), as in the paper; that of a single value is 0.

    >>> mean_and_spread([0.5, 0.75])
    (0.625, 0.125)
    """
    if len(values) == 0:
        raise InputError("values is empty; expected at least one number")
    numbers = np.asarray(values, dtype=np.float64)  # None becomes NaN
    if not np.isfinite(numbers).all():
        place = int(np.isfinite(numbers).argmin())
        raise InputError(f"values[{place}] is {values[place]!r}; expected finite numbers: leave out other runs")
    return statistics.fmean(numbers.tolist()), statistics.pstdev(numbers.tolist())
