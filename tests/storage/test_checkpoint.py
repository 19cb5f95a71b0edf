"""The folder: whole at every moment of a save, and clear about what is wrong with it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from memwrap import LoadError, SaveError
from memwrap.storage import checkpoint

OLD = {"weights": {"a": torch.zeros(3)}, "probe": {"b": torch.ones(2)}}
NEW = {"weights": {"a": torch.full((3,), 7.0)}, "probe": {"b": torch.ones(2)}}


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    shared = torch.arange(6.0).reshape(2, 3)
    checkpoint.write(
        tmp_path / "new" / "folder", {"note": [1, None]}, {"weights": {"x": shared.T, "y": shared, "z": shared}}
    )
    settings, parts = checkpoint.read(tmp_path / "new" / "folder")
    assert settings["note"] == [1, None]
    assert_close(parts["weights"], {"x": shared.T, "y": shared, "z": shared})


def test_a_second_save_replaces_the_first_and_leaves_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    checkpoint.write(tmp_path, {}, OLD)
    checkpoint.write(tmp_path, {}, NEW)
    assert_close(checkpoint.read(tmp_path)[1], NEW)
    assert len(files(tmp_path)) == 4
    assert "notes.txt" in files(tmp_path)


open_path = Path.open


class FullDisk:
    """Makes the nth call that changes the disk fail, as when there is no space left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
        self.left = nth
        for place, name in ((os, "fsync"), (Path, "replace"), (Path, "open"), (Path, "unlink")):
            monkeypatch.setattr(place, name, self.failing(getattr(place, name)))

    def failing(self, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            reads = real is open_path and "wb" not in arguments
            self.left -= 0 if reads else 1
            if self.left == 0 and not reads:
                raise OSError(28, "No space left on device")
            return real(*arguments, **options)

        return call


def test_a_save_that_stops_anywhere_leaves_a_whole_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = []
    for nth in range(1, 100):
        folder = tmp_path / str(nth)
        checkpoint.write(folder, {}, OLD)
        with monkeypatch.context() as patches:
            disk = FullDisk(patches, nth)
            failed = False
            try:
                checkpoint.write(folder, {}, NEW)
            except SaveError:
                failed = True
        outcomes.append(float(checkpoint.read(folder)[1]["weights"]["a"][0]))
        assert failed == (outcomes[-1] == 0.0)
        # The next save succeeds all the same.
        checkpoint.write(folder, {}, NEW)
        assert_close(checkpoint.read(folder)[1], NEW)
        if disk.left > 0:  # the save came to its end before the nth call
            break
    # Some failures came in time to leave the old model, some too late to matter.
    assert len(outcomes) > 10
    assert {0.0, 7.0} == set(outcomes)


def test_an_old_file_that_cannot_be_removed_does_not_fail_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.write(tmp_path, {}, OLD)

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    checkpoint.write(tmp_path, {}, NEW)
    monkeypatch.undo()
    assert_close(checkpoint.read(tmp_path)[1], NEW)


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FullDisk(monkeypatch, 1)
    with pytest.raises(SaveError, match=r"No space left on device.*what it held before is still there"):
        checkpoint.write(tmp_path, {}, NEW)


SAVES_FOREVER = """
import itertools, sys, torch
from pathlib import Path
from memwrap.storage import checkpoint
for number in itertools.count(1):
    checkpoint.write(Path(sys.argv[1]), {"number": number}, {"weights": {"a": torch.full((100_000,), float(number))}})
    print(number, flush=True)
"""


def test_a_process_killed_while_it_saves_leaves_a_whole_model(tmp_path: Path) -> None:
    for attempt in range(3):
        process = subprocess.Popen([sys.executable, "-c", SAVES_FOREVER, tmp_path], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        # What another process reads meanwhile is whole, too.
        for _ in range(20):
            settings, parts = checkpoint.read(tmp_path)
            assert (parts["weights"]["a"] == settings["number"]).all()
        time.sleep(0.005 * attempt)
        process.send_signal(signal.SIGKILL)
        process.wait()
        settings, parts = checkpoint.read(tmp_path)
        assert (parts["weights"]["a"] == settings["number"]).all()


def test_many_can_save_to_one_folder(tmp_path: Path) -> None:
    """Two of the threads save the same model, so that one replaces what another is about to remove."""
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda number: checkpoint.write(tmp_path, {}, NEW if number % 3 else OLD), range(60)))
    assert float(checkpoint.read(tmp_path)[1]["weights"]["a"][0]) in (0.0, 7.0)


