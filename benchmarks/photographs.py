"""The default for photographs on random splits, next to scikit-learn's logistic regression on the same encodings.

    python benchmarks/photographs.py trashnet.zip --record results/photographs/trashnet.jsonl
    python benchmarks/photographs.py plantdoc6.zip --record results/photographs/plantdoc6.jsonl
    python benchmarks/photographs.py trashnet.zip --from-scratch --seeds 1 \
        --record results/photographs/from-scratch.jsonl

All images of a zip with train/ and test/ are pooled, and split anew with each seed; the test images are as many as in
the zip. Each run is `memwrap.train` with default settings, and adds one line of JSON. The tables at the end are made
from these lines: accuracies, and over all splits together calibration and selective prediction. --from-scratch trains
as for small images instead, without pretrained weights, which takes 20 minutes a run.
"""

import argparse
import json
import resource
import shutil
import sys
import tempfile
import time
import zipfile
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

import memwrap
from memwrap.metrics import calibration_error, mean_and_spread, one_minus_confidence, selective_scores
from memwrap.models.caching import CachedEncoder
from memwrap.nn.modes import evaluation_mode
from memwrap.reproduce.provenance import current_date, current_provenance

SIMULATIONS = 200  # of a perfectly calibrated model, whose error is not zero either


def pool(archive: Path, folder: Path) -> int:
    """Unpack all images into one folder for each class; how many were test images."""
    tests = 0
    with zipfile.ZipFile(archive) as opened:
        for name in opened.namelist():
            path = PurePosixPath(name)
            if len(path.parts) < 3 or path.parts[-3] not in ("train", "test"):
                continue
            tests += path.parts[-3] == "test"
            target = folder / path.parts[-2] / f"{path.parts[-3]}-{path.name}"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(opened.read(name))
    return tests


def measure(photos: Path, tests: int, seed: int, out: Path) -> dict[str, Any]:
    """Train on one split, and score head, vote and logistic regression on its test images."""
    begun = time.monotonic()
    run = memwrap.train(photos, out, seed=seed, test=tests)
    evaluation = run.evaluate()
    seconds = time.monotonic() - begun
    model, data = run.model, run.data
    assert isinstance(model, memwrap.MemoryClassifier)
    assert model.remembered is not None
    encoder = CachedEncoder(model)
    train, test = (run.run.splits.of(data, name) for name in ("train", "test"))
    encodings = [encoder.encode(each.images) for each in (train, test)]
    regression = LogisticRegression(max_iter=5000).fit(encodings[0].numpy(), train.labels.numpy())
    with evaluation_mode(model):
        reading = model.layer.read(encodings[1], model.remembered.prepared)
        shown = model.probabilities(reading)
    assert reading.head_logits is not None
    scores = evaluation["remembered"]
    return {
        "data": photos.name,
        "seed": seed,
        "fit": run.run.settings.fit,
        "decided_by": model.decided_by,
        "accuracy": scores["accuracy"],
        "head_accuracy": scores["head_accuracy"],
        "vote_accuracy": scores["vote_accuracy"],
        "regression_accuracy": regression.score(encodings[1].numpy(), test.labels.numpy()),
        "images_used": scores["memory_use"]["samples_per_input"],
        "area": scores["selective"]["confidence"]["area"],
        "uncalibrated": scores["uncalibrated"],
        "head_area": _area(reading.head_logits, test.labels),
        "seconds": round(seconds, 1),
        "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "fitted": None if run.run.state is None else run.run.state.fitted.model_dump(),  # type: ignore[union-attr]
        "shown": [[round(value, 5) for value in row] for row in shown.tolist()],
        "labels": test.labels.tolist(),
        "date": current_date(),
        **asdict(current_provenance("cpu", "fitted", 1)),
    }


def measure_from_scratch(photos: Path, tests: int, seed: int, out: Path) -> dict[str, Any]:
    """Train a network from scratch on one split."""
    begun = time.monotonic()
    run = memwrap.train(photos, out, seed=seed, test=tests, encoder="small")
    scores = run.evaluate()["remembered"]
    return {
        "data": photos.name,
        "seed": seed,
        "epochs": run.run.settings.epochs,
        "variant": run.run.settings.variant,
        "accuracy": scores["accuracy"],
        "seconds": round(time.monotonic() - begun, 1),
        "date": current_date(),
        **asdict(current_provenance("cpu", "plain", 1)),
    }


def _area(logits: Tensor, labels: Tensor) -> float:
    return selective_scores(one_minus_confidence(logits), logits.argmax(1), labels).area


def tabulate(lines: list[dict[str, Any]]) -> None:
    """Print what the records say."""
    print(f"{lines[0]['data']}: {len(lines)} splits, {len(lines[0]['labels'])} test images each")
    for name in ("regression_accuracy", "head_accuracy", "vote_accuracy", "accuracy"):
        mean, spread = mean_and_spread([100 * line[name] for line in lines])
        print(f"  {name.replace('_', ' '):22} {mean:.2f} ± {spread:.2f} %")
    print(f"  decided by             {', '.join(line['decided_by'] for line in lines)}")
    print(f"  fit                    {', '.join(line['fit'] for line in lines)}")
    for name in ("images_used", "seconds", "megabytes"):
        print(f"  {name.replace('_', ' '):22} {mean_and_spread([line[name] for line in lines])[0]:.1f}")
    shown = torch.tensor([row for line in lines for row in line["shown"]], dtype=torch.float64)
    shown /= shown.sum(1, keepdim=True)
    labels = torch.tensor([label for line in lines for label in line["labels"]])
    print(f"  calibration error      {100 * calibration_error(shown, labels):.2f} % of all {len(labels)} together; a")
    print(f"                         perfectly calibrated model: {100 * _perfect_error(shown):.2f} %")
    areas = [(100 * line["area"], 100 * line["head_area"]) for line in lines]
    ours, heads = (sum(column) / len(areas) for column in zip(*areas, strict=True))
    print(
        f"  average of errors      {ours:.2f} % by what is shown, {heads:.2f} % by the head; ratio {ours / heads:.2f}"
    )


def _perfect_error(shown: Tensor) -> float:
    """The mean calibration error if labels were drawn from these probabilities (N, C)."""
    draws = torch.Generator().manual_seed(0)
    errors = [
        calibration_error(shown, torch.multinomial(shown, 1, generator=draws).squeeze(1)) for _ in range(SIMULATIONS)
    ]
    return sum(errors) / len(errors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--from-scratch", action="store_true")
    parser.add_argument("--record", type=Path)
    asked = parser.parse_args()
    lines = []
    measure_split = measure_from_scratch if asked.from_scratch else measure
    folder = Path(tempfile.mkdtemp())
    try:
        photos = folder / asked.archive.stem
        tests = pool(asked.archive, photos)
        for seed in range(asked.seeds):
            lines.append(measure_split(photos, tests, seed, folder / f"run-{seed}"))
            print(f"seed {seed}: {lines[-1]['seconds']} s", file=sys.stderr)
            if asked.record is not None:
                asked.record.parent.mkdir(parents=True, exist_ok=True)
                with asked.record.open("a") as record:
                    record.write(json.dumps(lines[-1]) + "\n")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if asked.from_scratch:
        mean, spread = mean_and_spread([100 * line["accuracy"] for line in lines])
        print(f"{lines[0]['data']}, from scratch: {len(lines)} splits, accuracy {mean:.2f} ± {spread:.2f} %")
    else:
        tabulate(lines)


if __name__ == "__main__":
    main()
