"""How good predictions are, and how far the memory samples behind them explain them; from tensors of a whole test set.

The letters in the shapes: B inputs, M memory samples, C classes. Predictions come before labels in every signature.
Shares and accuracies go from 0 to 1. Batches are joined before they are scored, by torch.cat of their predictions. What
takes weights is called for each memory by itself, and its answers, one for each input, are joined likewise.

A memory sample is an example if the model itself puts it into the class it predicts for the input, and a
counterfactual if it puts it into another; no label is asked (paper, sec. 3.2).
"""

import math
import operator
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from memwrap.errors import InputError, NonFiniteError

# How far the sum of probabilities may be from one: a softmax in bfloat16 stays within 1/512, logits hardly ever do.
SUM_TOLERANCE = 0.01


@dataclass(frozen=True)
class ExplanationScores:
    """How often the strongest memory sample explains a prediction, and what it says about the prediction if not."""

    explanation_accuracy: float  # share of inputs whose strongest sample is an example
    counterfactual_share: float  # share of inputs whose strongest sample is a counterfactual: all others
    example_accuracy: float | None  # accuracy where the strongest is an example; None if it never is
    counterfactual_accuracy: float | None  # accuracy where the strongest is a counterfactual; None if it never is


def predicted(logits: Tensor) -> Tensor:
    """The class that a model gives each input, the first of equally likely ones. logits (B, C) -> (B,), int64"""
    _check_form("logits", logits, "(B, C)", "floating point")
    if not bool((nan := logits.isnan().any(1)).logical_not().all()):
        raise NonFiniteError(f"logits of {int(nan.sum())} of {len(nan)} inputs are NaN; there is no class to predict")
    return _first_largest(logits.detach())


def accuracy(predictions: Tensor, labels: Tensor) -> float:
    """The share of inputs whose prediction is their label. predictions (B,), labels (B,)"""
    return _share(_correct(predictions, labels))


