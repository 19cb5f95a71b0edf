"""Explanations: five points worked out by hand, corner cases, a slow loop over removals, and properties."""

from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn, tensor
from torch.testing import assert_close

import memwrap
from memwrap import StaleMemoryError
from memwrap.explain.explanation import Check, Explanation, explain
from memwrap.explain.flip_set import FlipSet
from memwrap.metrics import predict_classes
from memwrap.nn.memory import UNKNOWN, RememberedMemory
from memwrap.nn.vote_layer import VoteLayer
from tests.worlds import asked, drawn, explained, hand_made

# Five memory samples of length 5 in the plane, whose cosines are tenths, and a head that takes the memory vector for
# logits: x for class 0, y for class 1.
POINTS = tensor([[4.0, 3.0], [3.0, 4.0], [4.0, -3.0], [0.0, 5.0], [-5.0, 0.0]]).double()
LABELS = [0, 1, 0, 1, 0]
RIGHT, UP, BETWEEN = [5.0, 0.0], [0.0, 5.0], [4.8, 1.4]

# What each sample is taken for with the memory less itself. Sparsemax takes a threshold t off all similarities above:
# 0: similarities .96 (1), .28 (2), .6 (3), -.8 (4); t = .28: .68 (3, 4) + .32 (0, 5) = (2.04, 4.32), class 1
# 1: similarities .96 (0), 0 (2), .8 (3), -.6 (4); t = .38: .58 (4, 3) + .42 (0, 5) = (2.32, 3.84), class 1
# 2: similarities .28 (0), 0 (1), -.6 (3), -.8 (4); t = -.36: .64 (4, 3) + .36 (3, 4) = (3.64, 3.36), class 0
# 3: similarities .6 (0), .8 (1), -.6 (2), 0 (4); t = .2: .4 (4, 3) + .6 (3, 4) = (3.4, 3.6), class 1
# 4: similarities -.8 (0), -.6 (1), -.8 (2), 0 (3); t = -.8: .2 (3, 4) + .8 (0, 5) = (0.6, 4.8), class 1
MEMORY_PREDICTIONS = [1, 1, 0, 1, 1]


def by_hand(*inputs: list[float], labels: list[int] = LABELS) -> list[Explanation]:
    return explained(hand_made([[1, 0], [0, 1]]), tensor(inputs).double(), POINTS, labels)


def sigmoid(lead: float) -> float:
    """The probability of the predicted one of two classes."""
    return tensor(lead, dtype=torch.float64).sigmoid().item()


def near(value: object) -> object:
    return pytest.approx(value, abs=1e-6)  # what the layer adds to a squared length


# Worked out by hand


def test_an_input_with_two_equally_strong_samples_by_hand() -> None:
    # Similarities .8, .6, .8, 0, -1: t = (.8 + .8 + .6 - 1) / 3 = .4.
    # Memory vector .4 (4, 3) + .2 (3, 4) + .4 (4, -3) = (3.8, .8).
    (explanation,) = by_hand(RIGHT)
    assert explanation.prediction == 0
    assert explanation.logits.tolist() == near([3.8, 0.8])
    assert explanation.probabilities.tolist() == near([sigmoid(3), 1 - sigmoid(3)])
    assert explanation.weights.tolist() == near([0.4, 0.2, 0.4, 0, 0])
    assert explanation.ablation.memory.predictions.tolist() == MEMORY_PREDICTIONS
    assert explanation.memory_predictions.tolist() == [*MEMORY_PREDICTIONS[:3], UNKNOWN, UNKNOWN]
    # Samples 0 and 2 weigh the same, so 0 comes first, and it is a counterfactual.
    assert explanation.weights[0] == explanation.weights[2]
    assert [sample.index for sample in explanation.samples] == [0, 2, 1]
    assert [sample.weight for sample in explanation.samples] == near([0.4, 0.4, 0.2])
    assert [(sample.label, sample.prediction) for sample in explanation.samples] == [(0, 1), (0, 0), (1, 1)]
    assert [sample.index for sample in explanation.examples] == [2]
    assert [sample.index for sample in explanation.counterfactuals] == [0, 1]
    assert explanation.unused == (3, 4)
    assert explanation.example.index == 2
    assert explanation.counterfactual.index == 0
    assert explanation.uncertain is True


