"""Training into a folder, so that a run can be stopped at any time and resumed to the same result."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from memwrap.data import BalancedMemory, DataSet, LabelledImages, check_size, generator
from memwrap.errors import DataError, NonFiniteError, RunError, SaveError, TrainingError, brief
from memwrap.models.classifier import MemoryClassifier
from memwrap.models.inference import accuracy_with_drawn_memory, remember
from memwrap.models.loading import Model, unpack
from memwrap.models.record import ModelRecord
from memwrap.runs.record import RECORD, Session, TrainingState, new_record, versions
from memwrap.runs.run import METRICS, Run, create_run, refuse_if_taken
from memwrap.runs.splits import SPLITS, Splits, split
from memwrap.storage import checkpoint, log
from memwrap.storage.validation import parse
from memwrap.training.building import new_model
from memwrap.training.recipes import encoder_for, resolve_settings
from memwrap.training.settings import ResolvedSettings, Settings
from memwrap.training.state import check_finite, optimizer_tensors, restore_optimizer
from memwrap.training.trainer import EpochMetrics, StepMetrics, Trainer, precision_on

CHECKPOINT_SECONDS = 60.0
VALIDATIONS = 10  # in a run, evenly spaced, the last after the last epoch
CPU = "cpu"


class Callback(Protocol):
    """Gets the metrics of a run while it trains: a terminal, a log, TensorBoard."""

    def on_step(self, metrics: StepMetrics, images_per_second: float) -> None: ...

    def on_epoch(self, line: dict[str, Any]) -> None: ...


@dataclass
class RunTraining:
    """The training of a run. `train` continues it to the end, or until it is stopped."""

    run: Run
    model: Model
    data: DataSet
    trainer: Trainer
    record: ModelRecord  # of the model, which training does not change
    sessions: tuple[Session, ...]  # the last is this one, or one like it
    seconds: float = 0.0  # spent before
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    callbacks: list[Callback] = field(default_factory=list)
    _stored: int = field(init=False)  # the step of the checkpoint that this process read or wrote

    def __post_init__(self) -> None:
        self._stored = self.trainer.progress.step
        self._is_same_folder: Callable[[], bool] = self.run.path.is_dir  # until training holds the folder

    def train(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Train to the end, or until `stop` returns True between two steps; whether the end was reached. Saves both."""
        with self.run.locked(), _hold(self.run.path) as is_same_folder:
            self._is_same_folder = is_same_folder
            self._check_folder()  # another process may have trained between reading the run and locking it
            checkpoint.remove_leftovers(self.run.path)
            try:
                log.cut(self.run.path / METRICS, self.trainer.progress.step)
                return self._train(stop)
            except SaveError as error:
                self._check_folder()
                raise TrainingError(
                    f"the run cannot be saved: {error}. Free some space, then continue from its last saved step with "
                    "--resume"
                ) from error
            except NonFiniteError as error:  # outside of a step: in a checkpoint, a validation, or at the end
                raise self.trainer.diverged(str(error)) from error

    def _train(self, stop: Callable[[], bool]) -> bool:
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

    def _write(self, settings: dict[str, Any], parts: checkpoint.Parts) -> None:
        self._check_folder()
        self.run.write(settings, parts)
        self._stored = self.trainer.progress.step
        self._check_folder()

    def _check_folder(self) -> None:
        """Raise a RunError unless the folder is the one that training began in, with the run as this process left it.

        What is written into another one would be half a run, or spoil a whole one.
        """
        path = self.run.path
        if not self._is_same_folder():
            raise RunError(
                f"{path}: the folder was removed, moved or replaced while the run was trained; if it was moved, "
                "continue from its last saved step with --resume and its new place as --out"
            )
        if self.run.stored_step() != self._stored:
            raise RunError(f"{path}: another process has trained here; --resume continues from there")
        if missing := [name for name in (RECORD, SPLITS) if not (path / name).exists()]:
            raise RunError(f"{path / missing[0]}: was removed while the run was trained")

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

    def _training_images(self) -> LabelledImages:
        return self.run.splits.of(self.data, "train")

    def _finish(self) -> None:
        """Remember a memory, and store the model with a new probe and without the optimizer."""
        self.model.eval()
        state = _state(self.trainer, self.sessions, self.seconds, finished=True)
        if isinstance(self.model, MemoryClassifier):
            images = self._training_images()
            chosen = remembered_indices(images.labels, self.run.settings)
            kept = images.at(chosen)
            remember(self.model, kept.images, kept.labels)
            state |= {"remembered": self.run.splits.train[chosen].tolist(), "remembered_names": list(kept.names)}
        settings, parts = self.model.pack(self.record)
        self._write({**settings, "training": state}, parts)


