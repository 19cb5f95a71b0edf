"""metrics.jsonl: whole lines only, whatever cut the last one off or damaged another."""

import json
import os
from pathlib import Path

import pytest

from memwrap.errors import RunError, SaveError
from memwrap.storage import log

LINES = [{"epoch": epoch, "step": 3 * epoch, "loss": 1 / epoch, "note": "ä\n"} for epoch in (1, 2, 3)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of three epochs."""
    path = tmp_path / "metrics.jsonl"
    for line in LINES:
        log.append(path, line)
    return path


def test_lines_come_back(path: Path) -> None:
    assert log.read(path) == LINES
    assert [json.loads(text) for text in path.read_text().splitlines()] == LINES


def test_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert log.read(tmp_path / "metrics.jsonl") == []


@pytest.mark.parametrize(("step", "epochs"), [(0, 0), (2, 0), (3, 1), (8, 2), (9, 3), (100, 3)])
def test_epochs_after_a_step_are_cut(step: int, epochs: int, path: Path) -> None:
    log.cut(path, step)
    assert log.read(path) == LINES[:epochs]
    assert len(path.read_text().splitlines()) == epochs


def test_cutting_leaves_one_file(path: Path) -> None:
    log.cut(path, 3)
    assert list(path.parent.iterdir()) == [path]


def test_wherever_the_file_is_torn_the_whole_lines_stay_and_others_can_follow(path: Path) -> None:
    content = path.read_bytes()
    ends = [place + 1 for place, byte in enumerate(content) if byte == ord("\n")]
    for length in range(ends[1], len(content)):
        path.write_bytes(content[:length])
        # A line that lacks only its end is as good as whole.
        whole = sum(end - 1 <= length for end in ends)
        assert log.read(path) == LINES[:whole]
        log.cut(path, 100)
        log.append(path, {"epoch": 9, "step": 27})
        assert log.read(path) == [*LINES[:whole], {"epoch": 9, "step": 27}]


@pytest.mark.parametrize(
    "rubbish", [b"{\n", b"\xff\xfe\n", b"[]\n", b"12\n", b"{}\n", b'{"step": "3"}\n', b"[" * 100_000, b"\0" * 4096]
)
def test_rubbish_ends_the_log(rubbish: bytes, path: Path) -> None:
    path.write_bytes(path.read_bytes() + rubbish)
    assert log.read(path) == LINES
    log.cut(path, 100)
    assert log.read(path) == LINES
    assert len(path.read_text().splitlines()) == 3


@pytest.mark.parametrize(
    "damage", [b"", b"\0" * 300, b"\xff\xfe", b'{"step": 1', b'{"step": 3, "loss": "low"}', b"[" * 100_000, b"\r"]
)
@pytest.mark.parametrize("place", [0, 1])
def test_a_damaged_line_does_not_drop_the_later_ones(place: int, damage: bytes, path: Path) -> None:
    texts = path.read_bytes().splitlines()
    texts[place] = damage
    path.write_bytes(b"\n".join(texts) + b"\n")
    others = [line for index, line in enumerate(LINES) if index != place]
    assert log.read(path) == others
    log.cut(path, 6)
    assert log.read(path) == [line for line in others if line["step"] <= 6]
    assert len(path.read_bytes().splitlines()) == len(log.read(path))


def test_of_several_lines_for_a_step_the_last_counts(path: Path) -> None:
    log.append(path, {"epoch": 2, "step": 6, "loss": 7.0})
    assert log.read(path) == [LINES[0], {"epoch": 2, "step": 6, "loss": 7.0}, LINES[2]]


def test_a_line_of_a_million_objects_is_left_out(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"step": 99, "x": [' + b"{}," * 1_000_000 + b"{}]}\n")
    assert log.read(path) == LINES


def test_only_a_regular_file_of_a_bounded_size_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = path.rename(path.with_name("kept"))
    path.symlink_to(kept)
    with pytest.raises(RunError, match="is a link"):
        log.read(path)
    with pytest.raises(SaveError, match="cannot be written"):
        log.append(path, {"step": 12})
    path.unlink()
    os.mkfifo(path)  # opening it would wait for the other end
    with pytest.raises(RunError, match="is a pipe"):
        log.cut(path, 6)
    with pytest.raises(SaveError, match="cannot be written"):
        log.append(path, {"step": 12})
    path.unlink()
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: it takes no space
    with pytest.raises(RunError, match="too large"):
        log.read(path)
    assert log.read(kept) == LINES


def test_a_log_that_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "metrics.jsonl"
    folder.mkdir()
    with pytest.raises(RunError, match=r"metrics\.jsonl: cannot be read"):
        log.read(folder)
    with pytest.raises(SaveError, match=r"metrics\.jsonl: cannot be written"):
        log.append(folder, {"step": 1})
    with pytest.raises(SaveError, match=r"metrics\.jsonl: cannot be written"):
        log.cut(tmp_path / "no folder" / "metrics.jsonl", 1)
