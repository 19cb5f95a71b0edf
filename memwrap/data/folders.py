"""A person's own images, in a folder or zip with a folder for each class, as a data set."""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import median_low
from typing import Any

import torch
from torch import Tensor

from memwrap.data import FITS
from memwrap.data.containers import Archive, Container, open_container
from memwrap.data.dataset import DataSet, Images, InMemoryImages, LabelledImages
from memwrap.data.decoding import MODES, image_size
from memwrap.data.layout import Entry, Listing, arranged
from memwrap.data.scan import Progress, ReadingPlan, Scan, ScannedImage, scan_images
from memwrap.data.streaming import StreamedImages
from memwrap.errors import DataError

AUTO_SIZE_LIMIT = 64
AUTO_SIZE_SAMPLE = 500  # images whose headers are looked at to choose a size
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
    progress: Progress | None = None,
) -> DataSet:
    """The data set in a folder or zip; each image has been decoded once, so that bad ones are known from the start.

    size: side of the square images; None takes the median shorter side of the training images, at most 64.
    fit: see `pictures.fitted`. channels: 3 or 1. skip_bad: leave bad files out and record them, instead of an error.
    hold_bytes: so many bytes of pixels stay in memory at most; where there are more, all are read on demand, by so
    many workers. progress: called with the number of files looked at and the number of all.
    """
    _check_options(size, fit, channels, workers)
    container = open_container(path)
    listing = _listing(container, least_classes)
    side = _usual_side(container, listing.train) if size is None else size
    plan = ReadingPlan(container, (channels, side, side), fit)
    scan = scan_images(plan, listing, hold_bytes, progress)
    if scan.bad:
        _refuse_bad(plan, listing, scan, skip_bad)
    train, test = _labelled_images(plan, scan, workers)
    return DataSet(
        name=str(path),
        classes=listing.classes,
        train=train,
        test=test,
        fingerprint=_fingerprint(plan, listing.classes, scan),
        record=_record(plan, listing, scan),
        warnings=(*listing.notes, *_warnings(scan)),
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


def _listing(container: Container, least_classes: int) -> Listing:
    names, folders = container.names(), container.folders()
    try:
        return arranged(names, folders, least_classes)
    except DataError as error:
        raise DataError(f"{container.path}: {error}") from None


def _usual_side(container: Container, entries: Sequence[Entry]) -> int:
    """The median shorter side, within limits. Files that cannot be read do not count: the scan will name them."""
    count = min(AUTO_SIZE_SAMPLE, len(entries))
    sides = []
    for position in range(count):
        try:
            sides.append(min(image_size(container.read(entries[position * len(entries) // count].name))))
        except DataError:
            continue
    return min(AUTO_SIZE_LIMIT, median_low(sides)) if sides else AUTO_SIZE_LIMIT


def _refuse_bad(plan: ReadingPlan, listing: Listing, scan: Scan, skip_bad: bool) -> None:
    path = plan.container.path
    if not skip_bad:
        count = f"{len(scan.bad)} of {len(listing.train) + len(listing.test or [])} files"
        raise DataError(
            f"{path}: {count} in class folders cannot be used as images:\n{_shown(scan.bad)}\n"
            "Repair or remove them; where there is --skip-bad (skip_bad=True), that leaves them out."
        )
    left = {image.entry.label for image in scan.train}
    if emptied := [name for label, name in enumerate(listing.classes) if label not in left]:
        raise DataError(
            f"{path}: without the bad files no training images are left of {', '.join(emptied)}:\n{_shown(scan.bad)}"
        )
    if scan.test == []:
        raise DataError(f"{path}: without the bad files no test images are left:\n{_shown(scan.bad)}")


def _shown(bad: dict[str, str]) -> str:
    lines = [f"  {name}: {reason}" for name, reason in islice(bad.items(), BAD_SHOWN)]
    more = [f"  and {len(bad) - BAD_SHOWN} more"] if len(bad) > BAD_SHOWN else []
    return "\n".join(lines + more)


def _labelled_images(plan: ReadingPlan, scan: Scan, workers: int) -> tuple[LabelledImages, LabelledImages | None]:
    train = _labelled(plan, scan.train, scan.pixels, workers)
    if scan.test is None:
        return train, None
    rest = None if scan.pixels is None else scan.pixels[len(scan.train) :]
    return train, _labelled(plan, scan.test, rest, workers)


def _labelled(plan: ReadingPlan, images: list[ScannedImage], pixels: Tensor | None, workers: int) -> LabelledImages:
    """The images, whose pixels are the first of those held."""
    names = tuple(image.entry.name for image in images)
    labels = torch.tensor([image.entry.label for image in images], dtype=torch.int64)
    streamed = StreamedImages(plan.container, names, plan.shape, plan.fit, workers)
    source: Images = streamed if pixels is None else InMemoryImages(pixels[: len(images)])
    return LabelledImages(source, labels, names)


def _fingerprint(plan: ReadingPlan, classes: tuple[str, ...], scan: Scan) -> str:
    """Changes with whatever changes files, labels or their order; a copy elsewhere has the same."""
    digest = hashlib.sha256(json.dumps([classes, plan.shape, plan.fit]).encode())
    for split, images in (("train", scan.train), ("test", scan.test or [])):
        for image in images:
            name, label = image.entry.name, image.entry.label
            digest.update(json.dumps([split, name, label, image.file_digest.hex()]).encode())
    return digest.hexdigest()


def _record(plan: ReadingPlan, listing: Listing, scan: Scan) -> dict[str, Any]:
    used = scan.train + (scan.test or [])
    return {
        "kind": "zip" if isinstance(plan.container, Archive) else "folder",
        "path": str(plan.container.path.resolve()),
        "size": list(plan.shape[1:]),
        "channels": plan.shape[0],
        "fit": plan.fit,
        "adjusted": dict(Counter(image.adjustment for image in used)),
        "modes": dict(Counter(image.mode for image in used)),
        "left_out": scan.bad,
        "held": scan.pixels is not None,
        "notes": list(listing.notes),
    }


def _warnings(scan: Scan) -> list[str]:
    return [
        *_left_out_warning(scan),
        *_overlap_warning(scan),
        *_repeated_warning(scan),
        *_conflict_warning(scan.train),
    ]


def _left_out_warning(scan: Scan) -> list[str]:
    if not scan.bad:
        return []
    name, reason = next(iter(scan.bad.items()))
    return [f"{len(scan.bad)} files are left out, as they cannot be used as images, such as {name} ({reason})"]


def _overlap_warning(scan: Scan) -> list[str]:
    """Where test images are training images too, which makes the measured accuracy too good."""
    known = {image.digest: image.entry.name for image in reversed(scan.train)}
    test = scan.test or []
    pairs = [f"{known[image.digest]} = {image.entry.name}" for image in test if image.digest in known]
    if not pairs:
        return []
    shown = ", ".join(pairs[:PAIRS_SHOWN])
    return [f"{len(pairs)} of {len(test)} test images are training images too, pixel for pixel: {shown}"]


def _repeated_warning(scan: Scan) -> list[str]:
    """Where there is no test split yet: of two copies of an image, one may be trained on and the other tested on."""
    counts = Counter(image.digest for image in scan.train)
    names = [image.entry.name for image in scan.train if counts[image.digest] > 1]
    if scan.test is not None or not names:
        return []
    return [
        f"{len(names)} images are there more than once, pixel for pixel, such as {names[0]}: where one copy is trained "
        "on and another is set apart for the test, the accuracy comes out too good"
    ]


def _conflict_warning(images: list[ScannedImage]) -> list[str]:
    labels: defaultdict[bytes, set[int]] = defaultdict(set)
    for image in images:
        labels[image.digest].add(image.entry.label)
    names = [image.entry.name for image in images if len(labels[image.digest]) > 1]
    if not names:
        return []
    return [f"{len(names)} training images have the pixels of one in another class, such as {names[0]}"]
