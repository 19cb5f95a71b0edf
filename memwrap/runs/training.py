"""Training into a folder, so that it can be stopped at any moment and gone on with as if it had not been."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from memwrap.data import BalancedMemory, DataSet, LabelledImages, check_size, generator
from memwrap.errors import DataError, NonFiniteError, RunError, SaveError, TrainingError, brief
from memwrap.models.classifier import MemoryClassifier
from memwrap.models.inference import accuracy_with_drawn_memory, remember
from memwrap.models.loading import Model
from memwrap.runs.folder import (
    METRICS,
    Run,
    create,
    locked,
    model_of,
    new_run,
    read_model,
    refuse_if_taken,
    training_state,
)
from memwrap.runs.splits import Splits, split
from memwrap.storage import checkpoint, log
from memwrap.training.building import new_model
from memwrap.training.recipes import encoder_for, resolve_settings
from memwrap.training.settings import ResolvedSettings, Settings
from memwrap.training.state import optimizer_tensors, restore_optimizer
from memwrap.training.trainer import EpochMetrics, Progress, StepMetrics, Trainer, precision_on

CHECKPOINT_SECONDS = 60.0
VALIDATIONS = 10  # in a run, evenly spaced, the last epoch's among them
STATE = {"sgd": {"momentum_buffer"}, "adamw": {"step", "exp_avg", "exp_avg_sq"}}  # what an optimiser keeps


class Callback(Protocol):
    """Is told how a run goes on: a terminal, a log, TensorBoard."""

    def on_step(self, metrics: StepMetrics, images_per_second: float) -> None: ...

    def on_epoch(self, line: dict[str, Any]) -> None: ...


@dataclass
class RunTraining:
    """A run that is being trained. `train` runs it to its end, or until it is told to stop."""

    run: Run
    model: Model
    data: DataSet
    trainer: Trainer
    seconds: float = 0.0  # spent before
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    callbacks: list[Callback] = field(default_factory=list)

    def train(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Train until the end, which is True, or until `stop` says so between two steps. Either way all is saved."""
        with locked(self.run.path):
            self._refuse_if_passed()
            checkpoint.tidy(self.run.path)
            try:
                log.cut(self.run.path / METRICS, self.trainer.progress.step)
                return self._train(stop)
            except SaveError as error:
                raise TrainingError(
                    f"the run cannot be saved: {error}. Make room, then go on from its last saved step with --resume"
                ) from error
            except NonFiniteError as error:  # outside of a step: in a validation, or at the end
                raise self.trainer.diverged(str(error)) from error

    def _refuse_if_passed(self) -> None:
        """Between reading the run and locking it, another process may have trained on."""
        state = training_state(self.run.path, read_model(self.run.path)[0])
        if state is None or state["progress"]["step"] != self.trainer.progress.step:
            raise RunError(f"{self.run.path}: another process has trained here meanwhile; --resume goes on from there")

    def _train(self, stop: Callable[[], bool]) -> bool:
        begun = saved = time.monotonic()
        first, before = self.trainer.progress.step, self.seconds
        for metrics in self.trainer.run():
            now = time.monotonic()
            self.seconds = before + now - begun
            rate = (metrics.step - first) * self.run.settings.batch_size / max(now - begun, 1e-9)
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

    def save(self) -> None:
        """Store model, optimiser and progress in one step."""
        settings, parts = pack(self.model, self.trainer, self.seconds)
        checkpoint.write(self.run.path, settings, parts)

    def _log(self, epoch: EpochMetrics, rate: float) -> None:
        line = {**asdict(epoch), "seconds": round(self.seconds, 3), "images_per_second": round(rate, 1)}
        if len(self.run.splits.validation) and self._is_validated(epoch.epoch):
            line["validation_accuracy"] = self._validation_accuracy(epoch.epoch)
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
        """Let the model remember a memory, and store it without what only training needs."""
        self.model.eval()
        remembered: dict[str, Any] = {}
        if isinstance(self.model, MemoryClassifier):
            images = self._training_images()
            chosen = remembered_indices(images.labels, self.run.settings)
            kept = images.at(chosen)
            remember(self.model, kept.images, kept.labels)
            remembered = {"remembered": self.run.splits.train[chosen].tolist(), "remembered_names": kept.names}
        settings, parts = self.model.pack()
        settings["training"] = {**_state(self.trainer, self.seconds, finished=True), **remembered}
        checkpoint.write(self.run.path, settings, parts)


