"""Times prediction with a memory against prediction without one."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from memwrap.models.classifier import MemoryClassifier
from memwrap.models.loading import Model
from memwrap.reproduce.bench.context import BenchContext
from memwrap.reproduce.bench.packages import MissingPackageError
from memwrap.reproduce.bench.published_loop import published_model
from memwrap.reproduce.bench.record import Finding, Skipped, make_measurement
from memwrap.reproduce.bench.timing import Candidate

PART = "inference"
UNIT = "batch"


def measure(context: BenchContext, encoder: str) -> Iterator[Finding]:
    """A batch with remembered samples, and one that encodes its memory anew, against a batch without a memory."""
    plain, wrapped = standard_model(context, encoder), memory_model(context, encoder)
    images, memory = (
        context.normalised(wrapped, count) for count in (context.sizes.inference_batch, context.sizes.memory)
    )
    wrapped.remember(memory, context.images.take(len(memory)).labels)
    size = len(memory)
    others: dict[str, Callable[[], Tensor]] = {f"Memory Wrap, {size} remembered": lambda: wrapped(images)}
    subject = f"predicting {len(images)} images"
    try:
        published = published_model(wrapped).eval()
        others[f"published layer, {size} encoded with each batch"] = lambda: published(images, memory)
    except MissingPackageError as error:
        yield Skipped(PART, f"{encoder}, {subject} with the published layer", str(error))
    # On a GPU also without reading the classes: then Standard runs ahead, while our check of values waits.
    for read in (True, False) if context.on_gpu else (True,):
        base = predicting(context, "Standard", lambda: plain(images), read, memory=0)
        candidates = [predicting(context, name, logits, read, memory=size) for name, logits in others.items()]
        for timing in context.stopwatch.compare(base, candidates, context.sizes.rounds):
            yield make_measurement(PART, subject if read else f"{subject}, none read", encoder, UNIT, timing)


def standard_model(context: BenchContext, encoder: str) -> Model:
    """A model without a memory, in evaluation mode."""
    return context.model(context.settings(encoder, {"variant": "standard"})).eval()


def memory_model(context: BenchContext, encoder: str) -> MemoryClassifier:
    """A model with an empty memory, in evaluation mode."""
    model = context.model(context.settings(encoder, {"variant": "memory_wrap"})).eval()
    assert isinstance(model, MemoryClassifier)  # by its variant
    return model


def predicting(
    context: BenchContext, name: str, logits: Callable[[], Tensor], read: bool = True, **facts: Any
) -> Candidate:
    """A turn of several batches, without gradients. read: whether the classes of each are copied to the host."""

    def run() -> None:
        with torch.inference_mode():
            for _ in range(context.sizes.batches):
                found = logits()
                if read:
                    found.argmax(dim=1).cpu()

    conditions = {
        "batch": context.sizes.inference_batch,
        "precision": "fp32, convolutions in TF32" if context.on_gpu else "fp32",
        "channels_last": False,
        "classes_read": read,
        **facts,
    }
    return Candidate(name, run, context.sizes.batches, facts=conditions)
