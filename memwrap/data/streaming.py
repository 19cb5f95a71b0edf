"""Images read from a folder or zip on demand, by worker processes where that is faster."""

import hashlib
import multiprocessing
import os
import signal
import threading
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from memwrap.data.containers import Container
from memwrap.data.decoding import decode_image
from memwrap.errors import DataError, MemwrapWarning, brief

# For fewer images, starting worker processes takes longer than reading.
ENOUGH_FOR_WORKERS = 256
READ_AHEAD = 2  # batches, for each worker


@dataclass(frozen=True)
class ImageSource:
    """A folder or zip, and the shape (C, H, W) that its images are decoded to; see `decoding.fit_image` for `fit`."""

    container: Container
    shape: tuple[int, int, int]
    fit: str


class StreamedImages:
    """Images of a folder or zip, decoded on demand.

    digests: the SHA-256 of each file, which it must still have when it is read. workers: processes that read; 0 reads
    in this process. The pixels are the same for any number.
    """

    def __init__(self, source: ImageSource, names: Sequence[str], digests: Sequence[bytes], workers: int) -> None:
        self.source = source
        self.names = tuple(names)
        self.digests = tuple(digests)
        self.workers = workers

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.source.shape

    def __len__(self) -> int:
        return len(self.names)

    def at(self, indices: Tensor) -> "StreamedImages":
        names, digests = ([each[index] for index in indices.tolist()] for each in (self.names, self.digests))
        return StreamedImages(self.source, names, digests, self.workers)

    def batches(self, indices: Iterable[Tensor]) -> Iterator[Tensor]:
        """For each tensor of indices (n,) the images, uint8 (n, C, H, W); workers read a few batches ahead."""
        reader = _BatchReader(self.source, self.names, self.digests)
        first, rest = _take_enough(iter(indices)) if self.workers else (None, iter(indices))
        lists = (rows.tolist() for rows in chain(first or [], rest))
        pool = None if first is None else _start_workers(reader, self.workers)
        for batch in map(reader.read, lists) if pool is None else _read_by_workers(pool, lists, self.workers):
            if isinstance(batch, str):
                raise DataError(batch)
            yield torch.from_numpy(batch)


@dataclass(frozen=True)
class _BatchReader:
    """What the worker processes get."""

    source: ImageSource
    names: tuple[str, ...]
    digests: tuple[bytes, ...]

    def read(self, indices: list[int]) -> NDArray[np.uint8] | str:
        """The images uint8 (n, C, H, W), or a message on the first bad one."""
        pixels = np.empty((len(indices), *self.source.shape), dtype=np.uint8)
        for row, index in enumerate(indices):
            try:
                pixels[row] = self._read_image(index).numpy()
            except DataError as error:
                return f"{self.source.container.path}: {self.names[index]}: {error}"
            except MemoryError:
                return f"{self.source.container.path}: {self.names[index]}: there is too little memory to decode it"
        return pixels

    def _read_image(self, index: int) -> Tensor:
        content = self.source.container.read(self.names[index])
        # Another image of the same name would be trained on and be remembered, under the fingerprint of the first.
        if hashlib.sha256(content).digest() != self.digests[index]:
            raise DataError("the file was changed after the data were opened; restore it, or start again")
        return decode_image(content, self.source.shape, self.source.fit)


def _take_enough(indices: Iterator[Tensor]) -> tuple[list[Tensor] | None, Iterator[Tensor]]:
    """The first indices, if they are worth worker processes, and those after them; else None and all indices."""
    first: list[Tensor] = []
    for rows in indices:
        first.append(rows)
        if sum(map(len, first)) >= ENOUGH_FOR_WORKERS:
            return first, indices
    return None, iter(first)


# Of a worker process.
_reader: _BatchReader | None = None


def _start_workers(reader: _BatchReader, workers: int) -> ProcessPoolExecutor | None:
    """Processes that read; None, with a warning, where the system has no means for them.

    Batches come through pipes. torch's DataLoader would send them through /dev/shm, which is tiny in many containers.
    """
    pool = None
    try:
        pool = ProcessPoolExecutor(workers, initializer=_set_up_worker, initargs=(reader,))
        pool.submit(os.getpid)  # starts them
    except OSError as error:  # no semaphores in /dev/shm, or too many processes
        if pool is not None:
            pool.shutdown(cancel_futures=True)
        message = f"images are read without worker processes, as none can be started ({brief(error)})"
        warnings.warn(message, MemwrapWarning, stacklevel=2)
        return None
    return pool


def _read_by_workers(
    pool: ProcessPoolExecutor, lists: Iterator[list[int]], workers: int
) -> Iterator[NDArray[np.uint8] | str]:
    """Each list's batch in order. The processes end with the iterator."""
    waiting: deque[Future[Any]] = deque()
    try:
        for indices in lists:
            waiting.append(pool.submit(_read_in_worker, indices))
            if len(waiting) > READ_AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise DataError(
            "a worker process that reads images was killed, perhaps as memory ran out; try fewer with --workers "
            "(workers=0 for none)"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _set_up_worker(reader: _BatchReader) -> None:
    global _reader
    _reader = reader
    # Signals reach all processes of a job. They are left to the one that trains: it saves, then ends the workers.
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _read_in_worker(indices: list[int]) -> NDArray[np.uint8] | str:
    assert _reader is not None
    return _reader.read(indices)


def _end_with_parent() -> None:
    """Leave no process behind if the one that trains is killed."""
    if parent := multiprocessing.parent_process():
        with suppress(OSError):
            parent.join()
    os._exit(1)
