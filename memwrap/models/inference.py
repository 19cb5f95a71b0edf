"""A trained model on many images: each is encoded once, and the rest is small matrix products."""

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor, nn

from memwrap.data import Images, LabelledImages, RandomMemory
from memwrap.metrics import accuracy, predict_classes
from memwrap.models.base import EncoderModel
from memwrap.models.classifier import MemoryClassifier
from memwrap.nn.memory import RememberedMemory
from memwrap.nn.modes import exact_evaluation

ENCODED_AT_ONCE = 256  # images
PIXELS_AT_ONCE = 1 << 20  # of these images together


def encode_all(model: EncoderModel, images: Images, at_once: int | None = None) -> Tensor:
    """The encodings (N, D) of images, by the model in evaluation mode and full precision, on the model's device."""
    at_once = at_once or encoded_at_once(images)
    if not len(images):
        return model.reference.new_empty(0, model.in_features)
    with exact_evaluation(model):
        return torch.cat([model.encode(batch) for batch in _prepared(model, images, at_once)])[: len(images)]


def _prepared(model: EncoderModel, images: Images, at_once: int) -> Iterator[Tensor]:
    """All images in batches, (n, channels, H, W) as the model takes them; the last may hold some twice."""
    device, rows = model.reference.device, torch.arange(len(images))
    if device.type == "cuda" and len(rows) > at_once:
        # Batches of one size: cuDNN takes a second or two to choose its kernels for another.
        rows = torch.cat([rows, rows[: -len(rows) % at_once]])
    for pixels in images.batches(torch.split(rows, at_once)):
        yield model.get_transform()(pixels.to(device))


def remember(model: MemoryClassifier, images: LabelledImages) -> None:
    """Let the model keep these images as its memory, with their labels and names."""
    rows = torch.split(torch.arange(len(images)), encoded_at_once(images.images))
    batches = zip(images.images.batches(rows), torch.split(images.labels, len(rows[0])), strict=True)
    model.remember(batches, names=images.names)


def remember_encoded(model: MemoryClassifier, images: LabelledImages, encodings: Tensor) -> None:
    """Let the model keep images whose encodings (M, D), by its weights as they are, are known."""
    rows = torch.split(torch.arange(len(images)), encoded_at_once(images.images))
    pixels = torch.cat(list(images.images.batches(rows))).to(encodings.device)
    model.restore(RememberedMemory(pixels, images.labels.to(encodings.device), encodings, images.names))


def encoded_at_once(images: Images, most: int = ENCODED_AT_ONCE) -> int:
    """How many images are encoded together: fewer of large ones, whose maps would leave the CPU's caches."""
    _, height, width = images.shape
    return max(1, min(most, PIXELS_AT_ONCE // (height * width)))


def accuracy_with_drawn_memory(
    model: EncoderModel, test: LabelledImages, training: LabelledImages, size: int, generator: torch.Generator
) -> float:
    """Accuracy on labelled images, with one memory of `size` training images drawn at random."""
    encodings = encode_all(model, test.images)
    with exact_evaluation(model):
        if isinstance(model, MemoryClassifier):
            chosen = RandomMemory(size).draw(training.labels, training.labels, generator)
            memory = model.layer.prepare(encode_all(model, training.images.at(chosen)), training.labels[chosen])
            logits = model.layer(encodings, memory)
        else:
            logits = cast(nn.Module, model.layer)(encodings)
    return accuracy(predict_classes(logits).cpu(), test.labels)
