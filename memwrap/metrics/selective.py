"""Selective prediction: how few errors are left if a model answers only where it is certain."""

from dataclasses import dataclass

import torch
from torch import Tensor

from memwrap.metrics.checks import check_lengths, check_tensor, check_uncertainty, correct_predictions, fraction

CURVE_POINTS = 20  # of a recorded risk-coverage curve: one for each twentieth of the inputs


@dataclass(frozen=True)
class SelectiveScores:
    """The risk-coverage curve (Geifman et al. 2019).

    Coverage is the fraction of inputs that are answered, the least uncertain first; risk the fraction of errors among
    these.
    """

    area: float  # under the curve (AURC): the mean risk of answering one input, two, and so on up to all
    excess_area: float  # over that of the best order, in which all errors come last (E-AURC)
    curve: list[list[float]]  # [coverage, risk] at each twentieth, rounded up to whole inputs


@dataclass(frozen=True)
class FlagScores:
    """Leaving out the inputs that the paper's warning flags, versus as many of the least confident."""

    coverage: float  # fraction of inputs that are not flagged
    accuracy: float | None  # accuracy on these; None if all are flagged
    confidence_accuracy: float | None  # accuracy on equally many inputs, those of the highest probability


def selective_scores(uncertainty: Tensor, predictions: Tensor, labels: Tensor) -> SelectiveScores:
    """The risks of answering only the least uncertain inputs. predictions (B,), labels (B,)

    uncertainty (B,): larger for inputs to leave out earlier, in any unit. Equally uncertain inputs are in random order:
    the result is the mean over all such orders, and does not depend on the order of the inputs.

    >>> uncertainty, predictions = torch.tensor([0.1, 0.2, 0.3, 0.9]), torch.tensor([0, 0, 0, 0])
    >>> selective_scores(uncertainty, predictions, labels=torch.tensor([0, 0, 0, 1])).area
    0.0625
    """
    uncertainty, wrong = check_uncertainty(uncertainty), ~correct_predictions(predictions, labels).cpu()
    check_lengths(uncertainty=uncertainty, predictions=wrong)
    risks, best = _cumulative_rates(uncertainty, wrong), _cumulative_rates(wrong.double(), wrong)
    points = range(1, CURVE_POINTS + 1)
    return SelectiveScores(
        area=float(risks.mean()),
        excess_area=float(risks.mean() - best.mean()),
        # The smallest whole number of inputs that is such a share, less one, as indices start at zero.
        curve=[[point / CURVE_POINTS, float(risks[(point * len(risks) - 1) // CURVE_POINTS])] for point in points],
    )


def flag_scores(counterfactual: Tensor, uncertainty: Tensor, predictions: Tensor, labels: Tensor) -> FlagScores:
    """The accuracy on the inputs that are not flagged, and on equally many of the least uncertainty.

    counterfactual (B,), bool: the result of `top_is_counterfactual`. uncertainty (B,): that of `one_minus_confidence`;
    ties are in random order, as in `selective_scores`. predictions (B,), labels (B,)

    >>> flags, uncertainty = torch.tensor([False, False, True]), torch.tensor([0.1, 0.2, 0.9])
    >>> flag_scores(flags, uncertainty, torch.tensor([0, 0, 0]), labels=torch.tensor([0, 0, 1])).accuracy
    1.0
    """
    check_tensor("counterfactual", counterfactual, "(B,)", "bool")
    uncertainty, correct = check_uncertainty(uncertainty), correct_predictions(predictions, labels).cpu()
    kept = ~counterfactual.cpu()
    check_lengths(counterfactual=kept, uncertainty=uncertainty, predictions=correct)
    count = int(kept.sum())
    return FlagScores(
        coverage=fraction(kept),
        accuracy=fraction(correct[kept]) if count else None,
        confidence_accuracy=float(_cumulative_rates(uncertainty, correct)[count - 1]) if count else None,
    )


def _cumulative_rates(uncertainty: Tensor, flags: Tensor) -> Tensor:
    """The fraction of true flags among the k least uncertain inputs, for k = 1 to B.

    Equally uncertain inputs, in random order, are equally likely to have their flag set: the count rises linearly over
    them. uncertainty (B,), flags (B,), bool -> (B,), float64
    """
    uncertainty, order = uncertainty.sort()
    counts = torch.nn.functional.pad(flags[order].double().cumsum(0), (1, 0))  # (B + 1,): among the first 0, 1, ... B
    kept = torch.arange(1, len(uncertainty) + 1)
    # The k-th input is in a group of ties from `start` up to, but not including, `end`.
    start, end = torch.searchsorted(uncertainty, uncertainty), torch.searchsorted(uncertainty, uncertainty, right=True)
    # Multiplied first, whole numbers stay whole: a rate that should be 0 or 1 is, and no order beats the best.
    rates: Tensor = (counts[start] + (kept - start) * (counts[end] - counts[start]) / (end - start)) / kept
    return rates
