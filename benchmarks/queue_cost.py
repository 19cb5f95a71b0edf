"""What a queue and contrast cost: the time of a step of runs side by side on a GPU, relative to Standard's.

    python benchmarks/queue_cost.py svhn.zip --record results/evidence/queue-cost.jsonl

Five runs of each kind are trained by the engine of `memwrap reproduce` in the same process; the time of a step is the
median over transfers of draws, each of 256 steps, after the first.
"""

import argparse
import itertools
import json
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch

from memwrap.fused import FusedEngine
from memwrap.reproduce.provenance import current_date, current_provenance
from memwrap.runs.data import data_for
from memwrap.runs.training import device_name, new_training
from memwrap.training.recipes import recipe
from memwrap.training.settings import with_changes

SEEDS = 5
EPOCHS = 160  # of 1000 images in batches of 128: seven steps each
KINDS: dict[str, dict[str, Any]] = {
    "standard": {"variant": "standard"},
    "standard, contrast": {"variant": "standard", "contrast": 0.5},
    "batch": {"memory": "batch"},
    "queue": {"memory": "queue", "memory_size": 256},
    "queue, contrast": {"memory": "queue", "memory_size": 256, "contrast": 0.5},
}


def step_seconds(data: Any, encoder: str, changes: dict[str, Any]) -> float:
    """The median time of a step of all runs together."""
    common = {"encoder": encoder, "samples": 1000, "batch_size": 128, "epochs": EPOCHS, "test": 100}
    trainers = []
    for seed in range(SEEDS):
        settings = with_changes(recipe("default"), {**common, **changes, "seed": seed}, "benchmarks/queue_cost.py")
        trainers.append(new_training(data, settings, "cuda")[1])
    times: list[tuple[float, int]] = []
    FusedEngine().train(trainers, progress=lambda done, _: times.append((time.perf_counter(), done)))
    pairs = itertools.pairwise(times[1:])
    return median((later - earlier) / (done - before) for (earlier, before), (later, done) in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--encoders", default="resnet18,mobilenet_v2")
    parser.add_argument("--record", type=Path, required=True)
    asked = parser.parse_args()
    data = data_for(asked.data, recipe("default"))
    for encoder in asked.encoders.split(","):
        seconds = {kind: step_seconds(data, encoder, changes) for kind, changes in KINDS.items()}
        for kind, found in seconds.items():
            ratio = found / seconds["standard"]
            line = {"encoder": encoder, "kind": kind, "milliseconds": 1000 * found / SEEDS, "ratio": ratio}
            print(f"{encoder:14} {kind:20} {1000 * found / SEEDS:.3f} ms a run and step, {ratio:.3f} times standard's")
            origin = asdict(current_provenance(device_name(torch.device("cuda")), "graph", SEEDS))
            with asked.record.open("a") as record:
                record.write(json.dumps({**line, "date": current_date(), **origin}) + "\n")


if __name__ == "__main__":
    main()
