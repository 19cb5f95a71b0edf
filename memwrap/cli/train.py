"""memwrap train."""

import shlex
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer

from memwrap import encoders
from memwrap.cli.callbacks import LogLines, ProgressBar, TensorBoardCurves, curve_writer, training_bar
from memwrap.cli.evaluate import keep_evaluation, show_evaluation
from memwrap.cli.failures import INTERRUPTED
from memwrap.cli.reading import Reading
from memwrap.cli.signals import stop_on_signals
from memwrap.cli.terminal import at_home, device_named, errors, print_json, warn
from memwrap.data import PUBLISHED, DataSet
from memwrap.encoders import TIMM, timm_config
from memwrap.errors import DataError, DivergedError, SettingsError
from memwrap.report.durations import duration
from memwrap.runs import training
from memwrap.runs.data import data_for, data_of
from memwrap.runs.evaluation import evaluate_run
from memwrap.runs.run import Run, open_run, refuse_if_taken
from memwrap.training.recipes import DEFAULT, RECIPES
from memwrap.training.recipes import recipe as recipe_named
from memwrap.training.settings import Settings, read_file, with_changes, without_effect

CHANGED = ("cropped", "padded", "stretched")  # of what a data set's record says was done to images


@dataclass(frozen=True)
class TrainOptions:
    """How a run is trained, whatever it is: nothing here changes its result."""

    reading: Reading
    device: str
    tensorboard: bool
    evaluate: bool
    as_json: bool
    checkpoint_seconds: float


def train(
    data: str | None,
    out: Path | None,
    recipe: str | None,
    config: Path | None,
    settings: dict[str, Any],
    resume: bool,
    manner: TrainOptions,
    again: list[str],
) -> None:
    """See `memwrap train --help`. again: flags to be repeated when a stopped run is gone on with."""
    if out is None:
        raise SettingsError("there is no --out; say where the run is to be kept, as in --out runs/photos")
    out, device = at_home(out), device_named(manner.device)
    if manner.tensorboard:
        curve_writer()  # before anything is made
    if resume:
        if settings or recipe or config:
            raise SettingsError("--resume goes on with the settings of the run; leave other settings out")
        begun = _resumed(out, data, device, manner.reading)
    else:
        if data is None:
            raise SettingsError("there is no DATA; name a folder of class folders, a zip, or " + ", ".join(PUBLISHED))
        begun = _begun(out, data, chosen_settings(data, recipe, config, settings), device, manner.reading)
    begun.checkpoint_seconds = manner.checkpoint_seconds
    _announce(begun)
    moved = [data] if resume and data else []
    _run_to_the_end(
        begun, manner.tensorboard, shlex.join(["memwrap", "train", *moved, "--resume", "--out", str(out), *again])
    )
    _conclude(begun, manner.evaluate, manner.as_json)


def _begun(
    out: Path, data: str, chosen: tuple[str, Settings], device: torch.device, reading: Reading
) -> training.RunTraining:
    name, settings = chosen
    refuse_here(out)
    refuse_if_taken(out)
    _refuse_early(settings)
    return training.begin(out, data_for(data, settings, **reading.options()), settings, name, device)


def _resumed(out: Path, moved_to: str | None, device: torch.device, reading: Reading) -> training.RunTraining:
    run = open_run(out)
    run.unfinished_state()  # before the images are read
    if (here := training.device_name(device)) != run.record.device:
        slowly = ", slowly, as it is in bf16" if run.settings.precision == "bf16" and here == "cpu" else ""
        warn(
            f"the run was started on {run.record.device} and continues on {here}{slowly}; "
            "results differ a little between devices"
        )
    return training.resume(run, _data_again(run, moved_to, reading), device)


def chosen_settings(data: str, recipe: str | None, config: Path | None, flags: dict[str, Any]) -> tuple[str, Settings]:
    """The recipe's name, and the settings: flags before the file, the file before the recipe."""
    in_file = {} if config is None else read_file(config)
    named = in_file.pop("recipe", None)
    if named is not None and not isinstance(named, str):
        raise SettingsError(f"{config}: recipe is {named!r}; expected one of {', '.join(RECIPES)}")
    given = {**in_file, **flags}
    name = recipe or named or _recipe_for(data, given)
    # In one go: what holds together may come from both.
    settings = with_changes(recipe_named(name), given, _origin(config, flags))
    warn(*without_effect(settings, given))
    return name, settings


def _origin(config: Path | None, flags: dict[str, Any]) -> str:
    return "settings" if config is None else f"settings ({config}{' and flags' if flags else ''})"


def _recipe_for(data: str, given: dict[str, Any]) -> str:
    if given.get("freeze"):
        return "frozen"
    if given.get("pretrained") or given.get("weights"):
        return "finetune"
    return data if data in PUBLISHED and data in RECIPES else DEFAULT


def refuse_here(out: Path) -> None:
    """The run takes the place of an empty folder; who stands in it would be left in one that is gone."""
    if out.exists() and out.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise SettingsError(f"--out is {out}, the folder that you are in or one above it; name a new one in it")


def _refuse_early(settings: Settings) -> None:
    """What would fail anyway, but only when all images have been read."""
    name = settings.encoder
    if name is not None and name.startswith(TIMM):
        timm_config(name)
    elif name is not None and name not in encoders.names():
        raise SettingsError(f"encoder is {name!r}; expected one of {', '.join(encoders.names())}, or timm:NAME")
    if settings.weights is not None and not Path(settings.weights).is_file():
        raise SettingsError(f"weights is {settings.weights!r}; there is no such file")


