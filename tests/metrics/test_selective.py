"""Selective prediction against the mean over all orders, closed forms, and values worked out by hand."""

import statistics
from fractions import Fraction
from itertools import permutations
from random import Random

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import Tensor, tensor

from memwrap.metrics import FlagScores, accuracy, explanation_scores, flag_scores, selective_scores
from tests.metrics.cases import LABELS, PREDICTIONS


def slow_risks(uncertainty: list[float], wrong: list[bool]) -> list[Fraction]:
    """The error rate among the first 1, 2, ... B inputs by uncertainty; the mean over all orders of the inputs."""
    orders = list(permutations(zip(uncertainty, wrong, strict=True)))
    total = [Fraction(0)] * len(wrong)
    for order in orders:
        in_turn = [flag for _, flag in sorted(order, key=lambda pair: pair[0])]  # which leaves ties as they come
        total = [risk + Fraction(sum(in_turn[: k + 1]), k + 1) for k, risk in enumerate(total)]
    return [risk / len(orders) for risk in total]


def as_predictions(wrong: list[bool]) -> tuple[Tensor, Tensor]:
    """Predictions that differ from their labels where wrong."""
    return torch.zeros(len(wrong), dtype=torch.int64), tensor(wrong).long()


# Few different uncertainty, so that most are tied.
uncertain_outcomes = st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 0.25, torch.inf]), st.booleans()), min_size=1)
Outcomes = list[tuple[float, bool]]


