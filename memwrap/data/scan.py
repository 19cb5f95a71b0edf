"""Decode every image of a folder or zip once, so that bad files are known before training begins."""

import hashlib
import math
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from memwrap.data.budget import Budget
from memwrap.data.containers import ZipArchive
from memwrap.data.decoding import decode
from memwrap.data.layout import LabelledFile, Layout
from memwrap.data.opening import BOMB
from memwrap.data.progress import Report
from memwrap.data.streaming import ImageSource
from memwrap.data.zip_directory import FILE_LIMIT
from memwrap.errors import DataError, brief

READ_AHEAD = 32  # images decoded and not yet recorded, at most
AHEAD_BYTES = 1 << 28  # that they take, if they are more than one
FILES = Budget(FILE_LIMIT)  # bytes, for files that are held in memory at the same time


@dataclass(frozen=True)
class ScannedImage:
    """What is recorded of an image that can be decoded."""

    name: str
    label: int
    mode: str
    adjustment: str
    digest: bytes  # of the pixels
    file_digest: bytes


@dataclass(frozen=True)
class Scan:
    """The images that can be decoded, and the reasons why others cannot."""

    train: list[ScannedImage]
    test: list[ScannedImage] | None
    pixels: Tensor | None  # uint8 (N, C, H, W), train before test, perhaps with unused rows; None: too large to hold
    bad: dict[str, str]  # reasons by file name

    @property
    def images(self) -> list[ScannedImage]:
        return self.train + (self.test or [])


def scan_images(source: ImageSource, layout: Layout, hold_bytes: int, report: Report | None) -> Scan:
    """Decode all images; their pixels are kept if they take at most `hold_bytes`."""
    files = [*layout.train, *(layout.test or [])]
    shape = (len(files), *source.shape)
    pixels = _allocate(shape) if torch.Size(shape).numel() <= hold_bytes else None
    images: list[ScannedImage] = []
    bad: dict[str, str] = {}
    for done, (file, found) in enumerate(zip(files, _scan_in_threads(source, files), strict=True), start=1):
        if isinstance(found, str):
            bad[file.name] = found
        else:
            image, decoded = found
            if pixels is not None:
                pixels[len(images)] = decoded
            images.append(image)
        if report:
            report(done, len(files))
    split = sum(file.name not in bad for file in layout.train)
    return Scan(images[:split], None if layout.test is None else images[split:], pixels, bad)


def _allocate(shape: tuple[int, ...]) -> Tensor:
    try:
        return torch.empty(shape, dtype=torch.uint8)
    except RuntimeError as error:  # torch's MemoryError
        size = torch.Size(shape).numel() >> 20
        raise DataError(
            f"there is too little memory to hold {shape[0]} images ({size} MB); free some, or choose a smaller size"
        ) from error


def _scan_in_threads(source: ImageSource, files: Sequence[LabelledFile]) -> Iterator[tuple[ScannedImage, Tensor] | str]:
    """The result of `_scan_image` for each file, in order."""
    ahead = max(1, min(READ_AHEAD, AHEAD_BYTES // math.prod(source.shape)))
    # Threads suffice, as Pillow releases the interpreter lock while it decodes.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        waiting: deque[Future[tuple[ScannedImage, Tensor] | str]] = deque()
        try:
            for file in files:
                waiting.append(_submit(pool, source, file))
                if len(waiting) == ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _submit(
    pool: ThreadPoolExecutor, source: ImageSource, file: LabelledFile
) -> Future[tuple[ScannedImage, Tensor] | str]:
    try:
        return pool.submit(_scan_image, source, file)
    except RuntimeError as error:  # "can't start new thread"
        raise DataError(
            f"{source.container.path}: no thread can be started to read it ({brief(error)}); the limit on memory or "
            "processes is too low"
        ) from error


def _scan_image(source: ImageSource, file: LabelledFile) -> tuple[ScannedImage, Tensor] | str:
    """The image with its pixels (C, H, W), or the reason why it cannot be decoded."""
    try:
        with FILES.take(source.container.size(file.name)):
            content = source.container.read(file.name)
            file_digest = hashlib.sha256(content).digest()
            image = decode(content, source.shape, source.fit)
    except DataError as error:
        if str(error).startswith(BOMB) and isinstance(source.container, ZipArchive):
            raise DataError(
                f"{source.container.path}: {file.name}: {error}; a zip with such an image is refused: "
                "if you trust where it comes from, unpack it and give the folder"
            ) from None
        return str(error)
    except MemoryError as error:  # which is not the image's fault: it must not be left out in silence
        raise DataError(
            f"{source.container.path}: {file.name}: there is too little memory to decode it; free some, choose a "
            "smaller size, or remove the image"
        ) from error
    digest = hashlib.sha256(image.pixels.numpy().tobytes()).digest()
    return ScannedImage(file.name, file.label, image.mode, image.adjustment, digest, file_digest), image.pixels
