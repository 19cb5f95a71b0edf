"""Scores from encodings, against plain loops over inputs and the layer's own word on each."""

import math
import statistics
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from memwrap.errors import SettingsError
from memwrap.models import evaluation
from memwrap.models.evaluation import Encoded, draw_memories, drawn_scores, remembered_scores, standard_scores
from memwrap.nn.layer import MemoryWrap

CLASSES = 3


@pytest.fixture
def layer() -> MemoryWrap:
    """In double precision, so that a batch and its rows one by one agree on every tie."""
    return MemoryWrap(4, CLASSES).double().eval().requires_grad_(False)


def encoded(count: int, seed: int) -> Encoded:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return Encoded(torch.randn(count, 4, dtype=torch.float64, generator=generator), labels)


# The slow way


def selective(doubts: list[float], correct: list[bool]) -> dict[str, Any]:
    """The risk-coverage curve, from the rates of error among the k least doubtful inputs; ties are shared evenly."""
    best = errors_by_doubt([float(not right) for right in correct], correct)
    return curve(errors_by_doubt(doubts, correct), best)


def curve(risks: list[float], best: list[float]) -> dict[str, Any]:
    count = len(risks)
    return {
        "area": pytest.approx(sum(risks) / count),
        "excess_area": pytest.approx((sum(risks) - sum(best)) / count, abs=1e-12),
        "curve": [[point / 20, pytest.approx(risks[math.ceil(point * count / 20) - 1])] for point in range(1, 21)],
    }


def errors_by_doubt(doubts: list[float], correct: list[bool]) -> list[float]:
    risks, pairs = [], list(zip(doubts, correct, strict=True))
    for kept, last in enumerate(sorted(doubts), 1):
        surely = [not right for doubt, right in pairs if doubt < last]
        perhaps = [not right for doubt, right in pairs if doubt == last]
        risks.append((sum(surely) + (kept - len(surely)) * sum(perhaps) / len(perhaps)) / kept)
    return risks


def judged(logits: list[Tensor], labels: list[int]) -> dict[str, Any]:
    """What is said of every classifier: logits (C,) and label of each input."""
    confusion = [[0] * CLASSES for _ in range(CLASSES)]
    bins: dict[int, list[float]] = {}
    doubts, correct = [], []
    for row, label in zip(logits, labels, strict=True):
        probabilities = [math.exp(value) for value in row.tolist()]
        confidence, predicted = max(probabilities) / sum(probabilities), int(row.argmax())
        confusion[label][predicted] += 1
        # Fifteen bins, each with its upper edge.
        bins.setdefault(math.ceil(confidence * 15), []).append((predicted == label) - confidence)
        doubts.append(1 - confidence)
        correct.append(predicted == label)
    return {
        "accuracy": sum(confusion[label][label] for label in range(CLASSES)) / len(labels),
        "class_accuracies": [row[label] / sum(row) if sum(row) else None for label, row in enumerate(confusion)],
        "confusion": confusion,
        "calibration_error": pytest.approx(sum(abs(sum(gaps)) for gaps in bins.values()) / len(labels)),
        "selective": {"confidence": selective(doubts, correct)},
    }


def vote(weights: list[float], memory_predictions: list[int]) -> int:
    """The class of most samples that have a weight; of several the heavier, then the lower."""
    votes: Counter[int] = Counter()
    sums: Counter[int] = Counter()
    for weight, label in zip(weights, memory_predictions, strict=True):
        if weight > 0:
            votes[label] += 1
            sums[label] += weight  # type: ignore[assignment]
    return min(votes, key=lambda label: (-votes[label], -sums[label], label))


