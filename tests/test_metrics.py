"""Metrics against scikit-learn, slow rewrites, five inputs worked out by hand, and their properties."""

import re
import statistics
from collections.abc import Callable
from fractions import Fraction
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
    accuracy,
    calibration_error,
    class_accuracies,
    confusion,
    explanation_scores,
    majority_vote,
    mean_and_spread,
    predicted,
    top_samples,
    tops_are_counterfactuals,
)

CLASSES = 5

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


def test_tops_are_counterfactuals_by_hand() -> None:
    tops = tops_are_counterfactuals(WEIGHTS, PREDICTIONS, MEMORY_PREDICTIONS)
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
    joined = torch.cat([tops_are_counterfactuals(*batch, MEMORY_PREDICTIONS) for batch in batches])
    assert torch.equal(joined, tops_are_counterfactuals(WEIGHTS, PREDICTIONS, MEMORY_PREDICTIONS))


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
        lambda: tops_are_counterfactuals(WEIGHTS[:4], PREDICTIONS, MEMORY_PREDICTIONS),
        "4 rows of weights but 5 predictions; each input needs one of both",
    ),
    "weights of another memory": (
        lambda: tops_are_counterfactuals(WEIGHTS, PREDICTIONS, tensor([0, 1, 2])),
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
    assert predicted(logits).tolist() == [1, 0, 1]


@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 10))
def test_a_prediction_is_what_a_loop_over_the_classes_finds(inputs: int, classes: int, seed: int) -> None:
    logits = torch.randint(3, (inputs, classes), generator=torch.Generator().manual_seed(seed)).float()
    assert predicted(logits).tolist() == [row.index(max(row)) for row in logits.tolist()]


def test_there_is_no_prediction_of_nan() -> None:
    with pytest.raises(NonFiniteError, match="logits of 1 of 2 inputs are NaN"):
        predicted(torch.tensor([[0.0, 1.0], [torch.nan, 0.0]]))
