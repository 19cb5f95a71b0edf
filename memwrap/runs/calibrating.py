"""What is chosen after training, on images that were not trained on: the scale of a vote, and the calibration."""

import torch
from torch import Tensor

from memwrap.metrics import accuracy, predict_classes
from memwrap.models.classifier import MemoryClassifier
from memwrap.models.evaluation import Encoded
from memwrap.models.loading import Model
from memwrap.nn.calibration import fit_temperature, fit_vote_calibration
from memwrap.nn.memory import RememberedMemory
from memwrap.nn.modes import evaluation_mode
from memwrap.nn.probabilities import Calibration, TemperatureCalibration, head_logits_for
from memwrap.nn.reading import Reading
from memwrap.nn.similarity import CosineSimilarity
from memwrap.nn.voting import SCALES, choose_vote

LEFT_OUT = 2000  # memory images, at most, that are each left out once
LEAST = 30  # images: fewer say nothing about probabilities


def choose_scale(model: MemoryClassifier, held_out: Encoded) -> None:
    """Set the scale of a vote's similarities: the best accuracy, then the fewest images within half a point.

    held_out: images that were not trained on; without any, it is chosen by leave-one-out on the memory, whose images
    the network may have learnt.
    """
    memory = model.remembered
    assert memory is not None
    accuracies, images = [], []
    with evaluation_mode(model):
        for scale in SCALES:
            model.layer.similarity = CosineSimilarity(scale)
            reading, labels = _read_held_out(model, memory, held_out)
            assert reading.votes is not None
            accuracies.append(accuracy(predict_classes(reading.votes), labels))
            images.append(float((reading.weights > 0).sum(1).double().mean()))
    model.layer.similarity = CosineSimilarity(SCALES[choose_vote(accuracies, images)])
    memory.prepare(model.layer)


def _read_held_out(model: MemoryClassifier, memory: RememberedMemory, held_out: Encoded) -> tuple[Reading, Tensor]:
    """A reading of images that are not in the memory that they are compared with, and their labels (N,)"""
    if len(held_out):
        return model.layer.read(held_out.encodings, memory.prepared), held_out.labels
    return _leave_one_out(model, memory)


def _leave_one_out(model: MemoryClassifier, memory: RememberedMemory) -> tuple[Reading, Tensor]:
    """A reading of memory images, each without itself, and their labels (N,); of a large memory some."""
    count = min(len(memory), LEFT_OUT)
    rows = torch.arange(count, device=memory.labels.device) * len(memory) // count  # spread, as classes may be in order
    others = torch.ones(len(rows), len(memory), dtype=torch.bool, device=rows.device)
    others[torch.arange(count, device=rows.device), rows] = False
    return model.layer.read(memory.encodings[rows], memory.prepared, others), memory.labels[rows]


def calibrate(model: Model, held_out: Encoded) -> None:
    """Calibrate the probabilities of a model on images that it was not trained on; too few leave them as they are."""
    model.calibration = None
    if len(held_out) < LEAST:
        return
    with evaluation_mode(model):
        if not isinstance(model, MemoryClassifier):
            model.calibration = TemperatureCalibration(
                fit_temperature(model.layer(held_out.encodings), held_out.labels)
            )
            return
        assert model.remembered is not None
        reading = model.layer.read(held_out.encodings, model.remembered.prepared)
        model.calibration = _calibration_of(model, reading, held_out.labels)


def calibrate_by_memory(model: MemoryClassifier) -> None:
    """Calibrate a vote on its memory, whose encoder was not trained on it: each image by all others."""
    memory = model.fresh_memory()
    if len(memory) <= LEAST:
        return
    with evaluation_mode(model):
        model.calibration = _calibration_of(model, *_leave_one_out(model, memory))


def _calibration_of(model: MemoryClassifier, reading: Reading, labels: Tensor) -> Calibration:
    """What a reading of held-out images with these labels (N,) teaches about the probabilities of what decides."""
    if model.decided_by != "vote":
        return TemperatureCalibration(fit_temperature(reading.logits, labels))
    assert reading.votes is not None
    assert reading.similarity is not None
    head = head_logits_for(reading.votes, reading.head_logits, average=0.0)
    return fit_vote_calibration(reading.votes, head, reading.similarity, labels)
