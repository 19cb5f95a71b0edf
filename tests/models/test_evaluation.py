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
from memwrap.nn.calibration import VoteCalibration
from memwrap.nn.layer import MemoryWrap
from memwrap.nn.memory import RememberedMemory
from memwrap.nn.probabilities import Calibration, TemperatureCalibration, reading_probabilities
from memwrap.nn.reading import MemoryLayer, Reading
from memwrap.nn.vote_layer import VoteLayer

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


def judged(logits: list[Tensor], labels: list[int], shown: list[Tensor] | None = None) -> dict[str, Any]:
    """What is said of every classifier: logits (C,) and label of each input. shown: logits after calibration."""
    confusion = [[0] * CLASSES for _ in range(CLASSES)]
    bins: dict[int, list[float]] = {}
    doubts, correct = [], []
    for row, calibrated, label in zip(logits, logits if shown is None else shown, labels, strict=True):
        probabilities = [math.exp(value) for value in calibrated.tolist()]
        confidence, predicted = max(probabilities) / sum(probabilities), int(row.argmax())
        confusion[label][predicted] += 1
        # Fifteen bins, each with its upper edge.
        bins.setdefault(math.ceil(confidence * 15), []).append((predicted == label) - confidence)
        doubts.append(1 - confidence)
        correct.append(predicted == label)
    scores = {
        "accuracy": sum(confusion[label][label] for label in range(CLASSES)) / len(labels),
        "class_accuracies": [row[label] / sum(row) if sum(row) else None for label, row in enumerate(confusion)],
        "confusion": confusion,
        "calibration_error": pytest.approx(sum(abs(sum(gaps)) for gaps in bins.values()) / len(labels)),
        "selective": {"confidence": selective(doubts, correct)},
    }
    if shown is None:
        return scores
    before = judged(logits, labels)
    area = before["selective"]["confidence"]["area"]
    return {**scores, "uncalibrated": {"calibration_error": before["calibration_error"], "area": area}}


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

    def __init__(self, layer: MemoryLayer, calibration: Calibration | None = None) -> None:
        self.layer, self.calibration = layer, calibration
        self.logits: list[Tensor] = []
        self.shown: list[Tensor] = []  # logits after calibration
        self.heads: list[int] = []  # the classes of the head and of the vote by label
        self.label_votes: list[int] = []
        self.labels: list[int] = []
        self.doubtful: list[bool] = []
        self.votes: list[int] = []
        self.counterfactual_weights: list[float] = []
        self.weights: list[list[float]] = []

    def judge(self, encoding: Tensor, label: int, memory: Tensor, memory_predictions: list[int]) -> None:
        self._judge(self.layer.read(encoding.unsqueeze(0), memory), label, memory_predictions)

    def judge_by(self, memory: RememberedMemory, encoding: Tensor, label: int, memory_classes: list[int]) -> None:
        """With the memory that a model remembers, whose labels are known, and the class of each sample of it."""
        reading = self.layer.read(encoding.unsqueeze(0), memory.prepared)
        head = reading.logits if self.layer.decided_by == "head" else reading.head_logits
        sums = [0.0] * CLASSES
        for weight, each in zip(reading.weights[0].tolist(), memory.labels.tolist(), strict=True):
            sums[each] += weight
        if head is not None:
            self.heads.append(int(head.argmax()))
        self.label_votes.append(sums.index(max(sums)))
        self.shown.append(reading_probabilities(reading, self.calibration)[0].log())
        self._judge(reading, label, memory_classes)
        # A head that knows the class of the vote, and says another, raises a doubt as well.
        if reading.head_logits is not None and self.label_votes[-1] < head.shape[1]:
            self.doubtful[-1] |= self.heads[-1] != self.label_votes[-1]

    def deciders(self) -> dict[str, float | None]:
        pairs = {
            "head_accuracy": (self.heads, self.labels),
            "vote_accuracy": (self.label_votes, self.labels),
            "agreement": (self.heads, self.label_votes),
        }
        # Without a head there is one decision alone.
        return {name: statistics.fmean(map(int.__eq__, *pair)) if all(pair) else None for name, pair in pairs.items()}

    def judged(self) -> dict[str, Any]:
        return judged(self.logits, self.labels, None if self.calibration is None else self.shown)

    def _judge(self, reading: Reading, label: int, memory_predictions: list[int]) -> None:
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
        confidences = [float(row.softmax(0).max()) for row in self.shown]
        sure = [right for right, doubt in zip(correct, self.doubtful, strict=True) if not doubt]
        by_confidence = errors_by_doubt([1 - confidence for confidence in confidences], correct)
        flag = {
            "coverage": len(sure) / len(correct),
            "accuracy": sum(sure) / len(sure) if sure else None,
            "confidence_accuracy": pytest.approx(1 - by_confidence[len(sure) - 1]) if sure else None,
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
                **self.judged()["selective"],
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


def remembered(layer: MemoryLayer, samples: Encoded) -> RememberedMemory:
    memory = RememberedMemory(torch.zeros(len(samples), 1, 1, 1), samples.labels, samples.encodings)
    memory.prepare(layer)
    return memory


def own_predictions(layer: MemoryWrap, samples: Tensor) -> list[int]:
    """The class of each sample (M, D), with the others as its memory."""
    others = [torch.cat([samples[:row], samples[row + 1 :]]) for row in range(len(samples))]
    return [int(layer(samples[row : row + 1], memory).argmax()) for row, memory in enumerate(others)]


@pytest.mark.parametrize("calibration", [None, TemperatureCalibration(0.5), TemperatureCalibration(3.0)])
@pytest.mark.parametrize("inputs", [1, 500, 700])
def test_remembered_scores_are_those_of_a_loop(inputs: int, calibration: Calibration | None, layer: MemoryWrap) -> None:
    nn.init.normal_(layer.head.second.weight)  # type: ignore[union-attr]  # so that the classes of samples differ
    test, samples = encoded(inputs, 1), encoded(9, 2)
    memory, own = remembered(layer, samples), own_predictions(layer, samples.encodings)
    assert len(set(own)) > 1
    tally = Tally(layer, calibration)
    for encoding, label in zip(test.encodings, test.labels.tolist(), strict=True):
        tally.judge_by(memory, encoding, label, own)
    assert inputs == 1 or min(map(tally.counterfactual_weights.count, (0, 1))) > 1  # equal doubts
    expected = {**tally.judged(), **tally.deciders(), **tally.explanations(), **tally.only_remembered()}
    assert remembered_scores(layer, test, memory, calibration) == {"memory_size": 9, **expected}


VOTE_CALIBRATION = VoteCalibration((1.0, 0.5, 0.7), (1.2, 0.8, 0.1), (0.9, 0.4, 0.2), 0.6)


@pytest.mark.parametrize(
    ("options", "calibration"),
    [
        ({}, None),
        ({}, VOTE_CALIBRATION),
        ({"project": 3, "scale": 2.0}, VOTE_CALIBRATION),
        ({"head_classes": 2}, None),
        ({"head_classes": 2}, VOTE_CALIBRATION),
        ({"head_classes": 0}, None),
        ({"head_classes": 0}, VOTE_CALIBRATION),
        ({"decide": "head"}, None),
        ({"decide": "head"}, TemperatureCalibration(2.0)),
    ],
)
def test_scores_of_a_vote_are_those_of_a_loop(options: dict[str, Any], calibration: Calibration | None) -> None:
    layer = VoteLayer(4, CLASSES, **options).double().requires_grad_(False)
    test, samples = encoded(600, 1), encoded(15, 2)
    memory, tally = remembered(layer, samples), Tally(layer, calibration)
    for encoding, label in zip(test.encodings, test.labels.tolist(), strict=True):
        tally.judge_by(memory, encoding, label, samples.labels.tolist())  # samples count by label
    assert 0 < sum(tally.doubtful) < 600
    expected = {**tally.judged(), **tally.deciders(), **tally.explanations(), **tally.only_remembered()}
    assert remembered_scores(layer, test, memory, calibration) == {"memory_size": 15, **expected}


def test_calibration_changes_no_prediction_and_says_what_was_before() -> None:
    layer = VoteLayer(4, CLASSES).double().requires_grad_(False)
    test, memory = encoded(600, 1), remembered(layer, encoded(15, 2))
    before, after = (remembered_scores(layer, test, memory, each) for each in (None, VOTE_CALIBRATION))
    assert "uncalibrated" not in before
    assert after["uncalibrated"] == {
        "calibration_error": before["calibration_error"],
        "area": before["selective"]["confidence"]["area"],
    }
    for name in ("accuracy", "confusion", "head_accuracy", "vote_accuracy", "agreement", "explanation_accuracy"):
        assert after[name] == before[name]
    assert after["calibration_error"] != before["calibration_error"]


def test_without_the_memory_s_own_predictions_nothing_is_reported_of_explanations(layer: MemoryWrap) -> None:
    test, samples = encoded(20, 1), encoded(1, 2)
    logits = [layer(encoding.unsqueeze(0), samples.encodings)[0] for encoding in test.encodings]
    heads, votes = [int(row.argmax()) for row in logits], [int(samples.labels)] * 20
    expected = {
        **judged(logits, test.labels.tolist()),
        "head_accuracy": statistics.fmean(map(int.__eq__, heads, test.labels.tolist())),
        "vote_accuracy": statistics.fmean(map(int.__eq__, votes, test.labels.tolist())),
        "agreement": statistics.fmean(map(int.__eq__, heads, votes)),
    }
    assert remembered_scores(layer, test, remembered(layer, samples)) == {"memory_size": 1, **expected}


def test_four_inputs_by_hand() -> None:
    """A memory sample, two equal ones at right angles to it, and a head that gives out their weights."""
    layer = MemoryWrap(2, 2, "only_memory", "linear").double().requires_grad_(False)
    layer.head.first.weight.copy_(torch.eye(2))
    layer.head.first.bias.zero_()
    samples = torch.tensor([[1, 0], [0, 1], [0, 1]], dtype=torch.float64)
    memory = remembered(layer, Encoded(samples, torch.tensor([1, 1, 0])))
    # By cosine .8 -.6 -.6, -.6 .8 .8, .6 .8 .8 and .96 .28 .28; by sparsemax 1 0 0, 0 .5 .5, .2 .4 .4 (threshold .4)
    # and .787 .107 .107 (.52 / 3): logits 1 0, 0 1, .2 .8 and .787 .213, classes 0, 1, 1, 0.
    encodings = torch.tensor([[0.8, -0.6], [-0.6, 0.8], [0.6, 0.8], [0.96, 0.28]], dtype=torch.float64)
    test = Encoded(encodings, torch.tensor([0, 1, 0, 0]))
    # The model puts all samples into class 1, as each is compared with the others alone: the first is a counterfactual
    # for inputs of class 0. By label they vote 0 1, .5 .5, .4 .6 and .107 .893: for 1, 0 (the lower one), 1, 1.
    assert memory.predictions.tolist() == [1, 1, 1]
    scores = remembered_scores(layer, test, memory)
    lead = 2 * (0.96 - 0.52 / 3) - 1
    share = [1 / (1 + math.exp(-gap)) for gap in (1, 0.6, lead)]  # confidences: .73, .646 and .640, in two bins
    error = (2 * (1 - share[0]) + abs(1 - share[1] - share[2])) / 4
    # Surest by probability are the first two, then the third, which is wrong, then the last.
    # Weights on counterfactuals are 1, 0, 0, 1: the second and the third come first, in any order.
    by_confidence, by_weight, best = [0, 0, 1 / 3, 1 / 4], [1 / 2, 1 / 2, 1 / 3, 1 / 4], [0, 0, 0, 1 / 4]
    totals = [1.2 + 0.96 - 0.52 / 3, 0.9 + 0.28 - 0.52 / 3]
    assert scores == {
        "memory_size": 3,
        "head_accuracy": 0.75,
        "vote_accuracy": 0.0,
        "agreement": 0.25,
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
            "confidence": curve(by_confidence, best=best),
            "counterfactual_weight": curve(by_weight, best=best),
            # Not flagged are the second and the third; of the highest probability are the first two.
            "flag": {"coverage": 0.5, "accuracy": 0.5, "confidence_accuracy": 1.0},
        },
        "memory_use": {
            "unused_share": 0.0,
            "effective_samples": pytest.approx(4**2 / (totals[0] ** 2 + 2 * totals[1] ** 2), abs=1e-5),
            "top_tenth_share": pytest.approx(totals[0] / 4, abs=1e-5),
            "samples_per_input": 9 / 4,
        },
    }


# Without a memory


@pytest.mark.parametrize("inputs", [1, 500, 700])
def test_standard_scores_are_those_of_a_loop(inputs: int) -> None:
    layer, test = nn.Linear(4, CLASSES).double().requires_grad_(False), encoded(inputs, 1)
    logits = [layer(encoding.unsqueeze(0))[0] for encoding in test.encodings]
    assert standard_scores(layer, test) == judged(logits, test.labels.tolist())
    cooled = judged(logits, test.labels.tolist(), [row / 3 for row in logits])
    assert standard_scores(layer, test, TemperatureCalibration(3.0)) == cooled


def test_a_class_without_inputs_has_no_accuracy() -> None:
    test = Encoded(torch.eye(4)[:2], torch.tensor([0, 2]))
    assert standard_scores(nn.Linear(4, CLASSES), test)["class_accuracies"][1] is None
