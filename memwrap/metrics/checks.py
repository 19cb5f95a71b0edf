"""What the metrics ask of the tensors that they are given, and the small steps that they share."""

import math
import operator

import torch
from torch import Tensor

from memwrap.errors import InputError

# How far the sum of probabilities may be from one: a softmax in bfloat16 stays within 1/512, logits hardly ever do.
SUM_TOLERANCE = 0.01


def share(flags: Tensor) -> float:
    """How many of the flags (N,), at least one, are up."""
    return int(flags.sum()) / len(flags)


def first_largest(values: Tensor) -> Tensor:
    """values (B, N) -> (B,), int64: where each row is largest. torch.argmax may give any of several equal ones."""
    places = torch.arange(values.shape[1], device=values.device, dtype=torch.int32)
    largest = values == values.amax(1, keepdim=True)
    return torch.where(largest, places, values.shape[1]).amin(1).long()


def correct_ones(predictions: Tensor, labels: Tensor) -> Tensor:
    """predictions (B,), labels (B,) -> (B,), bool"""
    predictions, labels = as_classes("predictions", predictions), as_classes("labels", labels)
    check_pair("input", {"predictions": predictions, "labels": labels})
    return predictions == labels


def is_finite(value: object) -> bool:
    try:
        return math.isfinite(value)  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        return False


def as_count(name: str, count: int) -> int:
    """A whole number of at least one, of Python, NumPy or torch."""
    try:
        whole = operator.index(count)
    except TypeError:
        raise InputError(f"{name} is a {type(count).__name__}; expected a whole number") from None
    if whole < 1:
        raise InputError(f"{name} is {whole}; expected at least 1")
    return whole


def as_classes(name: str, classes: Tensor, num_classes: int | None = None) -> Tensor:
    """classes (N,), integers from 0 to num_classes - 1 -> the same in int64; None: to any number."""
    check_form(name, classes, "(N,)", "integer")
    classes = classes.long()  # a small integer type may not hold the number of classes
    lowest, highest = int(classes.min()), int(classes.max())
    if lowest < 0 or (num_classes is not None and highest >= num_classes):
        expected = "0 or more" if num_classes is None else f"0 to {num_classes - 1}, for {num_classes} classes"
        raise InputError(
            f"{name} goes from {lowest} to {highest}; expected {expected}: leave out inputs without a class"
        )
    return classes


def as_doubts(doubts: Tensor) -> Tensor:
    """doubts (B,), floating point, none NaN -> the same in float64, cut from its graph, on the CPU."""
    check_form("doubts", doubts, "(B,)", "floating point")
    if bool((nan := doubts.isnan()).any()):
        raise InputError(f"doubts of {int(nan.sum())} of {len(nan)} inputs are NaN; expected numbers to order them by")
    return doubts.detach().cpu().double()


def as_explained(weights: Tensor, predictions: Tensor, memory_predictions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs and memory samples, their classes and what is between them, all checked.

    weights (B, M), predictions (B,), memory_predictions (M,) or (B, M) -> the last one as (B, M)
    """
    weights, memory_predictions = as_memory_weights(weights, memory_predictions)
    predictions = as_classes("predictions", predictions)
    check_pair("input", {"rows of weights": weights, "predictions": predictions})
    return weights, predictions, memory_predictions


def as_memory_weights(
    weights: Tensor, memory_predictions: Tensor, num_classes: int | None = None
) -> tuple[Tensor, Tensor]:
    """weights (B, M) and memory_predictions, (M,) of one memory or (B, M) of one for each input -> both (B, M)"""
    weights = as_weights(weights)
    if isinstance(memory_predictions, Tensor) and memory_predictions.ndim == 2:
        each = as_classes("memory_predictions", memory_predictions.flatten(), num_classes).reshape_as(
            memory_predictions
        )
        check_pair("input", {"rows of weights": weights, "rows of memory_predictions": each})
        check_pair("memory sample", {"columns of weights": weights.mT, "columns of memory_predictions": each.mT})
        return weights, each
    shared = as_classes("memory_predictions", memory_predictions, num_classes)
    check_pair("memory sample", {"columns of weights": weights.mT, "memory_predictions": shared})
    return weights, shared.expand_as(weights)


def as_weights(weights: Tensor) -> Tensor:
    """weights (B, M), finite, none negative, at least one positive for each input -> the same, cut from its graph."""
    check_form("weights", weights, "(B, M)", "floating point")
    weights = weights.detach()
    least, most = weights.amin(1), weights.amax(1)
    # NaN passes none of these. That rows sum to one is not asked: nothing that is made of them depends on it.
    good = (least >= 0) & (most > 0) & (most < torch.inf)
    if not bool(good.all()):
        first = int((~good).nonzero()[0])
        raise InputError(
            f"weights of {int((~good).sum())} of {len(good)} inputs cannot be used: those of input {first} go from "
            f"{float(least[first]):.4g} to {float(most[first]):.4g}; expected finite ones, none negative, at least one "
            "positive: give the weights of a Reading, not similarities"
        )
    return weights


def as_probabilities(probabilities: Tensor) -> Tensor:
    """probabilities (B, C), none negative, rows that sum to one -> the same, cut from its graph."""
    check_form("probabilities", probabilities, "(B, C)", "floating point")
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


def check_form(name: str, tensor: Tensor, shape: str, kind: str) -> None:
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


def check_pair(each: str, pair: dict[str, Tensor]) -> None:
    """Two tensors of one length, under the names by which the message counts them."""
    (first_name, first), (second_name, second) = pair.items()
    if len(first) != len(second):
        raise InputError(f"{len(first)} {first_name} but {len(second)} {second_name}; each {each} needs one of both")
