"""Scores of a recipe on a data set: several seeds of each variant.

    python benchmarks/recipes.py svhn.zip --recipe svhn --encoder mobilenet_v2 --seeds 5 --jobs 10 --record found.jsonl
    python benchmarks/recipes.py svhn.zip --seeds 5 --side-by-side --record found.jsonl
    python benchmarks/recipes.py svhn.zip --seeds 5 --side-by-side --set memory=queue --set contrast=0.5 --record ...

Trains by the command line, in --jobs processes; or, with --side-by-side, all seeds of a variant at once on a GPU, as
`memwrap reproduce` does. Each run adds one line of JSON with its settings, device and scores; the table at the end
summarises these lines.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import yaml

from memwrap.fused import FusedEngine
from memwrap.metrics import mean_and_spread
from memwrap.reproduce.provenance import current_provenance
from memwrap.runs.data import data_for
from memwrap.runs.evaluation import evaluate_run
from memwrap.runs.training import begin
from memwrap.training.recipes import recipe
from memwrap.training.settings import VARIANTS, with_changes


@dataclass(frozen=True)
class Asked:
    data: str
    recipe: str
    encoder: str
    samples: int
    changes: dict[str, Any]  # of the recipe's settings

    def line(self, variant: str, seed: int) -> dict[str, Any]:
        """What a run's line begins with."""
        asked = {"data": Path(self.data).name, "recipe": self.recipe, "encoder": self.encoder, "samples": self.samples}
        return asked | {"changes": self.changes, "variant": variant, "seed": seed}

    def settings(self, variant: str, seed: int) -> dict[str, Any]:
        """What is set besides the recipe."""
        asked = {"encoder": self.encoder, "samples": self.samples, "variant": variant, "seed": seed}
        return {**asked, **self.changes}


def train(asked: Asked, folder: Path, variant: str, seed: int) -> dict[str, Any]:
    """One run's line; if it fails, the error is in it."""
    out, line = folder / f"{variant}-{seed}", asked.line(variant, seed)
    command = [sys.executable, "-m", "memwrap", "train", asked.data, "--out", str(out), "--recipe", asked.recipe]
    command += ["--json"]
    for name, value in asked.settings(variant, seed).items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return line | {"error": done.stderr[-500:]}
    result = json.loads(done.stdout)
    return line | ending(out, result["seconds"], result["evaluation"])


def ending(out: Path, seconds: float, evaluation: dict[str, Any]) -> dict[str, Any]:
    """What a run's line ends with."""
    run = json.loads((out / "run.json").read_text())
    kept = ("images", "standard", "remembered", "evidence", "drawn")
    scores = {key: value for key, value in evaluation.items() if key in kept}
    made = {name: run[name] for name in ("settings", "versions", "device", "created")}
    origin = current_provenance(run["device"], "recipes", 1)
    by = {"commit": origin.commit, "dirty": origin.dirty, "code": origin.code}
    return {"seconds": seconds, **made, **by, "scores": scores}


def in_processes(asked: Asked, folder: Path, variants: list[str], seeds: range, jobs: int) -> Iterator[dict[str, Any]]:
    with ThreadPoolExecutor(jobs) as pool:
        futures = [pool.submit(train, asked, folder, variant, seed) for seed in seeds for variant in variants]
        for future in futures:
            yield future.result()


def side_by_side(asked: Asked, folder: Path, variants: list[str], seeds: range) -> Iterator[dict[str, Any]]:
    """All seeds of a variant at once; a run's seconds are its share of the time that they took."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    chosen = recipe(asked.recipe)
    data = data_for(asked.data, chosen)
    for variant in variants:
        begun, runs = time.monotonic(), []
        for seed in seeds:
            settings = with_changes(chosen, asked.settings(variant, seed), "benchmarks/recipes.py")
            runs.append(begin(folder / f"{variant}-{seed}", data, settings, asked.recipe, device))
        failures = FusedEngine().train([run.trainer for run in runs])
        seconds = (time.monotonic() - begun) / len(runs)
        for seed, run, failure in zip(seeds, runs, failures, strict=True):
            if failure is not None:
                yield asked.line(variant, seed) | {"error": str(failure)}
                continue
            run.save()
            run.train()  # no step is left: the model remembers its memory
            evaluation = evaluate_run(run.run, run.model, data, None, "test")
            yield asked.line(variant, seed) | ending(run.run.path, seconds, evaluation)


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
    "vote accuracy": ("remembered", "vote_accuracy"),
    "vote and last layer agree": ("remembered", "agreement"),
    "average of errors": ("remembered", "selective", "confidence", "area"),
    "predictions that survive without all examples": ("evidence", "survives_without_examples"),
    "predictions that follow another input's memory": ("evidence", "follows_memory"),
    "predictions that follow the input": ("evidence", "follows_input"),
    "specificity": ("evidence", "specificity"),
    "area between deletion curves": ("evidence", "deletion", "area"),
}


def table(lines: list[dict[str, Any]]) -> None:
    """Print a Markdown table: mean and deviation over seeds, median, number of runs."""
    print("| | mean | median | n |\n| --- | --- | --- | --- |")
    for variant in reversed(VARIANTS):
        found = [line for line in lines if line["variant"] == variant and "scores" in line]
        row(f"{variant}, accuracy without a memory", [score(line, "standard", "accuracy") for line in found])
        alone = [score(line, "standard", "selective", "confidence", "area") for line in found]
        row(f"{variant}, average of errors without a memory", alone)
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
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time, each in a process")
    parser.add_argument("--side-by-side", action="store_true", help="all seeds of a variant at once, on a GPU")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting to change")
    parser.add_argument("--record", type=Path, required=True)
    given = parser.parse_args()
    changes = {name: yaml.safe_load(value) for name, _, value in (each.partition("=") for each in given.set)}
    asked, lines = Asked(given.data, given.recipe, given.encoder, given.samples, changes), []
    variants, seeds = given.variants.split(","), range(given.seeds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = (
            side_by_side(asked, folder, variants, seeds)
            if given.side_by_side
            else in_processes(asked, folder, variants, seeds, given.jobs)
        )
        for line in found:
            lines.append(line)
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
