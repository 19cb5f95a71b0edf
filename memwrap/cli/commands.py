"""What the commands do: call what lies below, and show what comes of it."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console
from rich.markup import escape

from memwrap.cli import show
from memwrap.cli.failures import CODES, INTERRUPTED
from memwrap.cli.watch import BarWatcher, LineWatcher, TensorBoardWatcher, duration, reading_bars, training_bar
from memwrap.data.labelled import DataSet
from memwrap.data.sources import PUBLISHED, open_data
from memwrap.demo import EPOCHS, SAMPLES, DemoResult, compare
from memwrap.errors import DataError, SettingsError
from memwrap.metrics import mean_and_spread
from memwrap.prediction import Prediction, predict_files
from memwrap.recipes import DEFAULT, RECIPES
from memwrap.recipes import recipe as recipe_named
from memwrap.runs import training
from memwrap.runs.data import data_for, data_of
from memwrap.runs.evaluation import evaluate_run, finished_model, labelled_like
from memwrap.runs.folder import Run, open_run, refuse_if_taken, write_json
from memwrap.settings import VARIANTS, Settings, read_file, with_changes

EVALUATION = "evaluation.json"

errors = Console(stderr=True, soft_wrap=True)


def train(
    data: str | None,
    out: Path | None,
    recipe: str | None,
    config: Path | None,
    settings: dict[str, Any],
    resume: bool,
    data_root: Path | None,
    workers: int,
    device: str,
    tensorboard: bool,
    evaluate: bool,
    as_json: bool,
    checkpoint_seconds: float,
) -> None:
    """See `memwrap train --help`."""
    if out is None:
        raise SettingsError("there is no --out; say where the run is to be kept, as in --out runs/photos")
    place, bars = device_named(device), reading_bars(errors)
    if resume:
        if settings or recipe or config:
            raise SettingsError("--resume goes on with the settings of the run; leave other settings out")
        run = open_run(out)
        begun = training.resume(run, data_of(run, data, data_root, workers, progress=bars), place)
    else:
        if data is None:
            raise SettingsError("there is no DATA; name a folder of class folders, a zip, or " + ", ".join(PUBLISHED))
        refuse_if_taken(out)
        name, wanted = chosen_settings(data, recipe, config, settings)
        images = data_for(data, wanted, data_root, workers, progress=bars)
        begun = training.begin(out, images, wanted, name, place)
    _announce(begun)
    begun.checkpoint_seconds = checkpoint_seconds
    if tensorboard:
        begun.watchers.append(TensorBoardWatcher(out / "tensorboard"))
    _run_to_the_end(begun)
    _conclude(begun, evaluate, as_json)


def chosen_settings(data: str, recipe: str | None, config: Path | None, flags: dict[str, Any]) -> tuple[str, Settings]:
    """The recipe's name, and the settings: flags before the file, the file before the recipe."""
    in_file = {} if config is None else read_file(config)
    named = in_file.pop("recipe", None)
    name = recipe or named or _recipe_for(data, {**in_file, **flags})
    settings = recipe_named(name)
    # In one go: what holds together may come from both.
    return name, with_changes(settings, {**in_file, **flags}, _origin(config, flags))


def _origin(config: Path | None, flags: dict[str, Any]) -> str:
    return "settings" if config is None else f"settings ({config}{' and flags' if flags else ''})"


def _recipe_for(data: str, given: dict[str, Any]) -> str:
    if given.get("freeze"):
        return "frozen"
    if given.get("pretrained") or given.get("weights"):
        return "finetune"
    return data if data in PUBLISHED and data in RECIPES else DEFAULT


def evaluate(
    run: Path,
    data: str | None,
    run_data: str | None,
    split: str,
    data_root: Path | None,
    workers: int,
    device: str,
    as_json: bool,
) -> None:
    """See `memwrap evaluate --help`."""
    if split not in ("test", "validation"):
        raise SettingsError(f"split is {split!r}; expected test or validation")
    opened, bars = open_run(run), reading_bars(errors)
    model = finished_model(opened, device_named(device))
    own: DataSet | str
    try:
        own = data_of(opened, run_data, data_root, workers, progress=bars)
    except DataError as error:
        own = str(error)
    judged = None
    if data is not None:
        given = open_data(
            data, root=data_root, size=model.transform.shape[1], fit=model.transform.fit, workers=workers, progress=bars
        )
        judged, split = labelled_like(opened, given, data), data
    record = evaluate_run(opened, model, own, judged, split)
    if data is None and "images" in record:
        write_json(run, EVALUATION, record)
    if as_json:
        print_json(record)
    else:
        show.evaluation(Console(soft_wrap=True), record)
    if "images" not in record:
        raise typer.Exit(CODES[DataError])


