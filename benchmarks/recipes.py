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
from typing import Any

from memwrap.metrics import mean_and_spread

VARIANTS = ("standard", "only_memory", "memory_wrap")


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
    made = {"settings": run["settings"], "versions": run["versions"], "device": device(), "created": run["created"]}
    return line | {"seconds": result["seconds"]} | made | {"scores": scores}


def device() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def accuracy(line: dict[str, Any]) -> float:
    """As the paper measures it: with memories drawn from the training subset; without a memory, plainly."""
    scores = line["scores"]
    found = (
        scores["standard"]["accuracy"]
        if "standard" in scores
        else scores["drawn"]["training_subset"]["accuracy"]["mean"]
    )
    return float(found)


def table(lines: list[dict[str, Any]]) -> None:
    for variant in VARIANTS:
        found = [line for line in lines if line["variant"] == variant and "scores" in line]
        if not found:
            continue
        mean, spread = mean_and_spread([100 * accuracy(line) for line in found])
        words = f"{variant:12} n={len(found)}  accuracy {mean:.2f} ± {spread:.2f}"
        if variant != "standard":
            for name in ("accuracy", "explanation_accuracy"):
                values = [100 * line["scores"]["remembered"][name] for line in found]
                words += f"  {name} with the remembered memory {mean_and_spread(values)[0]:.2f}"
        print(words, f"  {sum(line['seconds'] for line in found) / len(found):.0f} s each")


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
    print(f"{given.data}, {given.samples} images, {given.encoder}, recipe {given.recipe}:")
    table(lines)


if __name__ == "__main__":
    main()
