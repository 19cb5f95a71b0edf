"""The folder of a run, opened once: its tensors are read when they are first used, and kept.

    run.json        settings, where the data came from, versions; written once
    splits.json     which images the run trains on, validates on and is tested on; written once
    model.json, *.safetensors    the model for `memwrap.load`; until the end also the optimizer's state
    metrics.jsonl   a line for each epoch
    evaluation.json the last result of `memwrap evaluate`; evaluation-validation.json that on the validation images

model.json holds the root hash, of itself, run.json, splits.json and the tensors; `memwrap check` verifies all of it.
A folder appears complete, with a model in it, or not at all; each later change replaces one file in one step.
"""

import json
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from memwrap.errors import LoadError, RunError, SaveError, short
from memwrap.models.classifier import MemoryClassifier
from memwrap.models.loading import Model, unpack
from memwrap.runs.record import RECORD, RunDescription, TrainingState, read_record
from memwrap.runs.splits import SPLITS, Splits, read_splits
from memwrap.storage import checkpoint
from memwrap.storage.files import make_folder, sync_folder, write_file
from memwrap.storage.locks import exclusive, exclusive_if_free, exclusive_if_supported, remove_abandoned
from memwrap.storage.validation import parse
from memwrap.training.settings import ResolvedSettings

METRICS = "metrics.jsonl"


class SavedModel:
    """A folder that holds a model: a run, or what `model.save` wrote."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def seed(self) -> int:
        """Decides which labelled images are explained."""
        return 0

    @cached_property
    def manifest(self) -> checkpoint.Manifest:
        """What model.json says; it and the files that are written once are checked against the root hash."""
        with self._reading():
            return checkpoint.read_manifest(self.path)

    @contextmanager
    def opened(self) -> Iterator[tuple[dict[str, Any], checkpoint.StoredParts]]:
        """The settings and tensors that are stored now; the tensors are read, and checked, when they are first used."""
        with self._reading():
            manifest, parts = checkpoint.open_parts(self.path)
            self.__dict__["manifest"] = manifest
            with parts:
                yield manifest.settings, parts

    @property
    def state(self) -> TrainingState | None:
        """How far training is; None for a model that was not trained in a run."""
        stored = self.manifest.settings.get("training")
        if stored is None:
            return None
        if not isinstance(stored, dict):
            raise RunError(f"{self.path / checkpoint.MANIFEST}: training is {short(stored)}; expected an object")
        return parse(TrainingState, stored, RunError, f"{self.path / checkpoint.MANIFEST}, training")

    def model(self, device: torch.device | str = "cpu") -> Model:
        """The model in evaluation mode, with its memory. A second call returns the same one."""
        self._refuse_if_unfinished()
        return self.loaded.to(device).eval()

    @cached_property
    def loaded(self) -> Model:
        """The model as it is stored, whether its training is finished or not; in training mode at first."""
        with self.opened() as (settings, parts):
            model = unpack(self.path, settings, parts)
        self.check_model(model)
        return model

    def check_model(self, model: Model) -> None:
        """Whether the model is the one that the folder's other files are about."""

    def _reading(self) -> AbstractContextManager[None]:
        """Around everything that reads the stored model."""
        return nullcontext()

    def forget(self) -> None:
        """Read the stored model again when it is next needed: another process may have trained it further."""
        for name in ("manifest", "loaded"):
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
        remembered = self.loaded.remembered if isinstance(self.loaded, MemoryClassifier) else None
        if remembered is None:
            return None
        names = remembered.names
        if names is None and self.state is not None:  # of memwrap 0.1
            names = self.state.remembered_names
        return names if names is not None and len(names) == len(remembered) else None


