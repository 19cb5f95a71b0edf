"""What the commands do: call what lies below, and show what comes of it."""

import json
import os
import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import typer
from rich.text import Text

from memwrap import encoders
from memwrap.cli import show
from memwrap.cli.failures import CODES, INTERRUPTED
from memwrap.cli.watch import (
    BarWatcher,
    LineWatcher,
    TensorBoardWatcher,
    curve_writer,
    duration,
    reading_bars,
    training_bar,
)
from memwrap.data.labelled import DataSet
from memwrap.data.sources import PUBLISHED, open_data
from memwrap.demo import DemoResult, compare, demo_settings, refuse_if_no_demo
from memwrap.encoders.registry import TIMM, timm_facts
from memwrap.errors import DataError, SaveError, SettingsError
from memwrap.metrics import mean_and_spread
from memwrap.prediction import Prediction, predict_files
from memwrap.recipes import DEFAULT, RECIPES
from memwrap.recipes import recipe as recipe_named
from memwrap.runs import training
from memwrap.runs.data import data_for, data_of
from memwrap.runs.evaluation import evaluate_run, finished_model, labelled_like
from memwrap.runs.folder import Run, open_run, refuse_if_taken, write_json
from memwrap.settings import VARIANTS, Settings, read_file, with_changes

EVALUATIONS = {"test": "evaluation.json", "validation": "evaluation-validation.json"}

CHANGED = ("cropped", "padded", "stretched")  # of what a data set's record says was done to images

errors = show.plain_console(stderr=True)


