"""The folder: whole at every moment of a save, and clear about what is wrong with it."""

import errno
import fcntl
import hashlib
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

from memwrap import LoadError, MemwrapWarning, SaveError
from memwrap.storage import checkpoint
from tests.sealing import REMOVED, edit

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
from tests.sealing import REMOVED, edit
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
    read_manifest = checkpoint.read_manifest

    def read_and_be_overtaken(folder: Path) -> dict[str, object]:
        monkeypatch.undo()
        manifest = read_manifest(folder)
        checkpoint.write(tmp_path, {}, NEW)
        return manifest

    monkeypatch.setattr(checkpoint, "read_manifest", read_and_be_overtaken)
    assert_close(checkpoint.read(tmp_path)[1], NEW)


def test_what_no_manifest_lists_is_removed_by_the_next_save_however_young_or_old(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, {}, OLD)
    ours = (
        ".model.json.0123456789abcdef.partial",
        "weights.0123456789abcdef.safetensors",
        "memory.0123456789abcdef.safetensors",
    )
    foreign = (".mine.partial", "data.0123456789abcdef.safetensors")
    now = time.time()
    for name, age in zip((*ours, *foreign), (0.0, now, -now, 0.0, now), strict=True):
        (tmp_path / name).write_text("half")
        os.utime(tmp_path / name, (now - age, now - age))
    checkpoint.write(tmp_path, {}, NEW)
    assert not files(tmp_path) & set(ours)
    assert files(tmp_path) >= set(foreign)


