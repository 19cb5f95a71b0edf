"""All variants compared on embedded data: a few digits and a small encoder."""

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from memwrap.data import DataSet, LabelledImages, digits
from memwrap.errors import RunError, SaveError
from memwrap.report.create import Inputs, create_report
from memwrap.report.page import page_content
from memwrap.report.record import HeatmapOptions
from memwrap.runs.evaluation import evaluate_run
from memwrap.runs.record import RECORD
from memwrap.runs.reporting import source_of
from memwrap.runs.run import Run, open_run, partial_folder, remove_partial
from memwrap.runs.training import begin
from memwrap.storage.files import make_folder, sync_folder, write_file
from memwrap.storage.locks import exclusive_if_free
from memwrap.training.recipes import DEFAULT, recipe
from memwrap.training.settings import PAPER_VARIANTS, Settings, with_changes

DEMO = "demo"
SAMPLES = 200
EPOCHS = 60
PICTURES = 12  # as files, and in the report
SHOWN = 6  # memory images for each
REPORT = "report.html"
PICTURE_FOLDER = "pictures"
DIGITS = "digits"

# What may be in the folder of a demo.
_OWN = re.compile(
    r"(run|splits|model|evaluation|evaluation-validation)\.json|metrics\.jsonl|report\.html|[a-z]+\.[0-9a-f]{16}"
    r"\.safetensors|\.(model|run)\.json\.lock|\.memwrap\.[0-9a-f]{16}\.partial"
)
_PICTURE = re.compile(r"a-\d-number-\d+\.png")


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
    require_demo(out)
    data = digits()
    try:
        make_folder(out.parent)
        with _scratch(out) as scratch:
            for seed in range(seeds):
                for variant in reversed(PAPER_VARIANTS):
                    path = scratch / f"{variant}-{seed}"
                    run = _train(path, data, variant, seed)
                    yield _evaluate(run, data)
                    if (variant, seed) == ("memory_wrap", 0):
                        _save_pictures(run, data)
                        _save_report(run, out, data)
                        _move(path, out)
    except OSError as error:
        raise SaveError(f"{out}: cannot be written ({error})") from error


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """A folder next to `out` for runs that are not kept there yet. What a demo that was killed has left is removed."""
    with exclusive_if_free(out) as held:
        if not held:
            raise RunError(f"{out}: another process makes a demo or a run here; give another folder with --out")
        _clear_earlier(out)
        require_demo(out)
        remove_partial(out)
        scratch = partial_folder(out)
        scratch.mkdir()
        try:
            yield scratch
        finally:
            remove_partial(out)


def _clear_earlier(out: Path) -> None:
    """Put an earlier demo back if a process was killed before it put the new one in its place, or else remove it."""
    pattern = re.compile(rf"\.{re.escape(out.name)}\.[0-9a-f]{{16}}\.earlier")
    for each in out.parent.iterdir():
        if not pattern.fullmatch(each.name) or each.is_symlink():
            continue
        if os.path.lexists(out):
            shutil.rmtree(each, ignore_errors=True)
        else:
            each.replace(out)


def _train(path: Path, data: DataSet, variant: str, seed: int) -> Run:
    training = begin(path, data, demo_settings(variant, seed), DEMO)
    training.train()
    return training.run


def _evaluate(run: Run, data: DataSet) -> DemoResult:
    evaluation = evaluate_run(run, run.model(), data, None, "test")
    scores = evaluation.get("remembered") or evaluation["standard"]
    return DemoResult(run.settings.variant, run.seed, scores["accuracy"], evaluation["images"])


def require_demo(out: Path) -> None:
    """Raise a RunError if there is anything but an earlier demo with nothing but its own files, which is replaced."""
    if out.is_symlink():
        raise RunError(f"{out}: is a link; give the folder itself, or another one, with --out")
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    record = open_run(out).record if (out / RECORD).exists() else None
    if record is None or (record.recipe, record.data.source) != (DEMO, DIGITS):
        raise RunError(f"{out}: exists and is not an earlier demo; give another folder with --out")
    if foreign := _foreign_files(out):
        raise RunError(
            f"{out}: holds files that no demo has made, such as {foreign[0]}, and would be replaced; "
            "move them away, or give another folder with --out"
        )


def _foreign_files(out: Path) -> list[str]:
    """Files and folders that neither a demo makes nor the commands that it suggests."""
    found = [path for path in out.iterdir() if not (_OWN.fullmatch(path.name) and _is_plain_file(path))]
    pictures = out / PICTURE_FOLDER
    if pictures in found and pictures.is_dir() and not pictures.is_symlink():
        found.remove(pictures)
        found += [path for path in pictures.iterdir() if not (_PICTURE.fullmatch(path.name) and _is_plain_file(path))]
    return sorted(str(path.relative_to(out)) for path in found)


def _is_plain_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _move(path: Path, out: Path) -> None:
    """Replace an earlier demo, which stays until the new one is complete."""
    earlier = out.with_name(f".{out.name}.{secrets.token_hex(8)}.earlier")
    if out.exists():
        out.replace(earlier)  # where nothing is added any more, so what is checked is what is removed
        try:
            require_demo(earlier)
        except RunError as error:
            earlier.replace(out)
            raise RunError(f"{out}: was changed while the demo ran ({error})") from error
    path.replace(out)
    sync_folder(out.parent)
    shutil.rmtree(earlier, ignore_errors=True)


def _examples(run: Run, data: DataSet) -> tuple[LabelledImages, Tensor]:
    """Some test digits, and their pixels."""
    test = run.splits.of(data, "test").at(torch.arange(PICTURES))
    return test, next(test.images.batches([torch.arange(PICTURES)]))


def _save_report(run: Run, out: Path, data: DataSet) -> None:
    """Explain the examples, with heatmaps, in a report that names the final folder of the run."""
    test, pixels = _examples(run, data)
    source = replace(source_of(run), path=str(out.absolute()))
    inputs = Inputs(pixels, [f"digit {name}" for name in test.names], test.labels)
    report = create_report(source, inputs, shown=SHOWN, heatmaps=HeatmapOptions())
    write_file(run.path / REPORT, page_content(report))


def _save_pictures(run: Run, data: DataSet) -> None:
    """Save the examples as files, to try `memwrap predict` on."""
    from PIL import Image

    test, pixels = _examples(run, data)
    folder = run.path / PICTURE_FOLDER
    folder.mkdir()
    for image, label, name in zip(pixels, test.labels, test.names, strict=True):
        Image.fromarray(image[0].numpy()).save(folder / f"a-{label}-number-{name}.png")
