"""Probabilities that can be taken at their word: a temperature for logits, and the confidence of a vote.

A vote's shares say which memory images spoke for a class, not how often such a vote is right. What is fitted here says
that, from held-out images: it changes no prediction, only the numbers that come with it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import compress, product
from typing import Annotated

import torch
from pydantic import ConfigDict, Field
from torch import Tensor
from torch.nn import functional

from memwrap.errors import InputError, NonFiniteError
from memwrap.metrics.checks import check_classes, check_lengths, check_tensor, first_argmax

LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.05, 20.0
GRID = 60  # steps between these, in which the least loss is found before it is refined

# A share of 1 may be one image's. Beyond these, a feature says nothing more.
SHARES = (0.01, 0.99)
PROBABILITIES = (1e-4, 1 - 1e-4)

# What a stored calibration may hold; what is fitted lies far inside.
MOST_FEATURE, MOST_COEFFICIENT, MOST_INTERCEPT = 10.0, 100.0, 100.0
LEAST_DEVIATION = 1e-6  # a feature that varies less is constant but for rounding

MOST_STEPS, MOST_HALVINGS = 100, 30  # of Newton's method, and of one of its steps
TOLERANCE = 1e-9  # of its loss and gradient
# The predicted class exceeds all others by this factor: more than rounding to float32 takes away.
LEAD = 1 + 1e-6

_Feature = Annotated[float, Field(ge=-MOST_FEATURE, le=MOST_FEATURE)]
_Deviation = Annotated[float, Field(ge=LEAST_DEVIATION, le=MOST_FEATURE)]
_Coefficient = Annotated[float, Field(ge=0, le=MOST_COEFFICIENT)]
_Intercept = Annotated[float, Field(ge=-MOST_INTERCEPT, le=MOST_INTERCEPT)]


@dataclass(frozen=True)
class VoteCalibration:
    """How likely a vote is right: a logistic regression on three features of it, in this order.

    The log-odds of the share of the predicted class, those of the head's probability of the same class, and the largest
    cosine between the input and a memory image. No coefficient is negative: more of each never lowers the confidence.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    means: tuple[_Feature, _Feature, _Feature]
    deviations: tuple[_Deviation, _Deviation, _Deviation]
    coefficients: tuple[_Coefficient, _Coefficient, _Coefficient]  # of features less their means, by their deviations
    intercept: _Intercept


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature T that makes softmax(logits / T) fit the labels best (Guo et al. 2017, sec. 4.2).

    logits (N, C), of images that the classifier was not trained on; labels (N,). T goes from 0.05 to 20. A normal prior
    on log T weighs as much as one image: without it, few images or such that are all right would drive T to a bound.

    >>> fit_temperature(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64))
    1.0
    """
    if len(labels) == 0:
        return 1.0
    logits, labels = _check_scores("logits", logits).cpu(), check_classes("labels", labels, logits.shape[1]).cpu()
    check_lengths(logits=logits, labels=labels)

    def loss(log_temperature: float) -> float:
        likelihood = functional.cross_entropy(logits * math.exp(-log_temperature), labels, reduction="sum")
        return float(likelihood) + log_temperature**2 / 2

    low, high = math.log(LEAST_TEMPERATURE), math.log(MOST_TEMPERATURE)
    step = (high - low) / GRID
    # With the prior there may be more than one minimum: a grid finds the lowest.
    best = min((low + step * place for place in range(GRID + 1)), key=loss)
    return math.exp(_least_between(max(low, best - step), min(high, best + step), loss))


def fit_vote_calibration(votes: Tensor, head_logits: Tensor, similarity: Tensor, labels: Tensor) -> VoteCalibration:
    """Learn from held-out images how likely a vote is right.

    votes (N, C): shares of the memory's weight by class. head_logits (N, C): of a classifier next to it. similarity
    (N,): the largest cosine to the memory. labels (N,). Two pseudo-observations, an average image that is right and
    one that is wrong, and a weak penalty keep the result finite: if all N votes are right, it says (N + 1) / (N + 2).
    """
    if len(labels) == 0:
        return VoteCalibration((0.0,) * 3, (1.0,) * 3, (0.0,) * 3, 0.0)
    features, predictions = _features(votes, head_logits, similarity)
    labels = check_classes("labels", labels, votes.shape[1])
    check_lengths(votes=votes, labels=labels)
    features, right = features.cpu(), (predictions == labels).double().cpu()
    means, deviations = features.mean(0), features.std(0, correction=0)
    varies = deviations >= LEAST_DEVIATION
    deviations = deviations.where(varies, 1.0)
    intercept, coefficients = _fit_without_negatives((features - means) / deviations, right, varies.tolist())
    return VoteCalibration(
        means=_three(means), deviations=_three(deviations), coefficients=coefficients, intercept=intercept
    )


def calibrated_probabilities(
    calibration: VoteCalibration, votes: Tensor, head_logits: Tensor, similarity: Tensor
) -> Tensor:
    """Probabilities whose largest is how likely the vote is right; the vote decides the class as before.

    votes (B, C), head_logits (B, C), similarity (B,) -> (B, C), float64. The other classes share the rest in proportion
    to their votes and the head's probabilities.

    >>> even = VoteCalibration((0, 0, 0), (1, 1, 1), (0, 0, 0), intercept=0)
    >>> calibrated_probabilities(even, torch.tensor([[0.9, 0.1, 0.0]]), torch.zeros(1, 3), torch.ones(1))
    tensor([[0.5000, 0.2826, 0.2174]], dtype=torch.float64)
    """
    features, predictions = _features(votes, head_logits, similarity)
    if votes.shape[1] == 1:
        return torch.ones_like(votes, dtype=torch.float64)
    means, deviations, coefficients = (
        features.new_tensor(each) for each in (calibration.means, calibration.deviations, calibration.coefficients)
    )
    log_odds = calibration.intercept + ((features - means) / deviations) @ coefficients
    places = predictions.unsqueeze(1)
    others = _share_among_others(votes.double() + head_logits.double().softmax(1), places)
    # The predicted class, 1 - rest, has to exceed the largest of the others, rest * its share.
    rest = torch.minimum((-log_odds).sigmoid(), 1 / (1 + LEAD * others.amax(1))).unsqueeze(1)
    return (rest * others).scatter(1, places, 1 - rest)


def _share_among_others(amounts: Tensor, places: Tensor) -> Tensor:
    """Each class's part of the amounts, without the predicted class: equal parts where there are none.

    amounts (B, C), places (B, 1) -> (B, C), zero at the places; rows sum to one.
    """
    amounts = amounts.scatter(1, places, 0)
    amounts = amounts.where(amounts.sum(1, keepdim=True) > 0, torch.ones_like(amounts).scatter(1, places, 0))
    return amounts / amounts.sum(1, keepdim=True)


def _features(votes: Tensor, head_logits: Tensor, similarity: Tensor) -> tuple[Tensor, Tensor]:
    """votes (B, C), head_logits (B, C), similarity (B,) -> features (B, 3), float64, and predictions (B,)"""
    votes, head_logits = _check_scores("votes", votes), _check_scores("head_logits", head_logits)
    check_tensor("similarity", similarity, "(B,)", "floating point")
    check_lengths(votes=votes, head_logits=head_logits, similarity=similarity)
    if votes.shape != head_logits.shape:
        raise InputError(f"votes are for {votes.shape[1]} classes, head_logits for {head_logits.shape[1]}; give both")
    if count := int(similarity.isnan().sum()):
        raise NonFiniteError(f"similarity of {count} of {len(similarity)} inputs is NaN; check their encodings")
    predictions = first_argmax(votes)
    places = predictions.unsqueeze(1)
    share = votes.gather(1, places).squeeze(1).clamp(*SHARES).logit()
    probability = head_logits.softmax(1).gather(1, places).squeeze(1).clamp(*PROBABILITIES).logit()
    cosine = similarity.detach().double().clamp(-1, 1)
    return torch.stack([share, probability, cosine], dim=1), predictions


def _check_scores(name: str, scores: Tensor) -> Tensor:
    """Check for finite scores (B, C); in float64, without a graph."""
    check_tensor(name, scores, "(B, C)", "floating point")
    scores = scores.detach().double()
    if count := int((~scores.isfinite().all(1)).sum()):
        raise NonFiniteError(f"{name} of {count} of {len(scores)} inputs are not finite; check their encodings")
    return scores


def _fit_without_negatives(
    features: Tensor, right: Tensor, usable: list[bool]
) -> tuple[float, tuple[float, float, float]]:
    """The intercept and the coefficients, none negative, of features (N, 3) for right (N,).

    The best such regression is the best one of some of the features: there are few enough to try them all.
    """
    least, intercept, coefficients = math.inf, 0.0, [0.0] * 3
    for chosen in product(*((False, True) if each else (False,) for each in usable)):
        places = list(compress(range(3), chosen))
        weights, loss = _fit_logistic(features[:, places], right)
        if loss < least and bool((weights[1:] >= 0).all()):
            least, intercept, coefficients = loss, float(weights[0]), [0.0] * 3
            for place, weight in zip(places, weights[1:].tolist(), strict=True):
                coefficients[place] = min(weight, MOST_COEFFICIENT)
    first, second, third = coefficients
    return max(-MOST_INTERCEPT, min(intercept, MOST_INTERCEPT)), (first, second, third)


def _fit_logistic(features: Tensor, right: Tensor) -> tuple[Tensor, float]:
    """Penalised logistic regression by Newton's method: weights (1 + K,), the intercept first, and their loss.

    features (N, K), standardised, right (N,), 0 or 1; both in float64
    """
    average = features.new_zeros(2, features.shape[1])  # the pseudo-observations: one is right, one is wrong
    inputs = functional.pad(torch.cat([features, average]), (1, 0), value=1.0)
    right = torch.cat([right, right.new_tensor([1.0, 0.0])])
    penalties = functional.pad(torch.ones_like(features[0]), (1, 0))  # none for the intercept

    def loss(weights: Tensor) -> float:
        log_odds = inputs @ weights
        likelihood = functional.binary_cross_entropy_with_logits(log_odds, right, reduction="sum")
        return float(likelihood + (penalties * weights.square()).sum() / 2)

    weights = torch.zeros_like(penalties)
    for _ in range(MOST_STEPS):
        rates = (inputs @ weights).sigmoid()
        gradient = inputs.mT @ (rates - right) + penalties * weights
        if float(gradient.abs().max()) < TOLERANCE:
            break
        curvature = (inputs.mT * (rates * (1 - rates))) @ inputs + penalties.diag()
        step = torch.linalg.solve(curvature, gradient)
        most = loss(weights) + TOLERANCE  # at the minimum, rounding may raise it
        # A full step may overshoot.
        lengths = (0.5**halvings for halvings in range(MOST_HALVINGS))
        weights = weights - step * next((each for each in lengths if loss(weights - each * step) <= most), 0.0)
    return weights, loss(weights)


def _three(values: Tensor) -> tuple[float, float, float]:
    first, second, third = values.tolist()
    return first, second, third


def _least_between(low: float, high: float, function: Callable[[float], float]) -> float:
    """Where a function with one minimum between low and high has it, by golden section."""
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = function(left), function(right)
    while high - low > 1e-8:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = function(right)
    return (low + high) / 2