def confusion(predictions: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """How often each class was taken for each: entry [i, j] counts inputs of class i that were predicted as j.

    predictions (B,), labels (B,) -> counts (C, C), int64
    """
    num_classes = _as_count("num_classes", num_classes)
    predictions = _as_classes("predictions", predictions, num_classes)
    labels = _as_classes("labels", labels, num_classes)
    _check_pair("input", {"predictions": predictions, "labels": labels})
    counts = torch.bincount(labels * num_classes + predictions, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def class_accuracies(confusion_counts: Tensor) -> list[float | None]:
    """The accuracy on the inputs of each class, None for a class without inputs. confusion_counts (C, C)"""
    _check_form("confusion_counts", confusion_counts, "(C, C)", "integer")
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
    bins, probabilities = _as_count("bins", bins), _as_probabilities(probabilities)
    labels = _as_classes("labels", labels, probabilities.shape[1])
    _check_pair("input", {"rows of probabilities": probabilities, "labels": labels})
    correct = (_first_largest(probabilities) == labels).cpu().double()
    confidences = probabilities.amax(1).cpu()
    # The edges are rounded as the confidences are, so that a confidence of 0.2 lies on the edge 3/15 in any dtype.
    edges = torch.tensor([edge / bins for edge in range(1, bins)], dtype=confidences.dtype).double()
    confidences = confidences.double().clamp(max=1)
    # A bin's share times its gap, |accuracy - confidence|, is the sum of its inputs' differences over the count of all.
    # On the CPU, as a GPU adds them in an order that changes from call to call.
    gaps = torch.bincount(torch.bucketize(confidences, edges), weights=correct - confidences, minlength=bins)
    return float(gaps.abs().sum()) / len(labels)


def top_samples(weights: Tensor) -> Tensor:
    """The index of each input's strongest memory sample; the lowest of several. weights (B, M) -> (B,), int64"""
    return _first_largest(_as_weights(weights))


def tops_are_counterfactuals(weights: Tensor, predictions: Tensor, memory_predictions: Tensor) -> Tensor:
    """Whether each input's strongest memory sample is one that the model puts into another class than the input.

    weights (B, M), predictions (B,), memory_predictions (M,) -> (B,), bool
    """
    weights = _as_weights(weights)
    predictions = _as_classes("predictions", predictions)
    memory_predictions = _as_classes("memory_predictions", memory_predictions)
    _check_pair("input", {"rows of weights": weights, "predictions": predictions})
    _check_pair("memory sample", {"columns of weights": weights.mT, "memory_predictions": memory_predictions})
    return memory_predictions[_first_largest(weights)] != predictions


def explanation_scores(counterfactual: Tensor, predictions: Tensor, labels: Tensor) -> ExplanationScores:
    """The paper's explanation metrics (sec. 4.3). predictions (B,), labels (B,)

    counterfactual (B,), bool: what `tops_are_counterfactuals` says of each input.
    """
    _check_form("counterfactual", counterfactual, "(B,)", "bool")
    correct = _correct(predictions, labels)
    example = ~counterfactual
    _check_pair("input", {"entries of counterfactual": counterfactual, "predictions": correct})
    return ExplanationScores(
        explanation_accuracy=_share(example),
        counterfactual_share=_share(counterfactual),
        example_accuracy=_share(correct[example]) if bool(example.any()) else None,
        counterfactual_accuracy=_share(correct[counterfactual]) if bool(counterfactual.any()) else None,
    )


def majority_vote(weights: Tensor, memory_predictions: Tensor, num_classes: int) -> Tensor:
    """The class that most of the used memory samples are put into: each of positive weight has one vote.

    Of classes with equally many votes the one with the larger sum of weights wins, then the lower class number.
    weights (B, M), memory_predictions (M,) -> (B,), int64
    """
    weights, num_classes = _as_weights(weights), _as_count("num_classes", num_classes)
    memory_predictions = _as_classes("memory_predictions", memory_predictions, num_classes)
    _check_pair("memory sample", {"columns of weights": weights.mT, "memory_predictions": memory_predictions})
    # In float64, which neither autocast nor TF32 touches, and where sums of float32 weights hardly ever round: whether
    # two sums are equal does not hang on the order of the memory.
    membership = torch.nn.functional.one_hot(memory_predictions, num_classes).double()  # (M, C)
    votes = (weights > 0).double() @ membership
    sums = weights.double() @ membership
    return _first_largest(sums.masked_fill(votes < votes.amax(1, keepdim=True), -1))


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation of, say, the accuracies of several runs.

    The deviation is that of the values themselves (ddof = 0), as the paper reports it, not an estimate for all possible
    runs: of five, it is smaller than the other by a tenth. A single value has none, 0.
    """
    if len(values) == 0:
        raise InputError("values is empty; expected at least one number")
    for place, value in enumerate(values):
        if not _is_finite(value):
            raise InputError(
                f"values[{place}] is {value!r}; expected finite numbers: leave out runs in which the value does not "
                "exist, and say how many are left"
            )
    numbers = [float(value) for value in values]
    return statistics.fmean(numbers), statistics.pstdev(numbers)


def _correct(predictions: Tensor, labels: Tensor) -> Tensor:
    """predictions (B,), labels (B,) -> (B,), bool"""
    predictions, labels = _as_classes("predictions", predictions), _as_classes("labels", labels)
    _check_pair("input", {"predictions": predictions, "labels": labels})
    return predictions == labels


def _share(flags: Tensor) -> float:
    """How many of the flags (N,), at least one, are up."""
    return int(flags.sum()) / len(flags)


def _first_largest(values: Tensor) -> Tensor:
    """values (B, N) -> (B,), int64: where each row is largest. torch.argmax may give any of several equal ones."""
    places = torch.arange(values.shape[1], device=values.device, dtype=torch.int32)
    largest = values == values.amax(1, keepdim=True)
    return torch.where(largest, places, values.shape[1]).amin(1).long()


def _is_finite(value: object) -> bool:
    try:
        return math.isfinite(value)  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        return False


def _as_count(name: str, count: int) -> int:
    """A whole number of at least one, of Python, NumPy or torch."""
    try:
        whole = operator.index(count)
    except TypeError:
        raise InputError(f"{name} is a {type(count).__name__}; expected a whole number") from None
    if whole < 1:
        raise InputError(f"{name} is {whole}; expected at least 1")
    return whole


def _as_classes(name: str, classes: Tensor, num_classes: int | None = None) -> Tensor:
    """classes (N,), integers from 0 to num_classes - 1 -> the same in int64; None: to any number."""
    _check_form(name, classes, "(N,)", "integer")
    classes = classes.long()  # a small integer type may not hold the number of classes
    lowest, highest = int(classes.min()), int(classes.max())
    if lowest < 0 or (num_classes is not None and highest >= num_classes):
        expected = "0 or more" if num_classes is None else f"0 to {num_classes - 1}, for {num_classes} classes"
        raise InputError(
            f"{name} goes from {lowest} to {highest}; expected {expected}: leave out inputs without a class"
        )
    return classes


def _as_weights(weights: Tensor) -> Tensor:
    """weights (B, M), finite, none negative, at least one positive for each input -> the same, cut from its graph."""
    _check_form("weights", weights, "(B, M)", "floating point")
    weights = weights.detach()
    least, most = weights.amin(1), weights.amax(1)
    # NaN passes none of these. That rows sum to one is not asked: neither the strongest nor the vote depends on it.
    good = (least >= 0) & (most > 0) & (most < torch.inf)
    if not bool(good.all()):
        first = int((~good).nonzero()[0])
        raise InputError(
            f"weights of {int((~good).sum())} of {len(good)} inputs cannot be used: those of input {first} go from "
            f"{float(least[first]):.4g} to {float(most[first]):.4g}; expected finite ones, none negative, at least one "
            "positive: give the weights of a Reading, not similarities"
        )
    return weights


def _as_probabilities(probabilities: Tensor) -> Tensor:
    """probabilities (B, C), none negative, rows that sum to one -> the same, cut from its graph."""
    _check_form("probabilities", probabilities, "(B, C)", "floating point")
    probabilities = probabilities.detach()
    least, total = probabilities.amin(1), probabilities.sum(1, dtype=torch.float32)
    good = (least >= 0) & ((total - 1).abs() <= SUM_TOLERANCE)  # NaN passes neither
    if not bool(good.all()):
        first = int((~good).nonzero()[0])
        raise InputError(
            f"probabilities of {int((~good).sum())} of {len(good)} inputs are none: those of input {first} sum to "
            f"{float(total[first]):.4g}, the least is {float(least[first]):.4g}; expected rows that sum to one, none "
            "negative: give logits.softmax(1)"
        )
    return probabilities


def _check_form(name: str, tensor: Tensor, shape: str, kind: str) -> None:
    """A tensor of as many dimensions as `shape` has letters, of one of three kinds of dtype, with entries."""
    if not isinstance(tensor, Tensor):
        raise InputError(f"{name} is a {type(tensor).__name__}; expected a tensor {shape}, {kind}")
    is_integer = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    kinds = {"integer": is_integer, "floating point": tensor.is_floating_point(), "bool": tensor.dtype == torch.bool}
    if tensor.ndim != sum(map(str.isalpha, shape)) or not kinds[kind]:
        raise InputError(
            f"{name} has shape {tuple(tensor.shape)} and dtype {tensor.dtype}; expected shape {shape}, {kind}"
        )
    if tensor.numel() == 0:
        raise InputError(f"{name} is empty: its shape is {tuple(tensor.shape)}; give at least one entry")


def _check_pair(each: str, pair: dict[str, Tensor]) -> None:
    """Two tensors of one length, under the names by which the message counts them."""
    (first_name, first), (second_name, second) = pair.items()
    if len(first) != len(second):
        raise InputError(f"{len(first)} {first_name} but {len(second)} {second_name}; each {each} needs one of both")
