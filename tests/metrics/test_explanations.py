"""Metrics of explanations against loops, exact arithmetic, and five inputs worked out by hand."""

from fractions import Fraction
from random import Random

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch import Tensor, tensor

from memwrap.errors import InputError
from memwrap.metrics import (
    ExplanationScores,
    MemoryUse,
    accuracy,
    counterfactual_weight,
    explanation_scores,
    majority_vote,
    memory_use,
    top_is_counterfactual,
    top_samples,
)
from tests.metrics.cases import CLASSES, LABELS, MEMORY_PREDICTIONS, PREDICTIONS, WEIGHTS, class_numbers, memories

HALVES = (slice(0, 3), slice(3, 6))


def slow_vote(weights: list[float], memory_predictions: list[int]) -> int:
    """One input's vote, in exact arithmetic."""
    used = [(c, Fraction(w)) for w, c in zip(weights, memory_predictions, strict=True) if w > 0]
    votes = {c: (sum(c == other for other, _ in used), sum(w for other, w in used if c == other)) for c, _ in used}
    return min(votes, key=lambda c: (-votes[c][0], -votes[c][1], c))


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
    with pytest.raises(InputError, match="6 weights, 5 memory_predictions"):
        majority_vote(weights, each[:5], 3)
    with pytest.raises(InputError, match="weights has 4 columns but memory_predictions 3"):
        majority_vote(weights, each[:, :3], 3)


def test_top_is_counterfactual_by_hand() -> None:
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


@given(st.lists(st.tuples(class_numbers, class_numbers, st.booleans()), min_size=1, max_size=200))
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
def test_samples_that_are_used_equally_all_count(samples: int, tenth: int) -> None:
    scores = memory_use(torch.full((samples,), 0.3), torch.full((7,), samples))
    assert scores == MemoryUse(0.0, pytest.approx(samples), pytest.approx(tenth / samples), float(samples))


def test_samples_without_weight_count_in_the_unused_share_only() -> None:
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
    # The effective number is below that of the samples in use unless all of them are used equally.
    equal = len(totals[totals > 0].unique()) == 1
    assert (scores.effective_samples == pytest.approx(in_use)) == equal
    order = random.sample(range(samples), samples)
    shuffled = memory_use(8 * totals[order], used)
    assert vars(shuffled) == {name: pytest.approx(value) for name, value in vars(scores).items()}


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