def split_outcomes(outcomes: Outcomes) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Uncertainties, and predictions with labels."""
    return tensor([score for score, _ in outcomes]), as_predictions([wrong for _, wrong in outcomes])


def test_risks_by_hand() -> None:
    # In order of uncertainty: right, wrong, right, wrong. At best both errors come last: 0, 0, 1/3, 1/2.
    scores = selective_scores(tensor([0.3, 0.1, 0.4, 0.2]), *as_predictions([False, False, True, True]))
    assert scores.area == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)
    assert scores.excess_area == pytest.approx(1 / 8)
    # Up to a quarter one input is answered, up to a half two, and so on.
    assert scores.curve == [
        [pytest.approx(point / 20), pytest.approx([0, 1 / 2, 1 / 3, 1 / 2][(point - 1) // 5])] for point in range(1, 21)
    ]


def test_risks_with_ties_by_hand() -> None:
    # Right; then one of three, in any order, is wrong; then wrong. Errors: 0, 1/3, 2/3, 1, 2.
    scores = selective_scores(tensor([2.0, 1.0, 1.0, 1.0, 0.5]), *as_predictions([True, False, True, False, False]))
    risks = [0, 1 / 6, 2 / 9, 1 / 4, 2 / 5]
    assert scores.area == pytest.approx(sum(risks) / 5)
    assert scores.excess_area == pytest.approx((sum(risks) - 1 / 4 - 2 / 5) / 5)
    assert [risk for _, risk in scores.curve[3::4]] == pytest.approx(risks)


@given(uncertain_outcomes.map(lambda outcomes: outcomes[:5]))
def test_risks_are_means_over_all_orders_of_equal_uncertainty(outcomes: Outcomes) -> None:
    uncertainty, outcome = split_outcomes(outcomes)
    slow = slow_risks(*map(list, zip(*outcomes, strict=True)))
    best = slow_risks([float(wrong) for _, wrong in outcomes], [wrong for _, wrong in outcomes])
    scores = selective_scores(uncertainty, *outcome)
    area = statistics.mean(slow)
    assert scores.area == pytest.approx(float(area))
    assert scores.excess_area == pytest.approx(float(area - statistics.mean(best)))
    # The least number of inputs that are such a share.
    counts = [next(k for k in range(1, len(slow) + 1) if 20 * k >= point * len(slow)) for point in range(1, 21)]
    assert [risk for _, risk in scores.curve] == pytest.approx([float(slow[count - 1]) for count in counts])


def test_a_curve_has_a_point_for_each_twentieth() -> None:
    uncertainty, wrong = torch.rand(1000, dtype=torch.float64), torch.rand(1000) < 0.3
    curve = selective_scores(uncertainty, *as_predictions(wrong.tolist())).curve
    order = uncertainty.argsort()
    assert [coverage for coverage, _ in curve] == [point / 20 for point in range(1, 21)]
    for point, (_, risk) in enumerate(curve, 1):
        assert risk == pytest.approx(float(wrong[order][: 50 * point].double().mean()))


@given(uncertain_outcomes, st.randoms(use_true_random=False))
def test_the_order_of_the_inputs_makes_no_difference(outcomes: Outcomes, random: Random) -> None:
    shuffled = random.sample(outcomes, len(outcomes))
    (before, outcome), (after, shuffled_outcome) = map(split_outcomes, (outcomes, shuffled))
    assert selective_scores(before, *outcome) == selective_scores(after, *shuffled_outcome)


@given(uncertain_outcomes)
def test_no_order_is_better_than_the_best_or_worse_than_the_worst(outcomes: Outcomes) -> None:
    uncertainty, outcome = split_outcomes(outcomes)
    wrong = (outcome[0] != outcome[1]).double()
    best, found, worst = (selective_scores(each, *outcome) for each in (wrong, uncertainty, -wrong))
    assert 0 <= best.area <= found.area <= worst.area <= 1
    assert best.excess_area == 0
    assert found.excess_area == pytest.approx(found.area - best.area, abs=1e-15)
    # Above the right ones, each error adds one; so the best area has a closed form, and so has the worst.
    right, count = sum(not wrong for _, wrong in outcomes), len(outcomes)
    assert best.area == pytest.approx(sum(max(0, k - right) / k for k in range(1, count + 1)) / count)
    assert worst.area == pytest.approx(sum(min(k, count - right) / k for k in range(1, count + 1)) / count)


@given(uncertain_outcomes)
def test_uncertainty_that_is_the_same_for_all_leaves_the_error_rate_at_every_coverage(outcomes: Outcomes) -> None:
    _, outcome = split_outcomes(outcomes)
    scores = selective_scores(torch.ones(len(outcomes)), *outcome)
    error = 1 - accuracy(*outcome)
    assert scores.area == pytest.approx(error)
    assert [risk for _, risk in scores.curve] == pytest.approx([error] * 20)


@given(uncertain_outcomes)
@example([(-1.0, False), *((0.0, place < 15) for place in range(22))])  # 15 / 22 * 22 is not 15, when rounded
def test_all_inputs_answered_leave_the_error_rate(outcomes: Outcomes) -> None:
    uncertainty, outcome = split_outcomes(outcomes)
    assert selective_scores(uncertainty, *outcome).curve[-1] == [
        1.0,
        sum(wrong for _, wrong in outcomes) / len(outcomes),
    ]


@given(uncertain_outcomes)
def test_only_the_order_of_uncertainty_counts(outcomes: Outcomes) -> None:
    uncertainty, outcome = split_outcomes(outcomes)
    assert selective_scores(uncertainty.exp() / 7, *outcome) == selective_scores(uncertainty, *outcome)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_uncertainty_of_any_precision_will_do(dtype: torch.dtype) -> None:
    uncertainty, outcome = tensor([0.25, 0.5, 0.5, 1.0]), as_predictions([False, True, False, True])
    assert selective_scores(uncertainty.to(dtype), *outcome) == selective_scores(uncertainty.double(), *outcome)


def test_uncertainties_that_differ_by_little_are_distinguished() -> None:
    uncertainty = tensor([0.5, 0.5 + 2**-50], dtype=torch.float64)
    assert selective_scores(uncertainty, *as_predictions([False, True])).area == 1 / 4
    assert selective_scores(uncertainty.flip(0), *as_predictions([False, True])).area == 3 / 4


def test_flag_scores_by_hand() -> None:
    # Not flagged: the first three, one of them wrong. The three least uncertain: the last two, right, and one of the
    # first two, of which one is right.
    flags, uncertainty = tensor([False, False, False, True, True]), tensor([0.2, 0.2, 0.9, 0.1, 0.0])
    scores = flag_scores(flags, uncertainty, *as_predictions([False, True, False, False, False]))
    assert scores == FlagScores(coverage=3 / 5, accuracy=2 / 3, confidence_accuracy=pytest.approx(2.5 / 3))


def test_where_all_are_flagged_there_is_no_accuracy() -> None:
    scores = flag_scores(torch.ones(5, dtype=torch.bool), torch.rand(5), PREDICTIONS, LABELS)
    assert scores == FlagScores(coverage=0.0, accuracy=None, confidence_accuracy=None)


def test_where_none_is_flagged_both_are_the_accuracy() -> None:
    scores = flag_scores(torch.zeros(5, dtype=torch.bool), torch.rand(5), PREDICTIONS, LABELS)
    assert scores == FlagScores(coverage=1.0, accuracy=3 / 5, confidence_accuracy=3 / 5)


@given(uncertain_outcomes.map(lambda outcomes: outcomes[:5]), st.randoms(use_true_random=False))
def test_equally_many_are_chosen_in_the_mean_over_all_orders(outcomes: Outcomes, random: Random) -> None:
    uncertainty, outcome = split_outcomes(outcomes)
    flags = tensor([random.random() < 0.5 for _ in outcomes])
    assume(not bool(flags.all()))
    scores = flag_scores(flags, uncertainty, *outcome)
    risks = slow_risks(*map(list, zip(*outcomes, strict=True)))
    explained = explanation_scores(flags, *outcome)
    assert (scores.coverage, scores.accuracy) == (explained.explanation_accuracy, explained.example_accuracy)
    assert scores.confidence_accuracy == pytest.approx(1 - float(risks[int((~flags).sum()) - 1]))


@given(uncertain_outcomes)
def test_a_flag_made_of_the_uncertainty_is_as_good_as_they_are(outcomes: Outcomes) -> None:
    uncertainty, outcome = split_outcomes(outcomes)
    flags = uncertainty > 0
    assume(not bool(flags.all()))
    scores = flag_scores(flags, uncertainty, *outcome)
    assert scores.confidence_accuracy == pytest.approx(scores.accuracy)
