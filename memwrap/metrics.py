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

CURVE_POINTS = 20  # of a risk-coverage curve in a record: one for each twentieth of the inputs


@dataclass(frozen=True)
class ExplanationScores:
    """How often the strongest memory sample explains a prediction, and what it says about the prediction if not."""

    explanation_accuracy: float  # share of inputs whose strongest sample is an example
    counterfactual_share: float  # share of inputs whose strongest sample is a counterfactual: all others
    example_accuracy: float | None  # accuracy where the strongest is an example; None if it never is
    counterfactual_accuracy: float | None  # accuracy where the strongest is a counterfactual; None if it never is


@dataclass(frozen=True)
class SelectiveScores:
    """How few errors are left if a model answers only where it doubts least: its risk-coverage curve.

    Coverage is the share of inputs that are answered, risk the share of errors among these (Geifman et al. 2019).
    """

    area: float  # under the curve: the mean of the risks of answering one input, two, and so on up to all
    excess_area: float  # how much of it the best order would not have, in which all errors come last
    curve: list[list[float]]  # [coverage, risk] at each twentieth: of the fewest inputs that are such a share


@dataclass(frozen=True)
class FlagScores:
    """What the paper's warning is worth, beside leaving out as many inputs by their probability."""

    coverage: float  # share of inputs without a warning
    accuracy: float | None  # accuracy on these; None if all have a warning
    confidence_accuracy: float | None  # accuracy on equally many inputs, those of the highest probability


@dataclass(frozen=True)
class MemoryUse:
    """Over how many of its samples a memory's work is spread."""

    unused_share: float  # share of samples that have no weight for any input
    effective_samples: float  # so many samples, used equally, would be as concentrated (the inverse Simpson index)
    top_tenth_share: float  # share of all weight that the most used tenth of the samples have
    samples_per_input: float  # mean number of samples with a positive weight


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


def improbability(logits: Tensor) -> Tensor:
    """A model's doubt by its own probabilities: what all classes but the predicted one have together.

    It is one minus the confidence, and tells apart even confidences that round to one. logits (B, C) -> (B,), float64
    """
    predictions = predicted(logits).unsqueeze(1)
    return logits.detach().double().softmax(1).scatter(1, predictions, 0).sum(1)


def top_samples(weights: Tensor) -> Tensor:
    """The index of each input's strongest memory sample; the lowest of several. weights (B, M) -> (B,), int64"""
    return _first_largest(_as_weights(weights))


def tops_are_counterfactuals(weights: Tensor, predictions: Tensor, memory_predictions: Tensor) -> Tensor:
    """Whether each input's strongest memory sample is one that the model puts into another class than the input.

    weights (B, M), predictions (B,), memory_predictions (M,) -> (B,), bool
    """
    weights, predictions, memory_predictions = _as_explained(weights, predictions, memory_predictions)
    return memory_predictions[_first_largest(weights)] != predictions


def counterfactual_weight(weights: Tensor, predictions: Tensor, memory_predictions: Tensor) -> Tensor:
    """The sum of each input's weights on counterfactuals; from 0 to 1, as a part of its sum of all weights.

    weights (B, M), predictions (B,), memory_predictions (M,) -> (B,), float64
    """
    weights, predictions, memory_predictions = _as_explained(weights, predictions, memory_predictions)
    weights, counterfactual = weights.double(), memory_predictions != predictions.unsqueeze(1)
    against = weights.where(counterfactual, 0).sum(1)
    # Weights sum to one but for rounding. Divided so, the result is exactly 1 where all used samples are
    # counterfactuals and 0 where none is: inputs of equal doubt stay equal.
    return against / (against + weights.where(~counterfactual, 0).sum(1))


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


