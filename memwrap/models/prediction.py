"""Predictions for image files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from memwrap.data import UnreadableFile, list_image_files, read_image_files
from memwrap.explain.explanation import other_predictions
from memwrap.explain.record import PredictionRecord
from memwrap.metrics import predict_classes
from memwrap.models.classifier import MemoryClassifier
from memwrap.models.loading import Model
from memwrap.nn.modes import evaluation_mode

AT_ONCE = 32


def predict_files(model: Model, paths: Sequence[Path]) -> Iterator[PredictionRecord | UnreadableFile]:
    """The prediction for each image file in turn, and for each file in folders; or why it cannot be read."""
    files = list_image_files(paths)
    for start in range(0, len(files), AT_ONCE):
        yield from _predict(model, files[start : start + AT_ONCE])


@dataclass(frozen=True)
class Predictions:
    """Of B images: probabilities (B, C), whether each is uncertain, bool (B,) or None, and the class of what did not
    decide, a head or a vote, where there is one.
    """

    probabilities: Tensor
    uncertain: Tensor | None
    others: list[int | None]


def predict_images(model: Model, images: Tensor) -> Predictions:
    """The predictions for images (B, channels, H, W) as the model takes them."""
    with evaluation_mode(model):
        if not isinstance(model, MemoryClassifier):
            return Predictions(model.probabilities(model(images)), None, [None] * len(images))
        reading = model.read(images)
        uncertain = model.fresh_memory().is_uncertain(reading)
        return Predictions(model.probabilities(reading), uncertain, other_predictions(reading, model.decided_by))


def _predict(model: Model, files: Sequence[Path]) -> list[PredictionRecord | UnreadableFile]:
    transform = model.get_transform()
    pixels, unreadable = read_image_files(files, transform.shape, transform.fit)
    results: dict[str, PredictionRecord | UnreadableFile] = {each.path: each for each in unreadable}
    if pixels:
        found = predict_images(model, transform(torch.stack(list(pixels.values())).to(model.reference.device)))
        labels, probabilities = predict_classes(found.probabilities).tolist(), found.probabilities.tolist()
        for row, (file, label, other) in enumerate(zip(pixels, labels, found.others, strict=True)):
            doubt = None if found.uncertain is None else bool(found.uncertain[row])
            results[str(file)] = PredictionRecord(
                path=str(file),
                prediction=label,
                prediction_name=model.class_name(label),
                probability=probabilities[row][label],
                uncertain=doubt,
                decided_by=model.decided_by,
                other_prediction=other,
                other_prediction_name=None if other is None else model.class_name(other),
            )
    return [results[str(file)] for file in files]
