"""What large memories cost when a model predicts: time, and room."""

from collections.abc import Iterator

import torch
from torch import Tensor

from memwrap.errors import brief
from memwrap.models.classifier import MemoryClassifier
from memwrap.nn.layer import PreparedMemory
from memwrap.nn.similarity import SCORES_AT_ONCE
from memwrap.reproduce.bench.inference import memory_model, predicting, standard_model
from memwrap.reproduce.bench.record import Finding, LeftOut, Row, row_of
from memwrap.reproduce.bench.room import free_bytes, peak_bytes
from memwrap.reproduce.bench.stand import BenchContext, clear
from memwrap.reproduce.bench.timing import Candidate

PART = "memory"
UNIT = "batch"
LOOKED_AT = 8  # images, to tell how many samples they use

_FLOAT = 4  # bytes
_SCORES_HELD = 4  # times: as they are computed, scaled, searched and put together


def measure(stand: BenchContext, encoder: str) -> Iterator[Finding]:
    """Predicting with memories of more and more encodings beside predicting without one."""
    plain, model = standard_model(stand, encoder), memory_model(stand, encoder)
    images = stand.normalised(model, stand.amounts.inference_batch)
    base = predicting(stand, "Standard", lambda: plain(images), memory=0)
    base_peak = peak_bytes(stand.device, base.run)
    for size in stand.amounts.memories:
        subject = f"memory of {size:,}, {stand.amounts.inference_batch} images"
        try:
            if reason := too_large(stand, size, model.in_features):
                yield LeftOut(PART, f"{encoder}, {subject}", reason)
                continue
            yield _row(stand, encoder, subject, base, base_peak, model, images, size)
        except (RuntimeError, MemoryError) as error:
            if not _is_out_of_memory(error):
                raise
            yield LeftOut(PART, f"{encoder}, {subject}", f"there was not enough memory ({brief(error)})")
        finally:
            clear(stand.device)


def needed_bytes(size: int, length: int, batch: int) -> int:
    """What so many encodings need: themselves, their squares for a moment, and the scores of a batch."""
    scores = min(max(SCORES_AT_ONCE, batch), batch * size)
    return _FLOAT * (2 * size * length + _SCORES_HELD * scores)


def too_large(stand: BenchContext, size: int, length: int) -> str | None:
    """Why a memory of so many encodings cannot be tried; None if it can, or if nobody knows."""
    needed, free = needed_bytes(size, length, stand.amounts.inference_batch), free_bytes(stand.device)
    if free is None or needed <= free:
        return None
    return f"it needs about {needed / 2**30:.3g} GiB, and {free / 2**30:.3g} GiB are free"


def random_encodings(size: int, length: int, device: torch.device) -> Tensor:
    """(size, length), in random directions, about as long as one."""
    generator = torch.Generator(device).manual_seed(size)
    return torch.randn(size, length, generator=generator, device=device).mul_(length**-0.5)


def _row(
    stand: BenchContext,
    encoder: str,
    subject: str,
    base: Candidate,
    base_peak: int | None,
    model: MemoryClassifier,
    images: Tensor,
    size: int,
) -> Row:
    with torch.inference_mode():
        memory = model.layer.prepare(random_encodings(size, model.in_features, stand.device))
    used = _samples_used(model, images[:LOOKED_AT], memory)
    contestant = predicting(
        stand,
        f"Memory Wrap, {size:,} encodings",
        lambda: model.layer(model.encode(images), memory),
        memory=size,
        length=model.in_features,
        samples_used=used,
    )
    peak = peak_bytes(stand.device, contestant.run)
    (compared,) = stand.stopwatch.compare(base, [contestant], stand.amounts.rounds)
    return row_of(PART, subject, encoder, UNIT, compared, (peak, base_peak))


def _samples_used(model: MemoryClassifier, images: Tensor, memory: PreparedMemory) -> float:
    """By an image, on average."""
    with torch.inference_mode():
        weights = model.layer.read(model.encode(images), memory).weights
        return round((weights > 0).sum(dim=1).float().mean().item(), 1)


def _is_out_of_memory(error: Exception) -> bool:
    words = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "not enough memory" in words
