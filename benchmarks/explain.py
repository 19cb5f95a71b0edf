"""The cost of explaining versus predicting, as ratios of times measured in turn in one run.

    python benchmarks/explain.py                # on a GPU if there is one; about a minute on two idle cores
    python benchmarks/explain.py --rounds 200   # steadier

Each ratio is the median over rounds of (explaining / predicting the same images), all timed right after one another in
random order, so that a machine that slows down slows all. Explaining includes each image's list of samples.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable

import torch

import memwrap
from memwrap.nn.memory import RememberedMemory

ENCODERS = {"mobilenet_v2": 32, "tiny": 8}  # the size of its images
BATCH = 32
CLASSES = 10
MEMORY_SIZE = 100
USED = 40  # samples of positive weight, for each input


def build_model(encoder: str, images: torch.Tensor) -> memwrap.MemoryClassifier:
    """A model with a memory of which each of these images (B, channels, H, W) uses 40 samples.

    The encodings of an untrained encoder nearly share a direction. The used samples lie about it, closer to one another
    than sparsemax distinguishes; the others lie opposite.
    """
    model = memwrap.wrap(memwrap.encoders.create(encoder, CLASSES)).eval().to(images.device)
    with torch.no_grad():
        encodings = model.encode(images)
    shared = torch.nn.functional.normalize(encodings.mean(0), dim=0)
    sides = torch.where(torch.arange(MEMORY_SIZE, device=images.device) < USED, 1.0, -1.0)
    memory = sides.unsqueeze(1) * shared + 0.05 * torch.randn(MEMORY_SIZE, len(shared)).to(shared) / len(shared) ** 0.5
    labels = torch.arange(MEMORY_SIZE, device=images.device) % CLASSES
    remembered = RememberedMemory(images[:1].expand(MEMORY_SIZE, -1, -1, -1), labels, memory)
    remembered.prepare(model.layer)
    model.restore(remembered)
    return model


def ratios(base: Callable[[], object], others: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Time of each task over that of the base, in each round."""
    tasks, times = [base, *others.values()], {name: [] for name in others}
    for _ in range(rounds + 2):
        seconds = {}
        for task in random.sample(tasks, len(tasks)):
            start = time.perf_counter()
            task()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds[task] = time.perf_counter() - start
        for name, task in others.items():
            times[name].append(seconds[task] / seconds[base])
    return {name: measured[2:] for name, measured in times.items()}  # the first rounds warm up


def measure(encoder: str, size: int, rounds: int, device: str) -> None:
    images = torch.randn(BATCH, 3, size, size).to(device)
    model = build_model(encoder, images)

    def predict() -> None:
        with torch.inference_mode():
            model(images).cpu()

    def explain(effects: bool) -> None:
        for explanation in model.explain(images, effects):
            _ = explanation.samples

    used = [len(explanation.samples) for explanation in model.explain(images)]
    print(f"  {encoder}, {size}x{size}: {statistics.mean(used):.1f} samples used ({min(used)} to {max(used)})")
    tasks = {"without effects": lambda: explain(False), "with effects": lambda: explain(True)}
    for name, measured in ratios(predict, tasks, rounds).items():
        lower, median, upper = statistics.quantiles(measured, n=4)
        print(f"    {name:<58} {median:6.3f}   ({lower:.3f} to {upper:.3f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60, help="how often all are timed")
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    random.seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    where = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {where}")
    print(f"explaining / predicting {BATCH} images with {MEMORY_SIZE} remembered samples: median (quartiles)")
    for encoder, size in ENCODERS.items():
        # A small encoder takes milliseconds and scatters more.
        measure(encoder, size, rounds * (10 if encoder == "tiny" else 1), device)


if __name__ == "__main__":
    main()
