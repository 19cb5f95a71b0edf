"""Every image of a folder or zip decoded once, so that bad files are known before training begins."""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from memwrap.data.containers import Archive, Container
from memwrap.data.decoding import BOMB, decoded
from memwrap.data.layout import Entry, Listing
from memwrap.errors import DataError

READ_AHEAD = 32  # images decoded and not yet recorded, at most

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class ReadingPlan:
    """Where the images are and what is to be made of them."""

    container: Container
    shape: tuple[int, int, int]
    fit: str


@dataclass(frozen=True)
class _Look:
    """One image, decoded for the first time."""

    pixels: Tensor  # uint8 (C, H, W)
    mode: str
    adjustment: str
    digest: bytes  # of the pixels
    file_digest: bytes  # of the file


@dataclass(frozen=True)
class ScannedImage:
    """What is kept of an image that can be used."""

    entry: Entry
    mode: str
    adjustment: str
    digest: bytes
    file_digest: bytes


@dataclass(frozen=True)
class Scan:
    """All images that can be used, and what is wrong with the others."""

    train: list[ScannedImage]
    test: list[ScannedImage] | None
    pixels: Tensor | None  # uint8 (N, C, H, W), those of train before those of test; None: too many to hold
    bad: dict[str, str]  # reasons by name


def scan_images(plan: ReadingPlan, listing: Listing, hold_bytes: int, progress: Progress | None) -> Scan:
    """Every image decoded once."""
    entries = [*listing.train, *(listing.test or [])]
    shape = (len(entries), *plan.shape)
    pixels = torch.empty(shape, dtype=torch.uint8) if torch.Size(shape).numel() <= hold_bytes else None
    images: list[ScannedImage] = []
    bad: dict[str, str] = {}
    for done, (entry, look) in enumerate(zip(entries, _looks(plan, entries), strict=True), start=1):
        if isinstance(look, str):
            bad[entry.name] = look
        else:
            if pixels is not None:
                pixels[len(images)] = look.pixels
            images.append(ScannedImage(entry, look.mode, look.adjustment, look.digest, look.file_digest))
        if progress:
            progress(done, len(entries))
    split = sum(entry.name not in bad for entry in listing.train)
    return Scan(images[:split], None if listing.test is None else images[split:], pixels, bad)


def _looks(plan: ReadingPlan, entries: Sequence[Entry]) -> Iterator[_Look | str]:
    """For each entry in turn its image, or why there is none."""
    # Threads suffice, as Pillow lets others run while it decodes.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        waiting: deque[Future[_Look | str]] = deque()
        try:
            for entry in entries:
                waiting.append(pool.submit(_look, plan, entry.name))
                if len(waiting) == READ_AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _look(plan: ReadingPlan, name: str) -> _Look | str:
    try:
        content = plan.container.read(name)
        picture = decoded(content, plan.shape, plan.fit)
    except DataError as error:
        if str(error).startswith(BOMB) and isinstance(plan.container, Archive):
            raise DataError(
                f"{plan.container.path}: {name}: {error}; a zip with such a picture is refused: "
                "if it comes from someone you trust, unpack it and give the folder"
            ) from None
        return str(error)
    digests = (hashlib.sha256(each).digest() for each in (picture.pixels.numpy().tobytes(), content))
    return _Look(picture.pixels, picture.mode, picture.adjustment, *digests)
