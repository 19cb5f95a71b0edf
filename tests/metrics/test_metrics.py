"""Metrics against scikit-learn, slow rewrites, five inputs worked out by hand, and their properties."""

import re
import statistics
from collections.abc import Callable
from fractions import Fraction
from itertools import permutations
from random import Random

import numpy
import pytest
import sklearn.metrics
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import Tensor, tensor

from memwrap.errors import InputError, NonFiniteError
from memwrap.metrics import (
    ExplanationScores,
    FlagScores,
    MemoryUse,
    accuracy,
    calibration_error,
    class_accuracies,
    confusion,
    counterfactual_weight,
    explanation_scores,
    flag_scores,
    majority_vote,
    mean_and_spread,
    memory_use,
    one_minus_confidence,
    predict_classes,
    selective_scores,
    top_is_counterfactual,
    top_samples,
)

CLASSES = 5
HALVES = (slice(0, 3), slice(3, 6))

# Five inputs, four memory samples, three classes. Input 1 has two equally strong samples; inputs 2 and 3 are wrong.
WEIGHTS = tensor(
    [
        [0.6, 0.4, 0.0, 0.0],
        [0.5, 0.5, 0.0, 0.0],
        [0.0, 0.2, 0.5, 0.3],
        [0.0, 0.0, 0.0, 1.0],
        [0.1, 0.2, 0.3, 0.4],
    ]
)
MEMORY_PREDICTIONS = tensor([0, 1, 2, 1])
PREDICTIONS = tensor([0, 1, 1, 1, 1])
LABELS = tensor([0, 1, 2, 0, 1])

whole = st.integers(0, CLASSES - 1)
outcomes = st.lists(st.tuples(whole, whole), min_size=1, max_size=60)