def pack(model: Model, trainer: Trainer, seconds: float) -> tuple[dict[str, Any], checkpoint.Parts]:
    """A model in the midst of training, as a folder stores it."""
    settings, parts = model.pack()
    settings["training"] = _state(trainer, seconds, finished=False)
    return settings, {**parts, "optimizer": optimizer_tensors(model, trainer.optimizer)}


def _state(trainer: Trainer, seconds: float, finished: bool) -> dict[str, Any]:
    return {"finished": finished, "progress": asdict(trainer.progress), "seconds": seconds}


def remembered_indices(labels: Tensor, settings: ResolvedSettings) -> Tensor:
    """Which training images a finished model keeps: as many of each class as of any other, drawn by the seed."""
    return BalancedMemory(settings.remember).draw(labels, labels, generator(settings.seed, "remembered"))


def begin(
    path: Path, data: DataSet, settings: Settings, recipe: str, device: torch.device | str = "cpu"
) -> RunTraining:
    """A new run in this folder, which must be new or empty; its first model is stored before the first step."""
    refuse_if_taken(path)
    splits, trainer = new_training(data, settings, device)
    run = new_run(path, recipe, trainer.settings, data, splits, device_name(trainer.device))
    create(run, *pack(trainer.model, trainer, 0.0))
    return RunTraining(run, trainer.model, data, trainer)


def new_training(data: DataSet, settings: Settings, device: torch.device | str = "cpu") -> tuple[Splits, Trainer]:
    """How the images are split, and the training of a new model before its first step."""
    splits = split(data, settings)
    side = max(data.train.images.shape[1:])
    encoder = encoder_for(side, torch.device(device).type)
    final = resolve_settings(settings, len(splits.train), data.classes, encoder)
    final = final.replace(precision=precision_on(torch.device(device), final.precision))
    _check_memories(final, len(splits.train))
    images = splits.of(data, "train")
    return splits, Trainer(new_model(final, data.classes, images.images).to(device), images, final)


def resume(run: Run, data: DataSet, device: torch.device | str = "cpu") -> RunTraining:
    """The run from where it was last saved."""
    settings, parts, state = stored_state(run)
    model = model_of(run.path, settings, parts).to(device)
    images = run.splits.of(data, "train")
    try:
        _check_memories(run.settings, len(images))
        trainer = Trainer(model, images, run.settings, progress=Progress(**state["progress"]))
        _check_progress(trainer)
        _check_kinds(parts["optimizer"], run.settings.optimizer)
        restore_optimizer(model, trainer.optimizer, parts["optimizer"])
    except (RunError, DataError):
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"{run.path}: the run is damaged: its settings and the state of its training do not go together "
            f"({brief(error)})"
        ) from error
    return RunTraining(run, model, data, trainer, state["seconds"])


def device_name(device: torch.device) -> str:
    """A card by its name, as "NVIDIA H200"; anything else by its kind, as "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def stored_state(run: Run) -> tuple[dict[str, Any], checkpoint.Parts, dict[str, Any]]:
    """The model's settings and tensors, and how far its training has come; a RunError if there is nothing to resume."""
    settings, parts = read_model(run.path)
    state = training_state(run.path, settings)
    if state is None:
        raise RunError(f"{run.path}: holds a model without the state of its training; it cannot be resumed")
    if state["finished"]:
        raise RunError(f"{run.path}: the run is finished; there is nothing to resume")
    return settings, parts, state


def _check_memories(settings: ResolvedSettings, images: int) -> None:
    """Before the first step, as both are drawn long after it: in a validation, and at the end."""
    if settings.variant != "standard":
        check_size(settings.memory_size, images)
        check_size(settings.remember, images, "remember")


def _check_progress(trainer: Trainer) -> None:
    progress, (epoch, step) = trainer.progress, divmod(trainer.progress.step, trainer.plan.steps_per_epoch)
    if not 0 <= epoch < trainer.settings.epochs or progress.seen != step * trainer.settings.batch_size:
        raise ValueError(f"step {progress.step} of {trainer.steps}, {progress.seen} images of an epoch")
    if not math.isfinite(progress.loss) or not 0 <= progress.correct <= progress.seen:
        raise ValueError(f"a loss of {progress.loss}, {progress.correct} of {progress.seen} correct")


def _check_kinds(tensors: dict[str, Tensor], optimizer: str) -> None:
    if foreign := {key.split(" ")[0] for key in tensors} - STATE[optimizer]:
        raise ValueError(f"{', '.join(sorted(foreign))} are no state of {optimizer}")
