"""Images decoded once before training: progress, read-ahead, interruption and decompression bombs."""

import os
import struct
import threading
import time
import zlib
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch

from memwrap.data import decoding, scan
from memwrap.data.budget import Budget
from memwrap.data.folders import read_folder
from memwrap.errors import DataError
from tests.data.test_folders import bad_files, folder_of, picture, two_classes, zip_of


def huge_picture() -> bytes:
    """A PNG file that claims 60000 by 60000 pixels."""
    parts = [b"IHDR" + struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0), b"IDAT" + zlib.compress(bytes(100))]
    chunks = (struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def test_a_bomb_in_a_folder_is_a_bad_file(tmp_path: Path) -> None:
    folder_of(tmp_path, two_classes() | {"cat/huge.png": huge_picture()})
    reason = read_folder(tmp_path, skip_bad=True).record["left_out"]["cat/huge.png"]
    assert reason == "decompression bomb: 3600000000 pixels"


def test_a_bomb_in_a_zip_is_never_left_out_in_silence(tmp_path: Path) -> None:
    path = zip_of(tmp_path / "a.zip", two_classes() | {"cat/huge.png": huge_picture()})
    with pytest.raises(DataError, match=r"cat/huge.png: decompression bomb: 3600000000 pixels; a zip with such"):
        read_folder(path, skip_bad=True)


def test_progress_counts_every_file(tmp_path: Path) -> None:
    folder_of(tmp_path, two_classes() | bad_files())
    seen: list[tuple[int, int]] = []
    read_folder(tmp_path, skip_bad=True, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, 9) for done in range(1, 10)]


class Ahead:
    """Counts how many images are decoded before their turn. wait: seconds, after the first, in which all could be."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wait: float) -> None:
        self.started, self.most, self.wait, self.look = 0, 0, wait, scan._scan_image
        monkeypatch.setattr(scan, "_scan_image", self.scan)

    def scan(self, *arguments: object) -> object:
        self.started += 1
        return self.look(*arguments)  # type: ignore[arg-type]

    def progress(self, done: int, total: int) -> None:
        if done == 1:
            time.sleep(self.wait)
        self.most = max(self.most, self.started - done)


def test_few_images_are_decoded_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of(tmp_path, {f"{'cat' if n % 2 else 'dog'}/{n:03}.png": picture(n) for n in range(120)})
    ahead = Ahead(monkeypatch, wait=0.5)
    read_folder(tmp_path, progress=ahead.progress)
    assert 0 < ahead.most <= scan.READ_AHEAD


def test_the_size_that_is_asked_for_counts_as_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files, large images: neither are many of them made at once, nor kept."""
    folder_of(tmp_path, {f"{'cat' if n % 2 else 'dog'}/{n:03}.png": picture(n) for n in range(12)})
    side, amounts, ahead = 512, [], Ahead(monkeypatch, wait=0.3)

    class Recorded(Budget):
        def take(self, amount: int) -> AbstractContextManager[None]:
            amounts.append(amount)
            return super().take(amount)

    monkeypatch.setattr(decoding, "MEMORY", Recorded(1 << 30))
    monkeypatch.setattr(scan, "AHEAD_BYTES", 3 * side * side * 4)
    read_folder(tmp_path, size=side, hold_bytes=0, progress=ahead.progress)
    assert min(amounts) >= 2 * 3 * side * side
    assert 0 < ahead.most <= 4


def test_stopping_midway_leaves_no_thread(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    folder_of(tmp_path, two_classes())
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        read_folder(tmp_path, progress=stop)
    assert threading.active_count() == before


@pytest.mark.parametrize("name", ["FILES", "MEMORY"])
def test_large_images_are_not_decoded_all_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Each of the pictures takes more than half of what there is."""
    folder_of(tmp_path, {f"{'cat' if n % 2 else 'dog'}/{n:03}.png": picture(n) for n in range(40)})
    each = len(picture(0)) if name == "FILES" else 8 * 8 * 8
    budget = Budget(each * 3 // 2)
    monkeypatch.setattr(scan if name == "FILES" else decoding, name, budget)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    together, most, lock, convert = 0, 0, threading.Lock(), decoding.to_pixels

    def counting(*arguments: object) -> object:
        nonlocal together, most
        with lock:
            together += 1
            most = max(most, together)
        time.sleep(0.005)
        found = convert(*arguments)  # type: ignore[arg-type]
        with lock:
            together -= 1
        return found

    monkeypatch.setattr(decoding, "to_pixels", counting)
    read_folder(tmp_path)
    assert most == 1
    budget.total *= 100
    read_folder(tmp_path)
    assert most > 1


def test_short_memory_ends_the_scan_and_leaves_nothing_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    folder_of(tmp_path, two_classes())
    monkeypatch.setattr(decoding, "to_pixels", fail)
    with pytest.raises(DataError, match="too little memory"):
        read_folder(tmp_path, skip_bad=True)


def test_short_memory_for_all_images_is_a_data_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    folder_of(tmp_path, two_classes())
    monkeypatch.setattr(torch, "empty", fail)
    with pytest.raises(DataError, match="too little memory to hold"):
        read_folder(tmp_path)


def test_without_threads_there_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    folder_of(tmp_path, two_classes())
    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(DataError, match="can't start new thread"):
        read_folder(tmp_path)
