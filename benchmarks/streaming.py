"""Memory needed to train on images that are streamed (20,000 of 256x256) versus 400 that are held in memory.

    python benchmarks/streaming.py --images 20000 --workers 2

Prints the peak memory of all processes together (PSS: shared pages are counted once) and images a second. Linux only.
"""

import argparse
import multiprocessing
import os
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from PIL import Image

HELD = 400
BATCH_SIZE = 32  # the same for both, as activations are most of the memory
CLASSES = 4


def make_images(folder: Path, count: int, side: int) -> None:
    """Write JPEG files of smooth noise, all different."""
    generator = np.random.default_rng(0)
    for number in range(count):
        place = folder / f"class{number % CLASSES}"
        place.mkdir(parents=True, exist_ok=True)
        coarse = generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((side, side)).save(place / f"{number}.jpg", quality=85)


def train(folder: Path, size: int, workers: int, steps: int, answer: "multiprocessing.Queue[float]") -> None:
    """Read the folder, train some steps, and put their images per second in the queue."""
    import torch

    from memwrap.data import open_data
    from memwrap.training import Trainer
    from memwrap.training.building import new_model
    from memwrap.training.recipes import recipe, resolve_settings
    from memwrap.training.settings import with_changes

    torch.set_num_threads(2)
    data = open_data(str(folder), size=size, workers=workers)
    settings = resolve_settings(
        with_changes(recipe("default"), {"encoder": "tiny", "batch_size": BATCH_SIZE}, "benchmark"),
        len(data.train),
        data.classes,
    )
    trainer = Trainer(new_model(settings, data.classes, data.train.images), data.train, settings)
    training = trainer.run()
    next(training)
    begun = time.monotonic()
    for _ in range(steps):
        next(training)
    answer.put(steps * settings.batch_size / (time.monotonic() - begun))
    training.close()


def peak_memory(process: multiprocessing.Process) -> float:
    """The highest sum of the memory of a process and all below it, in bytes, until it ends."""
    peak = 0.0
    while process.is_alive():
        peak = max(peak, sum(map(_memory, _family(process.pid))))
        time.sleep(0.2)
    return peak


def _family(pid: int | None) -> list[int]:
    children = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children += [int(each) for each in task.read_text().split()]
        except OSError:
            continue
    return [pid or 0, *(below for child in children for below in _family(child))]


def _memory(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(1024.0 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def measure(folder: Path, size: int, workers: int, steps: int) -> tuple[float, float]:
    """Peak memory in bytes, and images a second."""
    context = multiprocessing.get_context("spawn")
    answer: multiprocessing.Queue[float] = context.Queue()
    process = context.Process(target=train, args=(folder, size, workers, steps, answer))
    process.start()
    rates: list[float] = []
    reader = threading.Thread(target=lambda: rates.append(answer.get()), daemon=True)
    reader.start()
    peak = peak_memory(process)
    reader.join(timeout=5)
    return peak, rates[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--steps", type=int, default=15)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for count in (HELD, given.images):
            make_images(Path(folder) / str(count), count, given.size)
            found[count] = measure(Path(folder) / str(count), given.size, given.workers, given.steps)
            peak, rate = found[count]
            print(
                f"{count} images of {given.size}x{given.size}: peak {peak / 1e9:.2f} GB, {rate:.0f} images/s",
                flush=True,
            )
        held = HELD * 3 * given.size**2
        print(f"beyond training on {HELD} held images: {(found[given.images][0] - found[HELD][0] + held) / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