def test_a_model_that_is_replaced_while_it_is_read_comes_out_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.write(tmp_path, {}, OLD)
    read_manifest = checkpoint._read_manifest

    def read_and_be_overtaken(folder: Path) -> dict[str, object]:
        monkeypatch.undo()
        manifest = read_manifest(folder)
        checkpoint.write(tmp_path, {}, NEW)
        return manifest

    monkeypatch.setattr(checkpoint, "_read_manifest", read_and_be_overtaken)
    assert_close(checkpoint.read(tmp_path)[1], NEW)


def test_files_of_a_save_that_was_given_up_are_removed_when_they_are_old(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, {}, OLD)
    names = (".model.json.0123456789abcdef.partial", "weights.0123456789abcdef.safetensors")
    abandoned = [tmp_path / name for name in names]
    young = tmp_path / "memory.0123456789abcdef.safetensors"
    foreign = [tmp_path / name for name in (".mine.partial", "data.0123456789abcdef.safetensors")]
    for path in (*abandoned, young, *foreign):
        path.write_text("half")
    for path in (*abandoned, *foreign):
        os.utime(path, (0, 0))
    checkpoint.write(tmp_path, {}, NEW)
    assert not any(path.exists() for path in abandoned)
    assert all(path.exists() for path in (young, *foreign))


def manifest(folder: Path) -> dict[str, object]:
    return json.loads((folder / "model.json").read_text())


def change(folder: Path, **fields: object) -> None:
    (folder / "model.json").write_text(json.dumps({**manifest(folder), **fields}))


def weights_file(folder: Path) -> Path:
    return folder / manifest(folder)["files"]["weights"]["name"]  # type: ignore[index]


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "no folder": (lambda folder: (folder / "model.json").unlink(), "no model is saved here, as there is no model.json"),
    "half a manifest": (
        lambda folder: (folder / "model.json").write_text((folder / "model.json").read_text()[:40]),
        "cannot be read",
    ),
    "another program's file": (
        lambda folder: (folder / "model.json").write_text('{"model_type": "vit"}'),
        "expected 'memwrap model'",
    ),
    "no object": (lambda folder: (folder / "model.json").write_text("[1, 2]"), "holds a list"),
    "no text": (lambda folder: (folder / "model.json").write_bytes(b"\xff\xfe\x00"), "cannot be read"),
    "a newer format": (
        lambda folder: change(folder, format_version=2, memwrap="9.0"),
        "has format version 2, written by memwrap 9.0",
    ),
    "no list of files": (lambda folder: change(folder, files=None), "files is None"),
    "an incomplete list": (
        lambda folder: change(folder, files={"weights": {"name": "x"}}),
        "files.weights.name is 'x'",
    ),
    "a file elsewhere": (
        lambda folder: change(folder, files={"weights": {"name": "../../secret", "bytes": 1, "sha256": ""}}),
        "files.weights.name is '../../secret'",
    ),
    "a missing file": (lambda folder: weights_file(folder).unlink(), "cannot be read"),
    "a truncated file": (
        lambda folder: weights_file(folder).write_bytes(weights_file(folder).read_bytes()[:-5]),
        "is not the file that was saved",
    ),
    "another file": (lambda folder: flip_a_byte(weights_file(folder)), "or other content"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named(damage: str, tmp_path: Path) -> None:
    checkpoint.write(tmp_path, {}, OLD)
    act, message = DAMAGES[damage]
    act(tmp_path)
    with pytest.raises(LoadError, match=re.escape(message)):
        checkpoint.read(tmp_path)


def test_a_damaged_model_can_be_saved_over(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text("{")
    checkpoint.write(tmp_path, {}, NEW)
    assert_close(checkpoint.read(tmp_path)[1], NEW)


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SaveError, match="cannot be written"):
        checkpoint.write(tmp_path / "file", {}, NEW)
