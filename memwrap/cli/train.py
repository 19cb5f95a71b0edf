"""memwrap train."""

import shlex
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer

from memwrap.cli import show
from memwrap.cli.callbacks import LogLines, ProgressBar, TensorBoardCurves, curve_writer, reading_bars, training_bar
from memwrap.cli.data_options import DataOptions
from memwrap.cli.evaluate import keep_evaluation, show_evaluation
from memwrap.cli.failures import INTERRUPTED
from memwrap.cli.signals import stop_on_signals
from memwrap.cli.terminal import at_home, errors, print_json, warn
from memwrap.data import PUBLISHED, DataSet
from memwrap.errors import DataError, DivergedError, RunError, SettingsError, short
from memwrap.report.durations import duration
from memwrap.runs.base import RunTraining
from memwrap.runs.choosing import check_early, choose_settings
from memwrap.runs.data import data_for, data_of
from memwrap.runs.devices import device_named
from memwrap.runs.evaluation import encoder_for, evaluate_run
from memwrap.runs.fitting import FittedTraining
from memwrap.runs.run import Run, open_run, refuse_if_taken
from memwrap.runs.scores import TrainResult
from memwrap.runs.training import last_session, open_and_begin, session_changes, session_on
from memwrap.runs.training import resume as resume_run
from memwrap.training.recipes import DEFAULT, RECIPES
from memwrap.training.settings import Settings, read_file, without_effect

CURVES = "tensorboard"  # the folder in a run
CHANGED = ("cropped", "padded", "stretched")  # in the record of a data set: how images were made square


@dataclass(frozen=True)
class TrainOptions:
    """Options that do not change the result."""

    reading: DataOptions
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
    options: TrainOptions,
    repeated: list[str],
) -> None:
    """See `memwrap train --help`. repeated: flags with which a stopped run is resumed."""
    if out is None:
        raise SettingsError("--out is missing; name the folder of the run, as in --out runs/photos")
    out, device = at_home(out), device_named(options.device)
    if options.tensorboard:
        curve_writer()  # fails before anything is made
        _require_folder(out / CURVES)
    if resume:
        if settings or recipe or config:
            raise SettingsError("--resume continues with the settings of the run; leave other settings out")
        training = _resume(out, data, device, options.reading)
    else:
        if data is None:
            raise SettingsError("DATA is missing; name a folder of class folders, a zip, or " + ", ".join(PUBLISHED))
        training = _begin(out, data, chosen_settings(data, recipe, config, settings), device, options.reading)
    training.checkpoint_seconds = options.checkpoint_seconds
    _announce(training)
    moved = [data] if resume and data else []
    command = shlex.join(["memwrap", "train", *moved, "--resume", "--out", str(out), *repeated])
    _run_to_the_end(training, options.tensorboard, command)
    _conclude(training, options.evaluate, options.as_json)


def _begin(
    out: Path, data: str, chosen: tuple[str, Settings], device: torch.device, reading: DataOptions
) -> RunTraining:
    name, settings = chosen
    refuse_here(out)
    refuse_if_taken(out)
    check_early(settings)
    options = reading.options()
    return open_and_begin(
        out, lambda tried: data_for(data, tried, **options), settings, name, device, options["progress"]
    )


def _resume(out: Path, moved_to: str | None, device: torch.device, reading: DataOptions) -> RunTraining:
    run = open_run(out)
    before = last_session(run, run.unfinished_state())  # before the images are read
    warn(*_changes(session_changes(before, session_on(device)), run.settings.precision))
    training = resume_run(run, _open_data(run, moved_to, reading), device)
    if isinstance(training, FittedTraining):
        training.bars = reading.options()["progress"]
    return training


