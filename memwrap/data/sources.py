"""`open_data`: the name of a published data set, or the path of a folder or zip, to a data set."""

import difflib
import os
from dataclasses import replace
from pathlib import Path

import platformdirs

from memwrap.data.dataset import DataSet
from memwrap.data.folders import read_folder
from memwrap.data.progress import Progress, track_progress
from memwrap.data.published import PUBLISHED, open_published
from memwrap.data.resizing import resize
from memwrap.errors import DataError


def open_data(
    source: str,
    *,
    root: Path | None = None,
    size: int | None = None,
    fit: str = "crop",
    channels: int = 3,
    skip_bad: bool = False,
    workers: int = 0,
    hold_bytes: int = 1 << 30,
    least_classes: int = 2,
    download: bool = True,
    progress: Progress | None = None,
) -> DataSet:
    """Open the published data set of this name, or else read the folder or zip at this path.

    A folder that has a published name is given by its path: "./svhn".

    root: where published files are stored and downloaded to; None: `default_root()`. size: height and width of the
    images; None: the published size, or what a folder's images suggest. hold_bytes also limits resized published
    images. download: whether published files that are missing are downloaded. The other options concern image files,
    see `read_folder`.
    """
    if size is not None and size < 1:
        raise DataError(f"size is {size}; expected the height and width of images in pixels, at least 1")

    def read(path: Path) -> DataSet:
        with track_progress(progress, "reading images") as report:
            return read_folder(
                path,
                size=size,
                fit=fit,
                channels=channels,
                skip_bad=skip_bad,
                workers=workers,
                hold_bytes=hold_bytes,
                least_classes=least_classes,
                progress=report,
            )

    if source not in PUBLISHED:
        return read(find_path(source))
    folder = _expand_home(root) if root else default_root()
    data = open_published(source, folder, read, progress, download)
    return _warn_of_namesake(data if size is None else resize(data, size, hold_bytes))


def default_root() -> Path:
    """Where published files are stored: MEMWRAP_DATA, or else the user's cache folder."""
    given = os.environ.get("MEMWRAP_DATA")
    return _expand_home(Path(given) if given else platformdirs.user_cache_path("memwrap", False, opinion=False))


def find_path(source: str) -> Path:
    """The folder or zip at this path; a DataError if there is none."""
    path = _expand_home(Path(source))
    try:
        if source and path.exists():
            return path
    except OSError as error:  # a name that is too long, or a folder on the way that may not be entered
        raise DataError(f"{source[:200]!r} cannot be read ({error.strerror}); check the path") from error
    close = difflib.get_close_matches(source.lower(), PUBLISHED, n=1)
    raise DataError(
        f"{source!r} is neither a published data set ({', '.join(PUBLISHED)}) nor a folder or zip "
        f"({path.absolute()} does not exist)" + (f"; did you mean {close[0]!r}?" if close else "; check the path")
    )


def _expand_home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise DataError(
            f"{path}: the home folder of ~ is unknown; give the full path (for published data sets in MEMWRAP_DATA)"
        ) from error


def _warn_of_namesake(data: DataSet) -> DataSet:
    """Warn if the working directory has a file or folder of the data set's name, which may have been meant."""
    path = Path(data.name)
    if not path.exists() or str(path.absolute()) == data.record["root"]:
        return data
    warning = f"{data.name} is the published data set; to read the local file or folder, give './{data.name}'"
    return replace(data, warnings=(*data.warnings, warning))
