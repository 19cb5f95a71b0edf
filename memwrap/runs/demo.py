"""A comparison on embedded data: few digits, a small encoder, all variants, whoever wins."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from memwrap.data import DataSet, LabelledImages, digits
from memwrap.errors import RunError, SaveError
from memwrap.report.create import Inputs, create_report
from memwrap.report.page import render
from memwrap.report.record import DEMO_TITLE, HeatmapOptions
from memwrap.runs.evaluation import evaluate_run, finished_model
from memwrap.runs.folder import RECORD, open_run
from memwrap.runs.reporting import source_at
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
    """One run's accuracy on the digits that are set apart for the test."""

    variant: str
    seed: int
    accuracy: float
    test_images: int


def demo_settings(variant: str, seed: int) -> Settings:
    """The default recipe, cut short."""
    changes = {"encoder": "tiny", "samples": SAMPLES, "epochs": EPOCHS, "variant": variant, "seed": seed}
    return with_changes(recipe(DEFAULT), changes, DEMO)


def compare(seeds: int, out: Path) -> Iterator[DemoResult]:
    """Train each variant with each seed, one result at a time; the first with a memory is kept as a run in `out`."""
    refuse_if_no_demo(out)
    data = digits()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=".demo-") as scratch:
            for seed in range(seeds):
                for variant in reversed(VARIANTS):
                    path = Path(scratch) / f"{variant}-{seed}"
                    yield _train(path, data, variant, seed)
                    if (variant, seed) == ("memory_wrap", 0):
                        _save_pictures(path, data)
                        _save_report(path, out, data)
                        _put(path, out)
    except OSError as error:
        raise SaveError(f"{out}: cannot be written ({error})") from error


def _train(path: Path, data: DataSet, variant: str, seed: int) -> DemoResult:
    begin(path, data, demo_settings(variant, seed), DEMO).train()
    run = open_run(path)
    record = evaluate_run(run, finished_model(run), data, None, "test")
    scores = record.get("remembered") or record["standard"]
    return DemoResult(variant, seed, scores["accuracy"], record["images"])


def refuse_if_no_demo(out: Path) -> None:
    """A folder that holds anything but an earlier demo is not replaced."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / RECORD).exists() or open_run(out).recipe != DEMO:
        raise RunError(f"{out}: exists and is not an earlier demo; give another folder with --out")


def _put(path: Path, out: Path) -> None:
    """In the place of an earlier demo, which stays until the new one is whole."""
    if out.exists():
        out.replace(path.with_name("earlier"))
    path.replace(out)


def _save_report(path: Path, out: Path, data: DataSet) -> None:
    """Explanations of the same digits, with heatmaps; it names the place where the run will be."""
    run = open_run(path)
    test = run.splits.of(data, "test").at(torch.arange(PICTURES))
    pixels = next(test.images.batches([torch.arange(PICTURES)]))
    source = replace(source_at(run.path), path=str(out.absolute()))
    inputs = Inputs(pixels, [f"digit {name}" for name in test.names], test.labels)
    report = create_report(source, inputs, shown=SHOWN, heatmaps=HeatmapOptions(), title=DEMO_TITLE)
    (path / REPORT).write_bytes(render(report).encode())


def _save_pictures(path: Path, data: DataSet) -> None:
    """Some test digits as files, to try `memwrap predict` on."""
    from PIL import Image

    run = open_run(path)
    test: LabelledImages = run.splits.of(data, "test").at(torch.arange(PICTURES))
    folder = path / "pictures"
    folder.mkdir()
    for pixels, label, name in zip(
        next(test.images.batches([torch.arange(PICTURES)])), test.labels, test.names, strict=True
    ):
        Image.fromarray(pixels[0].numpy()).save(folder / f"a-{label}-number-{name}.png")
