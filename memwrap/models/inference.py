"""A trained model on many images: each is encoded once, and the rest is small matrix products."""

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from memwrap.data import Images, LabelledImages, RandomMemory
from memwrap.metrics import accuracy, predict_classes
from memwrap.models.base import EncoderModel
from memwrap.models.classifier import MemoryClassifier
from memwrap.nn.modes import evaluation_mode

ENCODED_AT_ONCE = 256


def encode_all(model: EncoderModel, images: Images, at_once: int = ENCODED_AT_ONCE) -> Tensor:
    """The encodings (N, D) of images, by the model in evaluation mode and full precision, on the model's device."""
    with evaluation_mode(model):
        return torch.cat([model.encode(batch) for batch in _prepared(model, images, at_once)])[: len(images)]


def _prepared(model: EncoderModel, images: Images, at_once: int) -> Iterator[Tensor]:
    """All images in batches, (n, channels, H, W) as the model takes them; the last may hold some twice."""
    device, rows = model.reference.device, torch.arange(len(images))
    if device.type == "cuda" and len(rows) > at_once:
        # Batches of one size: cuDNN takes a second or two to choose its kernels for another.
        rows = torch.cat([rows, rows[: -len(rows) % at_once]])
    for pixels in images.batches(torch.split(rows, at_once)):
        yield model.get_transform()(pixels.to(device))


def remember(model: MemoryClassifier, images: Images, labels: Tensor) -> None:
    """Let the model keep these images (M) and labels (M,) as its memory."""
    pixels = torch.cat(list(images.batches([torch.arange(len(images))])))
    model.remember(model.get_transform()(pixels.to(model.reference.device)), labels)


def accuracy_with_drawn_memory(
    model: EncoderModel, test: LabelledImages, training: LabelledImages, size: int, generator: torch.Generator
) -> float:
    """Accuracy on labelled images, with one memory of `size` training images drawn at random."""
    encodings = encode_all(model, test.images)
    with evaluation_mode(model):
        if isinstance(model, MemoryClassifier):
            chosen = RandomMemory(size).draw(training.labels, training.labels, generator)
            logits = model.layer(encodings, encode_all(model, training.images.at(chosen)))
        else:
            logits = cast(nn.Module, model.layer)(encodings)
    return accuracy(predict_classes(logits).cpu(), test.labels)
