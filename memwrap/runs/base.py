"""What every training of a run shares: one process in the folder, saving in one step, and the model at its end."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from memwrap.data import BalancedMemory, DataSet, LabelledImages, generator
from memwrap.errors import RunError, SaveError, TrainingError
from memwrap.models.loading import Model
from memwrap.models.record import ModelRecord
from memwrap.runs.record import RECORD, Session, TrainingState
from memwrap.runs.run import METRICS, Run
from memwrap.runs.splits import SPLITS
from memwrap.storage import checkpoint, log
from memwrap.training.settings import ResolvedSettings
from memwrap.training.trainer import Progress, StepMetrics

CHECKPOINT_SECONDS = 60.0


class Callback(Protocol):
    """Gets the metrics of a run while it trains: a terminal, a log, TensorBoard."""

    def on_step(self, metrics: StepMetrics, images_per_second: float) -> None: ...

    def on_epoch(self, line: dict[str, Any]) -> None: ...


@dataclass
class RunTraining(ABC):
    """The training of a run. `train` continues it to the end, or until it is stopped."""

    run: Run
    model: Model
    data: DataSet
    record: ModelRecord  # of the model
    sessions: tuple[Session, ...]  # the last is this one, or one like it
    seconds: float = 0.0  # spent before
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    callbacks: list[Callback] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stored = self.progress.step  # the step of the checkpoint that this process read or wrote
        self._is_same_folder: Callable[[], bool] = self.run.path.is_dir  # until training holds the folder

    @property
    @abstractmethod
    def progress(self) -> Progress:
        """How far it is."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """How many steps it has in all."""

    @abstractmethod
    def _train(self, stop: Callable[[], bool]) -> bool:
        """Train and save; whether the end was reached."""

    @property
    def device(self) -> torch.device:
        return self.model.reference.device

    def train(self, stop: Callable[[], bool] = lambda: False) -> bool:
        """Train to the end, or until `stop` returns True between two steps; whether the end was reached. Saves both."""
        with self.run.locked(), _hold(self.run.path) as is_same_folder:
            self._is_same_folder = is_same_folder
            self._check_folder()  # another process may have trained between reading the run and locking it
            checkpoint.remove_leftovers(self.run.path)
            try:
                log.cut(self.run.path / METRICS, self.progress.step)
                return self._train(stop)
            except SaveError as error:
                self._check_folder()
                raise TrainingError(
                    f"the run cannot be saved: {error}. Free some space, then continue from its last saved step with "
                    "--resume"
                ) from error

    def _write(self, settings: dict[str, Any], parts: checkpoint.Parts) -> None:
        self._check_folder()
        self.run.write(settings, parts)
        self._stored = self.progress.step
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

    def _training_images(self) -> LabelledImages:
        return self.run.splits.of(self.data, "train")

    def _state(self, **finished: Any) -> dict[str, Any]:
        return training_state(self.progress, self.sessions, self.seconds, **finished)

    def _write_finished(self, chosen: Tensor | None, **facts: Any) -> None:
        """Store the model with a new probe and without the state of its training.

        chosen (M,): which training images it remembers, of those of the run.
        """
        if chosen is not None:
            facts["remembered"] = tuple(self.run.splits.train[chosen].tolist())
        settings, parts = self.model.pack(self.record)
        self._write({**settings, "training": self._state(finished=True, **facts)}, parts)


def training_state(
    progress: Progress, sessions: tuple[Session, ...], seconds: float, finished: bool = False, **facts: Any
) -> dict[str, Any]:
    """How far a training is, as a folder stores it; facts: of a finished one."""
    state = TrainingState(finished=finished, progress=replace(progress), seconds=seconds, sessions=sessions, **facts)
    return state.model_dump(exclude_unset=True)


def remembered_indices(labels: Tensor, settings: ResolvedSettings) -> Tensor:
    """The training images that a finished model keeps: the same number of each class, drawn by the seed."""
    return BalancedMemory(settings.remember).draw(labels, labels, generator(settings.seed, "remembered"))


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
