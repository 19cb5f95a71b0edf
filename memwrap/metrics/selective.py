"""What a model's doubts are worth: how few errors are left where it doubts least."""

from dataclasses import dataclass

import torch
from torch import Tensor

from memwrap.metrics.checks import as_doubts, check_form, check_pair, correct_ones, share

CURVE_POINTS = 20  # of a risk-coverage curve in a record: one for each twentieth of the inputs


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


def selective_scores(doubts: Tensor, predictions: Tensor, labels: Tensor) -> SelectiveScores:
    """What is gained by answering only the inputs of little doubt. predictions (B,), labels (B,)

    doubts (B,): larger for inputs that are to be left out earlier, in any unit. Equally doubtful inputs are taken in
    random order; what comes back is the mean over all such orders, so it does not hang on the order of the inputs.
    """
    doubts, wrong = as_doubts(doubts), ~correct_ones(predictions, labels).cpu()
    check_pair("input", {"doubts": doubts, "predictions": wrong})
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

    counterfactual (B,), bool: what `top_is_counterfactual` says of each input. doubts (B,): what `one_minus_confidence`
    says. Equally doubtful inputs are taken in random order, as in `selective_scores`. predictions (B,), labels (B,)
    """
    check_form("counterfactual", counterfactual, "(B,)", "bool")
    doubts, correct = as_doubts(doubts), correct_ones(predictions, labels).cpu()
    kept = ~counterfactual.cpu()
    check_pair("input", {"entries of counterfactual": kept, "predictions": correct})
    check_pair("input", {"doubts": doubts, "predictions": correct})
    count = int(kept.sum())
    return FlagScores(
        coverage=share(kept),
        accuracy=share(correct[kept]) if count else None,
        confidence_accuracy=float(_rates(doubts, correct)[count - 1]) if count else None,
    )


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