def test_effects_by_hand() -> None:
    (explanation,) = by_hand(RIGHT)
    # Without 0: similarities .6, .8, 0, -1, t = .2: .4 (3, 4) + .6 (4, -3) = (3.6, -.2).
    # Without 1: t = .3: .5 (4, 3) + .5 (4, -3) = (4, 0).
    # Without 2: as without 0, .6 (4, 3) + .4 (3, 4) = (3.6, 3.4).
    expected = [sigmoid(3.8) - sigmoid(3), sigmoid(4) - sigmoid(3), sigmoid(0.2) - sigmoid(3)]
    assert explanation.effects[:3].tolist() == near(expected)
    assert explanation.effects.isnan().tolist() == [False, False, False, True, True]
    assert [sample.effect for sample in explanation.samples] == near([expected[0], expected[2], expected[1]])


def test_shares_by_hand() -> None:
    (explanation,) = by_hand(RIGHT)
    # Weight times point: .4 (4, 3), .4 (4, -3), .2 (3, 4).
    expected = [[1.6, 1.2], [1.6, -1.2], [0.6, 0.8]]
    for sample, share in zip(explanation.samples, expected, strict=True):
        assert sample.shares.tolist() == near(share)


def test_the_flip_set_by_hand() -> None:
    # No single removal changes the class, as seen above. Without 0 and 2: similarities .6, 0, -1, t = -.2:
    # .8 (3, 4) + .2 (0, 5) = (2.4, 4.2), class 1. In the order of strength that is the first pair.
    (explanation,) = by_hand(RIGHT)
    assert explanation.flip_set == FlipSet((0, 2), 1, proven=True, tried=1)


def test_an_input_without_counterfactuals_by_hand() -> None:
    # Similarities .6, .8, -.6, 1, 0: t = (1 + .8 + .6 - 1) / 3 = 7/15.
    # Memory vector (2 (4, 3) + 5 (3, 4) + 8 (0, 5)) / 15 = (23, 66) / 15.
    (explanation,) = by_hand(UP)
    assert explanation.prediction == 1
    assert explanation.logits.tolist() == near([23 / 15, 66 / 15])
    assert [sample.index for sample in explanation.examples] == [3, 1, 0]
    assert [sample.weight for sample in explanation.examples] == near([8 / 15, 5 / 15, 2 / 15])
    assert explanation.counterfactuals == ()
    assert explanation.counterfactual is None
    assert explanation.example.index == 3
    assert explanation.unused == (2, 4)
    assert explanation.uncertain is False


def test_a_sample_counts_by_its_prediction_and_not_by_its_label() -> None:
    # Similarities .936, .8, .6, .28, -.96: t = 1.336 / 3. Class 0, which only sample 2 is taken for.
    (explanation,) = by_hand(BETWEEN)
    assert explanation.prediction == 0
    assert [(sample.index, sample.label, sample.prediction) for sample in explanation.samples] == [
        (0, 0, 1),  # labelled as the input is predicted, and yet a counterfactual
        (1, 1, 1),
        (2, 0, 0),
    ]
    assert [sample.index for sample in explanation.examples] == [2]
    assert explanation.labels.tolist() == LABELS
    for labels in ([1, 1, 1, 1, 1], [1, 0, 1, 0, 0]):
        (other,) = by_hand(BETWEEN, labels=labels)
        assert [sample.index for sample in other.examples] == [2]
        assert other.uncertain is explanation.uncertain is True
        assert [sample.label for sample in other.samples] == labels[:3]


def test_a_batch_is_its_inputs_one_by_one() -> None:
    for together, (alone,) in zip(by_hand(RIGHT, UP, BETWEEN), map(by_hand, (RIGHT, UP, BETWEEN)), strict=True):
        assert together.prediction == alone.prediction
        assert_close(together.logits, alone.logits)
        assert_close(together.weights, alone.weights)
        assert_close(together.effects, alone.effects, equal_nan=True)
        assert [sample.index for sample in together.samples] == [sample.index for sample in alone.samples]
        for ours, theirs in zip(together.samples, alone.samples, strict=True):
            assert_close(ours.shares, theirs.shares)
        assert together.flip_set == alone.flip_set
        assert together.check().kept == alone.check().kept
        assert together.check()


def test_the_check_by_hand() -> None:
    check = by_hand(RIGHT)[0].check()
    assert (check.same_prediction, check.kept, check.left_out) == (True, 3, 2)
    assert check.logit_difference == near(0)
    assert check


@pytest.mark.parametrize(
    ("same_prediction", "difference", "passed"),
    [(True, 0.0, True), (True, 1e-4, True), (True, 2e-4, False), (False, 0.0, False)],
)
def test_a_check_holds_when_the_prediction_is_the_same_and_logits_differ_by_rounding(
    same_prediction: bool, difference: float, passed: bool
) -> None:
    assert bool(Check(same_prediction, difference, tolerance=1e-4, kept=1, left_out=1)) is passed


