"""A trained classifier with a memory attached: how often head and vote agree, and what calibration changes.

    memwrap train svhn.zip --recipe default --samples 1000 --validation 1000 --encoder resnet18 --variant standard \\
        --epochs 100 --out RUN
    python benchmarks/attached.py RUN svhn.zip --record results/photographs/attached.jsonl

The run's training images are the memory, its validation images choose the scale and calibrate, and its test images
are scored, once with the classifier and once with the vote deciding.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import memwrap
from memwrap.encoders import create_arguments
from memwrap.models.evaluation import Encoded, remembered_scores
from memwrap.models.inference import encode_all, remember
from memwrap.models.standard import StandardClassifier
from memwrap.nn.modes import evaluation_mode
from memwrap.reproduce.provenance import current_date, current_provenance
from memwrap.runs.calibrating import calibrate, choose_scale
from memwrap.runs.data import data_of
from memwrap.runs.drawn import encoded
from memwrap.runs.run import open_run

SCORES = ("accuracy", "head_accuracy", "vote_accuracy", "agreement", "calibration_error", "uncalibrated")


def plain(model: StandardClassifier) -> torch.nn.Module:
    """The classifier that the run trained, as anybody would have it."""
    arguments = create_arguments(model.encoder)
    assert arguments is not None
    classifier = memwrap.encoders.create(**arguments)
    head = {f"head.{name}": tensor for name, tensor in model.layer.state_dict().items()}
    classifier.load_state_dict({**model.encoder.state_dict(), **head})
    return classifier.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("data")
    parser.add_argument("--record", type=Path)
    asked = parser.parse_args()
    run = open_run(asked.run)
    trained = run.model()
    assert isinstance(trained, StandardClassifier)
    data = data_of(run, asked.data)
    train, validation, test = (run.splits.of(data, name) for name in ("train", "validation", "test"))
    classifier = plain(trained)
    for decide in ("head", "vote"):
        model = memwrap.attach(classifier, decide=decide)  # type: ignore[arg-type]
        model.classes, model.transform = trained.classes, trained.transform
        model.eval()
        remember(model, train)
        held_out = encoded(model, validation)
        choose_scale(model, held_out)
        calibrate(model, held_out)
        (some,) = test.images.batches([torch.arange(64)])
        with torch.inference_mode():
            inputs = trained.get_transform()(some)
            equal = torch.equal(model(inputs), classifier(inputs)) if decide == "head" else None
        with evaluation_mode(model):
            encodings = encode_all(model, test.images)
            assert model.remembered is not None
            tested = Encoded(encodings, test.labels)
            scores = remembered_scores(model.layer, tested, model.remembered, model.calibration)
        line: dict[str, Any] = {
            "run": asked.run.name,
            "trained_on": run.record.device,
            "decide": decide,
            "scale": model.layer.similarity.scale,
            "logits_bit_equal": equal,
            "memory": len(train),
            "validation": len(validation),
            "test": len(test),
            **{name: scores[name] for name in SCORES},
            "area": scores["selective"]["confidence"]["area"],
            "images_used": scores["memory_use"]["samples_per_input"],
            "date": current_date(),
            **asdict(current_provenance("cpu", "attached", 1)),
        }
        print(json.dumps({key: line[key] for key in list(line)[:16]}, indent=1))
        if asked.record is not None:
            asked.record.parent.mkdir(parents=True, exist_ok=True)
            with asked.record.open("a") as record:
                record.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
