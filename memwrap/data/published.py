"""The public data sets, with their official splits and in their official order."""

import hashlib
import importlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from memwrap.data.dataset import DataSet, InMemoryImages, LabelledImages
from memwrap.data.download import download
from memwrap.data.progress import Progress, track_progress
from memwrap.errors import DataError, brief
from memwrap.storage.locks import alone

Arrays = tuple[Tensor, Tensor]  # pixels uint8 (N, C, H, W), labels int64 (N,), both contiguous

DIGITS = tuple("0123456789")
CINIC10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CINIC10_IMAGES = 90_000  # in each of its splits
CLASS_NAMES = {"svhn": DIGITS, "cifar10": CINIC10, "cinic10": CINIC10}

_T = TypeVar("_T")


def digits() -> DataSet:
    """The 1,797 gray 8x8 images that come with scikit-learn; they have no test split."""
    found = _library("sklearn.datasets", "scikit-learn", "digits").load_digits()
    levels = torch.from_numpy(found.images).unsqueeze(1)  # 0 to 16
    pixels = (levels * 255 / 16).round().to(torch.uint8)
    return _data_set("digits", None, DIGITS, (pixels, torch.from_numpy(found.target).long()), None)


def svhn(root: Path, progress: Progress | None = None) -> DataSet:
    """The house numbers, 73,257 and 26,032 images 3x32x32, without the extra split; fetched to root if need be."""
    _library("scipy.io", "scipy", "svhn")  # torchvision asks for it only when the files are there
    train, test = _svhn_split(root, "train", progress), _svhn_split(root, "test", progress)
    return _data_set("svhn", root, DIGITS, train, test)


def cifar10(root: Path, progress: Progress | None = None) -> DataSet:
    """CIFAR10, 50,000 and 10,000 images 3x32x32; fetched to root if need be."""
    kind = _library("torchvision.datasets", "torchvision", "cifar10").CIFAR10
    archive = root / kind.filename

    def read() -> list[Any]:
        return [kind(root, train=True), kind(root, train=False)]

    def fetch() -> None:
        _fetch(kind.url, archive, kind.tgz_md5, progress)
        _unpack(archive, read)

    parts = _read(read, fetch, archive)
    train, test = (_channels_first(part.data, part.targets) for part in parts)
    return _data_set("cifar10", root, tuple(parts[0].classes), train, test)


def cinic10(root: Path, read: Callable[[Path], DataSet]) -> DataSet:
    """CINIC10, 90,000 and 90,000 images 3x32x32, from where it was unpacked: root, or a folder of its name therein.

    read: reads a folder of images. CINIC10's validation images, valid/, are in neither split.
    """
    folder = _cinic10_folder(root)
    data = read(folder)
    if data.classes != CINIC10:
        raise DataError(
            f"{folder}: has the classes {', '.join(data.classes[:10])}; CINIC10 has {', '.join(CINIC10)}. If it is "
            "another data set, name its folder instead of 'cinic10'"
        )
    record = data.record | {"kind": "published", "root": str(folder.absolute())}
    return replace(data, name="cinic10", record=record, warnings=data.warnings + _cinic10_warnings(data))


def _svhn_split(root: Path, split: str, progress: Progress | None) -> Arrays:
    kind = _library("torchvision.datasets", "torchvision", "svhn").SVHN
    url, name, md5 = kind.split_list[split]
    part = _read(lambda: kind(root, split=split), lambda: _fetch(url, root / name, md5, progress), root / name)
    return torch.from_numpy(part.data).contiguous(), torch.from_numpy(part.labels)


def _channels_first(data: Any, targets: list[int]) -> Arrays:
    return torch.from_numpy(data).permute(0, 3, 1, 2).contiguous(), torch.tensor(targets)


def _read(read: Callable[[], _T], fetch: Callable[[], None], file: Path) -> _T:
    """What torchvision reads; if it does not find the official files, or not whole, they are fetched first."""
    try:
        with suppress(RuntimeError):  # what torchvision raises then
            return read()
        fetch()
        return read()
    except (RuntimeError, OSError) as error:
        raise DataError(
            f"{file}: cannot be used ({brief(error)}); if it is damaged, remove it and run this again to fetch it "
            "anew; if it lies elsewhere, say where with --data-root"
        ) from error


def _fetch(url: str, file: Path, md5: str, progress: Progress | None) -> None:
    with track_progress(progress, f"downloading {file.name}") as report:
        download(url, file, md5, report)


def _unpack(archive: Path, read: Callable[[], object]) -> None:
    """Unpack beside the archive, unless another process has done so while this one waited."""
    with alone(archive):
        try:
            read()
        except RuntimeError:
            _library("torchvision.datasets.utils", "torchvision", archive.name).extract_archive(archive, archive.parent)


def _cinic10_folder(root: Path) -> Path:
    folders = (root, root / "cinic10", root / "CINIC-10")
    for folder in folders:
        if (folder / "train").is_dir():
            return folder
    raise DataError(
        f"cinic10: no folder train/ in {', '.join(str(folder) for folder in folders)}; fetch CINIC-10.tar.gz from "
        f"https://datashare.ed.ac.uk/handle/10283/3192 and unpack it in {folders[-1]}, or where --data-root says"
    )


def _cinic10_warnings(data: DataSet) -> tuple[str, ...]:
    counts = {"train": len(data.train), "test": len(data.test or ())}
    return tuple(
        f"cinic10: {split}/ gave {count:,} images where {CINIC10_IMAGES:,} were published; was all of it unpacked?"
        for split, count in counts.items()
        if count != CINIC10_IMAGES
    )


def _data_set(name: str, root: Path | None, classes: tuple[str, ...], train: Arrays, test: Arrays | None) -> DataSet:
    splits = {"train": train} if test is None else {"train": train, "test": test}
    prefix = "" if test is None else "{}/"
    labelled = [_labelled(*arrays, prefix.format(split)) for split, arrays in splits.items()]
    _, height, width = labelled[0].images.shape
    where = None if root is None else str(root.absolute())
    record = {"kind": "published", "root": where, "size": [height, width], "held": True}
    return DataSet(
        name, classes, labelled[0], labelled[1] if test else None, _fingerprint(name, classes, splits), record
    )


def _labelled(pixels: Tensor, labels: Tensor, prefix: str) -> LabelledImages:
    names = tuple(f"{prefix}{index}" for index in range(len(labels)))
    return LabelledImages(InMemoryImages(pixels), labels, names)


def _fingerprint(name: str, classes: tuple[str, ...], splits: dict[str, Arrays]) -> str:
    shapes = {split: list(pixels.shape) for split, (pixels, _) in splits.items()}
    digest = hashlib.sha256(json.dumps([name, classes, shapes]).encode())
    for pixels, labels in splits.values():
        digest.update(labels.numpy().data)
        digest.update(pixels.numpy().data)
    return digest.hexdigest()


def _library(module: str, library: str, user: str) -> Any:
    """A module that only some data sets need, loaded now."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(f"{user} needs {library}, which is not installed: pip install {library}") from error