@contextmanager
def _hold(folder: Path) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether the path still leads to the folder that it leads to now."""
    try:
        # Open until the end: the number of a removed folder could be given to a new one.
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows opens no folders, and removes none in which a file is open, as the lock is
        yield folder.is_dir
        return

    def is_same() -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), folder.stat())
        except OSError:
            return False

    try:
        yield is_same
    finally:
        os.close(descriptor)


def pack(
    trainer: Trainer, record: ModelRecord, sessions: tuple[Session, ...], seconds: float, probe: bool = True
) -> tuple[dict[str, Any], checkpoint.Parts]:
    """A model within a training, as a folder stores it."""
    settings, parts = trainer.model.pack(record, probe)
    parts["optimizer"] = optimizer_tensors(trainer.model, trainer.optimizer)
    return {**settings, "training": _state(trainer, sessions, seconds, finished=False)}, parts


def _state(trainer: Trainer, sessions: tuple[Session, ...], seconds: float, finished: bool) -> dict[str, Any]:
    state = TrainingState(finished=finished, progress=replace(trainer.progress), seconds=seconds, sessions=sessions)
    return state.model_dump(exclude_unset=True)


def remembered_indices(labels: Tensor, settings: ResolvedSettings) -> Tensor:
    """The training images that a finished model keeps: the same number of each class, drawn by the seed."""
    return BalancedMemory(settings.remember).draw(labels, labels, generator(settings.seed, "remembered"))


def begin(
    path: Path, data: DataSet, settings: Settings, recipe: str, device: torch.device | str = "cpu"
) -> RunTraining:
    """A new run in this folder, which must be new or empty; its model is stored before the first step."""
    refuse_if_taken(path)
    splits, trainer = new_training(data, settings, device)
    record, sessions = trainer.model.describe(), (session_on(trainer.device),)
    run = create_run(
        path,
        new_record(recipe, trainer.settings, data, device_name(trainer.device)),
        splits,
        *pack(trainer, record, sessions, 0.0),
    )
    return RunTraining(run, trainer.model, data, trainer, record, sessions)


def new_training(data: DataSet, settings: Settings, device: torch.device | str = "cpu") -> tuple[Splits, Trainer]:
    """The splits of the images, and the trainer of a new model before its first step."""
    splits = split(data, settings)
    side = max(data.train.images.shape[1:])
    encoder = encoder_for(side, torch.device(device).type)
    final = resolve_settings(settings, len(splits.train), data.classes, encoder)
    final = final.replace(precision=precision_on(torch.device(device), final.precision))
    _check_memories(final, len(splits.train))
    images = splits.of(data, "train")
    return splits, Trainer(new_model(final, data.classes, images.images).to(device), images, final)


def resume(run: Run, data: DataSet, device: torch.device | str = "cpu") -> RunTraining:
    """The training of the run from where it was last saved."""
    run.forget()
    state = run.unfinished_state()
    with run.opened() as (settings, parts):
        model = unpack(run.path, settings, parts).to(device)
        if "optimizer" not in parts:
            raise RunError(f"{run.path}: the run is damaged: it lacks the state of its optimizer")
        optimizer = parts["optimizer"]
    run.check_model(model)
    if data.classes != run.classes:
        raise RunError(f"{run.path}: the run is damaged: its classes are not those of its data")
    images = run.splits.of(data, "train")
    try:
        _check_memories(run.settings, len(images))
        trainer = Trainer(model, images, run.settings, progress=state.progress)
        _check_progress(trainer)
        restore_optimizer(model, trainer.optimizer, optimizer, state.progress.step)
    except (RunError, DataError):
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"{run.path}: the run is damaged: its settings do not match the state of its training ({brief(error)})"
        ) from error
    record = parse(ModelRecord, settings, RunError, run.path / checkpoint.MANIFEST)
    before, now = last_session(run, state), session_on(trainer.device, state.progress.step)
    changed = not state.sessions or session_changes(before, now)
    sessions = (*state.sessions, now) if changed else state.sessions
    return RunTraining(run, model, data, trainer, record, sessions, state.seconds)


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
    if settings.variant != "standard":
        check_size(settings.memory_size, images)
        check_size(settings.remember, images, "remember")


def _check_progress(trainer: Trainer) -> None:
    progress, (epoch, step) = trainer.progress, divmod(trainer.progress.step, trainer.plan.steps_per_epoch)
    if epoch >= trainer.settings.epochs or progress.seen != step * trainer.settings.batch_size:
        raise ValueError(f"step {progress.step} of {trainer.steps}, {progress.seen} images of an epoch")
    if progress.correct > progress.seen:
        raise ValueError(f"{progress.correct} of {progress.seen} correct")
