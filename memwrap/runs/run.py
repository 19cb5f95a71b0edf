"""The folder of a run, opened once: its tensors are read when they are first used, and kept.

    run.json        settings, where the data came from, versions; written once
    splits.json     which images the run trains on, validates on and is tested on; written once
    model.json, *.safetensors    the model for `memwrap.load`; until the end also the optimizer's state
    metrics.jsonl   a line for each epoch
    evaluation.json the last result of `memwrap evaluate`; evaluation-validation.json that on the validation images

A folder appears complete, with a model in it, or not at all; each later change replaces one file in one step.
"""

import json
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from memwrap.errors import LoadError, RunError, SaveError
from memwrap.models.classifier import MemoryClassifier
from memwrap.models.loading import Model, unpack
from memwrap.runs.record import RECORD, RunDescription, TrainingState, read_record
from memwrap.runs.splits import SPLITS, Splits, read_splits
from memwrap.storage import checkpoint
from memwrap.storage.files import write_file
from memwrap.storage.validation import parse
from memwrap.training.settings import ResolvedSettings

METRICS = "metrics.jsonl"
LOCK = ".lock"


class SavedModel:
    """A folder that holds a model: a run, or what `model.save` wrote."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def seed(self) -> int:
        """Decides which labelled images are explained."""
        return 0

    @cached_property
    def stored(self) -> tuple[dict[str, Any], checkpoint.Parts]:
        """The stored settings and tensors, every file checked against its hash."""
        return checkpoint.read(self.path)

    @property
    def state(self) -> TrainingState | None:
        """How far training is; None for a model that was not trained in a run."""
        loaded = self.__dict__.get("stored")
        return self._state(checkpoint.read_settings(self.path) if loaded is None else loaded[0])

    def _state(self, settings: dict[str, Any]) -> TrainingState | None:
        stored = settings.get("training")
        if stored is None:
            return None
        if not isinstance(stored, dict):
            raise RunError(f"{self.path / checkpoint.MANIFEST}: training is {stored!r}; expected an object")
        return parse(TrainingState, stored, RunError, f"{self.path / checkpoint.MANIFEST}, training")

    def model(self, device: torch.device | str = "cpu") -> Model:
        """The model in evaluation mode, with its memory. A second call returns the same one."""
        self._refuse_if_unfinished()
        return self._model.to(device).eval()

    @cached_property
    def _model(self) -> Model:
        return unpack(self.path, *self.stored)

    def forget(self) -> None:
        """Read the stored model again when it is next needed: another process may have trained it further."""
        for name in ("stored", "_model"):
            self.__dict__.pop(name, None)

    def _refuse_if_unfinished(self) -> None:
        if (state := self.state) is not None and not state.finished:
            self.forget()
        state = self.state
        if state is not None and not state.finished:
            raise RunError(
                f"{self.path}: the run is not finished, {state.progress.step} steps are done; "
                f"resume it with: memwrap train --resume --out {self.path}"
            )

    @property
    def memory_names(self) -> tuple[str, ...] | None:
        """The names of the images in the model's memory; None if they are not known."""
        names = None if self.state is None else self.state.remembered_names
        remembered = self._model.remembered if isinstance(self._model, MemoryClassifier) else None
        return names if names is not None and remembered is not None and len(names) == len(remembered) else None


