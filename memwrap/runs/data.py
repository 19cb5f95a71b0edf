"""A run's data, at the start and whenever it is needed again."""

from pathlib import Path

from memwrap.data import PUBLISHED, DataSet, Progress, open_data
from memwrap.errors import DataError, RunError
from memwrap.runs.folder import Run
from memwrap.training.building import size_for
from memwrap.training.settings import Settings


def data_for(
    source: str,
    settings: Settings,
    root: Path | None = None,
    workers: int = 0,
    hold_bytes: int = 1 << 30,
    progress: Progress | None = None,
) -> DataSet:
    """The data that settings ask for, at the size that their encoder takes."""
    return open_data(
        source,
        root=root,
        size=size_for(settings),
        fit=settings.fit,
        skip_bad=settings.skip_bad,
        workers=workers,
        hold_bytes=hold_bytes,
        progress=progress,
    )


def data_of(
    run: Run,
    source: str | None = None,
    root: Path | None = None,
    workers: int = 0,
    hold_bytes: int = 1 << 30,
    progress: Progress | None = None,
) -> DataSet:
    """The data that the run was made with, proved to be the same. source, root: where it lies now, if it has moved."""
    _refuse_if_gone(run, source)
    data = open_data(
        source or run.data.source,
        root=root or _recorded_root(run),
        size=_size(run),
        fit=run.settings.fit,
        skip_bad=run.settings.skip_bad,
        workers=workers,
        hold_bytes=hold_bytes,
        progress=progress,
    )
    if data.fingerprint != run.data.fingerprint:
        raise DataError(
            f"{source or run.data.source}: is not the data that the run {run.path} was made with: images were added, "
            "removed, changed or renamed since. What needs just those images cannot be done; evaluate --data judges "
            "others"
        )
    return data


def _refuse_if_gone(run: Run, source: str | None) -> None:
    if source is None and run.data.source not in PUBLISHED and not Path(run.data.source).exists():
        raise DataError(f"the run's images are no longer at {run.data.source}")


def _recorded_root(run: Run) -> Path | None:
    """Where published files lay, if they may still; a run may have come from another machine."""
    recorded = None if run.data.root is None else Path(run.data.root)
    return recorded if recorded is not None and recorded.exists() else None


def _size(run: Run) -> int:
    match run.data.conversion.get("size"):
        case [int(height), int()] if height > 0:
            return height
    raise RunError(f"{run.path}: does not say at what size its images were read")
