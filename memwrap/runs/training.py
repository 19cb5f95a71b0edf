"""Training into a folder, so that a run can be stopped at any time and resumed to the same result."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from memwrap.data import DataSet, check_size, generator
from memwrap.data import Progress as Bars
from memwrap.errors import DataError, NonFiniteError, RunError, brief
from memwrap.models.classifier import MemoryClassifier
from memwrap.models.inference import accuracy_with_drawn_memory, remember
from memwrap.models.loading import Model, unpack
from memwrap.models.record import ModelRecord
from memwrap.runs.base import RunTraining, remembered_indices, training_state
from memwrap.runs.calibrating import calibrate, choose_scale
from memwrap.runs.drawn import encoded
from memwrap.runs.fitting import FittedTraining, choose_fit
from memwrap.runs.record import Session, TrainingState, new_record, versions
from memwrap.runs.run import METRICS, Run, create_run, refuse_if_taken
from memwrap.runs.splits import Splits, split
from memwrap.storage import checkpoint, log
from memwrap.storage.validation import parse
from memwrap.training.building import new_model
from memwrap.training.recipes import encoder_for, resolve_settings
from memwrap.training.settings import ResolvedSettings, Settings, is_fitted
from memwrap.training.state import (
    check_finite,
    optimizer_tensors,
    queue_tensors,
    restore_optimizer,
    restore_queue,
)
from memwrap.training.trainer import EpochMetrics, Progress, StepMetrics, Trainer, precision_on

VALIDATIONS = 10  # in a run, evenly spaced, the last after the last epoch
CPU = "cpu"


@dataclass(kw_only=True)
class SteppedTraining(RunTraining):
    """Training by steps, from the first or from where it was stopped."""

    trainer: Trainer

    @property
    def progress(self) -> Progress:
        return self.trainer.progress

    @property
    def steps(self) -> int:
        return self.trainer.steps

    def _train(self, stop: Callable[[], bool]) -> bool:
        try:
            return self._run_steps(stop)
        except NonFiniteError as error:  # outside of a step: in a checkpoint, a validation, or at the end
            raise self.trainer.diverged(str(error)) from error

    def _run_steps(self, stop: Callable[[], bool]) -> bool:
        started = saved = time.monotonic()
        first, before = self.trainer.progress.step, self.seconds
        for metrics in self._steps():
            now = time.monotonic()
            self.seconds = before + now - started
            rate = (metrics.step - first) * self.run.settings.batch_size / max(now - started, 1e-9)
            for callback in self.callbacks:
                callback.on_step(metrics, rate)
            if metrics.finished_epoch is not None:
                self._log(metrics.finished_epoch, rate)
            if metrics.step == metrics.steps:
                break
            if stop():
                self.save()
                return False
            if now - saved >= self.checkpoint_seconds:
                self.save()
                saved = time.monotonic()
        self._finish()
        return True

    def _steps(self) -> Iterator[StepMetrics]:
        """The steps. When images cannot be read any more, what has been trained until then is saved."""
        steps, progress = self.trainer.run(), self.trainer.progress
        while True:
            try:
                metrics = next(steps, None)
            except DataError as error:
                if progress.step > self._stored:
                    self.save()
                raise DataError(
                    f"{error}. The run is saved after step {progress.step} of {self.trainer.steps}"
                ) from error
            if metrics is None:
                return
            yield metrics

    def save(self) -> None:
        """Store weights, optimizer and progress in one step, with the model's description from the first save."""
        check_finite(self.model)
        self._write(*pack(self.trainer, self.record, self.sessions, self.seconds, probe=False))

    def _log(self, epoch: EpochMetrics, rate: float) -> None:
        line = {**asdict(epoch), "seconds": round(self.seconds, 3), "images_per_second": round(rate, 1)}
        if len(self.run.splits.validation) and self._is_validated(epoch.epoch):
            line["validation_accuracy"] = self._validation_accuracy(epoch.epoch)
        self._check_folder()
        log.append(self.run.path / METRICS, line)
        for callback in self.callbacks:
            callback.on_epoch(line)

    def _is_validated(self, epoch: int) -> bool:
        epochs = self.run.settings.epochs
        return epoch * VALIDATIONS // epochs > (epoch - 1) * VALIDATIONS // epochs

    def _validation_accuracy(self, epoch: int) -> float:
        settings = self.run.settings
        return accuracy_with_drawn_memory(
            self.model,
            self.run.splits.of(self.data, "validation"),
            self._training_images(),
            settings.memory_size,
            generator(settings.seed, "validation memory", epoch),
        )

    def _finish(self) -> None:
        """Remember a memory, choose a vote's scale, and calibrate, if there are images that were not trained on."""
        self.model.eval()
        chosen, held_out = None, encoded(self.model, self.run.splits.of(self.data, "validation"))
        if isinstance(self.model, MemoryClassifier):
            images = self._training_images()
            chosen = remembered_indices(images.labels, self.run.settings)
            remember(self.model, images.at(chosen))
            if self.run.settings.scale is None:
                choose_scale(self.model, held_out)
        calibrate(self.model, held_out)
        self._write_finished(chosen)


