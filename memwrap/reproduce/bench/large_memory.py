"""Times prediction with large memories against prediction without one, and measures its peak memory."""

from collections.abc import Iterator

import torch
from torch import Tensor

from memwrap.errors import brief
from memwrap.models.classifier import MemoryClassifier
from memwrap.nn.reading import PreparedMemory
from memwrap.nn.similarity import SCORES_AT_ONCE
from memwrap.reproduce.bench.context import BenchContext, clear
from memwrap.reproduce.bench.inference import memory_model, predicting, standard_model
from memwrap.reproduce.bench.process_memory import free_bytes, peak_bytes
from memwrap.reproduce.bench.record import Finding, Measurement, Skipped, make_measurement
from memwrap.reproduce.bench.timing import Candidate

PART = "memory"
UNIT = "batch"
SAMPLED = 8  # images whose number of used samples is counted

_FLOAT = 4  # bytes
_SCORES_HELD = 4  # copies: computed, scaled, searched and put together


def measure(context: BenchContext, encoder: str) -> Iterator[Finding]:
    """Memories of more and more random encodings."""
    plain, model = standard_model(context, encoder), memory_model(context, encoder)
    images = context.normalised(model, context.sizes.inference_batch)
    base = predicting(context, "Standard", lambda: plain(images), memory=0)
    base_peak = peak_bytes(context.device, base.run)
    for size in context.sizes.memories:
        subject = f"memory of {size:,}, {context.sizes.inference_batch} images"
        try:
            if reason := too_large(context, size, model.in_features):
                yield Skipped(PART, f"{encoder}, {subject}", reason)
                continue
            yield _measure_size(context, encoder, subject, base, base_peak, model, images, size)
        except (RuntimeError, MemoryError) as error:
            if not _is_out_of_memory(error):
                raise
            yield Skipped(PART, f"{encoder}, {subject}", f"there was not enough memory ({brief(error)})")
        finally:
            clear(context.device)


def needed_bytes(size: int, length: int, batch: int) -> int:
    """The memory that encodings need: themselves, their squares for a moment, and the scores of a batch."""
    scores = min(max(SCORES_AT_ONCE, batch), batch * size)
    return _FLOAT * (2 * size * length + _SCORES_HELD * scores)


def too_large(context: BenchContext, size: int, length: int) -> str | None:
    """Why a memory of this size does not fit; None if it does, or if that is unknown."""
    needed, free = needed_bytes(size, length, context.sizes.inference_batch), free_bytes(context.device)
    if free is None or needed <= free:
        return None
    return f"it needs about {needed / 2**30:.3g} GiB, and {free / 2**30:.3g} GiB are free"


def random_encodings(size: int, length: int, device: torch.device) -> Tensor:
    """(size, length), in random directions, of norm about 1."""
    generator = torch.Generator(device).manual_seed(size)
    return torch.randn(size, length, generator=generator, device=device).mul_(length**-0.5)


def _measure_size(
    context: BenchContext,
    encoder: str,
    subject: str,
    base: Candidate,
    base_peak: int | None,
    model: MemoryClassifier,
    images: Tensor,
    size: int,
) -> Measurement:
    with torch.inference_mode():
        memory = model.layer.prepare(random_encodings(size, model.in_features, context.device))
    candidate = predicting(
        context,
        f"Memory Wrap, {size:,} encodings",
        lambda: model.layer(model.encode(images), memory),
        memory=size,
        length=model.in_features,
        samples_used=_samples_used(model, images[:SAMPLED], memory),
    )
    peak = peak_bytes(context.device, candidate.run)
    (timing,) = context.stopwatch.compare(base, [candidate], context.sizes.rounds)
    return make_measurement(PART, subject, encoder, UNIT, timing, (peak, base_peak))


def _samples_used(model: MemoryClassifier, images: Tensor, memory: PreparedMemory) -> float:
    """The average number of samples with a weight, per image."""
    with torch.inference_mode():
        weights = model.layer.read(model.encode(images), memory).weights
        return round((weights > 0).sum(dim=1).float().mean().item(), 1)


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "not enough memory" in str(error).lower()
