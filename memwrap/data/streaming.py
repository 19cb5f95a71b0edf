"""Images read from a folder or zip on demand, by worker processes where that is faster."""

import hashlib
import multiprocessing
import signal
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from memwrap.data.containers import Container
from memwrap.data.decoding import decode_image
from memwrap.errors import DataError, MemwrapWarning, brief

# For fewer images, starting worker processes takes longer than reading.
ENOUGH_FOR_WORKERS = 256


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
        workers = [] if first is None else _start_workers(reader, self.workers)
        for batch in _read_by_workers(workers, lists) if workers else map(reader.read, lists):
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


@dataclass(frozen=True)
class _Worker:
    """A process that reads, and the pipe to it."""

    process: BaseProcess
    pipe: Connection

    def receive(self) -> NDArray[np.uint8] | str:
        try:
            batch: NDArray[np.uint8] | str = self.pipe.recv()
            return batch
        except (OSError, EOFError) as error:
            raise self._ended() from error

    def send(self, indices: list[int]) -> None:
        try:
            self.pipe.send(indices)
        except OSError as error:
            raise self._ended() from error

    def end(self) -> None:
        self.pipe.close()
        self.process.kill()  # it holds nothing that could be lost
        self.process.join()

    def _ended(self) -> DataError:
        self.process.join(1)
        code = self.process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        return DataError(
            f"a worker process that reads images {how}, perhaps as memory ran out; try fewer with --workers "
            "(workers=0 for none)"
        )


def _start_workers(reader: _BatchReader, count: int) -> list[_Worker]:
    """Processes that read; fewer, with a warning, where the system lets no more be started.

    Batches come through pipes. torch's DataLoader would send them through /dev/shm, which is tiny in many containers.
    """
    workers: list[_Worker] = []
    try:
        for _ in range(count):
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.Process(target=_work, args=(reader, theirs, ours), daemon=True)
            process.start()
            theirs.close()  # so that the pipe ends with the worker
            workers.append(_Worker(process, ours))
    except OSError as error:
        message = f"images are read by {len(workers)} worker processes, as no more can be started ({brief(error)})"
        warnings.warn(message, MemwrapWarning, stacklevel=2)
    return workers


def _read_by_workers(workers: list[_Worker], lists: Iterator[list[int]]) -> Iterator[NDArray[np.uint8] | str]:
    """Each list's batch in order. A worker gets its next list when its batch was received.

    The workers end with the iterator.
    """
    idle, busy = deque(workers), deque[_Worker]()
    try:
        for indices in lists:
            batch = None if idle else busy[0].receive()
            worker = idle.popleft() if idle else busy.popleft()
            worker.send(indices)
            busy.append(worker)
            if batch is not None:
                yield batch
        while busy:
            yield busy.popleft().receive()
    finally:
        for worker in workers:
            worker.end()


def _work(reader: _BatchReader, pipe: Connection, other_end: Connection) -> None:
    """Read batches in a worker process, until the pipe ends: also if the process that trains is killed."""
    other_end.close()
    # Signals reach all processes of a job. They are left to the one that trains: it saves, then ends the workers.
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):  # Windows has no SIGHUP
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    torch.set_num_threads(1)
    with suppress(EOFError, OSError):
        while True:
            pipe.send(reader.read(pipe.recv()))
