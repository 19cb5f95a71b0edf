"""`run.json`: the settings of a run, where its data came from, and what it was made with; written once."""

import platform
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from memwrap.data import PUBLISHED, DataSet
from memwrap.errors import RunError
from memwrap.storage.validation import Record, check_format, parse, read_json
from memwrap.training.settings import COUNT_LIMIT, ResolvedSettings
from memwrap.training.trainer import Progress, StoredCount
from memwrap.version import __version__

RECORD = "run.json"
FORMAT: Literal["memwrap run"] = "memwrap run"
FORMAT_VERSION = 1
SECONDS_LIMIT = 1e12


class DataRecord(Record):
    """Where a run's images came from, and how they were converted."""

    source: str  # a known name, or the absolute path of a folder or zip
    root: str | None  # where the files of a known name are stored
    fingerprint: str
    conversion: dict[str, Any]
    warnings: tuple[str, ...]


class RunDescription(Record, extra="ignore"):
    """The content of run.json."""

    format: Literal["memwrap run"] = FORMAT
    format_version: int = FORMAT_VERSION
    memwrap: str  # the version that wrote it
    created: str
    recipe: str
    settings: ResolvedSettings
    data: DataRecord
    classes: tuple[str, ...]
    versions: dict[str, Any]
    device: str  # on which it was started: "cpu", or the name of a GPU


class Session(Record, extra="ignore"):
    """What the last bits of a result depend on besides settings and data, from a step on."""

    step: StoredCount
    device: str  # as in RunDescription
    threads: StoredCount | None  # of torch, on the CPU
    torch: str | None  # its version
    cpu: str | None  # the instructions that torch uses, as AVX2


Rate = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0, le=COUNT_LIMIT)]


class FitSummary(Record, extra="ignore"):
    """What was chosen for a layer that was fitted to encodings; accuracies are of held-out training images."""

    held_out: StoredCount
    head_accuracy: Rate | None
    vote_accuracy: Rate | None
    plain_vote_accuracy: Rate | None  # without a projection
    images_used: Amount | None  # on average, by the vote
    shrinkage: Amount | None  # of the projection; None without one
    scale: Amount
    penalty: Amount  # of the head


class TrainingState(Record, extra="ignore"):
    """How far a run is, stored with every checkpoint in model.json."""

    finished: bool
    progress: Progress
    seconds: float = Field(ge=0, le=SECONDS_LIMIT)  # spent in training
    sessions: tuple[Session, ...] = ()  # a further one whenever something changed; none in files of memwrap 0.1
    remembered: tuple[StoredCount, ...] | None = None  # training images in the memory of a finished model
    remembered_names: tuple[str, ...] | None = None  # in files of memwrap 0.1; then the memory has them
    fitted: FitSummary | None = None  # of a layer that was fitted to encodings
    edited: bool = False  # whether images were added to the memory, or dropped, after training


def new_record(recipe: str, settings: ResolvedSettings, data: DataSet, device: str) -> RunDescription:
    """The record of a run that starts now."""
    source = data.name if data.name in PUBLISHED else str(Path(data.name).expanduser().absolute())
    return RunDescription(
        memwrap=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        recipe=recipe,
        settings=settings,
        data=DataRecord(
            source=source,
            root=data.record.get("root"),
            fingerprint=data.fingerprint,
            conversion=data.record,
            warnings=data.warnings,
        ),
        classes=data.classes,
        versions=versions(),
        device=device,
    )


def read_record(folder: Path) -> RunDescription:
    """The record of the run in this folder; a RunError says why there is none."""
    try:
        content = read_json(folder / RECORD, RunError)
    except (FileNotFoundError, NotADirectoryError):
        raise RunError(f"{folder}: is not a run, as it has no {RECORD}; memwrap train --out makes one") from None
    check_format(folder / RECORD, content, FORMAT, FORMAT_VERSION, RunError)
    return parse(RunDescription, content, RunError, folder / RECORD)


def versions() -> dict[str, str]:
    """The versions of Python, of the platform and of the packages that results depend on."""
    found = {
        "memwrap": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    for package in ("torch", "torchvision", "timm", "numpy", "pillow"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
