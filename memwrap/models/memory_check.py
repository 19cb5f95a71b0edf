"""Whether a stored memory is what the model makes of its images: encodings computed again."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from memwrap.errors import LoadError
from memwrap.nn.memory import RememberedMemory
from memwrap.nn.modes import exact_evaluation

if TYPE_CHECKING:
    from memwrap.models.classifier import MemoryClassifier

SAMPLED = 4  # images of a memory that are encoded again when a model is loaded

# How far a number may be from the stored one, relative to the largest: machines round differently, other architectures
# and images differ by far more.
TOLERANCES = {torch.float64: 1e-8, torch.float32: 5e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}

LEAST = 1e-6  # that is allowed where all numbers are near zero


def draw_rows(memory: RememberedMemory) -> Tensor:
    """Some samples of a memory, other ones each time: nobody can know which ones will be looked at."""
    generator = torch.Generator()
    generator.seed()
    return torch.randperm(len(memory), generator=generator)[:SAMPLED].to(memory.labels.device)


def check_memory(model: "MemoryClassifier", rows: Tensor, chunk_size: int = 1) -> None:
    """A LoadError unless the model gives the stored encodings of these samples (n,) of its memory."""
    memory = model.remembered
    assert memory is not None
    for chunk in torch.split(rows, chunk_size):
        with exact_evaluation(model):
            encodings = model.encode(memory.inputs(chunk, model.get_transform))
        differences = (encodings - memory.encodings[chunk]).abs().amax(1)
        # By sample: one with huge numbers must not excuse the others.
        allowed = TOLERANCES[encodings.dtype] * encodings.abs().amax(1) + LEAST
        wrong = chunk[~(differences <= allowed)].tolist()  # NaN, too
        if wrong:
            raise LoadError(
                f"the memory was changed: its image {wrong[0]} has another encoding than the one stored with it "
                f"({len(wrong)} of the {len(chunk)} images that were computed again)"
            )
