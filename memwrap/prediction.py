"""A model's word on pictures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from memwrap.base import in_evaluation
from memwrap.data.containers import Folder
from memwrap.data.pictures import read_picture
from memwrap.errors import DataError, InputError
from memwrap.loading import Model
from memwrap.metrics import predicted, tops_are_counterfactuals
from memwrap.model import MemoryClassifier

AT_ONCE = 32


@dataclass(frozen=True)
class Prediction:
    """What a model makes of one picture.

    uncertain: whether the memory sample that counted most is one that the model itself puts into another class; None
    without a memory of two samples or more.
    """

    path: str
    label: int
    name: str
    probability: float
    uncertain: bool | None


@dataclass(frozen=True)
class Unreadable:
    """A file that could not be judged, and why."""

    path: str
    reason: str


def predict_files(model: Model, paths: Sequence[Path]) -> Iterator[Prediction | Unreadable]:
    """For each image file in turn, and each one in folders, what the model makes of it."""
    files = [file for path in paths for file in _files(path)]
    for start in range(0, len(files), AT_ONCE):
        yield from _predict(model, files[start : start + AT_ONCE])


def judge(model: Model, images: Tensor) -> tuple[Tensor, Tensor | None]:
    """images (B, channels, H, W) as the model takes them -> logits (B, C), and whether each is uncertain (B,)"""
    with in_evaluation(model):
        if not isinstance(model, MemoryClassifier):
            return model(images), None
        reading = model.read(images)
        memory = model.remembered
        if memory is None or memory.predictions is None:
            return reading.logits, None
        return reading.logits, tops_are_counterfactuals(reading.weights, predicted(reading.logits), memory.predictions)


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise InputError(f"{path}: there is no such file or folder; expected images")
    return [path / name for name in Folder(path).names()] if path.is_dir() else [path]


def _predict(model: Model, files: Sequence[Path]) -> list[Prediction | Unreadable]:
    transform, device = model.transform, model.reference.device
    pixels: dict[Path, Tensor] = {}
    results: dict[Path, Prediction | Unreadable] = {}
    for file in files:
        try:
            pixels[file] = read_picture(Folder(file.parent).read(file.name), transform.shape, transform.fit)
        except DataError as error:
            results[file] = Unreadable(str(file), str(error))
    if pixels:
        images = transform(torch.stack(list(pixels.values())).to(device))
        logits, uncertain = judge(model, images)
        labels, probabilities = predicted(logits).tolist(), logits.softmax(dim=1).tolist()
        for row, (file, label) in enumerate(zip(pixels, labels, strict=True)):
            name = model.classes[label] if model.classes else str(label)
            doubt = None if uncertain is None else bool(uncertain[row])
            results[file] = Prediction(str(file), label, name, probabilities[row][label], doubt)
    return [results[file] for file in files]
