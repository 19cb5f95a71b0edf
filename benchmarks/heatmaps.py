"""Completeness error, steps and seconds of the heatmaps of a run's test images.

    python benchmarks/heatmaps.py runs/digits --images 200 --baseline white black

The relative completeness error is the part of the explained change that a heatmap's sum misses.
"""

import argparse
import time
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from memwrap.attribution import BASELINES, Attribution, heatmaps
from memwrap.cli.terminal import device_named
from memwrap.models.classifier import MemoryClassifier
from memwrap.runs.data import data_of
from memwrap.runs.run import open_run
from memwrap.runs.training import device_name

QUANTILES = (0.5, 0.9, 0.95, 1.0)


def test_images(path: Path, count: int, device: torch.device) -> tuple[MemoryClassifier, Tensor]:
    """A run's model and the first test images of it, (N, C, H, W), as the model's input."""
    run = open_run(path)
    model = run.model(device)
    if not isinstance(model, MemoryClassifier):
        raise SystemExit(f"{path}: its model has no memory")
    images = run.splits.of(data_of(run), "test").images
    pixels = torch.cat(list(images.batches([torch.arange(min(count, len(images)))])))
    return model, model.get_transform()(pixels.to(device))


def timed(model: MemoryClassifier, images: Tensor, **options: object) -> tuple[list[Attribution], list[float]]:
    """Heatmaps, and the seconds that each took."""
    moments = [time.perf_counter()]
    found = heatmaps(model, images, progress=lambda *_: moments.append(time.perf_counter()), **options)
    return found, [after - before for before, after in pairwise(moments)]


def report(what: str, values: list[float], form: str) -> None:
    quantiles = torch.tensor(values, dtype=torch.float64).quantile(torch.tensor(QUANTILES, dtype=torch.float64))
    print(f"  {what:<28}" + "".join(f"{form.format(value):>10}" for value in quantiles.tolist()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--baseline", nargs="+", default=["white", "black"], choices=BASELINES)
    parser.add_argument("--shown", type=int, default=8, help="memory samples that move with each image")
    parser.add_argument("--tolerance", type=float, default=0.01)
    parser.add_argument("--max-steps", type=int, default=1024)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    device = device_named(given.device)
    model, images = test_images(given.run, given.images, device)
    print(f"{len(images)} images of {tuple(images.shape[1:])}, torch {torch.__version__}, {device_name(device)}")
    options = {"shown": given.shown, "tolerance": given.tolerance, "max_steps": given.max_steps}
    heatmaps(model, images[:1], **options)  # warms up, and loads captum
    for baseline in given.baseline:
        found, seconds = timed(model, images, baseline=baseline, **options)
        share = sum(bool(each.converged) for each in found) / len(found)
        print(f"{baseline}: {share:.1%} below {given.tolerance:.1%}, {sum(seconds) / len(seconds):.3f} s an image")
        print(f"  {'quantile':<28}" + "".join(f"{quantile:>10.0%}" for quantile in QUANTILES))
        report("relative completeness error", [each.relative_error or 0.0 for each in found], "{:.3%}")
        report("steps", [float(each.steps or 0) for each in found], "{:.0f}")
        report("moved samples", [float(len(each.moved)) for each in found], "{:.0f}")
        report("seconds", seconds, "{:.3f}")


if __name__ == "__main__":
    main()
