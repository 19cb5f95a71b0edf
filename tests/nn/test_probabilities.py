"""The probabilities of a reading: whatever calibrates them, they are of the same class as the logits."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from memwrap import Reading, VoteLayer
from memwrap.metrics import predict_classes
from memwrap.nn.calibration import VoteCalibration, calibrated_probabilities
from memwrap.nn.probabilities import (
    TemperatureCalibration,
    head_logits_for,
    reading_probabilities,
    scaled_softmax,
    temperature_of,
)

CLASSES, FEATURES = 5, 6
seeds = st.integers(0, 10**6)
CALIBRATION = VoteCalibration((1.0, 0.5, 0.7), (1.2, 0.8, 0.1), (0.9, 0.4, 0.2), 0.6)


def read(seed: int, samples: int = 20, head_classes: int | None = None, decide: str = "vote") -> Reading:
    generator = torch.Generator().manual_seed(seed)
    layer = VoteLayer(FEATURES, CLASSES, scale=4.0, decide=decide, head_classes=head_classes).requires_grad_(False)
    encodings, memory = torch.randn(30 + samples, FEATURES, generator=generator).split([30, samples])
    return layer.read(encodings, layer.prepare(memory, torch.randint(CLASSES, (samples,), generator=generator)))


@given(seeds, st.sampled_from([None, 3, 0]), st.sampled_from([None, CALIBRATION]))
def test_of_a_vote_the_class_stays_the_most_probable(
    seed: int, head_classes: int | None, calibration: VoteCalibration | None
) -> None:
    reading = read(seed, head_classes=head_classes)
    probabilities = reading_probabilities(reading, calibration)
    assert torch.equal(predict_classes(probabilities), predict_classes(reading.votes))
    assert_close(probabilities.sum(1), torch.ones_like(probabilities[:, 0]))
    assert (probabilities >= 0).all()
    if calibration is None:
        assert_close(probabilities, reading.votes)
    elif head_classes is None:
        assert reading.head_logits is not None
        expected = calibrated_probabilities(CALIBRATION, reading.votes, reading.head_logits, reading.similarity)
        assert_close(probabilities, expected, atol=0, rtol=0)


@given(seeds, st.floats(0.05, 20))
def test_of_logits_the_temperature_divides_them(seed: int, temperature: float) -> None:
    reading = read(seed, decide="head")
    for calibration, divisor in ((None, 1.0), (TemperatureCalibration(temperature), temperature)):
        assert temperature_of(calibration) == divisor
        probabilities = reading_probabilities(reading, calibration)
        for row, logits in zip(probabilities, reading.logits.double(), strict=True):
            powers = [math.exp(float(logit - logits.max()) / divisor) for logit in logits]
            assert row.tolist() == pytest.approx([power / sum(powers) for power in powers], abs=1e-5)
        assert torch.equal(predict_classes(probabilities), predict_classes(reading.logits))


def test_a_vote_s_calibration_has_no_temperature() -> None:
    assert temperature_of(CALIBRATION) == 1.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_probabilities_are_in_float32_at_least(dtype: torch.dtype) -> None:
    found = scaled_softmax(torch.tensor([[1.0, 2.0, 0.5]], dtype=dtype), TemperatureCalibration(2.0))
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert_close(found.float(), torch.tensor([[0.5, 1.0, 0.25]]).softmax(1))


# Heads that know fewer classes


def test_a_head_that_knows_all_classes_is_taken_at_its_word() -> None:
    votes, logits = torch.rand(3, 4), torch.randn(3, 4)
    assert head_logits_for(votes, logits, average=2.0) is logits


def log_odds(logits: Tensor, label: int) -> float:
    probability = float(logits.double().softmax(0)[label])
    return math.log(probability) - math.log1p(-probability)


@given(seeds, st.floats(-5, 5))
def test_of_a_class_that_the_head_does_not_know_its_log_odds_are_average(seed: int, average: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    votes, logits = torch.rand(6, CLASSES, generator=generator), torch.randn(6, 3, generator=generator)
    padded = head_logits_for(votes, logits, average)
    assert padded.shape == (6, CLASSES)
    for row in range(6):
        winner = int(votes[row].argmax())
        if winner >= 3:
            assert log_odds(padded[row], winner) == pytest.approx(average, abs=1e-6)
        else:
            # Classes that it does not know have hardly a probability, and take none from those that it knows.
            known = logits[row].double().softmax(0)
            assert_close(padded[row].softmax(0)[:3], known, atol=1e-9, rtol=0)
        assert_close(padded[row, :3] - padded[row, :1], (logits[row] - logits[row, :1]).double())


@given(seeds, st.floats(-5, 5))
def test_without_a_head_all_log_odds_are_average(seed: int, average: float) -> None:
    votes = torch.rand(6, CLASSES, generator=torch.Generator().manual_seed(seed))
    padded = head_logits_for(votes, None, average)
    for row in range(6):
        assert log_odds(padded[row], int(votes[row].argmax())) == pytest.approx(average, abs=1e-6)


def test_one_class_is_certain() -> None:
    assert head_logits_for(torch.ones(2, 1), None, 1.0).shape == (2, 1)
    layer = VoteLayer(FEATURES, 1, head_classes=0)
    reading = layer.read(torch.randn(2, FEATURES), layer.prepare(torch.randn(3, FEATURES), torch.tensor([0, 0, 0])))
    for calibration in (None, CALIBRATION):
        assert reading_probabilities(reading, calibration).tolist() == [[1.0], [1.0]]
