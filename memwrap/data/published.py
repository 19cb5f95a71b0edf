"""The published data sets, with their official splits and in their official order."""

import hashlib
import importlib
import json
from collections.abc import Callable, Iterable
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
from memwrap.storage.locks import exclusive

Arrays = tuple[Tensor, Tensor]  # pixels uint8 (N, C, H, W), labels int64 (N,), both contiguous

PUBLISHED = ("digits", "svhn", "cifar10", "cinic10")

DIGITS = tuple("0123456789")
CINIC10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CINIC10_IMAGES = 90_000  # in each of its splits
CLASS_NAMES = {"svhn": DIGITS, "cifar10": CINIC10, "cinic10": CINIC10}

PUBLISHED_LIMIT = 1 << 30  # bytes; no published file is larger, and reading one for its checksum would take long

_T = TypeVar("_T")


def open_published(
    name: str, root: Path, read: Callable[[Path], DataSet], progress: Progress | None, download: bool = True
) -> DataSet:
    """Open one of PUBLISHED. root: where its files are stored or downloaded to. read: reads a folder of images.

    download: whether files that are missing are downloaded; otherwise they are a DataError.
    """
    match name:
        case "digits":
            return digits()
        case "svhn":
            return svhn(root, progress, download)
        case "cifar10":
            return cifar10(root, progress, download)
        case "cinic10":
            return cinic10(root, read)
    raise DataError(f"{name!r} is not a published data set; expected one of {', '.join(PUBLISHED)}")


def digits() -> DataSet:
    """The 1,797 gray 8x8 images of scikit-learn; they have no test split."""
    found = _import("sklearn.datasets", "scikit-learn", "digits").load_digits()
    levels = torch.from_numpy(found.images).unsqueeze(1)  # 0 to 16
    pixels = (levels * 255 / 16).round().to(torch.uint8)
    return _build("digits", None, DIGITS, (pixels, torch.from_numpy(found.target).long()), None)


def svhn(root: Path, progress: Progress | None = None, download: bool = True) -> DataSet:
    """SVHN, 73,257 and 26,032 images 3x32x32, without the extra split; downloaded to root if missing."""
    _import("scipy.io", "scipy", "svhn")  # torchvision imports it only after the download
    train, test = (_svhn_split(root, split, progress, download) for split in ("train", "test"))
    return _build("svhn", root, DIGITS, train, test)


def cifar10(root: Path, progress: Progress | None = None, download: bool = True) -> DataSet:
    """CIFAR10, 50,000 and 10,000 images 3x32x32; downloaded to root if missing."""
    kind = _import("torchvision.datasets", "torchvision", "cifar10").CIFAR10
    archive = root / kind.filename
    names = [name for name, _ in (*kind.train_list, *kind.test_list)] + [kind.meta["filename"]]
    _check_sizes([archive, *(root / kind.base_folder / name for name in names)])

    def read() -> list[Any]:
        return [kind(root, train=True), kind(root, train=False)]

    def fetch() -> None:
        _download(kind.url, archive, kind.tgz_md5, progress)
        _unpack(archive, read)

    parts = _read_or_fetch(read, fetch if download else None, archive)
    train, test = (_channels_first(part.data, part.targets) for part in parts)
    return _build("cifar10", root, tuple(parts[0].classes), train, test)


def cinic10(root: Path, read: Callable[[Path], DataSet]) -> DataSet:
    """CINIC10, 90,000 and 90,000 images 3x32x32, from the folder it was unpacked to: root, or one of its name in root.

    read: reads a folder of images. CINIC10's validation images, valid/, are in neither split.
    """
    folder = _find_cinic10(root)
    data = read(folder)
    if data.classes != CINIC10:
        raise DataError(
            f"{folder}: has the classes {', '.join(data.classes[:10])}; CINIC10 has {', '.join(CINIC10)}. If it is "
            "another data set, give its folder instead of 'cinic10'"
        )
    counts = {"train": len(data.train), "test": len(data.test or ())}
    warnings = tuple(
        f"cinic10: {split}/ has {count:,} images; {CINIC10_IMAGES:,} were published: unpack the whole archive"
        for split, count in counts.items()
        if count != CINIC10_IMAGES
    )
    record = data.record | {"kind": "published", "root": str(folder.absolute())}
    return replace(data, name="cinic10", record=record, warnings=data.warnings + warnings)