def test_a_check_compares_with_what_was_predicted() -> None:
    (explanation,) = by_hand(RIGHT)
    check = replace(explanation, logits=explanation.logits + tensor([0.0, 0.38]).double()).check()
    assert check.same_prediction
    assert check.logit_difference == near(0.1)  # .38 of 3.8
    assert not check
    assert not replace(explanation, prediction=1).check().same_prediction


def test_small_logits_are_checked_by_the_difference_itself() -> None:
    (explanation,) = explained(hand_made([[0.01, 0], [0, 0.01]]), tensor([RIGHT]).double(), POINTS)
    assert explanation.logits.tolist() == near([0.038, 0.008])
    assert replace(explanation, logits=explanation.logits + 0.02).check().logit_difference == near(0.02)


def test_a_check_leaves_out_what_has_no_weight() -> None:
    """A memory that has lost what it was used for no longer leads to the prediction."""
    (explanation,) = by_hand(RIGHT)
    fewer = explanation.weights.clone()
    fewer[2] = 0  # the one example: without it, and without 3 and 4, .6 (4, 3) + .4 (3, 4) = (3.6, 3.4)
    check = replace(explanation, weights=fewer).check()
    assert (check.kept, check.left_out) == (2, 3)
    assert check.logit_difference == near(2.6 / 3.8)


# A vote, and a classifier next to a memory: the same five points, of which each now speaks for its label


def voting(
    *inputs: list[float],
    decide: str = "vote",
    head: list[list[float]] | None = None,
    labels: list[int] = LABELS,
    classes: int = 2,
) -> list[Explanation]:
    """With a linear head of these weights; None for no head."""
    layer = VoteLayer(2, classes, scale=1.0, decide=decide, head_classes=0 if head is None else len(head)).double()
    if head is not None:
        with torch.no_grad():
            layer.head.weight.copy_(tensor(head))
            layer.head.bias.zero_()
    return explained(layer, tensor(inputs).double(), POINTS, labels)


