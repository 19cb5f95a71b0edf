"""Metrics of explanations: which memory samples are behind the predictions.

A memory sample is an example if the model predicts the input's predicted class for it, and a counterfactual if it
predicts another class; labels play no part (paper, sec. 3.2).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from memwrap.errors import InputError
from memwrap.metrics.checks import (
    check_classes,
    check_count,
    check_lengths,
    check_memory,
    check_tensor,
    check_weights,
    correct_predictions,
    first_argmax,
    fraction,
)


@dataclass(frozen=True)
class ExplanationScores:
    """How often the strongest memory sample is an example, and how accurate predictions are if it is or is not."""

    explanation_accuracy: float  # fraction of inputs whose strongest sample is an example
    counterfactual_share: float  # fraction of inputs whose strongest sample is a counterfactual
    example_accuracy: float | None  # accuracy where the strongest is an example; None if it never is
    counterfactual_accuracy: float | None  # accuracy where the strongest is a counterfactual; None if it never is


@dataclass(frozen=True)
class MemoryUse:
    """How evenly the weight is spread over the samples of a memory."""

    unused_share: float  # fraction of samples that have no weight for any input
    effective_samples: float  # number of equally used samples of the same concentration (inverse Simpson index)
    top_tenth_share: float  # fraction of all weight on the most used tenth of the samples
    samples_per_input: float  # mean number of samples with a positive weight


def top_samples(weights: Tensor) -> Tensor:
    """The index of each input's strongest memory sample, the first of several. weights (B, M) -> (B,), int64

    >>> top_samples(torch.tensor([[0.2, 0.8, 0.0], [0.5, 0.5, 0.0]]))
    tensor([1, 0])
    """
    return first_argmax(check_weights(weights))


def top_is_counterfactual(weights: Tensor, predictions: Tensor, memory_predictions: Tensor) -> Tensor:
    """Whether the model predicts another class for each input's strongest memory sample than for the input.

    weights (B, M), predictions (B,), memory_predictions (M,), or (B, M) of a memory for each input -> (B,), bool

    >>> weights, predictions = torch.tensor([[0.2, 0.8], [0.9, 0.1]]), torch.tensor([0, 0])
    >>> top_is_counterfactual(weights, predictions, memory_predictions=torch.tensor([0, 1]))
    tensor([ True, False])
    """
    weights, predictions, memory_predictions = _check_explained(weights, predictions, memory_predictions)
    return memory_predictions.gather(1, first_argmax(weights).unsqueeze(1)).squeeze(1) != predictions


def counterfactual_weight(weights: Tensor, predictions: Tensor, memory_predictions: Tensor) -> Tensor:
    """The fraction, from 0 to 1, of each input's weight that is on counterfactuals.

    weights (B, M), predictions (B,), memory_predictions (M,) or (B, M) -> (B,), float64

    >>> counterfactual_weight(torch.tensor([[0.25, 0.75]]), torch.tensor([0]), torch.tensor([0, 1]))
    tensor([0.7500], dtype=torch.float64)
    """
    weights, predictions, memory_predictions = _check_explained(weights, predictions, memory_predictions)
    weights, counterfactual = weights.double(), memory_predictions != predictions.unsqueeze(1)
    against = weights.where(counterfactual, 0).sum(1)
    # Weights sum to one but for rounding. This division gives exactly 1 where all used samples are counterfactuals and
    # 0 where none is, so that equally uncertain inputs stay equal.
    return against / (against + weights.where(~counterfactual, 0).sum(1))


def explanation_scores(counterfactual: Tensor, predictions: Tensor, labels: Tensor) -> ExplanationScores:
    """The paper's explanation metrics (sec. 4.3).

    counterfactual (B,), bool: the result of `top_is_counterfactual`. predictions (B,), labels (B,)

    >>> flags, predictions = torch.tensor([False, False, True]), torch.tensor([0, 1, 1])
    >>> explanation_scores(flags, predictions, labels=torch.tensor([0, 1, 0])).example_accuracy
    1.0
    """
    check_tensor("counterfactual", counterfactual, "(B,)", "bool")
    correct = correct_predictions(predictions, labels)
    check_lengths(counterfactual=counterfactual, predictions=correct)
    example = ~counterfactual
    return ExplanationScores(
        explanation_accuracy=fraction(example),
        counterfactual_share=fraction(counterfactual),
        example_accuracy=fraction(correct[example]) if bool(example.any()) else None,
        counterfactual_accuracy=fraction(correct[counterfactual]) if bool(counterfactual.any()) else None,
    )


def majority_vote(weights: Tensor, memory_predictions: Tensor, num_classes: int) -> Tensor:
    """The class that the model predicts for most of the used memory samples: each of positive weight has one vote.

    Ties go to the class with the larger sum of weights, then to the lower class number.
    weights (B, M), memory_predictions (M,) or (B, M) -> (B,), int64

    >>> majority_vote(torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([0, 1, 1]), num_classes=2)
    tensor([1])
    """
    num_classes = check_count("num_classes", num_classes)
    weights, memory_predictions = check_memory(weights, memory_predictions, num_classes)
    # In float64 sums of float32 weights hardly ever round, so that ties do not depend on the order of the memory.
    zeros = torch.zeros(len(weights), num_classes, dtype=torch.float64, device=weights.device)
    votes = zeros.scatter_add(1, memory_predictions, (weights > 0).double())
    sums = zeros.scatter_add(1, memory_predictions, weights.double())
    return first_argmax(sums.masked_fill(votes < votes.amax(1, keepdim=True), -1))


def memory_use(total_weights: Tensor, used_samples: Tensor) -> MemoryUse:
    """How concentrated the use of a memory is; from sums, so that the weights of all inputs need not be kept.

    total_weights (M,): each sample's weights summed over all inputs. used_samples (B,), integer: the number of samples
    with a positive weight for each input.

    >>> memory_use(torch.tensor([2.0, 2.0, 0.0, 0.0]), torch.tensor([2, 2, 2, 2])).effective_samples
    2.0
    """
    check_tensor("total_weights", total_weights, "(M,)", "floating point")
    check_tensor("used_samples", used_samples, "(B,)", "integer")
    totals = total_weights.detach().double()
    least, most = float(totals.min()), float(totals.max())
    if not (least >= 0 and 0 < most < torch.inf):  # NaN fails both
        raise InputError(
            f"total_weights goes from {least:.4g} to {most:.4g}; expected finite sums, none negative, at least one "
            "positive: sum the weights of a Reading over the inputs"
        )
    fewest, many = int(used_samples.min()), int(used_samples.max())
    if fewest < 1 or many > len(totals):
        raise InputError(f"used_samples goes from {fewest} to {many}; expected 1 to {len(totals)}, the memory's size")
    shares = totals / totals.sum()
    tenth = math.ceil(len(shares) / 10)
    return MemoryUse(
        unused_share=fraction(totals == 0),
        effective_samples=1 / float(shares.square().sum()),
        top_tenth_share=float(shares.topk(tenth).values.sum()),
        samples_per_input=float(used_samples.double().mean()),
    )


def _check_explained(weights: Tensor, predictions: Tensor, memory_predictions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """weights (B, M), predictions (B,), memory_predictions (M,) or (B, M) -> the last one as (B, M)"""
    weights, memory_predictions = check_memory(weights, memory_predictions)
    predictions = check_classes("predictions", predictions)
    check_lengths(weights=weights, predictions=predictions)
    return weights, predictions, memory_predictions