class Run(SavedModel):
    """The folder that `memwrap train` makes.

    documents: the hashes of the files that are written once, which every later checkpoint lists.
    """

    def __init__(self, path: Path, record: RunDescription, splits: Splits, documents: dict[str, str]) -> None:
        super().__init__(path)
        self.record, self.splits, self.documents = record, splits, documents

    def _reading(self) -> AbstractContextManager[None]:
        return _as_run_error()

    def check_model(self, model: Model) -> None:
        # Classes may have been added to the memory after training.
        if model.classes is None or model.classes[: len(self.classes)] != self.classes:
            raise RunError(
                f"{self.path}: the run is damaged: its classes are {_first(self.classes)} in {RECORD}, and "
                f"{_first(model.classes)} in {checkpoint.MANIFEST}"
            )
        remembered = () if self.state is None else self.state.remembered or ()
        if not set(remembered) <= set(self.splits.train.tolist()):
            raise RunError(f"{self.path}: the run is damaged: its memory holds images that it was not trained on")

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
            with suppress(RunError), self.locked():  # removes the lock, too, of a process killed after its last save
                checkpoint.remove_leftovers(self.path)
            raise RunError(f"{self.path}: the run is finished; there is nothing to resume")
        return state

    def stored_step(self) -> int | None:
        """The step of the checkpoint that is in the folder now, whatever has been read before."""
        self.__dict__.pop("manifest", None)
        return None if self.state is None else self.state.progress.step

    def write(self, settings: dict[str, Any], parts: checkpoint.Parts) -> None:
        """Replace the checkpoint; what was read before is forgotten."""
        checkpoint.write(self.path, settings, parts, self.documents, create=False)
        self.forget()

    def write_json(self, name: str, content: Any) -> None:
        """Put a JSON file into the folder, in one step."""
        try:
            # The lock of those who save: they remove partial files, which belong to nobody while they hold it.
            with exclusive_if_supported(self.path / checkpoint.MANIFEST, checkpoint.LOCK_SECONDS):
                _write_json(self.path / name, content)
        except OSError as error:
            raise SaveError(f"{self.path / name}: cannot be written ({error})") from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training in this folder. The lock is released however this process ends."""
        with ExitStack() as stack:
            try:
                held = stack.enter_context(exclusive_if_free(self.path / RECORD))
            except OSError as error:
                raise RunError(f"{self.path}: cannot be trained in ({error})") from error
            if not held:
                raise RunError(f"{self.path}: another process is training here")
            remove_abandoned(self.path.resolve())  # by a process that was killed when it had just made the folder
            yield


@contextmanager
def _as_run_error() -> Iterator[None]:
    try:
        yield
    except LoadError as error:
        raise RunError(f"the run is damaged: {error}") from error


def open_run(path: Path) -> Run:
    """The run in this folder; a RunError says why there is none."""
    record, splits = read_record(path), read_splits(path)
    with _as_run_error():
        run = Run(path, record, splits, _document_hashes(path))
    checkpoint.warn_without_root(path, run.manifest)
    if run.manifest.root is not None and run.manifest.documents != run.documents:
        raise RunError(f"{path}: the run is damaged: {checkpoint.MANIFEST} belongs to another {RECORD} or {SPLITS}")
    return run


def open_model(path: Path) -> SavedModel:
    """The run in this folder, or the model that `model.save` wrote into it."""
    if (path / checkpoint.MANIFEST).exists() and not any((path / name).exists() for name in (RECORD, SPLITS)):
        saved = SavedModel(path)
        checkpoint.warn_without_root(path, saved.manifest)
        return saved
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
    partial = partial_folder(path)
    try:
        make_folder(path.parent)
        with exclusive(path, seconds=checkpoint.LOCK_SECONDS):
            remove_partial(path)  # of a process that was killed
            partial.mkdir()
            try:
                _write_json(partial / RECORD, record.model_dump())
                write_file(partial / SPLITS, splits.content())
                documents = _document_hashes(partial)
                checkpoint.write(partial, settings, parts, documents)
                partial.replace(path)  # replaces an empty folder, never one that holds anything
                sync_folder(path.parent)
            finally:
                remove_partial(path)
    except OSError as error:
        if path.is_dir() and any(path.iterdir()):
            raise RunError(f"{path}: another run has been started here in the meantime") from error
        raise SaveError(f"{path}: cannot be written ({error})") from error
    except SaveError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        raise SaveError(f"{path}: cannot be written ({error.__cause__})") from error
    return Run(path, record, splits, documents)


def partial_folder(path: Path) -> Path:
    """A new place for what becomes this folder when it is complete."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")


def remove_partial(path: Path) -> None:
    """Remove what was made of a folder before it was complete. Only while its lock is held."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.partial")
    for each in path.parent.iterdir():
        if pattern.fullmatch(each.name):
            shutil.rmtree(each, ignore_errors=True)


def _document_hashes(folder: Path) -> dict[str, str]:
    return {name: checkpoint.document_hash(folder / name) for name in (RECORD, SPLITS)}


def _first(names: tuple[str, ...] | None) -> str:
    return ", ".join((names or ("not named",))[:5])


def _write_json(path: Path, content: Any) -> None:
    write_file(path, json.dumps(content, indent=2).encode())
