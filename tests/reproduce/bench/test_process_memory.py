"""Memory that is free, and that is taken."""

from pathlib import Path

import pytest
import torch

from memwrap.reproduce.bench import process_memory
from tests.reproduce.bench import CPU

SIZE = 200 * 2**20


def take() -> None:
    torch.ones(SIZE, dtype=torch.uint8)


def test_a_peak_is_seen_though_it_is_over() -> None:
    before = process_memory.peak_bytes(CPU, lambda: None)
    if before is None:
        pytest.skip("the resident set's peak cannot be had here")
    during, after = process_memory.peak_bytes(CPU, take), process_memory.peak_bytes(CPU, lambda: None)
    assert during is not None
    assert after is not None
    assert during - before > SIZE / 2
    assert during - after > SIZE / 2


def test_unknown_amounts_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("_MEMINFO", "_STATUS"):
        monkeypatch.setattr(process_memory, name, tmp_path / "nothing")
    monkeypatch.setattr(process_memory, "_CLEAR", tmp_path / "no folder" / "nothing")
    assert process_memory.free_bytes(CPU) is None
    assert process_memory.peak_bytes(CPU, take) is None


def test_free_memory_is_in_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   3 kB\n")
    monkeypatch.setattr(process_memory, "_MEMINFO", tmp_path / "meminfo")
    assert process_memory.free_bytes(CPU) == 3 * 1024


def test_a_task_that_fails_is_not_hidden() -> None:
    def fail() -> None:
        raise OSError("the disk is gone")

    if process_memory.peak_bytes(CPU, lambda: None) is None:
        pytest.skip("the resident set's peak cannot be had here")
    with pytest.raises(OSError, match="the disk is gone"):
        process_memory.peak_bytes(CPU, fail)