SAME, TURNED = [[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]


def test_a_vote_by_hand() -> None:
    (explanation,) = voting(RIGHT, head=SAME)
    # Weights .4 (0), .2 (1) and .4 (2) as above, for the labels 0, 1 and 0.
    assert explanation.votes.tolist() == near([0.8, 0.2])
    assert explanation.probabilities.tolist() == near([0.8, 0.2])
    assert explanation.logits.exp().tolist() == near([0.8, 0.2])
    assert (explanation.prediction, explanation.decided_by) == (0, "vote")
    assert explanation.other_prediction == 0  # the head's logits are (5, 0)
    assert explanation.uncertain is False
    # By label, although the model, with the memory less itself, takes 0 for class 1: .68 (1) + .32 (3).
    assert [sample.index for sample in explanation.examples] == [0, 2]
    assert [sample.index for sample in explanation.counterfactuals] == [1]
    assert explanation.samples[0].prediction == 1
    assert {sample.shares for sample in explanation.samples} == {None}
    # Without 0: .4 (1) and .6 (2). Without 1: .5 (0) and .5 (2). Without 2: .6 (0) and .4 (1).
    assert explanation.effects[:3].tolist() == near([-0.2, 0.2, -0.2])
    assert explanation.effects[3:].isnan().all()
    # Without 0 and 2: .8 (1) and .2 (3), both labelled 1.
    assert explanation.flip_set == FlipSet((0, 2), 1, proven=True, tried=1)
    assert explanation.check() == Check(True, near(0), tolerance=1e-4, kept=3, left_out=2)


@pytest.mark.parametrize(("shares", "holds"), [((1 - 2e-7, 2e-7), True), ((0.999, 0.001), False)])
def test_a_vote_is_checked_by_shares_and_not_by_their_logarithms(shares: tuple[float, float], holds: bool) -> None:
    (explanation,) = voting(RIGHT, labels=[0] * len(LABELS))
    assert explanation.votes.tolist() == near([1.0, 0.0])
    assert bool(replace(explanation, logits=tensor(shares).double().log()).check()) is holds


def test_a_classifier_next_to_a_memory_by_hand() -> None:
    for head, prediction in ((SAME, 0), (TURNED, 1)):
        (explanation,) = voting(RIGHT, decide="head", head=head)
        assert explanation.logits.tolist() == near([5.0, 0.0] if prediction == 0 else [0.0, 5.0])
        assert (explanation.prediction, explanation.decided_by) == (prediction, "classifier")
        assert explanation.votes.tolist() == near([0.8, 0.2])
        assert explanation.other_prediction == 0  # the vote's
        assert explanation.uncertain is (prediction == 1)
        assert [sample.index for sample in explanation.samples] == [0, 2, 1]
        assert [sample.index for sample in explanation.examples] == ([0, 2] if prediction == 0 else [1])
        assert {sample.effect for sample in explanation.samples} == {None}
        assert explanation.effects is None
        assert explanation.flip_set is None
        assert explanation.check() is None
        # The head predicts the memory's images as well: x beyond y is class 0.
        assert [sample.prediction for sample in explanation.samples] == [prediction, prediction, 1 - prediction]
        assert repr(explanation).startswith(f"<Explanation: class {prediction}, 99.3 %")
        assert "decided by the classifier; similar 3 of 5 memory samples: #0 40.0 %, #2 40.0 %, #1" in repr(explanation)


def test_a_vote_is_uncertain_if_its_strongest_sample_or_its_head_says_otherwise() -> None:
    # Weights .4 (0), .2 (1), .4 (2), for the labels 1, 0, 0: votes (.6, .4).
    (explanation,) = voting(RIGHT, head=SAME, labels=[1, 0, 0, 1, 0])
    assert (explanation.prediction, explanation.other_prediction, explanation.uncertain) == (0, 0, True)
    (explanation,) = voting(RIGHT, head=TURNED)
    assert (explanation.prediction, explanation.other_prediction, explanation.uncertain) == (0, 1, True)
    (explanation,) = voting(RIGHT)
    assert (explanation.prediction, explanation.other_prediction, explanation.uncertain) == (0, None, False)


def test_a_head_says_nothing_of_a_class_that_it_does_not_know() -> None:
    labels = [2, 1, 2, 1, 0]
    known, unknown = voting(UP, RIGHT, head=SAME, labels=labels, classes=3)
    # Weights 2/15 (0), 5/15 (1), 8/15 (3), for the labels 2, 1, 1; the head's logits are (0, 5).
    assert known.votes.tolist() == near([0, 13 / 15, 2 / 15])
    assert (known.prediction, known.other_prediction, known.uncertain) == (1, 1, False)
    assert unknown.votes.tolist() == near([0, 0.2, 0.8])
    assert (unknown.prediction, unknown.other_prediction, unknown.uncertain) == (2, None, False)


@pytest.mark.parametrize("decide", ["vote", "head"])
def test_a_vote_of_a_single_sample(decide: str) -> None:
    layer = VoteLayer(2, 2, decide=decide).double()
    with torch.no_grad():
        layer.head.weight.copy_(tensor(SAME))
        layer.head.bias.zero_()
    (explanation,) = explained(layer, tensor([RIGHT]).double(), POINTS[:1], [1])
    assert explanation.votes.tolist() == [0, 1]
    assert explanation.prediction == (1 if decide == "vote" else 0)
    assert explanation.other_prediction == (0 if decide == "vote" else 1)
    assert explanation.uncertain is True
    assert [(sample.label, sample.prediction, sample.effect) for sample in explanation.samples] == [(1, None, None)]
    assert explanation.flip_set == (FlipSet(None, None, proven=True, tried=0) if decide == "vote" else None)


# Corner cases


def test_a_memory_of_one_has_nothing_to_hold_against() -> None:
    layer, encodings, memory = drawn(0, 3, 1, "memory_wrap", "linear")
    for explanation in explained(layer, encodings, memory, labels=[2]):
        assert explanation.weights.tolist() == [1]
        (sample,) = explanation.samples
        assert (sample.index, sample.weight, sample.label) == (0, 1.0, 2)
        assert sample.prediction is None
        assert sample.effect is None
        assert explanation.effects is None
        assert explanation.memory_predictions is None
        assert explanation.uncertain is None
        assert explanation.examples == explanation.counterfactuals == explanation.unused == ()
        assert explanation.example is None
        assert explanation.counterfactual is None
        assert explanation.flip_set == FlipSet(None, None, proven=True, tried=0)
        assert explanation.check() == Check(True, near(0), tolerance=1e-4, kept=1, left_out=0)
        assert explanation.check()


def by_itself(encodings: Tensor, memory: Tensor) -> list[Explanation]:
    """Of a head that looks at the encoding alone: everything is what its larger coordinate says."""
    return explained(hand_made([[1, 0, 0, 0], [0, 1, 0, 0]], "memory_wrap"), encodings, memory)


def test_without_any_example_the_prediction_is_uncertain() -> None:
    (explanation,) = by_itself(tensor([[4.0, 3.0]]).double(), tensor([[3.0, 4.0], [0.0, 5.0], [-4.0, 3.0]]).double())
    # Similarities .96, .6, -.28: t = .28.
    assert explanation.prediction == 0
    assert explanation.examples == ()
    assert explanation.example is None
    assert [sample.index for sample in explanation.counterfactuals] == [0, 1]
    assert explanation.uncertain is True


def test_samples_that_change_nothing_have_no_effect_and_no_share() -> None:
    (explanation,) = by_itself(tensor([[4.0, 3.0]]).double(), tensor([[3.0, 4.0], [0.0, 5.0], [-4.0, 3.0]]).double())
    assert [sample.effect for sample in explanation.samples] == near([0, 0])
    assert [sample.shares.tolist() for sample in explanation.samples] == [[0, 0], [0, 0]]
    assert explanation.flip_set == FlipSet(None, None, proven=True, tried=2)
    assert explanation.check()


@pytest.mark.parametrize(("encoding", "examples"), [([3.0, 4.0], [1, 0]), ([4.0, 3.0], [])])
def test_a_memory_of_one_class_is_all_examples_or_none(encoding: list[float], examples: list[int]) -> None:
    memory = tensor([[0.0, 5.0], [3.0, 4.0], [-4.0, 3.0]]).double()
    (explanation,) = by_itself(tensor([encoding]).double(), memory)
    assert explanation.ablation.memory.predictions.tolist() == [1, 1, 1]
    assert explanation.memory_predictions.tolist() == [1, 1, UNKNOWN]
    assert [sample.index for sample in explanation.samples] == [1, 0]
    assert [sample.index for sample in explanation.examples] == examples
    assert explanation.uncertain is (not examples)


def test_equal_samples_come_in_the_order_of_the_memory() -> None:
    # Similarities .6, .6, .8, .6: t = 1.6 / 4.
    memory = tensor([[3.0, 4.0], [3.0, -4.0], [4.0, 3.0], [3.0, 4.0]]).double()
    (explanation,) = explained(hand_made([[1, 0], [0, 1]]), tensor([RIGHT]).double(), memory)
    assert [sample.index for sample in explanation.samples] == [2, 0, 1, 3]
    assert [sample.weight for sample in explanation.samples] == near([0.4, 0.2, 0.2, 0.2])


def test_many_equal_samples_come_in_the_order_of_the_memory() -> None:
    (explanation,) = explained(hand_made([[1, 0], [0, 1]]), tensor([RIGHT]).double(), POINTS[:1].expand(100, -1))
    assert [sample.index for sample in explanation.samples] == list(range(100))


def test_other_heads_have_no_shares() -> None:
    layer, encodings, memory = drawn(0, 1, 5)
    assert {sample.shares for sample in explained(layer, encodings, memory)[0].samples} == {None}


def test_effects_are_left_out_when_they_are_not_asked_for() -> None:
    layer, encodings, memory = drawn(0, 2, 5, "memory_wrap", "linear")
    without, complete = explained(layer, encodings, memory, effects=False)[1], explained(layer, encodings, memory)[1]
    assert without.effects is None
    assert {sample.effect for sample in without.samples} == {None}
    assert [sample.index for sample in without.samples] == [sample.index for sample in complete.samples]
    assert without.uncertain is complete.uncertain
    assert without.flip_set == complete.flip_set


def test_only_samples_that_an_input_of_the_batch_used_are_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large memory would take its size squared; the predictions of others are computed when they are asked for."""
    predicted: list[int] = []
    logits_without = RememberedMemory.logits_without

    def noted(memory: RememberedMemory, rows: Tensor, *keep: Tensor | None) -> Tensor:
        predicted.extend(rows.tolist())
        return logits_without(memory, rows, *keep)

    monkeypatch.setattr(RememberedMemory, "logits_without", noted)
    layer, encodings, memory = drawn(0, 3, 30)
    explanations = explained(layer, encodings, memory)
    used = sorted({sample.index for explanation in explanations for sample in explanation.samples})
    assert 3 < len(used) < 30
    assert sorted(predicted) == used
    remembered = explanations[0].ablation.memory
    assert_close(remembered.predictions, predict_classes(logits_without(remembered, torch.arange(30))))
    assert sorted(predicted) == list(range(30))  # each once
    assert remembered.predictions_of(torch.tensor([7, 2, 7])).tolist() == remembered.predictions[[7, 2, 7]].tolist()
    assert len(predicted) == 30
    for explanation in explanations:
        known = explanation.memory_predictions != UNKNOWN
        assert known.nonzero().squeeze(1).tolist() == used
        assert_close(explanation.memory_predictions[known], remembered.predictions[known])


def test_what_is_shown_are_the_probabilities_given_and_effects_have_their_temperature() -> None:
    layer, encodings, memory = drawn(0, 2, 5)
    ablation, temperature = asked(layer, encodings, memory), 3.0
    with torch.no_grad():
        reading = layer.read(encodings, ablation.memory.prepared)
        shown = (reading.logits / temperature).softmax(dim=1)
        explanations = explain(reading, ablation, shown, temperature=temperature)
    for row, explanation in enumerate(explanations):
        assert_close(explanation.probabilities, shown[row])
        for sample in explanation.samples:
            keep = torch.arange(5) != sample.index
            without = (layer.read(encodings, memory, keep).logits[row] / temperature).softmax(0)
            assert sample.effect == pytest.approx((without - shown[row])[explanation.prediction].item(), abs=1e-12)


# Against a slow loop


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("samples", "prepared"), [(5, True), (60, False)])
@pytest.mark.parametrize("project", [None, 4])
@pytest.mark.parametrize("head", ["mlp", "linear"])
@pytest.mark.parametrize("variant", ["memory_wrap", "only_memory"])
def test_effects_are_those_of_a_loop_over_removals(
    variant: str, head: str, project: int | None, samples: int, prepared: bool, dtype: torch.dtype
) -> None:
    layer, encodings, memory = drawn(1, 6, samples, variant, head, length=6, classes=7, project=project)
    layer, encodings, memory = layer.to(dtype), encodings.to(dtype), memory.to(dtype)
    close = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 1e-12, "rtol": 1e-12}
    full = layer.read(encodings, memory)
    explanations = explained(layer, encodings, memory)
    assert (explanations[0].ablation.memory.prepared.hidden is not None) == prepared
    for row, explanation in enumerate(explanations):
        assert_close(explanation.logits, full.logits[row], **close)
        assert_close(explanation.weights, full.weights[row], **close)
        before = full.logits[row].softmax(0)
        assert_close(explanation.probabilities, before, **close)
        assert explanation.prediction == int(before.argmax())
        assert [sample.index for sample in explanation.samples] == full.weights[row].argsort(descending=True)[
            : len(explanation.samples)
        ].tolist()
        for sample in explanation.samples:
            keep = torch.arange(samples) != sample.index
            without = layer.read(encodings[row : row + 1], memory, keep=keep).logits[0].softmax(0)
            assert sample.weight == full.weights[row, sample.index]
            assert sample.effect == pytest.approx(
                (without - before)[explanation.prediction].item(), abs=1e-5 if dtype == torch.float32 else 1e-12
            )
            assert sample.effect == explanation.effects[sample.index]
        assert explanation.effects.isnan().tolist() == (full.weights[row] == 0).tolist()
        assert explanation.check()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("project", [None, 4])
@pytest.mark.parametrize("head_classes", [None, 3, 0])
def test_effects_on_a_vote_are_those_of_a_loop_over_removals(
    head_classes: int | None, project: int | None, dtype: torch.dtype
) -> None:
    layer = VoteLayer(6, 4, project=project, scale=3.0, head_classes=head_classes).to(dtype)
    encodings, memory = torch.randn(6, 6).to(dtype), torch.randn(30, 6).to(dtype)
    labels = torch.randint(4, (30,))
    layer.requires_grad_(False)
    full = layer.read(encodings, layer.prepare(memory, labels))
    for row, explanation in enumerate(explained(layer, encodings, memory, labels.tolist())):
        before = [float(full.weights[row, labels == label].sum()) for label in range(4)]
        assert explanation.prediction == before.index(max(before))
        assert explanation.votes.tolist() == pytest.approx(before, abs=1e-5)
        assert_close(explanation.probabilities, explanation.votes)
        for sample in explanation.samples:
            others = torch.arange(30) != sample.index
            left = layer.read(encodings[row : row + 1], layer.prepare(memory[others], labels[others])).weights[0]
            share = float(left[labels[others] == explanation.prediction].sum())
            assert sample.effect == pytest.approx(share - before[explanation.prediction], abs=1e-5)
        assert explanation.effects.isnan().tolist() == (full.weights[row] == 0).tolist()
        assert explanation.check()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_half_precision_effects_are_finer_than_its_probabilities(dtype: torch.dtype) -> None:
    layer, encodings, memory = drawn(1, 6, 20)
    exact = explained(layer, encodings, memory)
    rounded = explained(layer.to(dtype), encodings.to(dtype), memory.to(dtype))
    for ours, theirs in zip(rounded, exact, strict=True):
        assert ours.prediction == theirs.prediction
        assert ours.probabilities.dtype == ours.effects.dtype == torch.float32
        assert_close(ours.probabilities.sum(), torch.tensor(1.0))
        assert ours.check()
        used = ours.weights.nonzero()
        without = ours.ablation.logits(torch.full((len(used),), ours.row), used).float().softmax(1)[:, ours.prediction]
        before = ours.logits.float().softmax(0)[ours.prediction]
        assert_close(ours.effects[used.squeeze(1)], without - before, atol=1e-6, rtol=0)


# Properties


seeds = st.integers(0, 10**6)


@given(seeds, st.integers(2, 30))
def test_the_memory_falls_into_examples_counterfactuals_and_the_unused(seed: int, samples: int) -> None:
    layer, encodings, memory = drawn(seed, 3, samples)
    for explanation in explained(layer, encodings, memory):
        examples = [sample.index for sample in explanation.examples]
        counterfactuals = [sample.index for sample in explanation.counterfactuals]
        assert sorted([*examples, *counterfactuals, *explanation.unused]) == list(range(samples))
        assert {sample.prediction for sample in explanation.examples} <= {explanation.prediction}
        assert explanation.prediction not in {sample.prediction for sample in explanation.counterfactuals}
        assert sum(sample.weight for sample in explanation.samples) == pytest.approx(1)
        assert all(sample.weight > 0 for sample in explanation.samples)
        assert [sample.weight for sample in explanation.samples] == sorted(
            (sample.weight for sample in explanation.samples), reverse=True
        )
        top = explanation.samples[0]
        assert explanation.uncertain == (top.prediction != explanation.prediction)
        assert top in (explanation.example, explanation.counterfactual)
        assert explanation.check()
        assert explanation.check().left_out == len(explanation.unused)


@settings(max_examples=40)
@given(seeds, st.integers(2, 12), st.randoms(use_true_random=False))
def test_permuting_the_memory_permutes_the_explanation(seed: int, samples: int, random: Random) -> None:
    layer, encodings, memory = drawn(seed, 2, samples, "memory_wrap", "linear")
    order = list(range(samples))
    random.shuffle(order)
    for ours, theirs in zip(
        explained(layer, encodings, memory[order]), explained(layer, encodings, memory), strict=True
    ):
        assert ours.prediction == theirs.prediction
        assert ours.uncertain == theirs.uncertain
        for mine, original in zip(ours.samples, theirs.samples, strict=True):
            assert order[mine.index] == original.index
            assert mine.prediction == original.prediction
            assert mine.effect == pytest.approx(original.effect, abs=1e-9)
            assert_close(mine.shares, original.shares)
        assert sorted(order[index] for index in ours.unused) == list(theirs.unused)
        # Sets of one size that start with equally strong samples come in the order of the memory: only the size stays.
        assert ours.flip_set.tried == theirs.flip_set.tried


@given(seeds, st.sampled_from(["memory_wrap", "only_memory"]))
def test_shares_differ_from_the_logits_by_what_the_memory_does_not_give(seed: int, variant: str) -> None:
    layer, encodings, memory = drawn(seed, 3, 10, variant, "linear")
    first, rest = layer.head.first, torch.zeros(3, 4).double()
    if variant == "memory_wrap":
        rest = encodings @ first.weight[:, :3].T
    for row, explanation in enumerate(explained(layer, encodings, memory)):
        shares = torch.stack([sample.shares for sample in explanation.samples])
        assert_close(shares.sum(0) + rest[row] + first.bias, explanation.logits)


# A model that has changed


@pytest.mark.parametrize("head", ["mlp", "linear"])
def test_what_needs_the_weights_is_refused_once_they_have_changed(head: str) -> None:
    layer, encodings, memory = drawn(0, 2, 5, "memory_wrap", head)
    kept, changed = explained(layer, encodings, memory)
    kept_set, kept_samples = kept.flip_set, kept.samples
    nn.init.ones_(layer.head.first.bias)
    with pytest.raises(StaleMemoryError, match="explain the images again"):
        _ = changed.flip_set
    with pytest.raises(StaleMemoryError, match="explain the images again"):
        changed.check()
    if head == "linear":
        with pytest.raises(StaleMemoryError, match="explain the images again"):
            _ = changed.samples
    else:
        assert [sample.index for sample in changed.samples] == changed.weights.argsort(descending=True)[
            : len(changed.samples)
        ].tolist()
    assert kept.flip_set is kept_set  # what was found before stays
    assert kept.samples is kept_samples


# In short


def test_an_explanation_is_printed_in_short() -> None:
    """The numbers are those of the five points above."""
    points = tensor([[4.0, 3.0], [3.0, 4.0], [4.0, -3.0], [0.0, 5.0], [-5.0, 0.0]]).double()
    right, up = explained(
        hand_made([[1, 0], [0, 1]]), tensor([[5.0, 0.0], [0.0, 5.0]]).double(), points, [0, 1, 0, 1, 0]
    )
    assert right.uncertain
    for explanation in (right, up):
        probability = 100 * float(explanation.probabilities.max())
        listed = ", ".join(
            f"#{sample.index} {100 * sample.weight:.1f} % (effect {100 * sample.effect:+.1f} points)"
            for sample in explanation.samples[:3]
        )
        doubt = ", uncertain" if explanation is right else ""
        assert (
            str(explanation)
            == repr(explanation)
            == (
                f"<Explanation: class {explanation.prediction}, {probability:.1f} %{doubt}, decided by the head; "
                f"uses {len(explanation.samples)} of 5 memory samples: {listed}>"
            )
        )
    assert "#3 53.3 %" in str(up)
    assert "tensor" not in str(up)


def test_of_many_samples_the_strongest_are_printed() -> None:
    memory = tensor([[1.0, 0.0]] * 5).double()
    (many,) = explained(hand_made([[1, 0], [0, 1]]), tensor([[1.0, 0.0]]).double(), memory, effects=False)
    assert str(many).endswith("uses 5 of 5 memory samples: #0 20.0 %, #1 20.0 %, #2 20.0 %, ...>")


# With part of the memory removed


def test_removing_samples_explains_as_a_memory_without_them(
    model: memwrap.MemoryClassifier, images: torch.Tensor, memory: torch.Tensor, labels: torch.Tensor
) -> None:
    model.remember(memory, labels)
    keep = torch.arange(len(memory)) % 3 != 1
    found = model.explain(images, keep=keep)
    model.remember(memory[keep], labels[keep])
    indices = keep.nonzero().squeeze(1)
    for ours, expected in zip(found, model.explain(images), strict=True):
        assert ours.prediction == expected.prediction
        assert ours.uncertain == expected.uncertain
        assert_close(ours.logits, expected.logits)
        assert_close(ours.weights[keep], expected.weights)
        assert not ours.weights[~keep].any()
        assert [sample.index for sample in ours.samples] == indices[[each.index for each in expected.samples]].tolist()
        for one, other in zip(ours.samples, expected.samples, strict=True):
            assert (one.label, one.prediction) == (other.label, other.prediction)
            assert one.effect == pytest.approx(other.effect, abs=1e-6)
        assert ours.unused == tuple(indices[list(expected.unused)].tolist())
        flip, other_flip = ours.flip_set, expected.flip_set
        assert (flip.proven, flip.tried, flip.prediction) == (
            other_flip.proven,
            other_flip.tried,
            other_flip.prediction,
        )
        if other_flip.indices is not None:
            assert flip.indices == tuple(indices[list(other_flip.indices)].tolist())
        assert ours.check()
        assert ours.check().left_out == expected.check().left_out


def test_each_input_may_have_samples_of_its_own_removed(
    model: memwrap.MemoryClassifier, images: torch.Tensor, memory: torch.Tensor, labels: torch.Tensor
) -> None:
    model.remember(memory, labels)
    keep = torch.rand(len(images), len(memory)) > 0.4
    keep[:, 0] = True
    for row, explanation in enumerate(model.explain(images, keep=keep)):
        (alone,) = model.explain(images[row : row + 1], keep=keep[row])
        assert_close(explanation.weights, alone.weights)
        assert [each.index for each in explanation.samples] == [each.index for each in alone.samples]
        assert explanation.uncertain == alone.uncertain
        assert_close(explanation.effects, alone.effects, equal_nan=True)


def test_a_single_sample_that_is_left_decides_alone(
    model: memwrap.MemoryClassifier, images: torch.Tensor, memory: torch.Tensor, labels: torch.Tensor
) -> None:
    model.remember(memory, labels)
    (explanation, *_) = model.explain(images, keep=torch.arange(len(memory)) == 5)
    assert [(each.index, each.weight, each.prediction) for each in explanation.samples] == [(5, 1.0, None)]
    assert explanation.uncertain is None
    assert explanation.effects is None
    assert explanation.flip_set == memwrap.FlipSet(None, None, proven=True, tried=0)


def test_a_mask_that_removes_everything_is_refused(
    model: memwrap.MemoryClassifier, images: torch.Tensor, memory: torch.Tensor, labels: torch.Tensor
) -> None:
    model.remember(memory, labels)
    with pytest.raises(memwrap.InputError, match="12"):
        model.explain(images, keep=torch.zeros(len(memory), dtype=torch.bool))
