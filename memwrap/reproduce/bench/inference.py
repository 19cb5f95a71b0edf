"""What a memory costs when a trained model predicts."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from memwrap.models.classifier import MemoryClassifier
from memwrap.models.loading import Model
from memwrap.reproduce.bench.packages import MissingPackageError
from memwrap.reproduce.bench.published_loop import published_model
from memwrap.reproduce.bench.record import Finding, LeftOut, row_of
from memwrap.reproduce.bench.stand import BenchContext
from memwrap.reproduce.bench.timing import Candidate

PART = "inference"
UNIT = "batch"


def measure(stand: BenchContext, encoder: str) -> Iterator[Finding]:
    """A batch with remembered samples beside a batch without a memory, and beside one that encodes its memory anew."""
    plain, wrapped = standard_model(stand, encoder), memory_model(stand, encoder)
    images, memory = (
        stand.normalised(wrapped, count) for count in (stand.amounts.inference_batch, stand.amounts.memory)
    )
    wrapped.remember(memory, stand.supply.take(len(memory)).labels)
    size = len(memory)
    others: dict[str, Callable[[], Tensor]] = {f"Memory Wrap, {size} remembered": lambda: wrapped(images)}
    subject = f"predicting {len(images)} images"
    try:
        published = published_model(wrapped).eval()
        others[f"published layer, {size} encoded with each batch"] = lambda: published(images, memory)
    except MissingPackageError as error:
        yield LeftOut(PART, f"{encoder}, {subject} with the published layer", str(error))
    # On a GPU also without anybody waiting for a class: then Standard runs ahead, and our check of values waits alone.
    for read in (True, False) if stand.on_gpu else (True,):
        base = predicting(stand, "Standard", lambda: plain(images), read, memory=0)
        contestants = [predicting(stand, name, logits, read, memory=size) for name, logits in others.items()]
        for compared in stand.stopwatch.compare(base, contestants, stand.amounts.rounds):
            yield row_of(PART, subject if read else f"{subject}, none read", encoder, UNIT, compared)


def standard_model(stand: BenchContext, encoder: str) -> Model:
    """One without a memory, in evaluation mode."""
    return stand.model(stand.settings(encoder, {"variant": "standard"})).eval()


def memory_model(stand: BenchContext, encoder: str) -> MemoryClassifier:
    """One with a memory, in evaluation mode, of which nothing is remembered yet."""
    model = stand.model(stand.settings(encoder, {"variant": "memory_wrap"})).eval()
    assert isinstance(model, MemoryClassifier)  # by its variant
    return model


def predicting(
    stand: BenchContext, name: str, logits: Callable[[], Tensor], read: bool = True, **facts: Any
) -> Candidate:
    """A turn of several batches, without gradients. read: whether the classes of each are brought to the host."""

    def run() -> None:
        with torch.inference_mode():
            for _ in range(stand.amounts.batches):
                found = logits()
                if read:
                    found.argmax(dim=1).cpu()

    precision = "fp32, convolutions in TF32" if stand.on_gpu else "fp32"
    conditions = {
        "batch": stand.amounts.inference_batch,
        "precision": precision,
        "channels_last": False,
        "classes_read": read,
        **facts,
    }
    return Candidate(name, run, stand.amounts.batches, facts=conditions)
