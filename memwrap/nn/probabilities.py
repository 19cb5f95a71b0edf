"""The probabilities of a reading, calibrated if there is a calibration."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import ConfigDict, Field
from torch import Tensor
from torch.nn import functional

from memwrap.metrics.checks import first_argmax
from memwrap.nn.calibration import (
    LEAST_TEMPERATURE,
    MOST_TEMPERATURE,
    VoteCalibration,
    calibrated_probabilities,
)
from memwrap.nn.precision import to_full_precision
from memwrap.nn.reading import Reading

_UNLIKELY = 30.0  # by which the logit of a class that a head does not know is below the least


@dataclass(frozen=True)
class TemperatureCalibration:
    """The number by which logits are divided before their softmax."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    temperature: Annotated[float, Field(ge=LEAST_TEMPERATURE, le=MOST_TEMPERATURE)]


Calibration = TemperatureCalibration | VoteCalibration


def reading_probabilities(reading: Reading, calibration: Calibration | None) -> Tensor:
    """The probabilities (B, C) of a reading; the class of the largest logit stays the most probable."""
    if isinstance(calibration, VoteCalibration):
        return _vote_probabilities(calibration, reading)
    return scaled_softmax(reading.logits, calibration)


def scaled_softmax(logits: Tensor, calibration: TemperatureCalibration | None) -> Tensor:
    """logits (B, C) -> probabilities (B, C), in float32 at least"""
    return (to_full_precision(logits) / temperature_of(calibration)).softmax(dim=1)


def temperature_of(calibration: Calibration | None) -> float:
    """1 unless logits are calibrated by a temperature."""
    return calibration.temperature if isinstance(calibration, TemperatureCalibration) else 1.0


def head_logits_for(votes: Tensor, head_logits: Tensor | None, average: float) -> Tensor:
    """The head's logits for all classes (B, C) of votes (B, C); head_logits (B, C') of those that it knows.

    Of other classes it says nothing: where they have most of the vote, its log-odds are taken as `average`.
    """
    known = 0 if head_logits is None else head_logits.shape[1]
    if head_logits is not None and known == votes.shape[1]:
        return head_logits
    if head_logits is None:
        padded = votes.new_zeros(votes.shape, dtype=torch.float64)
    else:
        padded = functional.pad(head_logits.double(), (0, votes.shape[1] - known))
        padded[:, known:] = padded[:, :known].amin(1, keepdim=True) - _UNLIKELY
    places = first_argmax(votes).unsqueeze(1)
    others = padded.scatter(1, places, -torch.inf).logsumexp(1, keepdim=True)
    if votes.shape[1] == 1:
        return padded
    return torch.where(places < known, padded, padded.scatter(1, places, others + average))


def _vote_probabilities(calibration: VoteCalibration, reading: Reading) -> Tensor:
    votes, similarity = reading.votes, reading.similarity
    assert votes is not None
    assert similarity is not None
    logits = head_logits_for(votes, reading.head_logits, calibration.means[1])
    return calibrated_probabilities(calibration, votes, logits, similarity)