def _svhn_split(root: Path, split: str, progress: Progress | None, download: bool) -> Arrays:
    kind = _import("torchvision.datasets", "torchvision", "svhn").SVHN
    url, name, md5 = kind.split_list[split]
    file = root / name
    _check_sizes([file])

    def fetch() -> None:
        _download(url, file, md5, progress)

    part = _read_or_fetch(lambda: kind(root, split=split), fetch if download else None, file)
    return torch.from_numpy(part.data).contiguous(), torch.from_numpy(part.labels)


def _check_sizes(files: Iterable[Path]) -> None:
    for file in files:
        if file.is_file() and (size := file.stat().st_size) > PUBLISHED_LIMIT:
            raise DataError(f"{file}: has {size} bytes, more than any published file; remove it")


def _channels_first(data: Any, targets: list[int]) -> Arrays:
    return torch.from_numpy(data).permute(0, 3, 1, 2).contiguous(), torch.tensor(targets)


def _read_or_fetch(read: Callable[[], _T], fetch: Callable[[], None] | None, file: Path) -> _T:
    """Read by torchvision; if the official files are missing or damaged, fetch them first, unless that is not asked."""
    try:
        with suppress(RuntimeError):  # torchvision's error for such files
            return read()
        if fetch is None:
            raise DataError(f"{file}: is missing or damaged")
        fetch()
        return read()
    except (RuntimeError, OSError) as error:
        raise DataError(
            f"{file}: cannot be used ({brief(error)}); if it is damaged, remove it and run this again to download it; "
            "if it is elsewhere, give that folder with --data-root"
        ) from error


def _download(url: str, file: Path, md5: str, progress: Progress | None) -> None:
    with track_progress(progress, f"downloading {file.name}") as report:
        download(url, file, md5, report)


def _unpack(archive: Path, read: Callable[[], object]) -> None:
    """Unpack next to the archive, unless another process did so while this one waited."""
    with exclusive(archive):
        try:
            read()
        except RuntimeError:
            _import("torchvision.datasets.utils", "torchvision", archive.name).extract_archive(archive, archive.parent)


def _find_cinic10(root: Path) -> Path:
    folders = (root, root / "cinic10", root / "CINIC-10")
    for folder in folders:
        if (folder / "train").is_dir():
            return folder
    raise DataError(
        f"cinic10: no folder train/ in {', '.join(str(folder) for folder in folders)}; download CINIC-10.tar.gz from "
        f"https://datashare.ed.ac.uk/handle/10283/3192 and unpack it in {folders[-1]}, or give --data-root"
    )


def _build(name: str, root: Path | None, classes: tuple[str, ...], train: Arrays, test: Arrays | None) -> DataSet:
    splits = {"train": train} if test is None else {"train": train, "test": test}
    prefix = "" if test is None else "{}/"
    labelled = [_labelled_images(*arrays, prefix.format(split)) for split, arrays in splits.items()]
    folder = None if root is None else str(root.absolute())
    return DataSet(
        name=name,
        classes=classes,
        train=labelled[0],
        test=labelled[1] if test else None,
        fingerprint=_fingerprint(name, classes, splits),
        record={"kind": "published", "root": folder, "size": list(labelled[0].images.shape[1:]), "held": True},
    )


def _labelled_images(pixels: Tensor, labels: Tensor, prefix: str) -> LabelledImages:
    names = tuple(f"{prefix}{index}" for index in range(len(labels)))
    return LabelledImages(InMemoryImages(pixels), labels, names)


def _fingerprint(name: str, classes: tuple[str, ...], splits: dict[str, Arrays]) -> str:
    shapes = {split: list(pixels.shape) for split, (pixels, _) in splits.items()}
    digest = hashlib.sha256(json.dumps([name, classes, shapes]).encode())
    for pixels, labels in splits.values():
        digest.update(labels.numpy().data)
        digest.update(pixels.numpy().data)
    return digest.hexdigest()


def _import(module: str, library: str, user: str) -> Any:
    """Import a module that only some data sets need."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(f"{user} needs {library}, which is not installed: pip install {library}") from error