def _changes(changes: dict[str, tuple[Any, Any]], precision: str) -> list[str]:
    """A warning if the run continues on another device or in another way, as its result then differs a little."""
    forms = {"device": "on {}", "torch": "with torch {}", "threads": "in {} threads", "cpu": "with {} instructions"}
    if not changes:
        return []
    before, now = (", ".join(forms[name].format(pair[index]) for name, pair in changes.items()) for index in (0, 1))
    is_slow = precision == "bf16" and "cpu" in changes.get("device", ())
    slowly = ", slowly, as it is in bf16" if is_slow else ""
    return [
        f"the run was trained {before} and continues {now}{slowly}; the result will differ in its last bits from "
        "that of a run without this change"
    ]


def chosen_settings(data: str, recipe: str | None, config: Path | None, flags: dict[str, Any]) -> tuple[str, Settings]:
    """The recipe's name, and the settings: the file overrides the recipe, and flags override the file."""
    in_file = {} if config is None else read_file(config)
    named = in_file.pop("recipe", None)
    if named is not None and not isinstance(named, str):
        raise SettingsError(f"{config}: recipe is {short(named)}; expected one of {', '.join(RECIPES)}")
    given = {**in_file, **flags}
    chosen = choose_settings(data, given, recipe or named, _origin(config, flags))
    if chosen.reason:
        errors.print(chosen.reason)
    is_run = config is not None and config.suffix == ".json"  # which holds all settings, those without effect, too
    warn(*without_effect(chosen.settings, flags if is_run else given))
    return chosen.recipe, chosen.settings


def _origin(config: Path | None, flags: dict[str, Any]) -> str:
    return "settings" if config is None else f"settings ({config}{' and flags' if flags else ''})"


def refuse_here(out: Path) -> None:
    """Raise a SettingsError for the current folder or one above: a new run replaces an empty folder."""
    if out.exists() and out.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise SettingsError(f"--out is {out}, the current folder or one above it; name a new folder")


