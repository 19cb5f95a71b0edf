"""The folder of a run: what is in it, and how it comes to be.

    run.json        settings, where the data came from, versions; written once
    splits.json     which images the run trains on, compares on and is tested on; written once
    model.json, *.safetensors    the model as `memwrap.load` reads it, and until the end the optimiser's state beside it
    metrics.jsonl   a line for each epoch
    evaluation.json what `memwrap evaluate` found last; evaluation-validation.json likewise

A folder appears whole, with a model in it, or not at all; each later change replaces one file in one step.
"""

import json
import platform
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from memwrap.data import PUBLISHED, DataSet
from memwrap.errors import LoadError, RunError, SaveError, brief
from memwrap.models.loading import Model, unpack
from memwrap.runs.splits import Splits, from_json
from memwrap.storage import checkpoint
from memwrap.storage.locks import try_lock
from memwrap.training.settings import ResolvedSettings
from memwrap.version import __version__

RECORD = "run.json"
SPLITS = "splits.json"
METRICS = "metrics.jsonl"
LOCK = ".lock"
FORMAT = "memwrap run"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class DataRecord:
    """Where a run's images came from, and what was done to them."""

    source: str  # a known name, or the absolute path of a folder or zip
    root: str | None  # where a known name's files lie
    fingerprint: str
    conversion: dict[str, Any]
    warnings: list[str]


@dataclass(frozen=True)
class Run:
    """A run's folder and what was written into it when it began."""

    path: Path
    recipe: str
    settings: ResolvedSettings
    data: DataRecord
    classes: tuple[str, ...]
    splits: Splits
    created: str
    versions: dict[str, str]
    device: str  # that it was begun on: "cpu", or the name of a card


def new_run(path: Path, recipe: str, settings: ResolvedSettings, data: DataSet, splits: Splits, device: str) -> Run:
    """A run that is to be made at this path; nothing is written yet."""
    source = data.name if data.name in PUBLISHED else str(Path(data.name).expanduser().absolute())
    record = DataRecord(source, data.record.get("root"), data.fingerprint, data.record, list(data.warnings))
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return Run(path, recipe, settings, record, data.classes, splits, created, versions(), device)