def pack(
    trainer: Trainer, record: ModelRecord, sessions: tuple[Session, ...], seconds: float, probe: bool = True
) -> tuple[dict[str, Any], checkpoint.Parts]:
    """A model within a training, as a folder stores it."""
    settings, parts = trainer.model.pack(record, probe)
    parts["optimizer"] = optimizer_tensors(trainer.model, trainer.optimizer)
    if trainer.queue is not None:
        parts["queue"] = queue_tensors(trainer.queue)
    return {**settings, "training": training_state(trainer.progress, sessions, seconds)}, parts


def open_and_begin(
    path: Path,
    open_with: Callable[[Settings], DataSet],
    settings: Settings,
    recipe: str,
    device: torch.device | str = "cpu",
    bars: Bars | None = None,
) -> RunTraining:
    """A new run in this folder, with the data that `open_with` opens for some settings. bars: show progress."""
    started = time.monotonic()
    settings, data = choose_fit(settings, open_with, device, bars)
    training = begin(path, data, settings, recipe, device)
    if isinstance(training, FittedTraining):
        training.bars, training.seconds = bars, time.monotonic() - started  # most of its work may have been done
    return training


def begin(
    path: Path, data: DataSet, settings: Settings, recipe: str, device: torch.device | str = "cpu"
) -> RunTraining:
    """A new run in this folder, which must be new or empty; its model is stored before the first step."""
    refuse_if_taken(path)
    if is_fitted(settings):
        return _begin_fitting(path, data, settings, recipe, device)
    splits, trainer = new_training(data, settings, device)
    record, sessions = trainer.model.describe(), (session_on(trainer.device),)
    run = create_run(
        path,
        new_record(recipe, trainer.settings, data, device_name(trainer.device)),
        splits,
        *pack(trainer, record, sessions, 0.0),
    )
    return SteppedTraining(run, trainer.model, data, record, sessions, trainer=trainer)


def _begin_fitting(
    path: Path, data: DataSet, settings: Settings, recipe: str, device: torch.device | str
) -> FittedTraining:
    splits = split(data, settings)
    final = _resolve(data, splits, settings, device)
    images = splits.of(data, "train")
    model = new_model(final, data.classes, images.images).to(device)
    model.encoder.requires_grad_(False)
    record, sessions = model.describe(), (session_on(model.reference.device),)
    stored, parts = model.pack(record)
    run = create_run(
        path,
        new_record(recipe, final, data, device_name(model.reference.device)),
        splits,
        {**stored, "training": training_state(Progress(), sessions, 0.0)},
        parts,
    )
    return FittedTraining(run, model, data, record, sessions)


def new_training(data: DataSet, settings: Settings, device: torch.device | str = "cpu") -> tuple[Splits, Trainer]:
    """The splits of the images, and the trainer of a new model before its first step."""
    splits = split(data, settings)
    final = _resolve(data, splits, settings, device)
    images = splits.of(data, "train")
    return splits, Trainer(new_model(final, data.classes, images.images).to(device), images, final)


def _resolve(data: DataSet, splits: Splits, settings: Settings, device: torch.device | str) -> ResolvedSettings:
    side = max(data.train.images.shape[1:])
    encoder = encoder_for(side, torch.device(device).type)
    final = resolve_settings(settings, len(splits.train), data.classes, encoder)
    final = final.replace(precision=precision_on(torch.device(device), final.precision))
    _check_memories(final, len(splits.train))
    return final


