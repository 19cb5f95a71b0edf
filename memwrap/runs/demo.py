"""All variants compared on embedded data: a few digits and a small encoder."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from memwrap.data import DataSet, LabelledImages, digits
from memwrap.errors import RunError, SaveError
from memwrap.report.create import Inputs, create_report
from memwrap.report.page import render
from memwrap.report.record import DEMO_TITLE, HeatmapOptions
from memwrap.runs.evaluation import evaluate_run
from memwrap.runs.record import RECORD
from memwrap.runs.reporting import source_of
from memwrap.runs.run import Run, open_run
from memwrap.runs.training import begin
from memwrap.training.recipes import DEFAULT, recipe
from memwrap.training.settings import VARIANTS, Settings, with_changes

DEMO = "demo"
SAMPLES = 200
EPOCHS = 60
PICTURES = 12  # as files, and in the report
SHOWN = 6  # memory images for each
REPORT = "report.html"


@dataclass(frozen=True)
class DemoResult:
    """The accuracy of one run on the test digits."""

    variant: str
    seed: int
    accuracy: float
    test_images: int


def demo_settings(variant: str, seed: int) -> Settings:
    """The default recipe with few images and epochs."""
    changes = {"encoder": "tiny", "samples": SAMPLES, "epochs": EPOCHS, "variant": variant, "seed": seed}
    return with_changes(recipe(DEFAULT), changes, DEMO)


def compare(seeds: int, out: Path) -> Iterator[DemoResult]:
    """Train each variant with each seed, yielding each result; the first run with a memory is kept in `out`."""
    refuse_if_no_demo(out)
    data = digits()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=".demo-") as scratch:
            for seed in range(seeds):
                for variant in reversed(VARIANTS):
                    path = Path(scratch) / f"{variant}-{seed}"
                    run = _train(path, data, variant, seed)
                    yield _evaluate(run, data)
                    if (variant, seed) == ("memory_wrap", 0):
                        _save_pictures(run, data)
                        _save_report(run, out, data)
                        _move(path, out)
    except OSError as error:
        raise SaveError(f"{out}: cannot be written ({error})") from error


def _train(path: Path, data: DataSet, variant: str, seed: int) -> Run:
    training = begin(path, data, demo_settings(variant, seed), DEMO)
    training.train()
    return training.run


def _evaluate(run: Run, data: DataSet) -> DemoResult:
    evaluation = evaluate_run(run, run.model(), data, None, "test")
    scores = evaluation.get("remembered") or evaluation["standard"]
    return DemoResult(run.settings.variant, run.seed, scores["accuracy"], evaluation["images"])


def refuse_if_no_demo(out: Path) -> None:
    """Raise a RunError if the folder holds anything but an earlier demo."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / RECORD).exists() or open_run(out).record.recipe != DEMO:
        raise RunError(f"{out}: exists and is not an earlier demo; give another folder with --out")


def _move(path: Path, out: Path) -> None:
    """Replace an earlier demo, which stays until the new one is complete."""
    if out.exists():
        out.replace(path.with_name("earlier"))
    path.replace(out)


def _examples(run: Run, data: DataSet) -> tuple[LabelledImages, Tensor]:
    """Some test digits, and their pixels."""
    test = run.splits.of(data, "test").at(torch.arange(PICTURES))
    return test, next(test.images.batches([torch.arange(PICTURES)]))


def _save_report(run: Run, out: Path, data: DataSet) -> None:
    """Explain the examples, with heatmaps, in a report that names the final folder of the run."""
    test, pixels = _examples(run, data)
    source = replace(source_of(run), path=str(out.absolute()))
    inputs = Inputs(pixels, [f"digit {name}" for name in test.names], test.labels)
    report = create_report(source, inputs, shown=SHOWN, heatmaps=HeatmapOptions(), title=DEMO_TITLE)
    (run.path / REPORT).write_bytes(render(report).encode())


def _save_pictures(run: Run, data: DataSet) -> None:
    """Save the examples as files, to try `memwrap predict` on."""
    from PIL import Image

    test, pixels = _examples(run, data)
    folder = run.path / "pictures"
    folder.mkdir()
    for image, label, name in zip(pixels, test.labels, test.names, strict=True):
        Image.fromarray(image[0].numpy()).save(folder / f"a-{label}-number-{name}.png")