def _require_folder(path: Path) -> None:
    """Raise a RunError if there is anything but a folder: a link in a run could lead what is written anywhere."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise RunError(f"{path}: is a link or a file; expected a folder, or nothing: remove it")


def _open_data(run: Run, moved_to: str | None, reading: DataOptions) -> DataSet:
    try:
        return data_of(run, moved_to, **reading.options())
    except DataError as error:
        if moved_to is not None:
            raise
        command = f"memwrap train DATA --resume --out {shlex.quote(str(run.path))}"
        raise DataError(f"{error}\nIf they have moved: {command}") from error


def _announce(training: RunTraining) -> None:
    run, fitted = training.run, isinstance(training, FittedTraining)
    warn(*run.record.data.warnings)
    shape = "x".join(map(str, training.model.get_transform().shape[1:]))
    epochs = "" if fitted else f", {run.settings.epochs} epochs"
    errors.print(
        f"{len(run.splits.train)} images of {len(run.classes)} classes at {shape}, {run.settings.encoder}, "
        f"{run.settings.variant}{epochs} on {training.device.type}, recipe {run.record.recipe}"
    )
    if changed := _changed_shapes(run.record.data.conversion.get("adjusted", {})):
        errors.print(f"{changed} to make them square; --fit says how")
    is_random = not (run.settings.pretrained or run.settings.weights)
    if is_random and (run.settings.freeze or run.record.recipe == "finetune"):
        what = "frozen" if run.settings.freeze else "finetuned"
        warn(f"the encoder is {what}, but has random weights; --pretrained loads trained ones")
    warn(*_missing_classes(training))
    if training.progress.step:
        errors.print(f"continuing from step {training.progress.step} of {training.steps}")
    elif "flip" in run.settings.augment and run.record.recipe in (DEFAULT, "finetune"):
        errors.print("images are mirrored at random; if left and right matter, give --augment without flip")


def _missing_classes(training: RunTraining) -> list[str]:
    """A warning for each split that lacks some classes."""
    found = []
    for split, words in (("train", "is not trained on"), ("test", "is not in the test")):
        labels = training.run.splits.of(training.data, split).labels
        if not len(labels):
            continue
        counts = torch.bincount(labels, minlength=len(training.run.classes)).tolist()
        names = [name for name, count in zip(training.run.classes, counts, strict=True) if not count]
        if names:
            found.append(
                f"{', '.join(names[:5])}{' and more' if len(names) > 5 else ''} {words}: no image of it was drawn"
            )
    return found


def _changed_shapes(adjusted: dict[str, int]) -> str:
    """As "12 images were cropped"; empty if all were square."""
    changes = [f"{count} images were {name}" for name, count in adjusted.items() if name in CHANGED]
    return ", ".join(changes)


def _run_to_the_end(training: RunTraining, tensorboard: bool, command: str) -> None:
    """Train with a progress bar or a log; a first Ctrl-C saves and stops after the current step."""
    try:
        done, stopped = _train_with_callbacks(training, tensorboard)
    except KeyboardInterrupt:
        errors.print(f"stopped at once. Continue from the last saved step with:\n  {command}")
        raise typer.Exit(INTERRUPTED) from None
    except DataError as error:
        raise DataError(f"{error}. Continue with:\n  {command}") from error
    except DivergedError as error:
        raise DivergedError(f"{error}. A run keeps its settings: start another one with another --out") from error
    if not done:
        step, steps = training.progress.step, training.steps
        where = "while encoding" if isinstance(training, FittedTraining) else f"after step {step} of {steps}"
        errors.print(f"stopped {where}; everything is saved. Continue with:\n  {command}")
        raise typer.Exit(INTERRUPTED)
    if stopped:
        errors.print(f"stopped after the last step; the run is finished, in {training.run.path}")
        raise typer.Exit(INTERRUPTED)


def _train_with_callbacks(training: RunTraining, tensorboard: bool) -> tuple[bool, bool]:
    """Whether training reached the end, and whether a signal asked to stop."""
    epochs, first = training.run.settings.epochs, training.progress.step + 1
    message = b"\n" * errors.is_terminal + b"stopping after this step; once more stops at once\n"
    with ExitStack() as stack:
        stop = stack.enter_context(stop_on_signals(message))
        if tensorboard:
            training.callbacks.append(stack.enter_context(TensorBoardCurves(training.run.path / CURVES, first)))
        if errors.is_terminal and not errors.is_dumb_terminal:
            training.callbacks.append(ProgressBar(stack.enter_context(training_bar(errors)), epochs))
        else:
            training.callbacks.append(LogLines(errors, epochs))
        return training.train(stop), stop()


def _evaluate(training: RunTraining) -> dict[str, Any]:
    try:
        return evaluate_run(
            training.run,
            training.model,
            training.data,
            None,
            "test",
            encoder_for(training.run, training.model, reading_bars(errors)),
        )
    except KeyboardInterrupt:
        command = shlex.join(["memwrap", "evaluate", str(training.run.path)])
        errors.print(f"stopped during the evaluation; the run is finished. Evaluate it with:\n  {command}")
        raise typer.Exit(INTERRUPTED) from None


def _conclude(training: RunTraining, evaluate: bool, as_json: bool) -> None:
    run = training.run
    if isinstance(training, FittedTraining) and run.state is not None and run.state.fitted is not None:
        for line in show.fit_lines(run.state.fitted, training.model.decided_by, run.settings, run.classes):
            errors.print(line)
    facts: dict[str, Any] = {"run": str(run.path), "seconds": training.seconds, "steps": training.steps}
    if evaluate and len(run.splits.test):
        record = _evaluate(training)
        facts["evaluation"] = record
        keep_evaluation(run, record)
        if not as_json:
            show_evaluation(record, as_json)
    if as_json:
        print_json(TrainResult.model_validate(facts).model_dump(exclude_unset=True))
    errors.print(f"trained in {duration(training.seconds)}; the run is in {run.path}")
