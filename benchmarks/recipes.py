"""What a recipe reaches on a data set: several seeds of each variant, trained side by side through the command line.

    python benchmarks/recipes.py svhn.zip --recipe svhn --encoder mobilenet_v2 --seeds 5 --jobs 10 --record found.jsonl

Each run leaves one line of JSON: settings, where it was run, all scores. The table at the end is made from these lines.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from memwrap.metrics import mean_and_spread
from memwrap.settings import VARIANTS


def train(folder: Path, data: str, recipe: str, encoder: str, samples: int, variant: str, seed: int) -> dict[str, Any]:
    """One run's line; if it fails, the error is in it."""
    out = folder / f"{variant}-{seed}"
    command = [sys.executable, "-m", "memwrap", "train", data, "--out", str(out), "--recipe", recipe, "--json"]
    command += ["--encoder", encoder, "--samples", str(samples), "--variant", variant, "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    line = {"data": Path(data).name, "recipe": recipe, "encoder": encoder, "samples": samples}
    line |= {"variant": variant, "seed": seed}
    if done.returncode != 0:
        return line | {"error": done.stderr[-500:]}
    result, run = json.loads(done.stdout), json.loads((out / "run.json").read_text())
    scores = {
        key: value
        for key, value in result["evaluation"].items()
        if key in ("images", "standard", "remembered", "drawn")
    }
    made = {name: run[name] for name in ("settings", "versions", "device", "created")}
    return line | {"seconds": result["seconds"]} | made | {"scores": scores}


def score(line: dict[str, Any], *path: str) -> float | None:
    """A score in per cent by its place in the record, of drawn memories the mean over repeats; or None."""
    found: Any = line["scores"]
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    if isinstance(found, dict):
        found = found["mean"]
    return None if found is None else 100 * float(found)


# As the paper measures: with memories drawn from the images trained on, or from all training images.
SCORES = {
    "accuracy": ("drawn", "training_subset", "accuracy"),
    "accuracy with the remembered memory": ("remembered", "accuracy"),
    "explanation accuracy, memory from the training subset": ("drawn", "training_subset", "explanation_accuracy"),
    "the same from the whole training set": ("drawn", "whole_training_set", "explanation_accuracy"),
    "counterfactual accuracy, memory from the training subset": ("drawn", "training_subset", "counterfactual_accuracy"),
    "the same, from the whole training set": ("drawn", "whole_training_set", "counterfactual_accuracy"),
}


def table(lines: list[dict[str, Any]]) -> None:
    """In Markdown: mean and deviation over seeds, the median, how many."""
    print("| | mean | median | n |\n| --- | --- | --- | --- |")
    for variant in reversed(VARIANTS):
        found = [line for line in lines if line["variant"] == variant and "scores" in line]
        row(f"{variant}, accuracy without a memory", [score(line, "standard", "accuracy") for line in found])
        for words, path in SCORES.items():
            row(f"{variant}, {words}", [score(line, *path) for line in found])


def row(words: str, values: list[float | None]) -> None:
    known = [value for value in values if value is not None]
    if known:
        mean, spread = mean_and_spread(known)
        print(f"| {words} | {mean:.2f} ± {spread:.2f} | {median(known):.2f} | {len(known)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--recipe", default="default")
    parser.add_argument("--encoder", default="resnet18")
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--record", type=Path, required=True)
    given = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        futures = [
            pool.submit(train, Path(folder), given.data, given.recipe, given.encoder, given.samples, variant, seed)
            for seed in range(given.seeds)
            for variant in given.variants.split(",")
        ]
        for future in futures:
            lines.append(future.result())
            with given.record.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")
            if "error" in lines[-1]:
                print(lines[-1]["error"], file=sys.stderr)
    seconds = [line["seconds"] for line in lines if "seconds" in line]
    print(
        f"{given.data}, {given.samples} images, {given.encoder}, recipe {given.recipe}; {sum(seconds):.0f} s of runs:\n"
    )
    table(lines)


if __name__ == "__main__":
    main()