@st.composite
def memories(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Weights (B, M) in eighths, so that votes and sums are often tied, and memory predictions (M,)."""
    samples = draw(st.integers(1, 9))
    row = st.lists(st.integers(0, 3), min_size=samples, max_size=samples).filter(any)
    weights = draw(st.lists(row, min_size=1, max_size=6))
    return tensor(weights) / 8, tensor(draw(st.lists(whole, min_size=samples, max_size=samples)))


@st.composite
def judgements(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Probabilities (B, 4) in twentieths, so that many confidences lie on the edge of a bin, and labels (B,)."""
    cuts = st.lists(st.integers(0, 20), min_size=3, max_size=3).map(sorted)
    rows = draw(st.lists(cuts, min_size=1, max_size=30))
    parts = [[a, b - a, c - b, 20 - c] for a, b, c in rows]
    labels = draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    return tensor(parts, dtype=torch.float64) / 20, tensor(labels)


def slow_calibration_error(probabilities: Tensor, labels: Tensor, bins: int) -> float:
    """Guo et al. (2017, eq. 3), bin by bin."""
    rows = [(max(row), row.index(max(row)) == label) for row, label in zip(probabilities.tolist(), labels, strict=True)]
    error = 0.0
    for number in range(bins):
        inside = [row for row in rows if number / bins < row[0] <= (number + 1) / bins]
        if inside:
            confidence = statistics.mean(row[0] for row in inside)
            share_right = sum(bool(row[1]) for row in inside) / len(inside)
            error += len(inside) / len(rows) * abs(share_right - confidence)
    return error


def slow_vote(weights: list[float], memory_predictions: list[int]) -> int:
    """One input's vote, in exact arithmetic."""
    used = [(c, Fraction(w)) for w, c in zip(weights, memory_predictions, strict=True) if w > 0]
    votes = {c: (sum(c == other for other, _ in used), sum(w for other, w in used if c == other)) for c, _ in used}
    return min(votes, key=lambda c: (-votes[c][0], -votes[c][1], c))


def slow_risks(doubts: list[float], wrong: list[bool]) -> list[Fraction]:
    """The error rate among the first 1, 2, ... B inputs by doubt; the mean over all orders of the inputs."""
    orders = list(permutations(zip(doubts, wrong, strict=True)))
    total = [Fraction(0)] * len(wrong)
    for order in orders:
        in_turn = [flag for _, flag in sorted(order, key=lambda pair: pair[0])]  # which leaves ties as they come
        total = [risk + Fraction(sum(in_turn[: k + 1]), k + 1) for k, risk in enumerate(total)]
    return [risk / len(orders) for risk in total]


# Accuracy and confusion


@given(outcomes)
def test_accuracy_and_confusion_agree_with_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    predictions, labels = tensor(pairs).T
    assert accuracy(predictions, labels) == pytest.approx(sklearn.metrics.accuracy_score(labels, predictions))
    counts = confusion(predictions, labels, CLASSES)
    expected = sklearn.metrics.confusion_matrix(labels, predictions, labels=range(CLASSES))
    assert counts.dtype == torch.int64
    assert counts.tolist() == expected.tolist()


@given(outcomes)
def test_confusion_counts_every_input_once(pairs: list[tuple[int, int]]) -> None:
    predictions, labels = tensor(pairs).T
    counts = confusion(predictions, labels, CLASSES)
    assert int(counts.sum()) == len(pairs)
    assert int(counts.trace()) / len(pairs) == accuracy(predictions, labels)


@given(outcomes)
def test_class_accuracies_agree_with_recall(pairs: list[tuple[int, int]]) -> None:
    predictions, labels = tensor(pairs).T
    expected = sklearn.metrics.recall_score(
        labels, predictions, labels=range(CLASSES), average=None, zero_division=numpy.nan
    )
    given_back = class_accuracies(confusion(predictions, labels, CLASSES))
    assert given_back == pytest.approx([None if numpy.isnan(value) else value for value in expected.tolist()])


def test_rows_of_confusion_are_true_classes() -> None:
    counts = confusion(PREDICTIONS, LABELS, 4)
    assert counts.tolist() == [[1, 1, 0, 0], [0, 2, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert class_accuracies(counts) == [0.5, 1.0, 0.0, None]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_small_integer_types_hold_many_classes(dtype: torch.dtype) -> None:
    classes = tensor([0, 99, 100], dtype=dtype)
    counts = confusion(classes, classes, 101)
    assert counts.diagonal().nonzero().flatten().tolist() == [0, 99, 100]
    assert accuracy(classes, classes.long()) == 1.0


# Calibration


@pytest.mark.parametrize("bins", [1, 5, 10, 15, 20])
@given(judged=judgements())
def test_calibration_error_equals_a_loop_over_bins(bins: int, judged: tuple[Tensor, Tensor]) -> None:
    error = calibration_error(*judged, bins)
    assert error == pytest.approx(slow_calibration_error(*judged, bins), abs=1e-12)
    assert 0 <= error <= 1


def test_calibration_error_of_random_softmax_equals_the_loop_in_fifteen_bins() -> None:
    probabilities = (3 * torch.randn(2000, 10, dtype=torch.float64)).softmax(1)
    labels = torch.randint(10, (2000,))
    error = calibration_error(probabilities, labels)
    assert error == pytest.approx(slow_calibration_error(probabilities, labels, 15), abs=1e-12)
    assert error == pytest.approx(calibration_error(probabilities.float(), labels), abs=1e-6)


def test_calibration_error_is_zero_when_confidence_is_the_share_of_right_predictions() -> None:
    # Of four inputs judged with confidence 0.75 three are right, of two judged with 0.5 one.
    probabilities = tensor([[0.75, 0.25]] * 4 + [[0.5, 0.5]] * 2)
    assert calibration_error(probabilities, tensor([0, 0, 0, 1, 0, 1])) == 0.0


def test_calibration_error_is_one_for_a_model_that_is_sure_and_always_wrong() -> None:
    # In float32 the sum of a softmax may pass one; the error may not.
    assert calibration_error(tensor([[1.0 + 1e-6, 0.0]] * 3), tensor([1, 1, 1])) == 1.0


def test_a_bin_owns_its_upper_edge() -> None:
    # Both lie in (0.5, 0.75]: half are right at a mean confidence of 0.6875. Apart, they would give 0.4375.
    probabilities = tensor([[0.75, 0.25], [0.625, 0.375]])
    assert calibration_error(probabilities, tensor([0, 1]), bins=4) == 0.1875


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("bins", "edge", "below"), [(15, 0.6, 0.58), (10, 0.7, 0.68), (20, 0.55, 0.53)])
def test_edges_are_rounded_as_confidences_are(dtype: torch.dtype, bins: int, edge: float, below: float) -> None:
    # One bin with one of two right. Were the edge above its bin, the error would be (1 - edge + below) / 2.
    probabilities = tensor([[edge, 1 - edge], [below, 1 - below]], dtype=dtype)
    error = calibration_error(probabilities, tensor([0, 1]), bins)
    assert error == pytest.approx(abs(1 - edge - below) / 2, abs=2**-8)  # the rounding of bfloat16


def test_equal_probabilities_are_a_prediction_of_the_lowest_class() -> None:
    assert calibration_error(tensor([[0.5, 0.5]]), tensor([0])) == 0.5
    assert calibration_error(tensor([[0.25] * 4]), tensor([0])) == 0.75
    assert calibration_error(tensor([[0.25] * 4]), tensor([3])) == 0.25


# Explanations


def test_top_samples_by_hand() -> None:
    tops = top_samples(WEIGHTS)
    assert tops.tolist() == [0, 0, 2, 3, 3]
    assert tops.dtype == torch.int64


@given(memories())
def test_the_top_sample_is_the_first_of_the_strongest(memory: tuple[Tensor, Tensor]) -> None:
    assert top_samples(memory[0]).tolist() == [row.index(max(row)) for row in memory[0].tolist()]


@pytest.mark.parametrize("samples", [1, 7, 100, 5000])
def test_of_equal_weights_the_lowest_index_is_on_top(samples: int) -> None:
    assert top_samples(torch.full((3, samples), 1 / samples)).tolist() == [0, 0, 0]


def test_inputs_may_have_a_memory_each() -> None:
    """Two memories of four, given for each input, against one call for each memory."""
    torch.manual_seed(0)
    weights, predictions = torch.rand(6, 4), torch.randint(3, (6,))
    memories = torch.randint(3, (2, 4))
    each = memories.repeat_interleave(3, dim=0)
    for score in (top_is_counterfactual, counterfactual_weight):
        expected = [
            score(weights[part], predictions[part], memory) for part, memory in zip(HALVES, memories, strict=True)
        ]
        assert score(weights, predictions, each).equal(torch.cat(expected))
    votes = [majority_vote(weights[part], memory, 3) for part, memory in zip(HALVES, memories, strict=True)]
    assert majority_vote(weights, each, 3).equal(torch.cat(votes))
    with pytest.raises(InputError, match="6 rows of weights but 5 rows of memory_predictions"):
        majority_vote(weights, each[:5], 3)
    with pytest.raises(InputError, match="4 columns of weights but 3 columns of memory_predictions"):
        majority_vote(weights, each[:, :3], 3)


def test_tops_are_counterfactuals_by_hand() -> None:
    tops = top_is_counterfactual(WEIGHTS, PREDICTIONS, MEMORY_PREDICTIONS)
    assert tops.tolist() == [False, True, True, False, False]
    assert tops.dtype == torch.bool


def test_explanation_scores_by_hand() -> None:
    scores = explanation_scores(tensor([False, True, True, False, False]), PREDICTIONS, LABELS)
    assert scores == ExplanationScores(
        explanation_accuracy=3 / 5, counterfactual_share=2 / 5, example_accuracy=2 / 3, counterfactual_accuracy=1 / 2
    )


def test_without_any_counterfactual_its_accuracy_is_none() -> None:
    scores = explanation_scores(torch.zeros(5, dtype=torch.bool), PREDICTIONS, LABELS)
    assert scores == ExplanationScores(1.0, 0.0, example_accuracy=3 / 5, counterfactual_accuracy=None)


def test_without_any_example_its_accuracy_is_none() -> None:
    scores = explanation_scores(torch.ones(5, dtype=torch.bool), PREDICTIONS, LABELS)
    assert scores == ExplanationScores(0.0, 1.0, example_accuracy=None, counterfactual_accuracy=3 / 5)


@given(st.lists(st.tuples(whole, whole, st.booleans()), min_size=1, max_size=200))
def test_shares_sum_to_one_and_weigh_the_accuracies(inputs: list[tuple[int, int, bool]]) -> None:
    predictions, labels, flags = tensor(inputs).T
    scores = explanation_scores(flags.bool(), predictions, labels)
    assert scores.explanation_accuracy + scores.counterfactual_share == 1
    parts = [
        (scores.explanation_accuracy, scores.example_accuracy),
        (scores.counterfactual_share, scores.counterfactual_accuracy),
    ]
    assert all((share == 0) == (part is None) for share, part in parts)
    mean = sum(share * part for share, part in parts if part is not None)
    assert mean == pytest.approx(accuracy(predictions, labels), abs=1e-12)


def test_explanations_of_joined_batches_are_those_of_the_whole() -> None:
    batches = [(WEIGHTS[:2], PREDICTIONS[:2]), (WEIGHTS[2:], PREDICTIONS[2:])]
    joined = torch.cat([top_is_counterfactual(*batch, MEMORY_PREDICTIONS) for batch in batches])
    assert torch.equal(joined, top_is_counterfactual(WEIGHTS, PREDICTIONS, MEMORY_PREDICTIONS))


def test_counterfactual_weight_by_hand() -> None:
    found = counterfactual_weight(WEIGHTS, PREDICTIONS, MEMORY_PREDICTIONS)
    assert found.tolist() == pytest.approx([0.4, 0.5, 0.5, 0.0, 0.4])
    assert found.dtype == torch.float64


@given(memories(), st.randoms(use_true_random=False))
def test_counterfactual_weight_is_the_part_of_a_loop_over_samples(
    memory: tuple[Tensor, Tensor], random: Random
) -> None:
    weights, own = memory
    predictions = [random.randrange(CLASSES) for _ in weights]
    expected = [
        sum(w for w, c in zip(row, own.tolist(), strict=True) if c != prediction) / sum(row)
        for row, prediction in zip(weights.tolist(), predictions, strict=True)
    ]
    assert counterfactual_weight(weights, tensor(predictions), own).tolist() == pytest.approx(expected, abs=1e-15)


def test_where_all_or_no_samples_are_counterfactuals_rounding_makes_no_difference() -> None:
    weights = torch.rand(200, 7)
    weights = weights / weights.sum(1, keepdim=True)
    assert len(weights.double().sum(1).unique()) > 1
    for own, expected in ((0, 0.0), (1, 1.0)):
        found = counterfactual_weight(weights, torch.zeros(200, dtype=torch.int64), torch.full((7,), own))
        assert found.tolist() == [expected] * 200


# Doubt by probability


def test_improbability_by_hand() -> None:
    logits = tensor([[0.5, 0.25, 0.25], [0.25, 0.625, 0.125], [0.5, 0.5, 0.0]]).log()
    found = one_minus_confidence(logits)
    assert found.tolist() == pytest.approx([0.5, 0.375, 0.5], abs=1e-7)
    assert found.dtype == torch.float64


def test_improbability_tells_apart_what_a_probability_cannot() -> None:
    # In float64 the first two probabilities are exactly one.
    doubts = one_minus_confidence(tensor([[60.0, 0.0], [50.0, 0.0], [20.0, 0.0]]))
    assert doubts.tolist() == pytest.approx([numpy.exp(-60), numpy.exp(-50), 1 / (1 + numpy.exp(20))], rel=1e-9, abs=0)


# Answering only the surest


def answers(wrong: list[bool]) -> tuple[Tensor, Tensor]:
    """Predictions and labels that differ so."""
    return torch.zeros(len(wrong), dtype=torch.int64), tensor(wrong).long()


# Few different doubts, so that most are tied.
judged_doubts = st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 0.25, torch.inf]), st.booleans()), min_size=1)
Judged = list[tuple[float, bool]]


