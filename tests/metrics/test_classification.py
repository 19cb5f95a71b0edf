"""Metrics of predictions against scikit-learn, loops, and values worked out by hand."""

import statistics

import numpy
import pytest
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, tensor

from memwrap.errors import NonFiniteError
from memwrap.metrics import (
    accuracy,
    calibration_error,
    class_accuracies,
    confusion,
    mean_and_spread,
    one_minus_confidence,
    predict_classes,
)
from tests.metrics.cases import CLASSES, LABELS, PREDICTIONS, class_numbers

outcomes = st.lists(st.tuples(class_numbers, class_numbers), min_size=1, max_size=60)


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


@st.composite
def probability_cases(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
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


@pytest.mark.parametrize("bins", [1, 5, 10, 15, 20])
@given(case=probability_cases())
def test_calibration_error_equals_a_loop_over_bins(bins: int, case: tuple[Tensor, Tensor]) -> None:
    error = calibration_error(*case, bins)
    assert error == pytest.approx(slow_calibration_error(*case, bins), abs=1e-12)
    assert 0 <= error <= 1


def test_calibration_error_of_random_softmax_equals_the_loop_in_fifteen_bins() -> None:
    probabilities = (3 * torch.randn(2000, 10, dtype=torch.float64)).softmax(1)
    labels = torch.randint(10, (2000,))
    error = calibration_error(probabilities, labels)
    assert error == pytest.approx(slow_calibration_error(probabilities, labels, 15), abs=1e-12)
    assert error == pytest.approx(calibration_error(probabilities.float(), labels), abs=1e-6)


def test_calibration_error_is_zero_when_confidence_is_the_share_of_right_predictions() -> None:
    # Of four inputs with confidence 0.75 three are right, of two with 0.5 one.
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


def test_one_minus_confidence_by_hand() -> None:
    logits = tensor([[0.5, 0.25, 0.25], [0.25, 0.625, 0.125], [0.5, 0.5, 0.0]]).log()
    found = one_minus_confidence(logits)
    assert found.tolist() == pytest.approx([0.5, 0.375, 0.5], abs=1e-7)
    assert found.dtype == torch.float64


def test_one_minus_confidence_distinguishes_what_a_probability_cannot() -> None:
    # In float64 the first two probabilities are exactly one.
    uncertainty = one_minus_confidence(tensor([[60.0, 0.0], [50.0, 0.0], [20.0, 0.0]]))
    assert uncertainty.tolist() == pytest.approx(
        [numpy.exp(-60), numpy.exp(-50), 1 / (1 + numpy.exp(20))], rel=1e-9, abs=0
    )


def test_mean_and_spread_divide_by_the_number_of_values() -> None:
    assert mean_and_spread([1.0, 2.0, 3.0, 6.0]) == (3.0, pytest.approx((14 / 4) ** 0.5))
    assert mean_and_spread([0.25]) == (0.25, 0.0)
    assert mean_and_spread([0.1] * 3)[1] == 0.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_mean_and_spread_agree_with_numpy(values: list[float]) -> None:
    expected = numpy.mean(values), numpy.std(values)
    assert mean_and_spread(values) == pytest.approx(expected, abs=1e-12)
    assert all(type(number) is float for number in mean_and_spread(numpy.array(values)))


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