def selective_scores(doubts: Tensor, predictions: Tensor, labels: Tensor) -> SelectiveScores:
    """What is gained by answering only the inputs of little doubt. predictions (B,), labels (B,)

    doubts (B,): larger for inputs that are to be left out earlier, in any unit. Equally doubtful inputs are taken in
    random order; what comes back is the mean over all such orders, so it does not hang on the order of the inputs.
    """
    doubts, wrong = _as_doubts(doubts), ~_correct(predictions, labels).cpu()
    _check_pair("input", {"doubts": doubts, "predictions": wrong})
    risks, best = _rates(doubts, wrong), _rates(wrong.double(), wrong)
    points = range(1, CURVE_POINTS + 1)
    return SelectiveScores(
        area=float(risks.mean()),
        excess_area=float(risks.mean() - best.mean()),
        # Such a share of the inputs, rounded up to a whole number of them; less one, as counting starts at zero.
        curve=[[point / CURVE_POINTS, float(risks[(point * len(risks) - 1) // CURVE_POINTS])] for point in points],
    )


def flag_scores(counterfactual: Tensor, doubts: Tensor, predictions: Tensor, labels: Tensor) -> FlagScores:
    """The accuracy on the inputs that are not flagged, and on equally many of the least doubt.

    counterfactual (B,), bool: what `tops_are_counterfactuals` says of each input. doubts (B,): what `improbability`
    says. Equally doubtful inputs are taken in random order, as in `selective_scores`. predictions (B,), labels (B,)
    """
    _check_form("counterfactual", counterfactual, "(B,)", "bool")
    doubts, correct = _as_doubts(doubts), _correct(predictions, labels).cpu()
    kept = ~counterfactual.cpu()
    _check_pair("input", {"entries of counterfactual": kept, "predictions": correct})
    _check_pair("input", {"doubts": doubts, "predictions": correct})
    count = int(kept.sum())
    return FlagScores(
        coverage=_share(kept),
        accuracy=_share(correct[kept]) if count else None,
        confidence_accuracy=float(_rates(doubts, correct)[count - 1]) if count else None,
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


def memory_use(total_weights: Tensor, used_samples: Tensor) -> MemoryUse:
    """How concentrated the use of a memory is; from sums, so that the weights of all inputs need not be kept.

    total_weights (M,): each sample's weights summed over all inputs. used_samples (B,), integer: how many samples have
    a positive weight for each input.
    """
    _check_form("total_weights", total_weights, "(M,)", "floating point")
    _check_form("used_samples", used_samples, "(B,)", "integer")
    totals = total_weights.detach().double()
    least, most = float(totals.min()), float(totals.max())
    if not (least >= 0 and 0 < most < torch.inf):  # NaN passes neither
        raise InputError(
            f"total_weights goes from {least:.4g} to {most:.4g}; expected finite sums, none negative, at least one "
            "positive: sum the weights of a Reading over the inputs"
        )
    fewest, many = int(used_samples.min()), int(used_samples.max())
    if fewest < 1 or many > len(totals):
        raise InputError(f"used_samples goes from {fewest} to {many}; expected 1 to {len(totals)}, for as many samples")
    shares = totals / totals.sum()
    tenth = math.ceil(len(shares) / 10)
    return MemoryUse(
        unused_share=_share(totals == 0),
        effective_samples=1 / float(shares.square().sum()),
        top_tenth_share=float(shares.topk(tenth).values.sum()),
        samples_per_input=float(used_samples.double().mean()),
    )


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


def _rates(doubts: Tensor, flags: Tensor) -> Tensor:
    """The share of flags that are up among the k least doubtful inputs, for k = 1 to B.

    Of equally doubtful inputs, in random order, each is as likely to have its flag up as any other: their number grows
    evenly. doubts (B,), flags (B,), bool -> (B,), float64
    """
    doubts, order = doubts.sort()
    ups = torch.nn.functional.pad(flags[order].double().cumsum(0), (1, 0))  # (B + 1,): among the first 0, 1, ... B
    kept = torch.arange(1, len(doubts) + 1)
    # The k-th input is one of those that are as doubtful, which go from `start` up to, but not with, `end`.
    start, end = torch.searchsorted(doubts, doubts), torch.searchsorted(doubts, doubts, right=True)
    # Multiplied first, whole numbers stay whole: a share that should be 0 or 1 is, and no order beats the best.
    rates: Tensor = (ups[start] + (kept - start) * (ups[end] - ups[start]) / (end - start)) / kept
    return rates


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


def _as_doubts(doubts: Tensor) -> Tensor:
    """doubts (B,), floating point, none NaN -> the same in float64, cut from its graph, on the CPU."""
    _check_form("doubts", doubts, "(B,)", "floating point")
    if bool((nan := doubts.isnan()).any()):
        raise InputError(f"doubts of {int(nan.sum())} of {len(nan)} inputs are NaN; expected numbers to order them by")
    return doubts.detach().cpu().double()


def _as_explained(weights: Tensor, predictions: Tensor, memory_predictions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs and memory samples, their classes and what is between them: weights (B, M), (B,) and (M,), all checked."""
    weights = _as_weights(weights)
    predictions = _as_classes("predictions", predictions)
    memory_predictions = _as_classes("memory_predictions", memory_predictions)
    _check_pair("input", {"rows of weights": weights, "predictions": predictions})
    _check_pair("memory sample", {"columns of weights": weights.mT, "memory_predictions": memory_predictions})
    return weights, predictions, memory_predictions


def _as_weights(weights: Tensor) -> Tensor:
    """weights (B, M), finite, none negative, at least one positive for each input -> the same, cut from its graph."""
    _check_form("weights", weights, "(B, M)", "floating point")
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
