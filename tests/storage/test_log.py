"""metrics.jsonl: whole lines only, whatever cut the last one off."""

import json
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


def test_a_log_that_cannot_be_read_or_written_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "metrics.jsonl"
    folder.mkdir()
    with pytest.raises(RunError, match=r"metrics\.jsonl: cannot be read"):
        log.read(folder)
    with pytest.raises(SaveError, match=r"metrics\.jsonl: cannot be written"):
        log.append(folder, {"step": 1})
    with pytest.raises(SaveError, match=r"metrics\.jsonl: cannot be written"):
        log.cut(tmp_path / "no folder" / "metrics.jsonl", 1)