def train(
    *,
    data: str | None,
    out: Path | None,
    recipe: str | None,
    config: Path | None,
    settings: dict[str, Any],
    resume: bool,
    data_root: Path | None,
    hold_mb: int,
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
    out, place = out.expanduser(), device_named(device)
    if tensorboard:
        curve_writer()  # before anything is made
    reading: dict[str, Any] = {"workers": workers, "hold_bytes": hold_mb << 20, "progress": reading_bars(errors)}
    if resume:
        if settings or recipe or config:
            raise SettingsError("--resume goes on with the settings of the run; leave other settings out")
        run = open_run(out)
        begun = training.resume(run, _data_again(run, data, data_root, reading), place)
    else:
        if data is None:
            raise SettingsError("there is no DATA; name a folder of class folders, a zip, or " + ", ".join(PUBLISHED))
        _refuse_here(out)
        refuse_if_taken(out)
        name, wanted = chosen_settings(data, recipe, config, settings)
        _refuse_early(wanted)
        begun = training.begin(out, data_for(data, wanted, data_root, **reading), wanted, name, place)
    begun.checkpoint_seconds = checkpoint_seconds
    again = ["memwrap", "train", *([data] if resume and data else []), "--resume", "--out", str(out)]
    again += ["--data-root", str(data_root)] if data_root else []
    again += ["--device", device] if device != "auto" else []
    again += ["--tensorboard"] if tensorboard else []
    _announce(begun)
    _run_to_the_end(begun, tensorboard, shlex.join(again))
    _conclude(begun, evaluate, as_json)


def chosen_settings(data: str, recipe: str | None, config: Path | None, flags: dict[str, Any]) -> tuple[str, Settings]:
    """The recipe's name, and the settings: flags before the file, the file before the recipe."""
    in_file = {} if config is None else read_file(config)
    named = in_file.pop("recipe", None)
    if named is not None and not isinstance(named, str):
        raise SettingsError(f"{config}: recipe is {named!r}; expected one of {', '.join(RECIPES)}")
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


def _refuse_here(out: Path) -> None:
    """The run takes the place of an empty folder; who stands in it would be left in one that is gone."""
    if out.exists() and out.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise SettingsError(f"--out is {out}, the folder that you are in or one above it; name a new one in it")


def _refuse_early(settings: Settings) -> None:
    """What would fail anyway, but only when all images have been read."""
    name = settings.encoder
    if name is not None and name.startswith(TIMM):
        timm_facts(name)
    elif name is not None and name not in encoders.names():
        raise SettingsError(f"encoder is {name!r}; expected one of {', '.join(encoders.names())}, or timm:NAME")
    if settings.weights is not None and not Path(settings.weights).is_file():
        raise SettingsError(f"weights is {settings.weights!r}; there is no such file")


def _data_again(run: Run, source: str | None, root: Path | None, reading: dict[str, Any]) -> DataSet:
    try:
        return data_of(run, source, root, **reading)
    except DataError as error:
        again = f"memwrap train DATA --resume --out {shlex.quote(str(run.path))}"
        raise DataError(f"{error}\nIf the run's data has moved: {again}") from error


def evaluate(
    run: Path,
    *,
    data: str | None,
    skip_bad: bool,
    run_data: str | None,
    split: str,
    data_root: Path | None,
    hold_mb: int,
    workers: int,
    device: str,
    as_json: bool,
) -> None:
    """See `memwrap evaluate --help`."""
    if split not in ("test", "validation"):
        raise SettingsError(f"split is {split!r}; expected test or validation")
    opened = open_run(run)
    reading: dict[str, Any] = {"workers": workers, "hold_bytes": hold_mb << 20, "progress": reading_bars(errors)}
    model = finished_model(opened, device_named(device))
    own: DataSet | str
    try:
        own = data_of(opened, run_data, data_root, **reading)
    except DataError as error:
        own = f"{error}; if the run's data has moved, give --run-data"
    judged = None
    if data is not None:
        (channels, size, _), fit = model.transform.shape, model.transform.fit
        given = open_data(data, root=data_root, size=size, fit=fit, channels=channels, skip_bad=skip_bad, **reading)
        if given.fingerprint == opened.data.fingerprint and given.test is None:
            raise SettingsError(
                f"--data {data} is what the run was trained on, and would be judged whole, training images too; leave "
                "--data out to judge its test images, or say with --run-data that they are there now"
            )
        _warn(*given.warnings)
        judged, split = labelled_like(opened, given, data), data
    record = evaluate_run(opened, model, own, judged, split)
    _show_evaluation(record, as_json)
    if "images" not in record:
        raise DataError(record["left_out"]["accuracy"])
    if data is None:
        _keep_evaluation(run, record)


def predict(run: Path, images: list[Path], device: str, as_json: bool) -> None:
    """See `memwrap predict --help`."""
    model = finished_model(open_run(run), device_named(device))
    console, results = show.plain_console(), []
    for result in predict_files(model, images):
        results.append(result)
        if not isinstance(result, Prediction):
            errors.print(f"{result.path}: cannot be judged, {result.reason}")
        elif not as_json:
            doubt = ", unsure" if result.uncertain else ""
            console.print(f"{result.path}: {result.name} ({result.probability:.1%}{doubt})")
    if not results:
        raise DataError(f"there are no files in {', '.join(map(str, images))}; expected images")
    if as_json:
        print_json([asdict(result) for result in results])
    if not all(isinstance(result, Prediction) for result in results):
        raise typer.Exit(CODES[DataError])


def demo(out: Path, seeds: int, as_json: bool) -> None:
    """See `memwrap demo --help`."""
    out, console, settings = out.expanduser(), show.plain_console(), demo_settings(VARIANTS[0], 0)
    _refuse_here(out)
    refuse_if_no_demo(out)
    results: list[DemoResult] = []
    errors.print(
        f"training {len(VARIANTS)} variants on {settings.samples} digits, {settings.epochs} epochs, {seeds} seeds ..."
    )
    for result in compare(seeds, out):
        results.append(result)
        errors.print(f"  {result.variant}, seed {result.seed}: {show.percent(result.accuracy)}")
    summary = {
        variant: mean_and_spread([each.accuracy for each in results if each.variant == variant])
        for variant in reversed(VARIANTS)
    }
    if as_json:
        means = {variant: {"mean": mean, "spread": spread} for variant, (mean, spread) in summary.items()}
        print_json({"run": str(out), "results": [asdict(each) for each in results], "summary": means})
        return
    console.print(f"accuracy on {results[0].test_images} other digits, mean and standard deviation of {seeds}:")
    for variant, (mean, spread) in summary.items():
        console.print(f"  {variant:12} {show.percent(mean)} ± {100 * spread:.2f}")
    console.print(f"\nA run with a memory is in {out}. Try:")
    console.print("  " + shlex.join(["memwrap", "predict", str(out), str(out / "pictures")]))
    console.print("  " + shlex.join(["memwrap", "evaluate", str(out)]))


def device_named(name: str) -> torch.device:
    """auto takes a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).item()  # which a device without memory, as "meta", has not
    except (RuntimeError, AssertionError, ImportError) as error:
        raise SettingsError(f"device is {name!r}, which cannot be used here; expected auto, cpu or cuda") from error
    return device


def print_json(content: Any) -> None:
    """On stdout, for scripts."""
    print(json.dumps(content, indent=2))


def _warn(*warnings: str) -> None:
    for warning in warnings:
        errors.print(Text("warning:", style="yellow"), warning)


def _announce(begun: training.RunTraining) -> None:
    run, images = begun.run, begun.trainer.plan.labels
    _warn(*run.data.warnings)
    shape = "x".join(map(str, begun.model.transform.shape[1:]))
    errors.print(
        f"{len(images)} images of {len(run.classes)} classes at {shape}, {run.settings.encoder}, "
        f"{run.settings.variant}, {run.settings.epochs} epochs on {begun.trainer.device.type}, recipe {run.recipe}"
    )
    if changed := _changed_shapes(run.data.conversion.get("adjusted", {})):
        errors.print(f"{changed} to make them square; --fit says how")
    if not (run.settings.pretrained or run.settings.weights) and (run.settings.freeze or run.recipe == "finetune"):
        what = "frozen and has" if run.settings.freeze else "to be finetuned and has"
        _warn(f"the encoder is {what} random weights; --pretrained gives it some that have learnt")
    if begun.trainer.progress.step:
        errors.print(f"going on from step {begun.trainer.progress.step} of {begun.trainer.steps}")
    elif "flip" in run.settings.augment and run.recipe in (DEFAULT, "finetune"):
        errors.print("images are mirrored at random; if left and right matter, name --augment without flip")


def _changed_shapes(adjusted: dict[str, int]) -> str:
    """As "12 images were cropped"; nothing where all had the right shape."""
    changes = [f"{count} images were {name}" for name, count in adjusted.items() if name in CHANGED]
    return ", ".join(changes)


def _run_to_the_end(begun: training.RunTraining, tensorboard: bool, again: str) -> None:
    """Train with a bar or a log; a first Ctrl-C stops between two steps, when all is saved."""
    epochs, first = begun.run.settings.epochs, begun.trainer.progress.step + 1
    try:
        with ExitStack() as stack:
            stop = stack.enter_context(_stop_on_signals())
            if tensorboard:
                begun.watchers.append(stack.enter_context(TensorBoardWatcher(begun.run.path / "tensorboard", first)))
            if errors.is_terminal and not errors.is_dumb_terminal:
                begun.watchers.append(BarWatcher(stack.enter_context(training_bar(errors)), epochs))
            else:
                begun.watchers.append(LineWatcher(errors, epochs))
            done = begun.go_on(stop)
            stopped = stop()
    except KeyboardInterrupt:
        errors.print(f"stopped at once. Go on from the last step that was saved with:\n  {again}")
        raise typer.Exit(INTERRUPTED) from None
    if not done:
        step, steps = begun.trainer.progress.step, begun.trainer.steps
        errors.print(f"stopped after step {step} of {steps}; all is saved. Go on with:\n  {again}")
        raise typer.Exit(INTERRUPTED)
    if stopped:
        errors.print(f"stopped after the last step; the run is finished, and in {begun.run.path}")
        raise typer.Exit(INTERRUPTED)


@contextmanager
def _stop_on_signals() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and a polite kill are noted, and asked for between two steps; a second one stops at once."""
    received: list[int] = []

    def note(number: int, frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        # Past rich and Python's buffers: this may have interrupted either while it held a lock.
        with suppress(OSError):
            os.write(2, b"\n" * errors.is_terminal + b"stopping after this step; once more stops at once\n")

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
        result["evaluation"] = record
        if not as_json:
            _show_evaluation(record, as_json)
        _keep_evaluation(run.path, record)
    if as_json:
        print_json(result)
    errors.print(f"trained in {duration(begun.seconds)}; the run is in {run.path}")


def _show_evaluation(record: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(record)
    else:
        show.evaluation(show.plain_console(), record)


def _keep_evaluation(run: Path, record: dict[str, Any]) -> None:
    """In the run's folder, if that can be written to: what was found has been shown anyway."""
    try:
        write_json(run, EVALUATIONS[record["split"]], record)
    except SaveError as error:
        _warn(str(error))