def predict(run: Path, images: list[Path], device: str, as_json: bool) -> None:
    """See `memwrap predict --help`."""
    model = finished_model(open_run(run), device_named(device))
    console, results = Console(soft_wrap=True), []
    for result in predict_files(model, images):
        results.append(result)
        if as_json:
            continue
        if isinstance(result, Prediction):
            doubt = ", unsure" if result.uncertain else ""
            console.print(escape(f"{result.path}: {result.name} ({result.probability:.1%}{doubt})"), highlight=False)
        else:
            errors.print(escape(f"{result.path}: cannot be judged, {result.reason}"), highlight=False)
    if as_json:
        print_json([asdict(result) for result in results])
    if not all(isinstance(result, Prediction) for result in results):
        raise typer.Exit(CODES[DataError])


def demo(out: Path, seeds: int, as_json: bool) -> None:
    """See `memwrap demo --help`."""
    results: list[DemoResult] = []
    errors.print(
        f"training {len(VARIANTS)} variants on {SAMPLES} digits, {EPOCHS} epochs, {seeds} seeds ...", highlight=False
    )
    for result in compare(seeds, out):
        results.append(result)
        errors.print(f"  {result.variant}, seed {result.seed}: {show.percent(result.accuracy)}", highlight=False)
    summary = {
        variant: mean_and_spread([each.accuracy for each in results if each.variant == variant])
        for variant in reversed(VARIANTS)
    }
    if as_json:
        print_json({"run": str(out), "results": [asdict(each) for each in results]})
        return
    console = Console(soft_wrap=True)
    console.print(
        f"accuracy on {results[0].test_images} other digits, mean and standard deviation of {seeds}:", highlight=False
    )
    for variant, (mean, spread) in summary.items():
        console.print(f"  {variant:12} {show.percent(mean)} ± {100 * spread:.2f}", highlight=False)
    console.print(f"\nA run with a memory is in {out}. Try:", highlight=False)
    console.print(f"  memwrap predict {out} {out}/pictures\n  memwrap evaluate {out}", highlight=False)


def device_named(name: str) -> torch.device:
    """auto takes a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(f"device is {name!r}, which cannot be used here; expected auto, cpu or cuda") from error
    return device


def print_json(content: Any) -> None:
    """On stdout, for scripts."""
    print(json.dumps(content, indent=2))


def _announce(begun: training.RunTraining) -> None:
    run, images = begun.run, begun.trainer.plan.labels
    for warning in run.data.warnings:
        errors.print(f"[yellow]warning:[/yellow] {escape(warning)}", highlight=False)
    shape = "x".join(map(str, begun.model.transform.shape[1:]))
    errors.print(
        f"{len(images)} images of {len(run.classes)} classes at {shape}, {run.settings.encoder}, "
        f"{run.settings.variant}, {run.settings.epochs} epochs on {begun.trainer.device.type}, recipe {run.recipe}",
        highlight=False,
    )
    if begun.trainer.progress.step:
        errors.print(f"going on from step {begun.trainer.progress.step} of {begun.trainer.steps}", highlight=False)
    elif "flip" in run.settings.augment and run.recipe in (DEFAULT, "finetune"):
        errors.print(
            "images are mirrored at random; if left and right matter, name --augment without flip", highlight=False
        )


def _run_to_the_end(begun: training.RunTraining) -> None:
    """Train with a bar or a log; a first Ctrl-C stops between two steps, when all is saved."""
    epochs = begun.run.settings.epochs
    with _stop_on_signals() as stop:
        if errors.is_terminal:
            with training_bar(errors) as bar:
                begun.watchers.append(BarWatcher(bar, epochs))
                done = begun.go_on(stop)
        else:
            begun.watchers.append(LineWatcher(errors, epochs))
            done = begun.go_on(stop)
    if not done:
        errors.print(
            f"stopped after step {begun.trainer.progress.step} of {begun.trainer.steps}; all is saved. Go on with: "
            f"memwrap train --resume --out {begun.run.path}",
            highlight=False,
        )
        raise typer.Exit(INTERRUPTED)


@contextmanager
def _stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and a polite kill are noted, and asked for between two steps; a second one stops at once."""
    received: list[int] = []

    def note(number: int, frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        errors.print("stopping after this step ...", highlight=False)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _conclude(begun: training.RunTraining, evaluate: bool, as_json: bool) -> None:
    run: Run = begun.run
    result: dict[str, Any] = {"run": str(run.path), "seconds": begun.seconds, "steps": begun.trainer.steps}
    if evaluate and len(run.splits.test):
        record = evaluate_run(run, begun.model, begun.data, None, "test")
        write_json(run.path, EVALUATION, record)
        result["evaluation"] = record
        if not as_json:
            show.evaluation(Console(soft_wrap=True), record)
    if as_json:
        print_json(result)
    errors.print(f"trained in {duration(begun.seconds)}; the run is in {run.path}", highlight=False)