def _data_again(run: Run, moved_to: str | None, reading: Reading) -> DataSet:
    try:
        return data_of(run, moved_to, **reading.options())
    except DataError as error:
        if moved_to is not None:
            raise
        again = f"memwrap train DATA --resume --out {shlex.quote(str(run.path))}"
        raise DataError(f"{error}\nIf they have moved: {again}") from error


def _announce(begun: training.RunTraining) -> None:
    run, images = begun.run, begun.trainer.plan.labels
    warn(*run.record.data.warnings)
    shape = "x".join(map(str, begun.model.get_transform().shape[1:]))
    errors.print(
        f"{len(images)} images of {len(run.classes)} classes at {shape}, {run.settings.encoder}, "
        f"{run.settings.variant}, {run.settings.epochs} epochs on {begun.trainer.device.type}, "
        f"recipe {run.record.recipe}"
    )
    if changed := _changed_shapes(run.record.data.conversion.get("adjusted", {})):
        errors.print(f"{changed} to make them square; --fit says how")
    is_random = not (run.settings.pretrained or run.settings.weights)
    if is_random and (run.settings.freeze or run.record.recipe == "finetune"):
        what = "frozen" if run.settings.freeze else "finetuned"
        warn(f"the encoder is {what}, but has random weights; --pretrained loads trained ones")
    warn(*_missing_classes(begun))
    if begun.trainer.progress.step:
        errors.print(f"going on from step {begun.trainer.progress.step} of {begun.trainer.steps}")
    elif "flip" in run.settings.augment and run.record.recipe in (DEFAULT, "finetune"):
        errors.print("images are mirrored at random; if left and right matter, name --augment without flip")


def _missing_classes(begun: training.RunTraining) -> list[str]:
    """Classes that a small draw has left out."""
    found = []
    for split, words in (("train", "is not trained on"), ("test", "is not in the test")):
        labels = begun.run.splits.of(begun.data, split).labels
        if not len(labels):
            continue
        counts = torch.bincount(labels, minlength=len(begun.run.classes)).tolist()
        names = [name for name, count in zip(begun.run.classes, counts, strict=True) if not count]
        if names:
            found.append(
                f"{', '.join(names[:5])}{' and more' if len(names) > 5 else ''} {words}: no image of it was drawn"
            )
    return found


def _changed_shapes(adjusted: dict[str, int]) -> str:
    """As "12 images were cropped"; nothing where all had the right shape."""
    changes = [f"{count} images were {name}" for name, count in adjusted.items() if name in CHANGED]
    return ", ".join(changes)


def _run_to_the_end(begun: training.RunTraining, tensorboard: bool, again: str) -> None:
    """Train with a bar or a log; a first Ctrl-C stops between two steps, when all is saved."""
    try:
        done, stopped = _watched(begun, tensorboard)
    except KeyboardInterrupt:
        errors.print(f"stopped at once. Go on from the last step that was saved with:\n  {again}")
        raise typer.Exit(INTERRUPTED) from None
    except DivergedError as error:
        raise DivergedError(f"{error}. A run keeps its settings: give others with another --out") from error
    if not done:
        step, steps = begun.trainer.progress.step, begun.trainer.steps
        errors.print(f"stopped after step {step} of {steps}; all is saved. Go on with:\n  {again}")
        raise typer.Exit(INTERRUPTED)
    if stopped:
        errors.print(f"stopped after the last step; the run is finished, and in {begun.run.path}")
        raise typer.Exit(INTERRUPTED)


def _watched(begun: training.RunTraining, tensorboard: bool) -> tuple[bool, bool]:
    """Train, and say whether the end was reached, and whether a signal asked to stop."""
    epochs, first = begun.run.settings.epochs, begun.trainer.progress.step + 1
    say = b"\n" * errors.is_terminal + b"stopping after this step; once more stops at once\n"
    with ExitStack() as stack:
        stop = stack.enter_context(stop_on_signals(say))
        if tensorboard:
            begun.callbacks.append(stack.enter_context(TensorBoardCurves(begun.run.path / "tensorboard", first)))
        if errors.is_terminal and not errors.is_dumb_terminal:
            begun.callbacks.append(ProgressBar(stack.enter_context(training_bar(errors)), epochs))
        else:
            begun.callbacks.append(LogLines(errors, epochs))
        return begun.train(stop), stop()


def _evaluated(begun: training.RunTraining) -> dict[str, Any]:
    try:
        return evaluate_run(begun.run, begun.model, begun.data, None, "test")
    except KeyboardInterrupt:
        again = shlex.join(["memwrap", "evaluate", str(begun.run.path)])
        errors.print(f"stopped while it was judged; the run is finished. Judge it with:\n  {again}")
        raise typer.Exit(INTERRUPTED) from None


def _conclude(begun: training.RunTraining, evaluate: bool, as_json: bool) -> None:
    run: Run = begun.run
    result: dict[str, Any] = {"run": str(run.path), "seconds": begun.seconds, "steps": begun.trainer.steps}
    if evaluate and len(run.splits.test):
        record = _evaluated(begun)
        result["evaluation"] = record
        if not as_json:
            show_evaluation(record, as_json)
        keep_evaluation(run, record)
    if as_json:
        print_json(result)
    errors.print(f"trained in {duration(begun.seconds)}; the run is in {run.path}")