class Tally:
    """Inputs judged one after the other, each with a memory."""

    def __init__(self, layer: MemoryWrap) -> None:
        self.layer = layer
        self.logits: list[Tensor] = []
        self.labels: list[int] = []
        self.doubtful: list[bool] = []
        self.votes: list[int] = []
        self.counterfactual_weights: list[float] = []
        self.weights: list[list[float]] = []

    def judge(self, encoding: Tensor, label: int, memory: Tensor, memory_predictions: list[int]) -> None:
        reading = self.layer.read(encoding.unsqueeze(0), memory)
        weights, predicted = reading.weights[0].tolist(), int(reading.logits[0].argmax())
        strongest = weights.index(max(weights))
        self.logits.append(reading.logits[0])
        self.labels.append(label)
        self.doubtful.append(memory_predictions[strongest] != predicted)
        self.votes.append(vote(weights, memory_predictions))
        used = [own for weight, own in zip(weights, memory_predictions, strict=True) if weight > 0]
        against = sum(w for w, own in zip(weights, memory_predictions, strict=True) if own != predicted)
        # A sum of all weights is one, whatever the rounding.
        self.counterfactual_weights.append(1.0 if predicted not in used else against)
        self.weights.append(weights)

    def correct(self) -> list[bool]:
        return [int(row.argmax()) == label for row, label in zip(self.logits, self.labels, strict=True)]

    def explanations(self) -> dict[str, float | None]:
        correct = self.correct()
        sure = [right for right, doubt in zip(correct, self.doubtful, strict=True) if not doubt]
        unsure = [right for right, doubt in zip(correct, self.doubtful, strict=True) if doubt]
        voted = [vote == label for vote, label in zip(self.votes, self.labels, strict=True)]
        return {
            "explanation_accuracy": len(sure) / len(correct),
            "counterfactual_share": len(unsure) / len(correct),
            "example_accuracy": sum(sure) / len(sure) if sure else None,
            "counterfactual_accuracy": sum(unsure) / len(unsure) if unsure else None,
            "majority_vote_accuracy": sum(voted) / len(voted),
        }

    def only_remembered(self) -> dict[str, Any]:
        """What is said of one memory for all, beside what `judged` says of every classifier."""
        correct = self.correct()
        confidences = [float(row.softmax(0).max()) for row in self.logits]
        sure = [right for right, doubt in zip(correct, self.doubtful, strict=True) if not doubt]
        by_confidence = sorted(zip(confidences, correct, strict=True), reverse=True)[: len(sure)]
        flag = {
            "coverage": len(sure) / len(correct),
            "accuracy": sum(sure) / len(sure) if sure else None,
            "confidence_accuracy": sum(right for _, right in by_confidence) / len(sure) if sure else None,
        }
        totals = [sum(column) for column in zip(*self.weights, strict=True)]
        shares = sorted((total / sum(totals) for total in totals), reverse=True)
        use = {
            "unused_share": shares.count(0) / len(shares),
            "effective_samples": pytest.approx(1 / sum(share**2 for share in shares)),
            "top_tenth_share": pytest.approx(sum(shares[: math.ceil(len(shares) / 10)])),
            "samples_per_input": pytest.approx(statistics.fmean(sum(w > 0 for w in row) for row in self.weights)),
        }
        by_weight = selective(self.counterfactual_weights, correct)
        return {
            "selective": {
                **judged(self.logits, self.labels)["selective"],
                "counterfactual_weight": by_weight,
                "flag": flag,
            },
            "memory_use": use,
        }


def drawn_slowly(
    layer: MemoryWrap, test: Encoded, source: Encoded, size: int, generator: torch.Generator
) -> list[dict[str, float | None]]:
    """Five times over the test, in batches of 500, each with a memory M and another draw A that judges M."""
    repeats = []
    for _ in range(5):
        tally = Tally(layer)
        for start in range(0, len(test), 500):
            chosen = torch.randperm(len(source), generator=generator)[:size].tolist()
            others = source.encodings[torch.randperm(len(source), generator=generator)[:size]]
            own = [int(layer(source.encodings[index : index + 1], others).argmax()) for index in chosen]
            for row in range(start, min(start + 500, len(test))):
                tally.judge(test.encodings[row], int(test.labels[row]), source.encodings[chosen], own)
        correct = tally.correct()
        repeats.append({"accuracy": sum(correct) / len(correct), **tally.explanations()})
    return repeats