def resume(run: Run, data: DataSet, device: torch.device | str = "cpu") -> RunTraining:
    """The training of the run from where it was last saved."""
    run.forget()
    state = run.unfinished_state()
    with run.opened() as (settings, parts):
        model = unpack(run.path, settings, parts).to(device)
        if "optimizer" not in parts and not is_fitted(run.settings):
            raise RunError(f"{run.path}: the run is damaged: it lacks the state of its optimizer")
        optimizer, queue = dict(parts.get("optimizer", {})), _stored_queue(run, parts, model)
    run.check_model(model)
    if data.classes != run.classes:
        raise RunError(f"{run.path}: the run is damaged: its classes are not those of its data")
    if is_fitted(run.settings):
        record = parse(ModelRecord, settings, RunError, run.path / checkpoint.MANIFEST)
        return FittedTraining(run, model, data, record, _sessions(run, state, model.reference.device), state.seconds)
    images = run.splits.of(data, "train")
    try:
        _check_memories(run.settings, len(images))
        trainer = Trainer(model, images, run.settings, progress=state.progress)
        _check_progress(trainer)
        restore_optimizer(model, trainer.optimizer, optimizer, state.progress.step)
        if trainer.queue is not None:
            trainer.queue = restore_queue(trainer.queue, queue, len(run.classes))
    except (RunError, DataError):
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"{run.path}: the run is damaged: its settings do not match the state of its training ({brief(error)})"
        ) from error
    record = parse(ModelRecord, settings, RunError, run.path / checkpoint.MANIFEST)
    sessions = _sessions(run, state, trainer.device)
    return SteppedTraining(run, model, data, record, sessions, state.seconds, trainer=trainer)


def _stored_queue(run: Run, parts: checkpoint.StoredParts, model: Model) -> dict[str, Tensor]:
    """The tensors of a queue, if there is one; a RunError before a larger one than the run's is read."""
    if "queue" not in parts:
        return {}
    width = model.layer.in_features + 1
    if parts.elements("queue") > run.settings.memory_size * width:
        raise RunError(f"{run.path}: the run is damaged: its queue is larger than its settings say")
    return dict(parts["queue"])


def _sessions(run: Run, state: TrainingState, device: torch.device) -> tuple[Session, ...]:
    """Those of a run, with a further one if anything that changes its last bits has changed."""
    before, now = last_session(run, state), session_on(device, state.progress.step)
    changed = not state.sessions or session_changes(before, now)
    return (*state.sessions, now) if changed else state.sessions


def session_on(device: torch.device, step: int = 0) -> Session:
    """A session that trains on this device from a step on."""
    return Session(
        step=step,
        device=device_name(device),
        threads=torch.get_num_threads(),
        torch=versions().get("torch"),
        cpu=torch.backends.cpu.get_cpu_capability(),
    )


def last_session(run: Run, state: TrainingState) -> Session:
    """The session that a run was last trained in; of an old run only device and version are known."""
    if state.sessions:
        return state.sessions[-1]
    return Session(step=0, device=run.record.device, threads=None, torch=run.record.versions.get("torch"), cpu=None)


def session_changes(before: Session, now: Session) -> dict[str, tuple[Any, Any]]:
    """Name -> values of what changed between two sessions and changes the last bits of results."""
    names = ["device", "torch"]
    if now.device == CPU:
        names += ["threads", "cpu"]
    pairs = {name: (getattr(before, name), getattr(now, name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] is not None and pair[0] != pair[1]}


def device_name(device: torch.device) -> str:
    """The name of a GPU, as "NVIDIA H200"; otherwise the type, as "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _check_memories(settings: ResolvedSettings, images: int) -> None:
    """Before the first step: both memories are drawn long after it, for validation and at the end."""
    if settings.variant in ("memory_wrap", "only_memory"):
        check_size(settings.memory_size, images)
    if settings.variant != "standard":
        check_size(settings.remember, images, "remember")


def _check_progress(trainer: Trainer) -> None:
    progress, (epoch, step) = trainer.progress, divmod(trainer.progress.step, trainer.plan.steps_per_epoch)
    if epoch >= trainer.settings.epochs or progress.seen != step * trainer.settings.batch_size:
        raise ValueError(f"step {progress.step} of {trainer.steps}, {progress.seen} images of an epoch")
    if progress.correct > progress.seen:
        raise ValueError(f"{progress.correct} of {progress.seen} correct")