class Run(SavedModel):
    """The folder that `memwrap train` makes."""

    def __init__(self, path: Path, record: RunDescription, splits: Splits) -> None:
        super().__init__(path)
        self.record, self.splits = record, splits

    @cached_property
    def stored(self) -> tuple[dict[str, Any], checkpoint.Parts]:
        with _as_run_error():
            return checkpoint.read(self.path)

    @property
    def state(self) -> TrainingState | None:
        with _as_run_error():
            return super().state

    @cached_property
    def _model(self) -> Model:
        with _as_run_error():
            return unpack(self.path, *self.stored)

    @property
    def settings(self) -> ResolvedSettings:
        return self.record.settings

    @property
    def classes(self) -> tuple[str, ...]:
        return self.record.classes

    @property
    def seed(self) -> int:
        return self.settings.seed

    def unfinished_state(self) -> TrainingState:
        """The state to resume from; a RunError if there is nothing to resume."""
        state = self.state
        if state is None:
            raise RunError(f"{self.path}: holds a model without the state of its training; it cannot be resumed")
        if state.finished:
            raise RunError(f"{self.path}: the run is finished; there is nothing to resume")
        return state

    def unfinished_model(self) -> Model:
        """A new model with the stored weights, in training mode, to resume with."""
        with _as_run_error():
            return unpack(self.path, *self.stored)

    def stored_step(self) -> int | None:
        """The step of the checkpoint that is in the folder now, whatever has been read before."""
        with _as_run_error():
            state = self._state(checkpoint.read_settings(self.path))
        return None if state is None else state.progress.step

    def write(self, settings: dict[str, Any], parts: checkpoint.Parts) -> None:
        """Replace the checkpoint; what was read before is forgotten."""
        checkpoint.write(self.path, settings, parts)
        for name in ("stored", "_model"):
            self.__dict__.pop(name, None)

    def write_json(self, name: str, content: Any) -> None:
        """Put a JSON file into the folder, in one step."""
        try:
            _write_json(self.path / name, content)
        except OSError as error:
            raise SaveError(f"{self.path / name}: cannot be written ({error})") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training in this folder. The lock is released however this process ends."""
        lock = FileLock(self.path / LOCK, fallback_to_soft=False)
        try:
            if not self.path.is_dir():  # filelock would make it
                raise FileNotFoundError("the folder does not exist")
            lock.acquire(blocking=False)
        except Timeout:
            raise RunError(f"{self.path}: another process is training here") from None
        except OSError as error:
            raise RunError(f"{self.path}: cannot be trained in ({error})") from error
        try:
            yield
        finally:
            lock.release()


@contextmanager
def _as_run_error() -> Iterator[None]:
    try:
        yield
    except LoadError as error:
        raise RunError(f"the run is damaged: {error}") from error


def open_run(path: Path) -> Run:
    """The run in this folder; a RunError says why there is none."""
    return Run(path, read_record(path), read_splits(path))


def open_model(path: Path) -> SavedModel:
    """The run in this folder, or the model that `model.save` wrote into it."""
    if (path / checkpoint.MANIFEST).exists() and not any((path / name).exists() for name in (RECORD, SPLITS)):
        return SavedModel(path)
    return open_run(path)


def refuse_if_taken(path: Path) -> None:
    """Raise a RunError if the folder holds anything."""
    if not path.name:
        raise RunError(f"{path}: has no name, but is replaced when the run starts; give another folder with --out")
    if (path.is_dir() and not any(path.iterdir())) or not path.exists():
        return
    if (path / RECORD).exists():
        raise RunError(f"{path}: holds a run already; continue it with --resume, or give another folder with --out")
    raise RunError(f"{path}: exists and is not a run of memwrap; give a new folder with --out")


def create_run(
    path: Path, record: RunDescription, splits: Splits, settings: dict[str, Any], parts: checkpoint.Parts
) -> Run:
    """Make the folder with the model before its first step; it appears complete or not at all."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        partial.mkdir(parents=True)
        _write_json(partial / RECORD, record.model_dump())
        _write_json(partial / SPLITS, splits.as_json())
        checkpoint.write(partial, settings, parts)
        partial.replace(path)  # replaces an empty folder, never one that holds anything
    except OSError as error:
        if path.is_dir() and any(path.iterdir()):
            raise RunError(f"{path}: another run has been started here in the meantime") from error
        raise SaveError(f"{path}: cannot be written ({error})") from error
    except SaveError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        raise SaveError(f"{path}: cannot be written ({error.__cause__})") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Run(path, record, splits)


def _write_json(path: Path, content: Any) -> None:
    write_file(path, json.dumps(content, indent=2).encode())
