"""What was written survives a power failure: the file, its folder, and the parents of every folder that was made."""

import os
from pathlib import Path

import pytest

from memwrap.data import digits
from memwrap.data.download import download
from memwrap.reproduce.record_files import append_record
from memwrap.runs.training import begin
from memwrap.storage import checkpoint
from tests.data.test_download import Server
from tests.data.test_download import server as server  # the fixture
from tests.reproduce.records import recorded
from tests.runs.test_training import SETTINGS


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """The files and folders that have been brought to disk."""
    found, fsync = set(), os.fsync

    def note(descriptor: int) -> None:
        found.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to see which file a descriptor is of")
    monkeypatch.setattr(os, "fsync", note)
    return found


def test_a_run(synced: set[Path], tmp_path: Path) -> None:
    begin(tmp_path / "deep" / "runs" / "run", digits(), SETTINGS, "default").train()
    assert {tmp_path, tmp_path / "deep", tmp_path / "deep" / "runs", tmp_path / "deep" / "runs" / "run"} <= synced


def test_a_record(synced: set[Path], tmp_path: Path) -> None:
    path = tmp_path / "deep" / "reproduced" / "records.jsonl"
    append_record(path, recorded())
    assert {tmp_path, tmp_path / "deep", path.parent, path} <= synced


def test_a_download(server: Server, synced: set[Path], tmp_path: Path) -> None:
    path = tmp_path / "deep" / "data" / "file"
    server.files["file"] = b"content"
    download(server.url("file"), path, None)
    assert path.read_bytes() == b"content"
    assert {tmp_path, tmp_path / "deep", path.parent} <= synced


def test_a_model(synced: set[Path], tmp_path: Path) -> None:
    checkpoint.write(tmp_path / "deep" / "model", {}, {})
    assert {tmp_path, tmp_path / "deep", tmp_path / "deep" / "model"} <= synced
