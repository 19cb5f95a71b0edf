"""Metrics of evidence against sets of Python, and cases worked out by hand."""

from itertools import combinations

import pytest
import torch
from hypothesis import given
from torch import Tensor, tensor

from memwrap.errors import InputError
from memwrap.metrics import deletion_curve, samples_for_half, specificity
from memwrap.metrics.evidence import MOST_COMPARED
from tests.metrics.cases import memories


def slow_specificity(weights: Tensor, predictions: list[int]) -> float | None:
    used = [{place for place, weight in enumerate(row) if weight > 0} for row in weights.tolist()]
    pairs = [(used[a], used[b]) for a, b in combinations(range(len(used)), 2) if predictions[a] == predictions[b]]
    return 1 - sum(len(a & b) / len(a | b) for a, b in pairs) / len(pairs) if pairs else None


def test_with_one_sample_of_each_class_nothing_is_specific() -> None:
    weights = torch.eye(3)[[0, 0, 1, 1, 2]]
    assert specificity(weights, tensor([0, 0, 1, 1, 2])) == 0


def test_inputs_that_share_no_sample_are_specific() -> None:
    assert specificity(torch.eye(4), tensor([0, 0, 1, 1])) == 1


def test_inputs_of_classes_of_their_own_tell_nothing() -> None:
    assert specificity(torch.eye(3), tensor([0, 1, 2])) is None


@given(memories())
def test_specificity_is_that_of_sets(memory: tuple[Tensor, Tensor]) -> None:
    weights, _ = memory
    predictions = [row % 2 for row in range(len(weights))]
    assert specificity(weights, tensor(predictions)) == pytest.approx(slow_specificity(weights, predictions))


def test_of_many_inputs_some_are_compared() -> None:
    """The first half uses one sample, the second half another: of all pairs of different inputs half overlap."""
    count = 3 * MOST_COMPARED
    weights = torch.eye(2)[(torch.arange(count) >= count // 2).long()]
    expected = (MOST_COMPARED / 2) / (MOST_COMPARED - 1)
    assert specificity(weights, torch.zeros(count, dtype=torch.int64)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("weights", "count"),
    [([0.5, 0.5], 1), ([0.4, 0.3, 0.3], 2), ([0.1] * 10, 5), ([0.0, 1.0, 0.0], 1), ([3.0, 2.0, 2.0, 2.0], 2)],
)
def test_samples_for_half_by_hand(weights: list[float], count: int) -> None:
    assert samples_for_half(tensor([weights])).tolist() == [count]


@pytest.mark.parametrize("samples", [1, 2, 7, 100, 1001])
def test_half_of_equal_weights_is_half_of_the_samples(samples: int) -> None:
    assert samples_for_half(torch.full((2, samples), 1 / samples)).tolist() == [(samples + 1) // 2] * 2


def test_a_memory_that_does_not_decide_has_no_area() -> None:
    assert deletion_curve([0.0, 0.1, 1.0], [0.9, 0.9, 0.9], [0.9, 0.9, 0.9]).area == 0


def test_the_area_is_between_the_curves() -> None:
    curve = deletion_curve([0.0, 0.5, 1.0], [1.0, 0.2, 0.0], [1.0, 0.8, 0.4])
    assert curve.area == pytest.approx(0.5 * (0 + 0.6) / 2 + 0.5 * (0.6 + 0.4) / 2)


def test_weights_that_are_none_are_refused() -> None:
    for score in (samples_for_half, lambda weights: specificity(weights, tensor([0]))):
        with pytest.raises(InputError, match="weights"):
            score(tensor([[0.5, -0.5]]))