def apart(judged: Judged) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Doubts, and predictions with labels."""
    return tensor([doubt for doubt, _ in judged]), answers([wrong for _, wrong in judged])


def test_risks_by_hand() -> None:
    # In order of doubt: right, wrong, right, wrong. At best both errors come last: 0, 0, 1/3, 1/2.
    scores = selective_scores(tensor([0.3, 0.1, 0.4, 0.2]), *answers([False, False, True, True]))
    assert scores.area == pytest.approx((0 + 1 / 2 + 1 / 3 + 1 / 2) / 4)
    assert scores.excess_area == pytest.approx(1 / 8)
    # Up to a quarter one input is answered, up to a half two, and so on.
    assert scores.curve == [
        [pytest.approx(point / 20), pytest.approx([0, 1 / 2, 1 / 3, 1 / 2][(point - 1) // 5])] for point in range(1, 21)
    ]


def test_risks_with_ties_by_hand() -> None:
    # Right; then one of three, in any order, is wrong; then wrong. Errors: 0, 1/3, 2/3, 1, 2.
    scores = selective_scores(tensor([2.0, 1.0, 1.0, 1.0, 0.5]), *answers([True, False, True, False, False]))
    risks = [0, 1 / 6, 2 / 9, 1 / 4, 2 / 5]
    assert scores.area == pytest.approx(sum(risks) / 5)
    assert scores.excess_area == pytest.approx((sum(risks) - 1 / 4 - 2 / 5) / 5)
    assert [risk for _, risk in scores.curve[3::4]] == pytest.approx(risks)


@given(judged_doubts.map(lambda judged: judged[:5]))
def test_risks_are_means_over_all_orders_of_equal_doubts(judged: Judged) -> None:
    doubts, outcome = apart(judged)
    slow = slow_risks(*map(list, zip(*judged, strict=True)))
    best = slow_risks([float(wrong) for _, wrong in judged], [wrong for _, wrong in judged])
    scores = selective_scores(doubts, *outcome)
    area = statistics.mean(slow)
    assert scores.area == pytest.approx(float(area))
    assert scores.excess_area == pytest.approx(float(area - statistics.mean(best)))
    # The least number of inputs that are such a share.
    counts = [next(k for k in range(1, len(slow) + 1) if 20 * k >= point * len(slow)) for point in range(1, 21)]
    assert [risk for _, risk in scores.curve] == pytest.approx([float(slow[count - 1]) for count in counts])


def test_a_curve_has_a_point_for_each_twentieth() -> None:
    doubts, wrong = torch.rand(1000, dtype=torch.float64), torch.rand(1000) < 0.3
    curve = selective_scores(doubts, *answers(wrong.tolist())).curve
    order = doubts.argsort()
    assert [coverage for coverage, _ in curve] == [point / 20 for point in range(1, 21)]
    for point, (_, risk) in enumerate(curve, 1):
        assert risk == pytest.approx(float(wrong[order][: 50 * point].double().mean()))


@given(judged_doubts, st.randoms(use_true_random=False))
def test_the_order_of_the_inputs_makes_no_difference(judged: Judged, random: Random) -> None:
    shuffled = random.sample(judged, len(judged))
    before, after = (selective_scores(apart(each)[0], *apart(each)[1]) for each in (judged, shuffled))
    assert before == after


@given(judged_doubts)
def test_no_order_is_better_than_the_best_or_worse_than_the_worst(judged: Judged) -> None:
    doubts, outcome = apart(judged)
    wrong = (outcome[0] != outcome[1]).double()
    best, found, worst = (selective_scores(each, *outcome) for each in (wrong, doubts, -wrong))
    assert 0 <= best.area <= found.area <= worst.area <= 1
    assert best.excess_area == 0
    assert found.excess_area == pytest.approx(found.area - best.area, abs=1e-15)
    # Above the right ones, each error adds one; so the best area has a closed form, and so has the worst.
    right, count = sum(not wrong for _, wrong in judged), len(judged)
    assert best.area == pytest.approx(sum(max(0, k - right) / k for k in range(1, count + 1)) / count)
    assert worst.area == pytest.approx(sum(min(k, count - right) / k for k in range(1, count + 1)) / count)


@given(judged_doubts)
def test_doubt_that_is_the_same_for_all_leaves_the_error_rate_at_every_coverage(judged: Judged) -> None:
    _, outcome = apart(judged)
    scores = selective_scores(torch.ones(len(judged)), *outcome)
    error = 1 - accuracy(*outcome)
    assert scores.area == pytest.approx(error)
    assert [risk for _, risk in scores.curve] == pytest.approx([error] * 20)


@given(judged_doubts)
@example([(-1.0, False), *((0.0, place < 15) for place in range(22))])  # 15 / 22 * 22 is not 15, when rounded
def test_all_inputs_answered_leave_the_error_rate(judged: Judged) -> None:
    doubts, outcome = apart(judged)
    assert selective_scores(doubts, *outcome).curve[-1] == [1.0, sum(wrong for _, wrong in judged) / len(judged)]


@given(judged_doubts)
def test_only_the_order_of_doubts_counts(judged: Judged) -> None:
    doubts, outcome = apart(judged)
    assert selective_scores(doubts.exp() / 7, *outcome) == selective_scores(doubts, *outcome)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_doubts_of_any_precision_will_do(dtype: torch.dtype) -> None:
    doubts, outcome = tensor([0.25, 0.5, 0.5, 1.0]), answers([False, True, False, True])
    assert selective_scores(doubts.to(dtype), *outcome) == selective_scores(doubts.double(), *outcome)


def test_doubts_that_differ_by_little_are_told_apart() -> None:
    doubts = tensor([0.5, 0.5 + 2**-50], dtype=torch.float64)
    assert selective_scores(doubts, *answers([False, True])).area == 1 / 4
    assert selective_scores(doubts.flip(0), *answers([False, True])).area == 3 / 4


# The flag


def test_flag_scores_by_hand() -> None:
    # Not flagged: the first three, one of them wrong. The three least doubtful: the last two, right, and one of the
    # first two, of which one is right.
    flags, doubts = tensor([False, False, False, True, True]), tensor([0.2, 0.2, 0.9, 0.1, 0.0])
    scores = flag_scores(flags, doubts, *answers([False, True, False, False, False]))
    assert scores == FlagScores(coverage=3 / 5, accuracy=2 / 3, confidence_accuracy=pytest.approx(2.5 / 3))


def test_where_all_are_flagged_there_is_no_accuracy() -> None:
    scores = flag_scores(torch.ones(5, dtype=torch.bool), torch.rand(5), PREDICTIONS, LABELS)
    assert scores == FlagScores(coverage=0.0, accuracy=None, confidence_accuracy=None)


def test_where_none_is_flagged_both_are_the_accuracy() -> None:
    scores = flag_scores(torch.zeros(5, dtype=torch.bool), torch.rand(5), PREDICTIONS, LABELS)
    assert scores == FlagScores(coverage=1.0, accuracy=3 / 5, confidence_accuracy=3 / 5)


@given(judged_doubts.map(lambda judged: judged[:5]), st.randoms(use_true_random=False))
def test_equally_many_are_taken_in_the_mean_over_all_orders(judged: Judged, random: Random) -> None:
    doubts, outcome = apart(judged)
    flags = tensor([random.random() < 0.5 for _ in judged])
    assume(not bool(flags.all()))
    scores = flag_scores(flags, doubts, *outcome)
    risks = slow_risks(*map(list, zip(*judged, strict=True)))
    explained = explanation_scores(flags, *outcome)
    assert (scores.coverage, scores.accuracy) == (explained.explanation_accuracy, explained.example_accuracy)
    assert scores.confidence_accuracy == pytest.approx(1 - float(risks[int((~flags).sum()) - 1]))


@given(judged_doubts)
def test_a_flag_made_of_the_doubts_is_as_good_as_they_are(judged: Judged) -> None:
    doubts, outcome = apart(judged)
    flags = doubts > 0
    assume(not bool(flags.all()))
    scores = flag_scores(flags, doubts, *outcome)
    assert scores.confidence_accuracy == pytest.approx(scores.accuracy)


# The use of the memory


def test_memory_use_by_hand() -> None:
    # Summed over the five inputs: 1.2, 1.3, 0.8, 1.7. A tenth of four samples is the last one.
    scores = memory_use(WEIGHTS.sum(0), (WEIGHTS > 0).sum(1))
    assert scores == MemoryUse(
        unused_share=0.0,
        effective_samples=pytest.approx(25 / (1.2**2 + 1.3**2 + 0.8**2 + 1.7**2)),
        top_tenth_share=pytest.approx(1.7 / 5),
        samples_per_input=(2 + 2 + 3 + 1 + 4) / 5,
    )


@pytest.mark.parametrize(("samples", "tenth"), [(1, 1), (9, 1), (10, 1), (11, 2), (20, 2), (30, 3), (100, 10)])
def test_samples_that_are_used_alike_all_count(samples: int, tenth: int) -> None:
    scores = memory_use(torch.full((samples,), 0.3), torch.full((7,), samples))
    assert scores == MemoryUse(0.0, pytest.approx(samples), pytest.approx(tenth / samples), float(samples))


def test_of_samples_without_weight_nothing_but_their_share_is_told() -> None:
    scores = memory_use(tensor([0.0, 2.0, 0.0, 2.0, 0.0]), tensor([1, 2, 2]))
    assert scores == MemoryUse(3 / 5, pytest.approx(2), pytest.approx(0.5), pytest.approx(5 / 3))
    # However small, a weight is one.
    assert memory_use(tensor([1e-45, 1.0]), tensor([2])).unused_share == 0


@given(memories(), st.randoms(use_true_random=False))
def test_memory_use_has_its_bounds_and_ignores_order_and_scale(memory: tuple[Tensor, Tensor], random: Random) -> None:
    totals, used = memory[0].sum(0), (memory[0] > 0).sum(1)
    scores = memory_use(totals, used)
    samples, slack = len(totals), 1e-9
    in_use = samples * (1 - scores.unused_share)
    assert 1 - slack <= scores.effective_samples <= in_use + slack
    assert 1 / samples - slack <= scores.top_tenth_share <= 1 + slack
    assert 1 <= scores.samples_per_input <= in_use + slack
    # The effective number is below that of the samples in use unless all of them are used alike.
    alike = len(totals[totals > 0].unique()) == 1
    assert (scores.effective_samples == pytest.approx(in_use)) == alike
    order = random.sample(range(samples), samples)
    shuffled = memory_use(8 * totals[order], used)
    assert vars(shuffled) == {name: pytest.approx(value) for name, value in vars(scores).items()}


# The vote


def test_majority_vote_by_hand() -> None:
    votes = majority_vote(WEIGHTS, MEMORY_PREDICTIONS, 3)
    # Input 0: one vote each, class 0 weighs more. Input 1: equal in both, the lower class. Input 2: two votes to one.
    assert votes.tolist() == [0, 0, 1, 1, 1]
    assert votes.dtype == torch.int64


@pytest.mark.parametrize(
    ("weights", "winner"),
    [
        ([0.4, 0.6, 0.0, 0.0], 1),  # tied in votes: the larger weight, though the class is higher
        ([0.25, 0.25, 0.5, 0.0], 2),
        ([0.1, 0.0, 0.8, 0.1], 2),
        ([0.9, 0.05, 0.0, 0.05], 1),  # two weak votes beat a strong one
        ([0.0, 0.25, 0.5, 0.25], 1),
    ],
)
def test_votes_count_before_weights(weights: list[float], winner: int) -> None:
    assert majority_vote(tensor([weights]), MEMORY_PREDICTIONS, 3).tolist() == [winner]


def test_samples_without_weight_have_no_vote() -> None:
    assert majority_vote(tensor([[0.0, 0.0, 1.0, 0.0]]), tensor([1, 1, 2, 1]), 3).tolist() == [2]


@given(memories())
@example((tensor([[0.1, 0.2, 0.3]]), tensor([1, 1, 0])))
@example((tensor([[1.0, 2.0**-20, 1.0, 0.0]]), tensor([2, 2, 0, 0])))
def test_majority_vote_equals_a_loop_over_samples(memory: tuple[Tensor, Tensor]) -> None:
    weights, predictions = memory
    assert majority_vote(weights, predictions, CLASSES).tolist() == [
        slow_vote(row, predictions.tolist()) for row in weights.tolist()
    ]


def test_majority_vote_of_many_random_inputs_equals_the_loop() -> None:
    weights = (torch.rand(500, 40) - 0.8).clamp(min=0)
    weights = weights[weights.amax(1) > 0]
    predictions = torch.randint(10, (40,))
    slow = [slow_vote(row, predictions.tolist()) for row in weights.tolist()]
    assert majority_vote(weights, predictions, 10).tolist() == slow
    assert len(set(slow)) == 10


@given(memories(), st.randoms(use_true_random=False))
def test_majority_vote_ignores_the_order_of_the_memory(memory: tuple[Tensor, Tensor], random: Random) -> None:
    weights, predictions = memory
    order = list(range(len(predictions)))
    random.shuffle(order)
    shuffled = majority_vote(weights[:, order], predictions[order], CLASSES)
    assert torch.equal(shuffled, majority_vote(weights, predictions, CLASSES))


@given(memories(), st.permutations(range(CLASSES)))
def test_majority_vote_without_ties_follows_a_renaming_of_classes(
    memory: tuple[Tensor, Tensor], names: list[int]
) -> None:
    weights, predictions = memory
    votes = torch.stack([((weights > 0) & (predictions == c)).sum(1) for c in range(CLASSES)], 1).sort(1).values
    assume(bool((votes[:, -1] > votes[:, -2]).all()))
    renamed = tensor(names)
    expected = renamed[majority_vote(weights, predictions, CLASSES)]
    assert torch.equal(majority_vote(weights, renamed[predictions], CLASSES), expected)


def test_autocast_does_not_round_votes() -> None:
    # bfloat16 knows no 601: under autocast a product in float32 would call 600 to 601 a tie, which weight decides.
    weights = torch.cat([torch.full((1, 600), 0.1), torch.full((1, 601), 0.01)], 1)
    predictions = tensor([0] * 600 + [1] * 601)
    with torch.autocast("cpu", torch.bfloat16):
        assert majority_vote(weights, predictions, 2).tolist() == [1]


@pytest.mark.filterwarnings("error")  # torch warns when a number is taken out of a graph
def test_nothing_is_left_of_a_graph() -> None:
    weights = WEIGHTS.clone().requires_grad_()
    probabilities = tensor([[0.5, 0.5]]).requires_grad_()
    assert not top_samples(weights).requires_grad
    assert not majority_vote(weights, MEMORY_PREDICTIONS, 3).requires_grad
    assert not counterfactual_weight(weights, PREDICTIONS, MEMORY_PREDICTIONS).requires_grad
    assert not one_minus_confidence(weights).requires_grad
    assert type(selective_scores(weights[:, 0], PREDICTIONS, LABELS).area) is float
    assert type(memory_use(weights.sum(0), tensor([1])).effective_samples) is float
    assert type(calibration_error(probabilities, tensor([0]))) is float
    with pytest.raises(InputError, match="not similarities"):
        top_samples(-weights)


# Mean and spread


def test_mean_and_spread_divide_by_the_number_of_values() -> None:
    assert mean_and_spread([1.0, 2.0, 3.0, 6.0]) == (3.0, pytest.approx((14 / 4) ** 0.5))
    assert mean_and_spread([0.25]) == (0.25, 0.0)
    assert mean_and_spread([0.1] * 3)[1] == 0.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_mean_and_spread_agree_with_numpy(values: list[float]) -> None:
    expected = numpy.mean(values), numpy.std(values)
    assert mean_and_spread(values) == pytest.approx(expected, abs=1e-12)
    assert all(type(number) is float for number in mean_and_spread(numpy.array(values)))


# What is refused

REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "lengths of predictions and labels": (
        lambda: accuracy(PREDICTIONS, LABELS[:4]),
        "5 predictions but 4 labels; each input needs one of both",
    ),
    "lengths in confusion": (
        lambda: confusion(PREDICTIONS[:1], LABELS, 3),
        "1 predictions but 5 labels; each input needs one of both",
    ),
    "nothing": (
        lambda: accuracy(PREDICTIONS[:0], LABELS[:0]),
        "predictions is empty: its shape is (0,); give at least one entry",
    ),
    "float labels": (
        lambda: accuracy(PREDICTIONS, LABELS.float()),
        "labels has shape (5,) and dtype torch.float32; expected shape (N,), integer",
    ),
    "bool predictions": (
        lambda: accuracy(PREDICTIONS.bool(), LABELS),
        "predictions has shape (5,) and dtype torch.bool; expected shape (N,), integer",
    ),
    "logits for predictions": (
        lambda: accuracy(torch.zeros(5, 3), LABELS),
        "predictions has shape (5, 3) and dtype torch.float32; expected shape (N,), integer",
    ),
    "lists": (
        lambda: accuracy([0, 1], LABELS),  # type: ignore[arg-type]
        "predictions is a list; expected a tensor (N,), integer",
    ),
    "unlabelled inputs": (
        lambda: accuracy(PREDICTIONS, LABELS - 1),
        "labels goes from -1 to 1; expected 0 or more: leave out inputs without a class",
    ),
    "too high a label": (
        lambda: confusion(PREDICTIONS, LABELS, 2),
        "labels goes from 0 to 2; expected 0 to 1, for 2 classes: leave out inputs without a class",
    ),
    "too high a prediction": (
        lambda: confusion(PREDICTIONS + 2, LABELS, 3),
        "predictions goes from 2 to 3; expected 0 to 2, for 3 classes: leave out inputs without a class",
    ),
    "no classes": (lambda: confusion(PREDICTIONS, LABELS, 0), "num_classes is 0; expected at least 1"),
    "half a class": (
        lambda: confusion(PREDICTIONS, LABELS, 2.5),  # type: ignore[arg-type]
        "num_classes is a float; expected a whole number",
    ),
    "confusion that is not square": (
        lambda: class_accuracies(torch.ones(2, 3, dtype=torch.int64)),
        "confusion_counts has shape (2, 3) and entries from 1; expected as many rows as columns and no negative count: "
        "give what `confusion` returns",
    ),
    "negative confusion": (
        lambda: class_accuracies(tensor([[-1]])),
        "confusion_counts has shape (1, 1) and entries from -1; expected as many rows as columns and no negative "
        "count: give what `confusion` returns",
    ),
    "normalised confusion": (
        lambda: class_accuracies(torch.eye(2)),
        "confusion_counts has shape (2, 2) and dtype torch.float32; expected shape (C, C), integer",
    ),
    "logits for probabilities": (
        lambda: calibration_error(tensor([[0.5, 0.5], [2.0, -1.5]]), tensor([0, 1])),
        "probabilities of 1 of 2 inputs are none: those of input 1 sum to 0.5, the least is -1.5; expected rows that "
        "sum to one, none negative: give logits.softmax(1)",
    ),
    "logits that sum to one": (
        lambda: calibration_error(tensor([[2.0, -1.0]]), tensor([0])),
        "probabilities of 1 of 1 inputs are none: those of input 0 sum to 1, the least is -1; expected rows that "
        "sum to one, none negative: give logits.softmax(1)",
    ),
    "NaN for a probability": (
        lambda: calibration_error(tensor([[torch.nan, 1.0]]), tensor([0])),
        "probabilities of 1 of 1 inputs are none: those of input 0 sum to nan, the least is nan; expected rows that "
        "sum to one, none negative: give logits.softmax(1)",
    ),
    "labels beyond the probabilities": (
        lambda: calibration_error(tensor([[0.5, 0.5]]), tensor([2])),
        "labels goes from 2 to 2; expected 0 to 1, for 2 classes: leave out inputs without a class",
    ),
    "too few labels": (
        lambda: calibration_error(tensor([[0.5, 0.5]] * 2), tensor([1])),
        "2 rows of probabilities but 1 labels; each input needs one of both",
    ),
    "no bins": (lambda: calibration_error(tensor([[1.0]]), tensor([0]), 0), "bins is 0; expected at least 1"),
    "whole weights": (
        lambda: top_samples(tensor([[1, 0]])),
        "weights has shape (1, 2) and dtype torch.int64; expected shape (B, M), floating point",
    ),
    "no memory": (
        lambda: top_samples(torch.zeros(3, 0)),
        "weights is empty: its shape is (3, 0); give at least one entry",
    ),
    "similarities for weights": (
        lambda: top_samples(tensor([[0.5, 0.5], [0.75, -0.25]])),
        "weights of 1 of 2 inputs cannot be used: those of input 1 go from -0.25 to 0.75; expected finite ones, none "
        "negative, at least one positive: give the weights of a Reading, not similarities",
    ),
    "no weight at all": (
        lambda: majority_vote(torch.zeros(2, 4), MEMORY_PREDICTIONS, 3),
        "weights of 2 of 2 inputs cannot be used: those of input 0 go from 0 to 0; expected finite ones, none "
        "negative, at least one positive: give the weights of a Reading, not similarities",
    ),
    "NaN for a weight": (
        lambda: majority_vote(tensor([[torch.nan, 1.0]]), tensor([0, 1]), 2),
        "weights of 1 of 1 inputs cannot be used: those of input 0 go from nan to nan; expected finite ones, none "
        "negative, at least one positive: give the weights of a Reading, not similarities",
    ),
    "infinite weight": (
        lambda: top_samples(tensor([[0.0, torch.inf]])),
        "weights of 1 of 1 inputs cannot be used: those of input 0 go from 0 to inf; expected finite ones, none "
        "negative, at least one positive: give the weights of a Reading, not similarities",
    ),
    "weights of other inputs": (
        lambda: top_is_counterfactual(WEIGHTS[:4], PREDICTIONS, MEMORY_PREDICTIONS),
        "4 rows of weights but 5 predictions; each input needs one of both",
    ),
    "weights of another memory": (
        lambda: top_is_counterfactual(WEIGHTS, PREDICTIONS, tensor([0, 1, 2])),
        "4 columns of weights but 3 memory_predictions; each memory sample needs one of both",
    ),
    "a vote of another memory": (
        lambda: majority_vote(WEIGHTS, tensor([0, 1, 2, 1, 1]), 3),
        "4 columns of weights but 5 memory_predictions; each memory sample needs one of both",
    ),
    "a vote for an unknown class": (
        lambda: majority_vote(WEIGHTS, MEMORY_PREDICTIONS, 2),
        "memory_predictions goes from 0 to 2; expected 0 to 1, for 2 classes: leave out inputs without a class",
    ),
    "numbers for flags": (
        lambda: explanation_scores(tensor([0, 1, 1, 0, 0]), PREDICTIONS, LABELS),
        "counterfactual has shape (5,) and dtype torch.int64; expected shape (B,), bool",
    ),
    "too few flags": (
        lambda: explanation_scores(tensor([True]), PREDICTIONS, LABELS),
        "1 entries of counterfactual but 5 predictions; each input needs one of both",
    ),
    "a counterfactual weight of other inputs": (
        lambda: counterfactual_weight(WEIGHTS[:4], PREDICTIONS, MEMORY_PREDICTIONS),
        "4 rows of weights but 5 predictions; each input needs one of both",
    ),
    "a counterfactual weight of another memory": (
        lambda: counterfactual_weight(WEIGHTS, PREDICTIONS, tensor([0, 1, 2])),
        "4 columns of weights but 3 memory_predictions; each memory sample needs one of both",
    ),
    "NaN for a doubt": (
        lambda: selective_scores(tensor([0.5, torch.nan, 1.0, 0.0, torch.nan]), PREDICTIONS, LABELS),
        "doubts of 2 of 5 inputs are NaN; expected numbers to order them by",
    ),
    "flags for doubts": (
        lambda: selective_scores(PREDICTIONS == LABELS, PREDICTIONS, LABELS),
        "doubts has shape (5,) and dtype torch.bool; expected shape (B,), floating point",
    ),
    "too few doubts": (
        lambda: selective_scores(torch.rand(4), PREDICTIONS, LABELS),
        "4 doubts but 5 predictions; each input needs one of both",
    ),
    "too few doubts beside flags": (
        lambda: flag_scores(PREDICTIONS == LABELS, torch.rand(4), PREDICTIONS, LABELS),
        "4 doubts but 5 predictions; each input needs one of both",
    ),
    "too few flags beside doubts": (
        lambda: flag_scores(tensor([True]), torch.rand(5), PREDICTIONS, LABELS),
        "1 entries of counterfactual but 5 predictions; each input needs one of both",
    ),
    "numbers for flags beside doubts": (
        lambda: flag_scores(LABELS, torch.rand(5), PREDICTIONS, LABELS),
        "counterfactual has shape (5,) and dtype torch.int64; expected shape (B,), bool",
    ),
    "weights that are not summed": (
        lambda: memory_use(WEIGHTS, tensor([1])),
        "total_weights has shape (5, 4) and dtype torch.float32; expected shape (M,), floating point",
    ),
    "a memory without weight": (
        lambda: memory_use(torch.zeros(3), tensor([1])),
        "total_weights goes from 0 to 0; expected finite sums, none negative, at least one positive: sum the weights "
        "of a Reading over the inputs",
    ),
    "sums of similarities": (
        lambda: memory_use(tensor([-0.5, 1.0]), tensor([1])),
        "total_weights goes from -0.5 to 1; expected finite sums, none negative, at least one positive: sum the "
        "weights of a Reading over the inputs",
    ),
    "NaN for a sum of weights": (
        lambda: memory_use(tensor([torch.nan, 1.0]), tensor([1])),
        "total_weights goes from nan to nan; expected finite sums, none negative, at least one positive: sum the "
        "weights of a Reading over the inputs",
    ),
    "an infinite sum of weights": (
        lambda: memory_use(tensor([torch.inf, 1.0]), tensor([1])),
        "total_weights goes from 1 to inf; expected finite sums, none negative, at least one positive: sum the "
        "weights of a Reading over the inputs",
    ),
    "an input that used nothing": (
        lambda: memory_use(tensor([1.0, 1.0]), tensor([2, 0])),
        "used_samples goes from 0 to 2; expected 1 to 2, for as many samples",
    ),
    "more used than there are": (
        lambda: memory_use(tensor([1.0, 1.0]), tensor([3, 1])),
        "used_samples goes from 1 to 3; expected 1 to 2, for as many samples",
    ),
    "shares for numbers of used samples": (
        lambda: memory_use(tensor([1.0, 1.0]), tensor([0.5])),
        "used_samples has shape (1,) and dtype torch.float32; expected shape (B,), integer",
    ),
    "no values": (lambda: mean_and_spread([]), "values is empty; expected at least one number"),
    "a value that does not exist": (
        lambda: mean_and_spread([0.5, None]),  # type: ignore[list-item]
        "values[1] is None; expected finite numbers: leave out runs in which the value does not exist, and say how "
        "many are left",
    ),
    "NaN for a value": (
        lambda: mean_and_spread([float("nan")]),
        "values[0] is nan; expected finite numbers: leave out runs in which the value does not exist, and say how "
        "many are left",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_scored_is_refused_in_words(case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        call()


# Predictions


def test_of_equally_likely_classes_the_first_is_predicted() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0], [3.0, 3.0, 3.0, 3.0], [-torch.inf, -5.0, -6.0, -5.0]])
    assert predict_classes(logits).tolist() == [1, 0, 1]


@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 10))
def test_a_prediction_is_what_a_loop_over_the_classes_finds(inputs: int, classes: int, seed: int) -> None:
    logits = torch.randint(3, (inputs, classes), generator=torch.Generator().manual_seed(seed)).float()
    assert predict_classes(logits).tolist() == [row.index(max(row)) for row in logits.tolist()]


def test_there_is_no_prediction_of_nan() -> None:
    with pytest.raises(NonFiniteError, match="logits of 1 of 2 inputs are NaN"):
        predict_classes(torch.tensor([[0.0, 1.0], [torch.nan, 0.0]]))
