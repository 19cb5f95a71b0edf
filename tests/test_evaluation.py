"""Scores from encodings, against plain loops over inputs and the layer's own word on each."""

import math
import statistics
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from memwrap.errors import SettingsError
from memwrap.evaluation import Encoded, drawn_scores, remembered_scores, standard_scores
from memwrap.layer import MemoryWrap

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


def judged(logits: list[Tensor], labels: list[int]) -> dict[str, Any]:
    """What is said of every classifier: logits (C,) and label of each input."""
    confusion = [[0] * CLASSES for _ in range(CLASSES)]
    bins: dict[int, list[float]] = {}
    for row, label in zip(logits, labels, strict=True):
        probabilities = [math.exp(value) for value in row.tolist()]
        confidence, predicted = max(probabilities) / sum(probabilities), int(row.argmax())
        confusion[label][predicted] += 1
        # Fifteen bins, each with its upper edge.
        bins.setdefault(math.ceil(confidence * 15), []).append((predicted == label) - confidence)
    return {
        "accuracy": sum(confusion[label][label] for label in range(CLASSES)) / len(labels),
        "class_accuracies": [row[label] / sum(row) if sum(row) else None for label, row in enumerate(confusion)],
        "confusion": confusion,
        "calibration_error": pytest.approx(sum(abs(sum(gaps)) for gaps in bins.values()) / len(labels)),
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

    def judge(self, encoding: Tensor, label: int, memory: Tensor, memory_predictions: list[int]) -> None:
        reading = self.layer.read(encoding.unsqueeze(0), memory)
        weights, predicted = reading.weights[0].tolist(), int(reading.logits[0].argmax())
        strongest = weights.index(max(weights))
        self.logits.append(reading.logits[0])
        self.labels.append(label)
        self.doubtful.append(memory_predictions[strongest] != predicted)
        self.votes.append(vote(weights, memory_predictions))

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
def test_drawn_scores_are_those_of_a_loop(inputs: int, samples: int, size: int, layer: MemoryWrap) -> None:
    test, source = encoded(inputs, 1), encoded(samples, 2)
    scores = drawn_scores(layer, test, source, size, seeded(3))
    repeats = drawn_slowly(layer, test, source, size, seeded(3))
    expected = {name: summary([repeat[name] for repeat in repeats]) for name in repeats[0]}
    assert scores == {"memory_size": size, "drawn_from": samples, "batch_size": 500, **expected}


def test_a_repeat_without_counterfactuals_has_no_accuracy_on_them(layer: MemoryWrap) -> None:
    scores = drawn_scores(layer, encoded(3, 1), encoded(30, 2), 5, seeded(6))["counterfactual_accuracy"]
    known = [value for value in scores["repeats"] if value is not None]
    assert 0 < len(known) < 5
    assert 0 < scores["mean"] == pytest.approx(sum(known) / len(known))


def test_where_no_repeat_has_counterfactuals_there_is_no_mean(layer: MemoryWrap) -> None:
    nn.init.zeros_(layer.head.second.weight)  # type: ignore[union-attr]
    scores = drawn_scores(layer, encoded(30, 1), encoded(30, 2), 5, seeded(3))
    assert scores["counterfactual_accuracy"] == {"mean": None, "spread": None, "repeats": [None] * 5}
    assert scores["explanation_accuracy"]["repeats"] == [1.0] * 5


def test_the_same_generator_gives_the_same_scores_and_another_gives_others(layer: MemoryWrap) -> None:
    test, source = encoded(200, 1), encoded(40, 2)
    first, again, other = (drawn_scores(layer, test, source, 5, seeded(seed)) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_a_memory_larger_than_its_source_is_refused(layer: MemoryWrap) -> None:
    drawn_scores(layer, encoded(3, 1), encoded(10, 2), 10, seeded(3))
    with pytest.raises(SettingsError, match="memory_size is 11, but there are 10 training images"):
        drawn_scores(layer, encoded(3, 1), encoded(10, 2), 11, seeded(3))


# With one memory for all


@pytest.mark.parametrize("inputs", [1, 500, 700])
def test_remembered_scores_are_those_of_a_loop(inputs: int, layer: MemoryWrap) -> None:
    test, memory = encoded(inputs, 1), encoded(9, 2)
    predictions = torch.tensor([0, 1, 2, 0, 1, 2, 2, 2, 0])
    tally = Tally(layer)
    for encoding, label in zip(test.encodings, test.labels.tolist(), strict=True):
        tally.judge(encoding, label, memory.encodings, predictions.tolist())
    expected = {**judged(tally.logits, tally.labels), **tally.explanations()}
    assert remembered_scores(layer, test, memory, predictions) == {"memory_size": 9, **expected}


def test_without_the_memory_s_own_predictions_nothing_is_said_of_explanations(layer: MemoryWrap) -> None:
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
    # By cosine 1 0, 0 1, 0.6 0.8 and 0.8 0.6; by sparsemax 1 0, 0 1, 0.4 0.6 and 0.6 0.4: classes 0, 1, 1, 0.
    encodings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]], dtype=torch.float64)
    test = Encoded(encodings, torch.tensor([0, 1, 0, 0]))
    # The model puts both samples into class 1: the first is a counterfactual for inputs of class 0.
    scores = remembered_scores(layer, test, memory, torch.tensor([1, 1]))
    share = 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(-0.2))  # confidences, in two bins
    error = (abs(2 - 2 * share[0]) + abs(1 - 2 * share[1])) / 4
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
