"""Images read from a folder or zip on demand, by worker processes where that is faster."""

import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from memwrap.data.containers import Container
from memwrap.data.decoding import decode_image
from memwrap.errors import DataError, brief

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

    workers: processes that read; 0 reads in this process. The pixels are the same for any number.
    """

    def __init__(self, source: ImageSource, names: Sequence[str], workers: int) -> None:
        self.source = source
        self.names = tuple(names)
        self.workers = workers

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.source.shape

    def __len__(self) -> int:
        return len(self.names)

    def at(self, indices: Tensor) -> "StreamedImages":
        return StreamedImages(self.source, [self.names[index] for index in indices.tolist()], self.workers)

    def batches(self, indices: Iterable[Tensor]) -> Iterator[Tensor]:
        """For each tensor of indices (n,) the images, uint8 (n, C, H, W); workers read a few batches ahead."""
        reader = _BatchReader(self.source, self.names)
        first, rest = _take_enough(iter(indices)) if self.workers else (None, iter(indices))
        lists = (rows.tolist() for rows in chain(first or [], rest))
        for batch in map(reader.__getitem__, lists) if first is None else _read_by_workers(reader, lists, self.workers):
            if isinstance(batch, str):
                raise DataError(batch)
            yield batch


@dataclass(frozen=True)
class _BatchReader(Dataset[Tensor | str]):
    """What the worker processes get."""

    source: ImageSource
    names: tuple[str, ...]

    def __getitem__(self, indices: list[int]) -> Tensor | str:
        """The images uint8 (n, C, H, W), or a message on the first bad one: DataLoader would wrap an exception."""
        container, shape = self.source.container, self.source.shape
        pixels = torch.empty((len(indices), *shape), dtype=torch.uint8)
        for row, index in enumerate(indices):
            name = self.names[index]
            try:
                pixels[row] = decode_image(container.read(name), shape, self.source.fit)
            except DataError as error:
                return f"{container.path}: {name}: {error}; was it changed or moved after the data were opened?"
        return pixels


def _take_enough(indices: Iterator[Tensor]) -> tuple[list[Tensor] | None, Iterator[Tensor]]:
    """The first indices, if they are worth worker processes, and those after them; else None and all indices."""
    first: list[Tensor] = []
    for rows in indices:
        first.append(rows)
        if sum(map(len, first)) >= ENOUGH_FOR_WORKERS:
            return first, indices
    return None, iter(first)


def _ignore_signals(worker: int) -> None:
    """Leave signals, which reach all processes of a job, to the one that trains: it saves, then ends the workers."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):  # Windows has no SIGHUP
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def _read_by_workers(reader: _BatchReader, lists: Iterator[list[int]], workers: int) -> Iterator[Tensor | str]:
    """Each list's batch in order. The processes, with one thread each, end with the iterator."""
    # Without its own generator DataLoader draws a seed from torch's, and later draws depend on the workers.
    generator = torch.Generator()
    loader = DataLoader(
        reader, batch_size=None, sampler=lists, num_workers=workers, generator=generator, worker_init_fn=_ignore_signals
    )
    try:
        for batch in _start(loader):
            # A copy: a batch from a worker keeps a file open as long as it lives, and files may run out.
            yield batch if isinstance(batch, str) else batch.clone()
    except (RuntimeError, OSError, EOFError) as error:
        if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
            raise
        raise DataError(f"a worker process that reads images ended ({brief(error)}); try workers=0") from error


def _start(loader: DataLoader[Tensor | str]) -> Iterator[Tensor | str]:
    """Start the worker processes; one that ends is noticed when a batch is waited for.

    torch handles SIGCHLD, and raises an error at whatever moment it comes: within a step of training, whose weights
    then cannot be saved.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGCHLD"):
        return iter(loader)
    before = signal.getsignal(signal.SIGCHLD)
    batches = iter(loader)
    signal.signal(signal.SIGCHLD, before)
    return batches
