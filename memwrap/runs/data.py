"""The images of a run, when it starts and when it is opened again."""

from pathlib import Path

from memwrap.data import PUBLISHED, DataSet, Progress, open_data
from memwrap.errors import DataError, RunError
from memwrap.runs.record import RECORD
from memwrap.runs.run import Run
from memwrap.storage.checkpoint import MANIFEST
from memwrap.training.building import size_for
from memwrap.training.settings import SIZE_LIMIT, Settings


def data_for(
    source: str,
    settings: Settings,
    root: Path | None = None,
    workers: int = 0,
    hold_bytes: int = 1 << 30,
    progress: Progress | None = None,
) -> DataSet:
    """Open a source at the size that the encoder of the settings takes."""
    return open_data(
        source,
        root=root,
        size=size_for(settings),
        fit=settings.fit or "crop",
        skip_bad=settings.skip_bad,
        workers=workers,
        hold_bytes=hold_bytes,
        progress=progress,
    )


class OtherDataError(DataError):
    """The data was found, and has changed since the run was made."""


def data_of(
    run: Run,
    source: str | None = None,
    root: Path | None = None,
    workers: int = 0,
    hold_bytes: int = 1 << 30,
    progress: Progress | None = None,
) -> DataSet:
    """The data of the run, checked by its fingerprint. source, root: where it is now, if it has moved.

    Nothing is downloaded unless `source` names it: the run may come from anybody.
    """
    _refuse_if_gone(run, source)
    data = open_data(
        source or run.record.data.source,
        root=root or _recorded_root(run),
        size=_size(run),
        fit=run.settings.fit,
        skip_bad=run.settings.skip_bad,
        workers=workers,
        hold_bytes=hold_bytes,
        download=source is not None,
        progress=progress,
    )
    if data.fingerprint != run.record.data.fingerprint:
        raise OtherDataError(
            f"{source or run.record.data.source}: is not the data that the run {run.path} was made with: images were "
            "added, removed, changed or renamed since. Restore them, or evaluate on other images with --data"
        )
    return data


def _refuse_if_gone(run: Run, source: str | None) -> None:
    if source is None and run.record.data.source not in PUBLISHED and not Path(run.record.data.source).exists():
        raise DataError(f"the images of the run are no longer at {run.record.data.source}")


def _recorded_root(run: Run) -> Path | None:
    """Where published files were, if that folder exists: a run may come from another machine."""
    recorded = None if run.record.data.root is None else Path(run.record.data.root)
    return recorded if recorded is not None and recorded.exists() else None


def _size(run: Run) -> int:
    """The side of the run's images, which is that of the images that its model takes."""
    match run.record.data.conversion.get("size"):
        case [int(side), int()] if side > 0:
            pass
        case _:
            raise RunError(f"{run.path}: {RECORD} lacks the size of its images; the run is damaged")
    if side > SIZE_LIMIT:
        raise RunError(f"{run.path}: {RECORD} has images of {side} pixels a side; expected at most {SIZE_LIMIT}")
    match run.manifest.settings:
        case {"transform": {"shape": [_, expected, _]}} if expected != side:
            raise RunError(
                f"{run.path}: the run is damaged: its images have {side} pixels a side in {RECORD}, and "
                f"{str(expected)[:24]} in {MANIFEST}"
            )
    return side