def summary(values: list[float | None]) -> dict[str, Any]:
    known = [value for value in values if value is not None]
    if not known:
        return {"mean": None, "spread": None, "repeats": values}
    mean, spread = statistics.fmean(known), statistics.pstdev(known)
    return {"mean": pytest.approx(mean), "spread": pytest.approx(spread, abs=1e-12), "repeats": values}


# With memories that are drawn


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(layer: MemoryWrap, test: Encoded, source: Encoded, size: int, generator: torch.Generator) -> dict[str, Any]:
    """With draws of that size."""
    return drawn_scores(layer, test, source, draw_memories(len(test), source.labels, size, generator))


@pytest.mark.parametrize(
    ("inputs", "samples", "size"),
    [
        (1100, 40, 7),  # two whole batches and a part of one
        (500, 40, 7),
        (501, 12, 12),  # the whole source in another order each time
        (3, 30, 5),  # so few that some repeats have no counterfactual
        (1, 5, 3),
        (20, 6, 1),  # a memory of one
    ],
)
@pytest.mark.parametrize("at_once", [1, 2])
def test_drawn_scores_are_those_of_a_loop(
    inputs: int, samples: int, size: int, at_once: int, layer: MemoryWrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "_batches_at_once", lambda *_: at_once)
    test, source = encoded(inputs, 1), encoded(samples, 2)
    scores = drawn(layer, test, source, size, seeded(3))
    repeats = drawn_slowly(layer, test, source, size, seeded(3))
    expected = {name: summary([repeat[name] for repeat in repeats]) for name in repeats[0]}
    assert scores == {"memory_size": size, "drawn_from": samples, "batch_size": 500, **expected}


def test_a_repeat_without_counterfactuals_has_no_accuracy_on_them(layer: MemoryWrap) -> None:
    scores = drawn(layer, encoded(3, 1), encoded(30, 2), 5, seeded(6))["counterfactual_accuracy"]
    known = [value for value in scores["repeats"] if value is not None]
    assert 0 < len(known) < 5
    assert 0 < scores["mean"] == pytest.approx(sum(known) / len(known))


def test_where_no_repeat_has_counterfactuals_there_is_no_mean(layer: MemoryWrap) -> None:
    nn.init.zeros_(layer.head.second.weight)  # type: ignore[union-attr]
    scores = drawn(layer, encoded(30, 1), encoded(30, 2), 5, seeded(3))
    assert scores["counterfactual_accuracy"] == {"mean": None, "spread": None, "repeats": [None] * 5}
    assert scores["explanation_accuracy"]["repeats"] == [1.0] * 5


