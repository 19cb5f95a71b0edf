"""One door to all data: the name of a published data set, or the path of a folder or zip of images."""

import difflib
import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from memwrap.data.dataset import DataSet, Images, InMemoryImages, LabelledImages
from memwrap.data.folders import read_folder
from memwrap.data.progress import Progress, track_progress
from memwrap.data.published import cifar10, cinic10, digits, svhn
from memwrap.errors import DataError

PUBLISHED = ("digits", "svhn", "cifar10", "cinic10")

_AT_ONCE = 1024  # images that are resized together: as floats they take four times their memory


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
    progress: Progress | None = None,
) -> DataSet:
    """The data set of this name, one of PUBLISHED; else what the folder or zip at this path holds.

    root: where published files are kept and fetched to; None: `default_root()`. size: height and width to bring
    images to; None: the published size, or what a folder's images suggest. The rest says how image files are read,
    see `read_folder`; hold_bytes is heeded for resized published images too. A folder that has a published name is
    meant by its path: "./svhn".
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
        return read(_path(source))
    data = _published(source, _expanded(root) if root else default_root(), read, progress)
    return _warned_of_namesake(data if size is None else resize(data, size, hold_bytes))


def default_root() -> Path:
    """Where published files are kept: MEMWRAP_DATA, or else a folder in the user's cache of this platform."""
    if given := os.environ.get("MEMWRAP_DATA"):
        return _expanded(Path(given))
    if sys.platform == "win32":
        cache = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        cache = "~/Library/Caches"
    else:
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return _expanded(Path(cache)) / "memwrap"


class ResizedImages:
    """Images that are kept at their own size and brought to another when asked for."""

    def __init__(self, images: Images, size: int) -> None:
        self.images = images
        self.size = size

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.images.shape[0], self.size, self.size

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, indices: Iterable[Tensor]) -> Iterator[Tensor]:
        for pixels in self.images.batches(indices):
            yield _resized(pixels, self.size)

    def at(self, indices: Tensor) -> "ResizedImages":
        return ResizedImages(self.images.at(indices), self.size)


def resize(data: DataSet, size: int, hold_bytes: int) -> DataSet:
    """The same images, size x size; made once if they take no more than hold_bytes, else whenever they are asked for.

    A data set whose images have that size is given back as it is.
    """
    channels, *own = data.train.images.shape
    if own == [size, size]:
        return data
    count = len(data.train) + len(data.test or ())
    hold = count * channels * size * size <= hold_bytes
    record = data.record | {"size": [size, size], "resized_from": own, "held": hold}
    return replace(
        data,
        train=_resized_split(data.train, size, hold),
        test=None if data.test is None else _resized_split(data.test, size, hold),
        fingerprint=hashlib.sha256(f"{data.fingerprint} {size}".encode()).hexdigest(),
        record=record,
    )


def _resized_split(split: LabelledImages, size: int, hold: bool) -> LabelledImages:
    images = ResizedImages(split.images, size)
    if not hold:
        return replace(split, images=images)
    pixels = torch.empty((len(split), *images.shape), dtype=torch.uint8)
    rows = [torch.arange(start, min(start + _AT_ONCE, len(split))) for start in range(0, len(split), _AT_ONCE)]
    for indices, batch in zip(rows, images.batches(rows), strict=True):
        pixels[indices] = batch
    return replace(split, images=InMemoryImages(pixels))


def _resized(pixels: Tensor, size: int) -> Tensor:
    """uint8 (n, C, H, W) -> uint8 (n, C, size, size)"""
    if len(pixels) == 0:  # which interpolate refuses
        return pixels.new_empty((0, pixels.shape[1], size, size))
    smooth = interpolate(pixels.float(), size=(size, size), mode="bilinear", antialias=True)
    return smooth.round().clamp(0, 255).to(torch.uint8)


def _published(name: str, root: Path, read: Callable[[Path], DataSet], progress: Progress | None) -> DataSet:
    readers: dict[str, Callable[[], DataSet]] = {
        "digits": digits,
        "svhn": lambda: svhn(root, progress),
        "cifar10": lambda: cifar10(root, progress),
        "cinic10": lambda: cinic10(root, read),
    }
    return readers[name]()


def _path(source: str) -> Path:
    """The path that a source which is no published name stands for."""
    path = _expanded(Path(source))
    if source and path.exists():
        return path
    close = difflib.get_close_matches(source.lower(), PUBLISHED, n=1)
    raise DataError(
        f"{source!r} is neither a published data set ({', '.join(PUBLISHED)}) nor a folder or zip "
        f"({path.absolute()} does not exist)" + (f"; did you mean {close[0]!r}?" if close else "; check the path")
    )


def _expanded(path: Path) -> Path:
    """The path with ~ replaced by the user's home."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise DataError(
            f"{path}: the home folder that ~ stands for is not known; name a folder in full (for published data sets "
            "in MEMWRAP_DATA)"
        ) from error


def _warned_of_namesake(data: DataSet) -> DataSet:
    """With a warning if something in the working directory has the data set's name and may have been meant."""
    path = Path(data.name)
    if not path.exists() or str(path.absolute()) == data.record["root"]:
        return data
    warning = f"{data.name} is the published data set; what lies here under that name was not read: say './{data.name}'"
    return replace(data, warnings=(*data.warnings, warning))
