"""A class that is added to a run's memory without training, next to training on all classes.

    python benchmarks/new_class.py trashnet.zip --record results/photographs/new-class.jsonl

For each class of a zip with train/ and test/: train on the others with default settings, add 20 training images of the
class to the memory, and test on all test images. Five random draws of the 20 images each; each draw adds one line of
JSON.
"""

import argparse
import copy
import json
import random
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any

import torch

import memwrap
from memwrap.data import open_data
from memwrap.metrics import accuracy
from memwrap.reproduce.provenance import current_date, current_provenance
from memwrap.runs.editing import add_images

ADDED = 20
DRAWS = 5


def unpack(archive: Path, folder: Path) -> list[str]:
    """Unpack train/ and test/; the names of the classes."""
    with zipfile.ZipFile(archive) as opened:
        for name in opened.namelist():
            path = PurePosixPath(name)
            if len(path.parts) >= 3 and path.parts[-3] in ("train", "test"):
                target = folder / path.parts[-3] / path.parts[-2] / path.name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(opened.read(name))
    return sorted(each.name for each in (folder / "train").iterdir())


def without(folder: Path, left_out: str, target: Path) -> Path:
    """A copy of train/ and test/ without a class."""
    for split in ("train", "test"):
        for each in (folder / split).iterdir():
            if each.name != left_out:
                (target / split).mkdir(parents=True, exist_ok=True)
                shutil.copytree(each, target / split / each.name)
    return target


def accuracies(model: memwrap.MemoryClassifier, tests: Path) -> dict[str, float]:
    """The accuracy on the test images of each class; of one that the model does not know it is 0."""
    assert model.transform is not None
    data = open_data(str(tests), size=model.transform.shape[1], fit=model.transform.fit)
    known = model.classes or ()
    found = dict.fromkeys(data.classes, 0.0)
    for label, name in enumerate(data.classes):
        rows = (data.train.labels == label).nonzero().squeeze(1)
        if name in known:
            (pixels,) = data.train.at(rows).images.batches([torch.arange(len(rows))])
            predictions = torch.cat([model.predict(model.transform(each)).argmax(1) for each in pixels.split(16)])
            found[name] = accuracy(predictions, torch.full_like(predictions, known.index(name)))
    return found


def train_without(folder: Path, left_out: str, scratch: Path) -> memwrap.MemoryClassifier:
    model = memwrap.train(without(folder, left_out, scratch / "others"), scratch / "run").model
    assert isinstance(model, memwrap.MemoryClassifier)
    return model


def add_class(model: memwrap.MemoryClassifier, images: Path, draw: int, scratch: Path) -> memwrap.MemoryClassifier:
    """A copy of a model that remembers some of the images of a folder, whose name is the class."""
    more = scratch / f"more-{draw}" / images.name
    more.mkdir(parents=True)
    for each in random.Random(draw).sample(sorted(images.iterdir()), ADDED):
        shutil.copy(each, more)
    assert model.transform is not None
    data = open_data(str(more.parent), size=model.transform.shape[1], fit=model.transform.fit, least_classes=1)
    extended = copy.deepcopy(model)
    add_images(extended, data)
    return extended


def measure(name: str, folder: Path, scratch: Path, all_classes: dict[str, float]) -> Iterator[dict[str, Any]]:
    model = train_without(folder, name, scratch)
    others = [each for each in all_classes if each != name]
    before = accuracies(model, folder / "test")
    for draw in range(DRAWS):
        after = accuracies(add_class(model, folder / "train" / name, draw, scratch), folder / "test")
        yield {
            "new_class": name,
            "draw": draw,
            "decided_by": model.decided_by,
            "added": ADDED,
            "new_class_accuracy": after[name],
            "new_class_accuracy_trained": all_classes[name],
            "others_before": sum(before[each] for each in others) / len(others),
            "others_after": sum(after[each] for each in others) / len(others),
            "date": current_date(),
            **asdict(current_provenance("cpu", "fitted", 1)),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--record", type=Path)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    lines = []
    try:
        classes = unpack(asked.archive, folder / "all")
        whole = memwrap.train(folder / "all", folder / "whole").model
        assert isinstance(whole, memwrap.MemoryClassifier)
        all_classes = accuracies(whole, folder / "all" / "test")
        for name in classes:
            for line in measure(name, folder / "all", folder / f"without-{name}", all_classes):
                lines.append(line)
                print(
                    f"{name:12} {100 * line['new_class_accuracy']:5.1f} % with {ADDED} images added, "
                    f"{100 * line['new_class_accuracy_trained']:5.1f} % trained on all; the others "
                    f"{100 * line['others_before']:.1f} -> {100 * line['others_after']:.1f} %",
                    flush=True,
                )
                if asked.record is not None:
                    asked.record.parent.mkdir(parents=True, exist_ok=True)
                    with asked.record.open("a") as record:
                        record.write(json.dumps(line) + "\n")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    share = sum(each["new_class_accuracy"] for each in lines) / sum(
        each["new_class_accuracy_trained"] for each in lines
    )
    lost = sum(each["others_before"] - each["others_after"] for each in lines) / len(lines)
    print(f"mean: {100 * share:.1f} % of what training on all gives; {100 * lost:.1f} points lost on the others")


if __name__ == "__main__":
    main()