def versions() -> dict[str, str]:
    """What a run was made with."""
    found = {
        "memwrap": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    for package in ("torch", "torchvision", "timm", "numpy", "pillow"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def refuse_if_taken(path: Path) -> None:
    """A folder that holds anything is not trained into."""
    if not path.name:
        raise RunError(f"{path}: is replaced when the run begins, which needs its name; give another folder with --out")
    if (path.is_dir() and not any(path.iterdir())) or not path.exists():
        return
    if (path / RECORD).exists():
        raise RunError(f"{path}: holds a run already; go on with it by --resume, or give another folder with --out")
    raise RunError(f"{path}: exists and is no run of memwrap's; give a new folder with --out")


def create(run: Run, settings: dict[str, Any], parts: checkpoint.Parts) -> None:
    """Make the folder with the model as it is before the first step, all in one step."""
    partial = run.path.with_name(f".{run.path.name}.{secrets.token_hex(8)}.partial")
    try:
        partial.mkdir(parents=True)
        _write_json(partial / RECORD, _as_json(run))
        _write_json(partial / SPLITS, run.splits.as_json())
        checkpoint.write(partial, settings, parts)
        partial.replace(run.path)  # takes the place of an empty folder, never that of a full one
    except OSError as error:
        if run.path.is_dir() and any(run.path.iterdir()):
            raise RunError(f"{run.path}: another run has been begun here meanwhile") from error
        raise SaveError(f"{run.path}: cannot be written ({error})") from error
    except SaveError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        raise SaveError(f"{run.path}: cannot be written ({error.__cause__})") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def open_run(path: Path) -> Run:
    """The run at this path; a RunError says why there is none."""
    stored = _read_json(path, RECORD)
    if stored.get("format") != FORMAT:
        raise RunError(f"{path / RECORD}: is not of a memwrap run, as its field 'format' does not say {FORMAT!r}")
    format_version = stored.get("format_version")
    if type(format_version) is not int or format_version < 1:
        raise RunError(f"{path / RECORD}: has format version {format_version!r}; expected a number: the run is damaged")
    if format_version > FORMAT_VERSION:
        raise RunError(
            f"{path}: has format version {format_version}, made by memwrap {stored.get('memwrap')}; memwrap "
            f"{__version__} reads up to version {FORMAT_VERSION}: install a newer memwrap"
        )
    splits = _read_json(path, SPLITS)
    try:
        return Run(
            path=path,
            recipe=_of_kind(str, stored["recipe"], "recipe"),
            settings=ResolvedSettings(**stored["settings"]),
            data=_data_record(stored["data"]),
            classes=tuple(_of_kind(str, name, "a class") for name in _of_kind(list, stored["classes"], "classes")),
            splits=from_json(splits),
            created=_of_kind(str, stored["created"], "created"),
            versions=_of_kind(dict, stored["versions"], "versions"),
            device=_of_kind(str, stored["device"], "device"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"{path}: the run is damaged: {RECORD} or {SPLITS} is incomplete or contradicts itself ({brief(error)})"
        ) from error


def _data_record(stored: dict[str, Any]) -> DataRecord:
    record = DataRecord(**stored)
    kinds = {"source": str, "root": str | None, "fingerprint": str, "conversion": dict, "warnings": list}
    for name, kind in kinds.items():
        _of_kind(kind, getattr(record, name), name)
    return record


def _of_kind(kind: Any, value: Any, name: str) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{name} is a {type(value).__name__}")
    return value


def read_model(path: Path) -> tuple[dict[str, Any], checkpoint.Parts]:
    """What the run's model is stored as."""
    try:
        return checkpoint.read(path)
    except LoadError as error:
        raise RunError(f"the run is damaged: {error}") from error


def model_of(path: Path, settings: dict[str, Any], parts: checkpoint.Parts) -> Model:
    """The model that `read_model` read, in training mode."""
    try:
        return unpack(path, settings, parts)
    except LoadError as error:
        raise RunError(f"the run is damaged: {error}") from error


def training_state(path: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """How far the training of the stored model has come: finished, progress, seconds; None if it does not say."""
    state = settings.get("training")
    if state is None:
        return None
    try:
        progress = _of_kind(dict, _of_kind(dict, state, "training")["progress"], "progress")
        _of_kind(bool, state["finished"], "finished")
        _of_kind(int, progress["step"], "step")
        _of_kind(float | int, state["seconds"], "seconds")
    except (KeyError, TypeError) as error:
        raise RunError(f"{path}: the run is damaged: {checkpoint.MANIFEST} is incomplete ({brief(error)})") from error
    return dict(state)


def write_json(path: Path, name: str, content: Any) -> None:
    """Put a JSON file into the run's folder, in one step."""
    try:
        _write_json(path / name, content)
    except OSError as error:
        raise SaveError(f"{path / name}: cannot be written ({error})") from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps other processes from training in this folder; the lock falls with this one, however it ends."""
    try:
        file = (path / LOCK).open("ab")
    except OSError as error:
        raise RunError(f"{path}: cannot be trained in ({error})") from error
    with file:
        if not try_lock(file):
            raise RunError(f"{path}: another process is training here")
        yield


def _as_json(run: Run) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "memwrap": __version__,
        "created": run.created,
        "recipe": run.recipe,
        "settings": run.settings.model_dump(),
        "data": asdict(run.data),
        "classes": run.classes,
        "versions": run.versions,
        "device": run.device,
    }


def _write_json(path: Path, content: Any) -> None:
    checkpoint.write_file(path, json.dumps(content, indent=2).encode())


def _read_json(path: Path, name: str) -> dict[str, Any]:
    try:
        content = json.loads((path / name).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{path}: is no run, as it has no {name}; memwrap train --out makes one") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path / name}: cannot be read ({error}); the run is damaged") from error
    if not isinstance(content, dict):
        raise RunError(f"{path / name}: holds no JSON object; the run is damaged")
    return content