def test_the_same_generator_gives_the_same_scores_and_another_gives_others(layer: MemoryWrap) -> None:
    test, source = encoded(200, 1), encoded(40, 2)
    first, again, other = (drawn(layer, test, source, 5, seeded(seed)) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_a_memory_larger_than_its_source_is_refused(layer: MemoryWrap) -> None:
    drawn(layer, encoded(3, 1), encoded(10, 2), 10, seeded(3))
    with pytest.raises(SettingsError, match="memory_size is 11, but there are 10 training images"):
        drawn(layer, encoded(3, 1), encoded(10, 2), 11, seeded(3))


# With one memory for all


@pytest.mark.parametrize("inputs", [1, 500, 700])
def test_remembered_scores_are_those_of_a_loop(inputs: int, layer: MemoryWrap) -> None:
    test, memory = encoded(inputs, 1), encoded(9, 2)
    predictions = torch.tensor([0, 1, 2, 0, 1, 2, 2, 2, 0])
    tally = Tally(layer)
    for encoding, label in zip(test.encodings, test.labels.tolist(), strict=True):
        tally.judge(encoding, label, memory.encodings, predictions.tolist())
    assert inputs == 1 or min(map(tally.counterfactual_weights.count, (0, 1))) > 1  # equal doubts
    expected = {**judged(tally.logits, tally.labels), **tally.explanations(), **tally.only_remembered()}
    assert remembered_scores(layer, test, memory, predictions) == {"memory_size": 9, **expected}


def test_without_the_memory_s_own_predictions_nothing_is_reported_of_explanations(layer: MemoryWrap) -> None:
    test, memory = encoded(20, 1), encoded(1, 2)
    logits = [layer(encoding.unsqueeze(0), memory.encodings)[0] for encoding in test.encodings]
    expected = judged(logits, test.labels.tolist())
    assert remembered_scores(layer, test, memory, None) == {"memory_size": 1, **expected}


def test_four_inputs_by_hand() -> None:
    """Two memory samples at right angles, and a head that gives out the weights themselves."""
    layer = MemoryWrap(2, 2, "only_memory", "linear").double().requires_grad_(False)
    layer.head.first.weight.copy_(torch.eye(2))
    layer.head.first.bias.zero_()
    memory = Encoded(torch.eye(2, dtype=torch.float64), torch.tensor([0, 1]))
    # By cosine 0.8 -0.6, -0.6 0.8, 0.6 0.8, 0.96 0.28; by sparsemax 1 0, 0 1, 0.4 0.6, 0.84 0.16: classes 0, 1, 1, 0.
    encodings = torch.tensor([[0.8, -0.6], [-0.6, 0.8], [0.6, 0.8], [0.96, 0.28]], dtype=torch.float64)
    test = Encoded(encodings, torch.tensor([0, 1, 0, 0]))
    # The model puts both samples into class 1: the first is a counterfactual for inputs of class 0.
    scores = remembered_scores(layer, test, memory, torch.tensor([1, 1]))
    share = [1 / (1 + math.exp(-gap)) for gap in (1, 0.2, 0.68)]  # confidences, in three bins
    error = (2 - 2 * share[0] + share[1] + 1 - share[2]) / 4
    # Surest by probability are the first two, then the last, then the third, which is wrong: no order is better.
    # Weights on counterfactuals are 1, 0, 0, 1: the second and the third come first, in any order.
    by_confidence, by_weight = [0, 0, 0, 1 / 4], [1 / 2, 1 / 2, 1 / 3, 1 / 4]
    assert scores == {
        "memory_size": 2,
        "accuracy": 0.75,
        "class_accuracies": [2 / 3, 1.0],
        "confusion": [[2, 1], [0, 1]],
        "calibration_error": pytest.approx(error, abs=1e-5),  # the cosine has an epsilon
        "explanation_accuracy": 0.5,
        "counterfactual_share": 0.5,
        "example_accuracy": 0.5,  # the second input right, the third wrong
        "counterfactual_accuracy": 1.0,  # the first and the last
        "majority_vote_accuracy": 0.25,  # all vote for class 1
        "selective": {
            "confidence": curve(by_confidence, best=by_confidence),
            "counterfactual_weight": curve(by_weight, best=by_confidence),
            # Not flagged are the second and the third; of the highest probability are the first two.
            "flag": {"coverage": 0.5, "accuracy": 0.5, "confidence_accuracy": 1.0},
        },
        "memory_use": {
            "unused_share": 0.0,
            "effective_samples": pytest.approx(4**2 / (2.24**2 + 1.76**2), abs=1e-5),
            "top_tenth_share": pytest.approx(2.24 / 4, abs=1e-5),
            "samples_per_input": 1.5,
        },
    }


# Without a memory


@pytest.mark.parametrize("inputs", [1, 500, 700])
def test_standard_scores_are_those_of_a_loop(inputs: int) -> None:
    layer, test = nn.Linear(4, CLASSES).double().requires_grad_(False), encoded(inputs, 1)
    logits = [layer(encoding.unsqueeze(0))[0] for encoding in test.encodings]
    assert standard_scores(layer, test) == judged(logits, test.labels.tolist())


def test_a_class_without_inputs_has_no_accuracy() -> None:
    test = Encoded(torch.eye(4)[:2], torch.tensor([0, 2]))
    assert standard_scores(nn.Linear(4, CLASSES), test)["class_accuracies"][1] is None
