"""Streamed images: the same pixels whoever reads them, few read ahead, and no process left behind."""

import errno
import gc
import hashlib
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from memwrap.data import streaming
from memwrap.data.containers import open_container
from memwrap.data.streaming import ImageSource, StreamedImages
from memwrap.errors import DataError, MemwrapWarning

COUNT = 300
SHAPE = (3, 6, 6)


def content(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((6, 6, 3), number % 256, dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="module", params=["folder", "zip"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("images")
    if request.param == "folder":
        for number in range(COUNT):
            (path / f"{number}.png").write_bytes(content(number))
        return path
    with zipfile.ZipFile(path / "images.zip", "w") as archive:
        for number in range(COUNT):
            archive.writestr(f"{number}.png", content(number))
    return path / "images.zip"


def images(source: Path, workers: int) -> StreamedImages:
    names = [f"{n}.png" for n in range(COUNT)]
    digests = [hashlib.sha256(content(n)).digest() for n in range(COUNT)]
    return StreamedImages(ImageSource(open_container(source), SHAPE, "crop"), names, digests, workers)


def workers_alive() -> int:
    gc.collect()
    return len(multiprocessing.active_children())


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_pixels_and_order_do_not_depend_on_the_workers(source: Path, workers: int) -> None:
    order = torch.randperm(COUNT)
    batches = list(images(source, workers).batches(order.split(32)))
    assert [len(batch) for batch in batches] == [32] * 9 + [12]
    assert torch.equal(torch.cat(batches), (order % 256).to(torch.uint8).reshape(-1, 1, 1, 1).expand(-1, *SHAPE))
    assert workers_alive() == 0


@pytest.mark.parametrize("workers", [0, 1])
def test_reading_leaves_the_random_numbers_alone(source: Path, workers: int) -> None:
    before = torch.get_rng_state()
    list(images(source, workers).batches(torch.arange(COUNT).split(100)))
    assert torch.equal(torch.get_rng_state(), before)


def test_indices_may_repeat_and_batches_be_empty(source: Path) -> None:
    batches = list(images(source, 0).batches([torch.tensor([7, 7]), torch.tensor([], dtype=torch.int64)]))
    assert [batch.shape for batch in batches] == [(2, *SHAPE), (0, *SHAPE)]
    assert batches[0].unique().tolist() == [7]
    assert list(images(source, 2).batches([])) == []


def test_images_at_indices_are_those_images(source: Path) -> None:
    some = images(source, 0).at(torch.tensor([9, 4]))
    assert len(some) == 2
    assert some.shape == SHAPE
    (batch,) = some.batches([torch.tensor([1, 0])])
    assert batch[:, 0, 0, 0].tolist() == [4, 9]


def test_few_images_are_read_without_workers(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "_start_workers", None)
    (batch,) = images(source, 2).batches([torch.arange(20)])
    assert batch[:, 0, 0, 0].tolist() == list(range(20))
    with pytest.raises(TypeError):  # as many as these do
        list(images(source, 2).batches(torch.arange(COUNT).split(100)))


@pytest.mark.parametrize("workers", [0, 2])
def test_few_batches_are_read_ahead(source: Path, workers: int) -> None:
    taken = 0

    def endless() -> Iterator[Tensor]:
        nonlocal taken
        while True:
            taken += 1
            yield torch.arange(64)

    stream = images(source, workers).batches(endless())
    next(stream)
    assert taken <= 10
    stream.close()
    assert workers_alive() == 0


def test_closing_early_leaves_no_process(source: Path) -> None:
    stream = images(source, 2).batches(torch.arange(COUNT).split(10))
    next(stream)
    assert workers_alive() == 2
    stream.close()
    assert workers_alive() == 0


def test_dropping_the_iterator_leaves_no_process(source: Path) -> None:
    for _ in images(source, 2).batches(torch.arange(COUNT).split(10)):
        break
    assert workers_alive() == 0


def test_batches_that_are_kept_keep_no_file_open(source: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    kept = list(images(source, 1).batches(torch.arange(COUNT).split(3)))
    gc.collect()
    assert len(kept) == 100
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 20


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("changed", [b"oops", content(156), None])
def test_a_file_that_was_changed_is_named_in_one_line(tmp_path: Path, workers: int, changed: bytes | None) -> None:
    """Even if it is a good image still."""
    for number in range(COUNT):
        (tmp_path / f"{number}.png").write_bytes(content(number))
    stream = images(tmp_path, workers)
    (tmp_path / "155.png").unlink() if changed is None else (tmp_path / "155.png").write_bytes(changed)
    with pytest.raises(DataError) as error:
        list(stream.batches(torch.arange(COUNT).split(50)))
    assert str(error.value).startswith(f"{tmp_path}: 155.png: ")
    assert len(str(error.value).splitlines()) == 1
    assert workers_alive() == 0


def test_a_worker_that_is_killed_is_a_data_error(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:  # as by a system that runs out of memory
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(streaming, "decode_image", killed)  # forked workers have it too
    with pytest.raises(DataError, match="a worker process that reads images was killed"):
        list(images(source, 1).batches(torch.arange(COUNT).split(100)))
    assert workers_alive() == 0


def test_workers_have_one_thread_each(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def threads(*_: object) -> Tensor:
        return torch.full(SHAPE, torch.get_num_threads(), dtype=torch.uint8)

    monkeypatch.setattr(streaming, "decode_image", threads)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        batches = torch.cat(list(images(source, 1).batches(torch.arange(COUNT).split(100))))
    finally:
        torch.set_num_threads(before)
    assert batches.unique().tolist() == [1]


def test_the_errors_of_whoever_asks_stay_their_own(source: Path) -> None:
    def broken() -> Iterator[Tensor]:
        yield torch.arange(COUNT)
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match=r"^mine$"):
        list(images(source, 1).batches(broken()))


def test_short_memory_of_a_worker_is_a_data_error(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(streaming, "decode_image", fail)
    with pytest.raises(DataError, match=r"0\.png: there is too little memory"):
        list(images(source, 1).batches(torch.arange(COUNT).split(100)))
    assert workers_alive() == 0


@pytest.mark.parametrize("killed", [1, 2])
def test_a_worker_that_is_killed_later_raises_where_batches_are_read(source: Path, killed: int) -> None:
    """And not within whatever the caller does meanwhile, such as a step of training."""
    stream = images(source, 2).batches(torch.arange(COUNT).split(10))
    next(stream)
    for child in multiprocessing.active_children()[:killed]:
        os.kill(child.pid, signal.SIGKILL)
    time.sleep(0.5)
    with pytest.raises(DataError, match="was killed"):
        list(stream)
    assert workers_alive() == 0


def test_without_means_for_workers_this_process_reads(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(multiprocessing, "Pipe", fail)
    with pytest.warns(MemwrapWarning, match="by 0 worker processes"):
        batches = list(images(source, 2).batches(torch.arange(COUNT).split(100)))
    assert torch.cat(batches)[:, 0, 0, 0].tolist() == [number % 256 for number in range(COUNT)]


READ = """
import sys, hashlib, torch
from pathlib import Path
from memwrap.data.containers import open_container
from memwrap.data.streaming import ImageSource, StreamedImages
path = Path(sys.argv[1])
names = sorted(each.name for each in path.iterdir())
digests = [hashlib.sha256((path / name).read_bytes()).digest() for name in names]
stream = StreamedImages(ImageSource(open_container(path), (3, 224, 224), "crop"), names, digests, 2)
print(sum(len(batch) for batch in stream.batches(torch.arange(len(names)).split(100))), flush=True)
"""


def test_a_tiny_shared_memory_suffices(tmp_path: Path) -> None:
    """As in a container: /dev/shm of 1 MB, where a batch takes 15."""
    for number in range(COUNT):
        (tmp_path / f"{number}.png").write_bytes(content(number))
    mount = "mount -t tmpfs -o size=1m tmpfs /dev/shm"
    if os.getuid() or subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    command = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-c", READ, tmp_path]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert found.stdout == f"{COUNT}\n", found.stderr


def test_workers_end_with_a_process_that_is_killed(tmp_path: Path) -> None:
    for number in range(COUNT):
        (tmp_path / f"{number}.png").write_bytes(content(number))
    code = READ.rsplit("print", 1)[0] + (
        "import multiprocessing, os, signal\n"
        "batches = stream.batches(torch.arange(len(names)).split(100))\n"
        "next(batches)\n"
        "print(*(child.pid for child in multiprocessing.active_children()), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    found = subprocess.run([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True, timeout=120)
    pids = found.stdout.split()
    assert len(pids) == 2
    deadline = time.monotonic() + 20
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def is_running(pid: str) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
