"""What a memory costs when a trained model predicts."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from memwrap.bench.packages import MissingPackageError
from memwrap.bench.published_loop import published_model
from memwrap.bench.record import Finding, LeftOut, row_of
from memwrap.bench.stand import Stand, images_for
from memwrap.bench.timing import Contestant
from memwrap.model import MemoryClassifier

PART = "inference"
UNIT = "batch"


def measure(stand: Stand, encoder: str) -> Iterator[Finding]:
    """A batch with remembered samples beside a batch without a memory, and beside one that encodes its memory anew."""
    base, wrapped = standard(stand, encoder), memory_model(stand, encoder)
    images, memory = (
        stand.normalised(wrapped, count) for count in (stand.amounts.inference_batch, stand.amounts.memory)
    )
    wrapped.remember(memory, images_for(len(memory)).labels)
    size = len(memory)
    others = [predicting(stand, f"Memory Wrap, {size} remembered", lambda: wrapped(images), memory=size)]
    subject = f"predicting {len(images)} images"
    try:
        published = published_model(wrapped).eval()
        name = f"published layer, {size} encoded with each batch"
        others.append(predicting(stand, name, lambda: published(images, memory), memory=size))
    except MissingPackageError as error:
        yield LeftOut(PART, f"{encoder}, {subject} with the published layer", str(error))
    for compared in stand.stopwatch.compare(base, others, stand.amounts.rounds):
        yield row_of(PART, subject, encoder, UNIT, compared)


def standard(stand: Stand, encoder: str) -> Contestant:
    """A model without a memory."""
    model = stand.model(stand.settings(encoder, {"variant": "standard"})).eval()
    images = stand.normalised(model, stand.amounts.inference_batch)
    return predicting(stand, "Standard", lambda: model(images), memory=0)


def memory_model(stand: Stand, encoder: str) -> MemoryClassifier:
    """One with a memory, in evaluation mode, of which nothing is remembered yet."""
    model = stand.model(stand.settings(encoder, {"variant": "memory_wrap"})).eval()
    assert isinstance(model, MemoryClassifier)  # by its variant
    return model


def predicting(stand: Stand, name: str, logits: Callable[[], Tensor], **facts: Any) -> Contestant:
    """A turn of several batches, without gradients."""

    def run() -> None:
        with torch.inference_mode():
            for _ in range(stand.amounts.batches):
                logits()

    precision = "fp32, convolutions in TF32" if stand.on_gpu else "fp32"
    conditions = {"batch": stand.amounts.inference_batch, "precision": precision, "channels_last": False, **facts}
    return Contestant(name, run, stand.amounts.batches, facts=conditions)
