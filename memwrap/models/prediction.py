"""Predictions for image files."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from memwrap.data import UnreadableFile, list_image_files, read_image_files
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


def predict_images(model: Model, images: Tensor) -> tuple[Tensor, Tensor | None]:
    """images (B, channels, H, W) as the model takes them -> probabilities (B, C), and whether each is uncertain (B,)"""
    with evaluation_mode(model):
        if not isinstance(model, MemoryClassifier):
            return model.probabilities(model(images)), None
        reading = model.read(images)
        memory = model.remembered
        return model.probabilities(reading), None if memory is None else memory.is_uncertain(reading)


def _predict(model: Model, files: Sequence[Path]) -> list[PredictionRecord | UnreadableFile]:
    transform = model.get_transform()
    pixels, unreadable = read_image_files(files, transform.shape, transform.fit)
    results: dict[str, PredictionRecord | UnreadableFile] = {each.path: each for each in unreadable}
    if pixels:
        found, uncertain = predict_images(
            model, transform(torch.stack(list(pixels.values())).to(model.reference.device))
        )
        labels, probabilities = predict_classes(found).tolist(), found.tolist()
        for row, (file, label) in enumerate(zip(pixels, labels, strict=True)):
            doubt = None if uncertain is None else bool(uncertain[row])
            results[str(file)] = PredictionRecord(
                path=str(file),
                prediction=label,
                prediction_name=model.class_name(label),
                probability=probabilities[row][label],
                uncertain=doubt,
                decided_by=model.decided_by,
            )
    return [results[str(file)] for file in files]
