"""How far the memory samples behind predictions explain them.

A memory sample is an example if the model itself puts it into the class it predicts for the input, and a
counterfactual if it puts it into another; no label is asked (paper, sec. 3.2).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from memwrap.errors import InputError
from memwrap.metrics.checks import (
    as_count,
    as_explained,
    as_memory_weights,
    as_weights,
    check_form,
    check_pair,
    correct_ones,
    first_largest,
    share,
)


@dataclass(frozen=True)
class ExplanationScores:
    """How often the strongest memory sample explains a prediction, and what it says about the prediction if not."""

    explanation_accuracy: float  # share of inputs whose strongest sample is an example
    counterfactual_share: float  # share of inputs whose strongest sample is a counterfactual: all others
    example_accuracy: float | None  # accuracy where the strongest is an example; None if it never is
    counterfactual_accuracy: float | None  # accuracy where the strongest is a counterfactual; None if it never is


@dataclass(frozen=True)
class MemoryUse:
    """Over how many of its samples a memory's work is spread."""

    unused_share: float  # share of samples that have no weight for any input
    effective_samples: float  # so many samples, used equally, would be as concentrated (the inverse Simpson index)
    top_tenth_share: float  # share of all weight that the most used tenth of the samples have
    samples_per_input: float  # mean number of samples with a positive weight


def top_samples(weights: Tensor) -> Tensor:
    """The index of each input's strongest memory sample; the lowest of several. weights (B, M) -> (B,), int64"""
    return first_largest(as_weights(weights))


def top_is_counterfactual(weights: Tensor, predictions: Tensor, memory_predictions: Tensor) -> Tensor:
    """Whether each input's strongest memory sample is one that the model puts into another class than the input.

    weights (B, M), predictions (B,), memory_predictions (M,), or (B, M) of a memory for each input -> (B,), bool
    """
    weights, predictions, memory_predictions = as_explained(weights, predictions, memory_predictions)
    return memory_predictions.gather(1, first_largest(weights).unsqueeze(1)).squeeze(1) != predictions


def counterfactual_weight(weights: Tensor, predictions: Tensor, memory_predictions: Tensor) -> Tensor:
    """The sum of each input's weights on counterfactuals; from 0 to 1, as a part of its sum of all weights.

    weights (B, M), predictions (B,), memory_predictions (M,) or (B, M) -> (B,), float64
    """
    weights, predictions, memory_predictions = as_explained(weights, predictions, memory_predictions)
    weights, counterfactual = weights.double(), memory_predictions != predictions.unsqueeze(1)
    against = weights.where(counterfactual, 0).sum(1)
    # Weights sum to one but for rounding. Divided so, the result is exactly 1 where all used samples are
    # counterfactuals and 0 where none is: inputs of equal doubt stay equal.
    return against / (against + weights.where(~counterfactual, 0).sum(1))


def explanation_scores(counterfactual: Tensor, predictions: Tensor, labels: Tensor) -> ExplanationScores:
    """The paper's explanation metrics (sec. 4.3). predictions (B,), labels (B,)

    counterfactual (B,), bool: what `top_is_counterfactual` says of each input.
    """
    check_form("counterfactual", counterfactual, "(B,)", "bool")
    correct = correct_ones(predictions, labels)
    example = ~counterfactual
    check_pair("input", {"entries of counterfactual": counterfactual, "predictions": correct})
    return ExplanationScores(
        explanation_accuracy=share(example),
        counterfactual_share=share(counterfactual),
        example_accuracy=share(correct[example]) if bool(example.any()) else None,
        counterfactual_accuracy=share(correct[counterfactual]) if bool(counterfactual.any()) else None,
    )


def majority_vote(weights: Tensor, memory_predictions: Tensor, num_classes: int) -> Tensor:
    """The class that most of the used memory samples are put into: each of positive weight has one vote.

    Of classes with equally many votes the one with the larger sum of weights wins, then the lower class number.
    weights (B, M), memory_predictions (M,) or (B, M) -> (B,), int64
    """
    num_classes = as_count("num_classes", num_classes)
    weights, memory_predictions = as_memory_weights(weights, memory_predictions, num_classes)
    # In float64, where sums of float32 weights hardly ever round: whether two sums are equal does not hang on the order
    # of the memory.
    nothing = torch.zeros(len(weights), num_classes, dtype=torch.float64, device=weights.device)
    votes = nothing.scatter_add(1, memory_predictions, (weights > 0).double())
    sums = nothing.scatter_add(1, memory_predictions, weights.double())
    return first_largest(sums.masked_fill(votes < votes.amax(1, keepdim=True), -1))


def memory_use(total_weights: Tensor, used_samples: Tensor) -> MemoryUse:
    """How concentrated the use of a memory is; from sums, so that the weights of all inputs need not be kept.

    total_weights (M,): each sample's weights summed over all inputs. used_samples (B,), integer: how many samples have
    a positive weight for each input.
    """
    check_form("total_weights", total_weights, "(M,)", "floating point")
    check_form("used_samples", used_samples, "(B,)", "integer")
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
        unused_share=share(totals == 0),
        effective_samples=1 / float(shares.square().sum()),
        top_tenth_share=float(shares.topk(tenth).values.sum()),
        samples_per_input=float(used_samples.double().mean()),
    )
