"""How much is measured: plenty on a GPU, little on a CPU, hardly anything with --quick."""

from dataclasses import dataclass, replace

CLASSES = 10
CUDA_ENCODERS = ("mobilenet_v2", "resnet18")
CPU_ENCODERS = ("tiny",)


@dataclass(frozen=True)
class Sizes:
    """Sizes and counts. In each round, every candidate has one turn."""

    rounds: int
    # Training: as in the paper, except for the number of images.
    images: int
    batch: int
    memory: int  # images
    memory_sizes: tuple[int, ...]  # images, for the part "sizes"
    steps: int  # of a loop in a turn
    captured_steps: int  # of runs side by side in a turn
    epochs: int  # of a whole training
    training_rounds: int  # of whole trainings, at most
    # Inference
    inference_batch: int
    batches: int  # in a turn
    # Sparsemax: inputs and memory samples.
    scores: tuple[tuple[int, int], ...]
    calls_of: int  # scores in a turn, at least
    # Large memories: numbers of encodings.
    memories: tuple[int, ...]


CUDA = Sizes(
    rounds=8,
    images=1000,
    batch=128,
    memory=100,
    memory_sizes=(20, 100, 300, 500),  # the paper's
    steps=10,
    captured_steps=140,  # half of the paper's steps for 1000 images
    epochs=40,
    training_rounds=3,
    inference_batch=500,
    batches=10,
    scores=((128, 100), (500, 50_000)),
    calls_of=2_000_000,
    memories=(100, 1_000, 10_000, 50_000, 100_000, 1_000_000),
)
CPU = replace(
    CUDA,
    rounds=5,
    images=256,
    memory_sizes=(20, 100),  # at most `images`
    steps=1,
    captured_steps=1,
    epochs=2,
    training_rounds=2,
    inference_batch=100,
    batches=1,
    scores=((128, 100), (50, 50_000)),
)
QUICK = replace(
    CPU,
    rounds=2,
    images=32,
    batch=16,
    memory=8,
    memory_sizes=(2, 8),
    captured_steps=4,
    epochs=1,
    training_rounds=1,
    inference_batch=20,
    scores=((16, 10), (4, 2_000)),
    calls_of=1,
    memories=(100, 10_000),
)


def sizes_for(device: str, quick: bool, rounds: int | None) -> Sizes:
    """The sizes for "cpu" or "cuda". rounds: None for the default."""
    sizes = QUICK if quick else CUDA if device == "cuda" else CPU
    return sizes if rounds is None else replace(sizes, rounds=rounds)


def default_encoders(device: str) -> tuple[str, ...]:
    """The encoders that are measured if none is named."""
    return CUDA_ENCODERS if device == "cuda" else CPU_ENCODERS
