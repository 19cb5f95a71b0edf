"""A folder or zip with one folder for each class, as a data set."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median_low
from typing import Any

import torch
from torch import Tensor

from memwrap.data import FITS
from memwrap.data.containers import Container, ZipArchive, open_container
from memwrap.data.dataset import DataSet, Images, InMemoryImages, LabelledImages
from memwrap.data.decoding import MODES, image_size
from memwrap.data.layout import LabelledFile, Layout, parse_layout
from memwrap.data.progress import Report
from memwrap.data.scan import Scan, ScannedImage, scan_images
from memwrap.data.streaming import ImageSource, StreamedImages
from memwrap.errors import DataError

AUTO_SIZE_LIMIT = 64
AUTO_SIZE_SAMPLE = 500  # images whose headers are read to choose a size
BAD_SHOWN = 20
PAIRS_SHOWN = 3


def read_folder(
    path: Path,
    *,
    size: int | None = None,
    fit: str = "crop",
    channels: int = 3,
    skip_bad: bool = False,
    workers: int = 0,
    hold_bytes: int = 1 << 30,
    least_classes: int = 2,
    progress: Report | None = None,
) -> DataSet:
    """Read the data set in a folder or zip. Every image is decoded once, so that bad files are known from the start.

    size: side of the square images; None uses the median shorter side of the training images, at most 64.
    fit: see `decoding.fit_image`. channels: 3 or 1. skip_bad: leave bad files out and record them, instead of an error.
    hold_bytes: pixels that take more are read on demand instead of held in memory, by `workers` processes.
    progress: called with the number of files that are done and the number of all files.
    """
    _check_options(size, fit, channels, workers)
    container = open_container(path)
    layout = _read_layout(container, least_classes)
    side = _usual_side(container, layout.train) if size is None else size
    source = ImageSource(container, (channels, side, side), fit)
    scan = scan_images(source, layout, hold_bytes, progress)
    if scan.bad:
        _check_bad_files(path, layout, scan, skip_bad)
    train = _labelled_images(source, scan.train, scan.pixels, workers)
    test_pixels = None if scan.pixels is None else scan.pixels[len(scan.train) :]
    test = None if scan.test is None else _labelled_images(source, scan.test, test_pixels, workers)
    return DataSet(
        name=str(path),
        classes=layout.classes,
        train=train,
        test=test,
        fingerprint=_fingerprint(source, layout.classes, scan),
        record=_record(source, layout, scan),
        warnings=(*layout.notes, *_warnings(scan)),
    )


def _check_options(size: int | None, fit: str, channels: int, workers: int) -> None:
    if size is not None and (type(size) is not int or size < 1):
        raise DataError(f"size is {size!r}; expected a number of pixels, 1 or more, or None to choose by the images")
    if fit not in FITS:
        raise DataError(f"fit is {fit!r}; expected one of {', '.join(FITS)}")
    if channels not in MODES:
        raise DataError(f"channels is {channels!r}; expected 3 (colour) or 1 (gray)")
    if type(workers) is not int or workers < 0:
        raise DataError(f"workers is {workers!r}; expected a number of processes, 0 or more")


def _read_layout(container: Container, least_classes: int) -> Layout:
    names, folders = container.names(), container.folders()
    try:
        return parse_layout(names, folders, least_classes)
    except DataError as error:
        raise DataError(f"{container.path}: {error}") from None


def median_side(path: Path) -> int | None:
    """The median shorter side, in pixels, of the training images in a folder or zip; None if none can be read."""
    container = open_container(path)
    return _median_side(container, _read_layout(container, least_classes=1).train)


def _usual_side(container: Container, files: Sequence[LabelledFile]) -> int:
    """The median shorter side, at most AUTO_SIZE_LIMIT."""
    return min(AUTO_SIZE_LIMIT, _median_side(container, files) or AUTO_SIZE_LIMIT)


def _median_side(container: Container, files: Sequence[LabelledFile]) -> int | None:
    """Of some files. Bad ones do not count: the scan reports them."""
    count = min(AUTO_SIZE_SAMPLE, len(files))
    sides = []
    for position in range(count):
        try:
            sides.append(min(image_size(container.read(files[position * len(files) // count].name))))
        except DataError:
            continue
    return median_low(sides) if sides else None


def _check_bad_files(path: Path, layout: Layout, scan: Scan, skip_bad: bool) -> None:
    """Refuse bad files, or with skip_bad a class or split of which nothing is left without them."""
    lines = [f"  {name}: {reason}" for name, reason in islice(scan.bad.items(), BAD_SHOWN)]
    if len(scan.bad) > BAD_SHOWN:
        lines.append(f"  and {len(scan.bad) - BAD_SHOWN} more")
    bad = "\n".join(lines)
    if not skip_bad:
        raise DataError(
            f"{path}: {len(scan.bad)} of {len(layout.train) + len(layout.test or [])} files in class folders cannot be "
            f"used as images:\n{bad}\nRepair or remove them, or leave them out with --skip-bad (skip_bad=True)."
        )
    left = {image.label for image in scan.train}
    if emptied := [name for label, name in enumerate(layout.classes) if label not in left]:
        raise DataError(f"{path}: without the bad files no training images are left of {', '.join(emptied)}:\n{bad}")
    if scan.test == []:
        raise DataError(f"{path}: without the bad files no test images are left:\n{bad}")


def _labelled_images(
    source: ImageSource, scanned: list[ScannedImage], pixels: Tensor | None, workers: int
) -> LabelledImages:
    """The scanned images, which are the first rows of the pixels."""
    names = tuple(image.name for image in scanned)
    labels = torch.tensor([image.label for image in scanned], dtype=torch.int64)
    streamed = StreamedImages(source, names, [image.file_digest for image in scanned], workers)
    images: Images = streamed if pixels is None else InMemoryImages(pixels[: len(scanned)])
    return LabelledImages(images, labels, names)


def _fingerprint(source: ImageSource, classes: tuple[str, ...], scan: Scan) -> str:
    """A digest of the files, their labels and their order; a copy of the folder has the same."""
    digest = hashlib.sha256(json.dumps([classes, source.shape, source.fit]).encode())
    for split, images in (("train", scan.train), ("test", scan.test or [])):
        for image in images:
            digest.update(json.dumps([split, image.name, image.label, image.file_digest.hex()]).encode())
    return digest.hexdigest()


def _record(source: ImageSource, layout: Layout, scan: Scan) -> dict[str, Any]:
    return {
        "kind": "zip" if isinstance(source.container, ZipArchive) else "folder",
        "path": str(source.container.path.resolve()),
        "size": list(source.shape[1:]),
        "channels": source.shape[0],
        "fit": source.fit,
        "adjusted": dict(Counter(image.adjustment for image in scan.images)),
        "modes": dict(Counter(image.mode for image in scan.images)),
        "left_out": scan.bad,
        "held": scan.pixels is not None,
        "notes": list(layout.notes),
    }


def _warnings(scan: Scan) -> Iterator[str]:
    """What makes a measured accuracy doubtful: files left out, and equal images in two places."""
    if scan.bad:
        name, reason = next(iter(scan.bad.items()))
        yield f"{len(scan.bad)} files are left out, as they cannot be used as images, such as {name} ({reason})"
    first = {image.digest: image.name for image in reversed(scan.train)}
    test = scan.test or []
    if pairs := [f"{first[image.digest]} = {image.name}" for image in test if image.digest in first]:
        shown = ", ".join(pairs[:PAIRS_SHOWN])
        yield f"{len(pairs)} of {len(test)} test images are training images too, pixel for pixel: {shown}"
    copies = Counter(image.digest for image in scan.train)
    repeated = [image.name for image in scan.train if copies[image.digest] > 1]
    if scan.test is None and repeated:
        yield (
            f"{len(repeated)} images occur more than once, pixel for pixel, such as {repeated[0]}: if one copy is "
            "trained on and another is a test image, the accuracy is too high"
        )
    labels = Counter(digest for digest, _ in {(image.digest, image.label) for image in scan.train})
    if conflicting := [image.name for image in scan.train if labels[image.digest] > 1]:
        yield f"{len(conflicting)} training images have the pixels of one in another class, such as {conflicting[0]}"