def test_a_save_leaves_the_files_of_another_in_progress_though_the_clock_jumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one waits for the lock while this one writes, removes, and lies about the time."""
    monkeypatch.setattr(time, "time", lambda: 1e12)
    with ThreadPoolExecutor(2) as pool:
        for _ in range(20):
            saves = [pool.submit(checkpoint.write, tmp_path, {}, each) for each in (OLD, NEW)]
            for save in saves:
                save.result()
            checkpoint.read(tmp_path)
    assert len(files(tmp_path)) == 3


def test_without_locks_a_save_removes_no_more_than_it_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    checkpoint.write(tmp_path, {}, OLD)
    first = files(tmp_path)
    (tmp_path / "weights.0123456789abcdef.safetensors").write_text("of another, which is being saved")
    checkpoint.write(tmp_path, {}, NEW)
    assert_close(checkpoint.read(tmp_path)[1], NEW)
    assert files(tmp_path) & first == {"model.json"}
    assert "weights.0123456789abcdef.safetensors" in files(tmp_path)
    assert len(files(tmp_path)) == 4


def test_an_unfinished_save_is_removed_only_where_the_manifest_can_be_read(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, {}, OLD)
    kept = files(tmp_path)
    (tmp_path / "model.json").write_text("{")
    checkpoint.remove_leftovers(tmp_path)
    assert files(tmp_path) == kept


# The root hash


def write_with_document(folder: Path, content: str = "{}") -> None:
    (folder / "run.json").write_text(content)
    documents = {"run.json": checkpoint.document_hash(folder / "run.json")}
    checkpoint.write(folder, {"note": 1, "nested": {"b": [1.5, None], "a": "ä"}}, OLD, documents)


def test_the_root_hash_is_that_of_the_manifest_as_documented(tmp_path: Path) -> None:
    write_with_document(tmp_path)
    content = manifest(tmp_path)
    root = content.pop("root")
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert root == hashlib.sha256(text.encode()).hexdigest()
    assert content["documents"] == {"run.json": hashlib.sha256(b"{}").hexdigest()}
    for file in content["files"].values():  # type: ignore[attr-defined]
        assert file["sha256"] == hashlib.sha256((tmp_path / file["name"]).read_bytes()).hexdigest()


def test_the_root_hash_is_that_of_the_text_whatever_the_keys_were(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, {"counts": {number: number for number in (1, 2, 10)}}, OLD)
    assert checkpoint.read(tmp_path)[0] == {"counts": {"1": 1, "2": 2, "10": 10}}


@pytest.mark.parametrize("fields", [{"note": 2}, {"memwrap": "0.1.0"}, {"documents": {}}, {"more": None}])
def test_an_edited_manifest_is_named(fields: dict[str, object], tmp_path: Path) -> None:
    write_with_document(tmp_path)
    change(tmp_path, **fields)
    with pytest.raises(LoadError, match=re.escape("model.json: was edited")):
        checkpoint.read(tmp_path)


def test_a_field_inserted_before_the_one_of_its_name_is_an_edit(tmp_path: Path) -> None:
    write_with_document(tmp_path)
    path = tmp_path / "model.json"
    path.write_text(path.read_text().replace("{", '{"note": 2,', 1))
    with pytest.raises(LoadError, match="'note' is given twice"):
        checkpoint.read(tmp_path)


def test_a_manifest_written_in_another_layout_is_the_same(tmp_path: Path) -> None:
    write_with_document(tmp_path)
    shuffled = dict(reversed(manifest(tmp_path).items()))
    (tmp_path / "model.json").write_text(json.dumps(shuffled, indent=7, ensure_ascii=False))
    assert_close(checkpoint.read(tmp_path)[1], OLD)


def test_an_edited_document_is_named(tmp_path: Path) -> None:
    write_with_document(tmp_path)
    (tmp_path / "run.json").write_text("{ }")
    with pytest.raises(LoadError, match=re.escape("run.json: was edited")):
        checkpoint.read(tmp_path)


def test_a_copy_without_its_documents_is_read(tmp_path: Path) -> None:
    write_with_document(tmp_path)
    (tmp_path / "run.json").unlink()
    assert_close(checkpoint.read(tmp_path)[1], OLD)


def test_a_folder_without_a_root_hash_is_read_with_a_warning(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, {"note": 1}, OLD)
    content = {key: value for key, value in manifest(tmp_path).items() if key not in ("root", "documents")}
    (tmp_path / "model.json").write_text(json.dumps({**content, "memwrap": "0.1.0"}))
    with pytest.warns(MemwrapWarning, match=r"no root hash, as memwrap 0\.1\.0"):
        checkpoint.warn_without_root(tmp_path, checkpoint.read_manifest(tmp_path))
    settings, parts = checkpoint.read(tmp_path)
    assert settings == {"note": 1}
    assert_close(parts, OLD)


@pytest.mark.parametrize("version", [REMOVED, None, 1])
def test_a_manifest_must_say_which_version_wrote_it(version: object, tmp_path: Path) -> None:
    checkpoint.write(tmp_path, {}, OLD)
    edit(tmp_path / "model.json", ["memwrap"], version)
    with pytest.raises(LoadError, match="memwrap is "):
        checkpoint.read(tmp_path)


def test_a_folder_that_is_gone_is_not_made_again_unless_told(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match="cannot be written"):
        checkpoint.write(tmp_path / "gone", {}, OLD, create=False)
    assert not (tmp_path / "gone").exists()


def test_a_checkpoint_of_another_run_is_not_replaced(tmp_path: Path) -> None:
    write_with_document(tmp_path, "[1]")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(SaveError, match="another run"):
        checkpoint.write(tmp_path, {}, NEW, {"run.json": "0" * 64}, create=False)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


# Before anything is read


def lie_about_weights(folder: Path, content: bytes | None, size: int) -> None:
    """Make the weights a file of this content and, beyond it, nothing: sparse, and listed with its size."""
    path = weights_file(folder)
    if content is not None:
        path.write_bytes(content)
    os.truncate(path, size)
    listed = manifest(folder)["files"]
    listed["weights"]["bytes"] = size  # type: ignore[index]
    change(folder, files=listed, root=None, memwrap="0.1.0")


def test_a_file_larger_than_the_limit_is_not_opened(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, {}, OLD)
    lie_about_weights(tmp_path, None, checkpoint.PART_LIMIT + 1)
    with pytest.raises(LoadError, match="at most"):
        checkpoint.read(tmp_path)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"null",
        b"[]",
        b"[" * 100_000,
        b'{"a": 1}',
        b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}',
        # The product of all sides would take minutes.
        b'{"a": {"dtype": "F32", "shape": [' + b"1048576," * 1_000_000 + b"1]}}",
        b'{"a": {"dtype": "F32", "shape": [' + (b"9" * 4000 + b",") * 2000 + b"1]}}",
        b'{"a": {"dtype": "F32", "shape": [true], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F31", "shape": [1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',  # a file of gigabytes
    ],
)
def test_a_header_that_lies_is_found_before_the_tensors_are_read(header: bytes, tmp_path: Path) -> None:
    checkpoint.write(tmp_path, {}, OLD)
    lie_about_weights(tmp_path, len(header).to_bytes(8, "little") + header, 4 << 30)
    with checkpoint.open_parts(tmp_path)[1] as parts, pytest.raises(LoadError, match="not a safetensors file"):
        parts.elements("weights")


def test_elements_are_counted(tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(3, 4), "b": torch.zeros(2, dtype=torch.bool), "c": torch.zeros(()), "d": torch.zeros(0)}
    checkpoint.write(tmp_path, {}, {"weights": tensors})
    with checkpoint.open_parts(tmp_path)[1] as parts:
        assert parts.elements("weights") == 15


@pytest.mark.parametrize("name", ["model.json", "run.json", "weights"])
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_only_regular_files_are_read(name: str, kind: str, tmp_path: Path) -> None:
    write_with_document(tmp_path)
    path = weights_file(tmp_path) if name == "weights" else tmp_path / name
    copy = tmp_path / "copy"
    path.rename(copy)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(copy)
    with pytest.raises(LoadError, match=kind):
        checkpoint.read(tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_lock_that_is_no_regular_file_is_not_opened(kind: str, tmp_path: Path) -> None:
    checkpoint.write(tmp_path, {}, OLD)
    lock, outside = tmp_path / ".model.json.lock", tmp_path / "outside"
    if kind == "pipe":
        os.mkfifo(lock)
    else:
        lock.symlink_to(outside)
    with pytest.raises(SaveError, match="cannot be written"):
        checkpoint.write(tmp_path, {}, NEW)
    assert not outside.exists()


def test_a_huge_manifest_is_not_read(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, {}, OLD)
    os.truncate(tmp_path / "model.json", 1 << 40)
    with pytest.raises(LoadError, match="too large"):
        checkpoint.read(tmp_path)


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
        lambda folder: change(folder, files={"weights": {"name": "../../secret", "bytes": 1, "sha256": "0" * 64}}),
        "files.weights.name is '../../secret'",
    ),
    "a missing file": (lambda folder: weights_file(folder).unlink(), "cannot be read"),
    "a truncated file": (
        lambda folder: weights_file(folder).write_bytes(weights_file(folder).read_bytes()[:-5]),
        "is not the file that was saved",
    ),
    "another file": (lambda folder: flip_a_byte(weights_file(folder)), "another hash"),
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
