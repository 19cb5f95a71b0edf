"""Images that are read from a folder or zip each time they are asked for, by worker processes where it pays."""

import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from memwrap.data.containers import Container
from memwrap.data.decoding import decode_image
from memwrap.errors import DataError, brief

# For fewer images than these, starting worker processes takes longer than reading.
ENOUGH_FOR_WORKERS = 256


class StreamedImages:
    """Images in a container under these names, made pixels of one shape on demand.

    how: see `pictures.fitted`. workers: processes that read; 0 reads where the images are asked for. The pixels are
    the same for any number.
    """

    def __init__(
        self, container: Container, names: Sequence[str], shape: tuple[int, int, int], how: str, workers: int
    ) -> None:
        self.container = container
        self.names = tuple(names)
        self.shape = shape
        self.how = how
        self.workers = workers

    def __len__(self) -> int:
        return len(self.names)

    def at(self, indices: Tensor) -> "StreamedImages":
        names = [self.names[index] for index in indices.tolist()]
        return StreamedImages(self.container, names, self.shape, self.how, self.workers)

    def batches(self, indices: Iterable[Tensor]) -> Iterator[Tensor]:
        """For each tensor of indices (n,) in turn the images, uint8 (n, C, H, W); workers read a few batches ahead."""
        reader = _Reader(self.container, self.names, self.shape, self.how)
        first, rest = _until_enough(iter(indices)) if self.workers else (None, iter(indices))
        lists = (rows.tolist() for rows in chain(first or [], rest))
        for batch in map(reader.__getitem__, lists) if first is None else _by_workers(reader, lists, self.workers):
            if isinstance(batch, str):
                raise DataError(batch)
            yield batch


@dataclass(frozen=True)
class _Reader(Dataset[Tensor | str]):
    """What goes to the worker processes."""

    container: Container
    names: tuple[str, ...]
    shape: tuple[int, int, int]
    how: str

    def __getitem__(self, indices: list[int]) -> Tensor | str:
        """The images uint8 (n, C, H, W), or what is wrong with one: DataLoader would bury an error in tracebacks."""
        pixels = torch.empty((len(indices), *self.shape), dtype=torch.uint8)
        for row, index in enumerate(indices):
            name = self.names[index]
            try:
                pixels[row] = decode_image(self.container.read(name), self.shape, self.how)
            except DataError as error:
                return f"{self.container.path}: {name}: {error}; was it changed or moved after the data were opened?"
        return pixels


def _until_enough(indices: Iterator[Tensor]) -> tuple[list[Tensor] | None, Iterator[Tensor]]:
    """The first indices, if they are worth worker processes, and all after them; None and all indices if not."""
    first: list[Tensor] = []
    for rows in indices:
        first.append(rows)
        if sum(map(len, first)) >= ENOUGH_FOR_WORKERS:
            return first, indices
    return None, iter(first)


def _ignore_signals(worker: int) -> None:
    """Ctrl-C reaches all processes of a terminal, and many a kill all of a job; the one that trains saves first and
    then ends the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _by_workers(reader: _Reader, lists: Iterator[list[int]], workers: int) -> Iterator[Tensor | str]:
    """Each list's batch in turn. The processes, which DataLoader gives one thread each, end with the iterator."""
    # A generator of its own: DataLoader would draw a seed from torch's, and later draws would depend on the workers.
    generator = torch.Generator()
    loader = DataLoader(
        reader, batch_size=None, sampler=lists, num_workers=workers, generator=generator, worker_init_fn=_ignore_signals
    )
    try:
        for batch in loader:
            # A copy: what a worker hands over keeps a file open for as long as it lives, and files may run out.
            yield batch if isinstance(batch, str) else batch.clone()
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise DataError(f"a process that reads images ended ({brief(error)}); try without, workers=0") from error
