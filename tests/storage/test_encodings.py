"""The cache of encodings: what was added is found bit for bit, and whatever is wrong with its file is survived."""

import hashlib
import multiprocessing
import os
import sqlite3
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from memwrap.errors import MemwrapWarning
from memwrap.storage import encodings
from memwrap.storage.encodings import EncodingCache

LENGTH = 6
processes = multiprocessing.get_context("fork")  # spawned ones would load torch for seconds


def digest(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def drawn(numbers: range, length: int = LENGTH) -> dict[bytes, Tensor]:
    """Encodings by digest, which depend on the numbers alone."""
    return {digest(each): torch.randn(length, generator=torch.Generator().manual_seed(each)) for each in numbers}


def same(found: dict[bytes, Tensor], expected: dict[bytes, Tensor]) -> bool:
    """Whether both hold the same bits."""
    return found.keys() == expected.keys() and all(
        found[key].numpy().tobytes() == expected[key].numpy().tobytes() for key in found
    )


@pytest.fixture
def cache(tmp_path: Path) -> EncodingCache:
    return EncodingCache(tmp_path / "deep" / "encodings", "key")


def found_of(cache: EncodingCache, numbers: range) -> set[int]:
    """Which of these numbers the cache knows."""
    known = cache.find([digest(each) for each in numbers], LENGTH)
    return {each for each in numbers if digest(each) in known}


def write(cache: EncodingCache, number: int, content: object) -> None:
    """Put anything in the place of an encoding."""
    with sqlite3.connect(cache.path) as database:
        database.execute("UPDATE encodings SET encoding = ? WHERE digest = ?", (content, digest(number)))
    database.close()


def test_what_was_added_is_found_bit_for_bit(cache: EncodingCache) -> None:
    added = drawn(range(3))
    added[digest(3)] = torch.tensor([-0.0, 1e-45, 3.4e38, -1.5, 0.1, 1 / 3])
    cache.add(added)
    assert same(cache.find(list(added), LENGTH), added)
    assert same(EncodingCache(cache.path.parent, "key").find(list(added), LENGTH), added)


def test_more_are_found_than_one_statement_asks_for(cache: EncodingCache) -> None:
    added = drawn(range(2 * encodings.AT_ONCE + 3))
    cache.add(added)
    assert same(cache.find(list(added), LENGTH), added)


def test_what_was_not_added_is_not_found(cache: EncodingCache) -> None:
    assert cache.find([digest(0)], LENGTH) == {}
    assert not cache.path.parent.exists(), "looking makes nothing"
    cache.add(drawn(range(3)))
    assert found_of(cache, range(2, 5)) == {2}
    assert EncodingCache(cache.path.parent, "other").find([digest(0)], LENGTH) == {}
    assert cache.find([], LENGTH) == {}


def test_an_image_that_is_added_again_has_its_last_encoding(cache: EncodingCache) -> None:
    cache.add(drawn(range(3)))
    cache.add({digest(1): torch.ones(LENGTH)})
    assert cache.find([digest(1)], LENGTH)[digest(1)].tolist() == [1.0] * LENGTH
    assert found_of(cache, range(3)) == {0, 1, 2}


def test_a_gradient_or_another_type_does_not_matter(cache: EncodingCache) -> None:
    values = torch.tensor([0.5, -2.0, 3.0, 0.25, 8.0, -1.0])
    cache.add({digest(0): values.double().requires_grad_(), digest(1): values.half()})
    for encoding in cache.find([digest(0), digest(1)], LENGTH).values():
        assert encoding.dtype == torch.float32
        assert torch.equal(encoding, values)


@pytest.mark.parametrize(
    "content",
    [
        torch.zeros(LENGTH - 1).numpy().tobytes(),
        torch.zeros(LENGTH + 1).numpy().tobytes(),
        torch.zeros(LENGTH).numpy().tobytes()[:-1],
        torch.tensor([0.0] * (LENGTH - 1) + [torch.nan]).numpy().tobytes(),
        torch.tensor([torch.inf] * LENGTH).numpy().tobytes(),
        b"",
        None,
        "text",
        1 << 60,  # as many bytes as no machine has, to one who takes it for a length
    ],
    ids=["shorter", "longer", "truncated", "nan", "infinite", "empty", "null", "text", "number"],
)
@pytest.mark.filterwarnings("error")
def test_what_is_no_encoding_is_ignored_and_can_be_replaced(cache: EncodingCache, content: object) -> None:
    cache.add(drawn(range(3)))
    write(cache, 1, content)
    assert found_of(cache, range(3)) == {0, 2}
    cache.add(drawn(range(1, 2)))
    assert same(cache.find([digest(1)], LENGTH), drawn(range(1, 2)))


def test_encodings_of_another_length_are_ignored(cache: EncodingCache) -> None:
    cache.add({**drawn(range(1)), **drawn(range(1, 2), length=LENGTH + 1)})
    assert found_of(cache, range(2)) == {0}


# Files that cannot be used


@pytest.mark.parametrize("content", [b"no database", bytes(5000), b"SQLite format 3\0" + bytes(range(200)) * 20])
def test_a_file_that_is_no_database_warns_and_nothing_fails(cache: EncodingCache, content: bytes) -> None:
    cache.path.parent.mkdir(parents=True)
    cache.path.write_bytes(content)
    with pytest.warns(MemwrapWarning) as caught:
        assert cache.find([digest(0)], LENGTH) == {}
    assert str(cache.path) in str(caught[0].message)
    with pytest.warns(MemwrapWarning):
        cache.add(drawn(range(1)))
    assert cache.path.read_bytes() == content, "it may be somebody's"


def test_a_database_with_another_table_warns(cache: EncodingCache) -> None:
    cache.path.parent.mkdir(parents=True)
    with sqlite3.connect(cache.path) as database:
        database.execute("CREATE TABLE encodings (name TEXT)")
    database.close()
    with pytest.warns(MemwrapWarning):
        assert cache.find([digest(0)], LENGTH) == {}
    with pytest.warns(MemwrapWarning):
        cache.add(drawn(range(1)))


@pytest.mark.filterwarnings("error")
def test_a_file_that_another_process_has_just_made_is_empty(cache: EncodingCache) -> None:
    cache.path.parent.mkdir(parents=True)
    cache.path.touch()
    assert cache.find([digest(0)], LENGTH) == {}
    cache.add(drawn(range(1)))
    assert found_of(cache, range(1)) == {0}


def test_a_folder_in_the_place_of_the_file_warns(cache: EncodingCache) -> None:
    cache.path.mkdir(parents=True)
    with pytest.warns(MemwrapWarning):
        assert cache.find([digest(0)], LENGTH) == {}
    with pytest.warns(MemwrapWarning):
        cache.add(drawn(range(1)))


def test_a_folder_that_cannot_be_made_warns(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = EncodingCache(tmp_path / "file" / "encodings", "key")
    with pytest.warns(MemwrapWarning):
        cache.add(drawn(range(1)))


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to_warns_and_is_read(cache: EncodingCache) -> None:
    cache.add(drawn(range(1)))
    cache.path.chmod(0o400)
    cache.path.parent.chmod(0o500)
    try:
        with pytest.warns(MemwrapWarning):
            cache.add(drawn(range(1, 2)))
        assert found_of(cache, range(2)) == {0}
    finally:
        cache.path.parent.chmod(0o700)


def test_a_disk_that_is_read_only_warns_and_is_read(cache: EncodingCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """As SQLite opens a file there, whoever runs the tests."""
    cache.add(drawn(range(1)))
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, **_: connect(f"file:{path}?mode=ro", uri=True))
    with pytest.warns(MemwrapWarning, match="readonly"):
        cache.add(drawn(range(1, 2)))
    assert found_of(cache, range(2)) == {0}


def test_a_file_that_another_process_keeps_locked_warns(cache: EncodingCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.add(drawn(range(1)))
    monkeypatch.setattr(encodings, "BUSY_SECONDS", 0.05)
    other = sqlite3.connect(cache.path)
    other.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.warns(MemwrapWarning, match="locked"):
            assert cache.find([digest(0)], LENGTH) == {}
    finally:
        other.close()
    assert found_of(cache, range(1)) == {0}


# Several at a time


def add_in_parts(folder: Path, numbers: range) -> None:
    cache = EncodingCache(folder, "key")
    for start in range(0, len(numbers), 5):
        cache.add(drawn(numbers[start : start + 5]))
        cache.find([digest(each) for each in numbers], LENGTH)


@pytest.mark.filterwarnings("error")
def test_threads_that_write_at_once_lose_nothing(cache: EncodingCache) -> None:
    parts = [range(start, start + 20) for start in range(0, 80, 20)]
    threads = [threading.Thread(target=add_in_parts, args=(cache.path.parent, part)) for part in parts]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    expected = drawn(range(80))
    assert same(cache.find(list(expected), LENGTH), expected)


@pytest.mark.filterwarnings("error:the cache of encodings")
def test_processes_that_write_at_once_lose_nothing(cache: EncodingCache) -> None:
    parts = [range(start, start + 20) for start in (0, 20, 30)]
    started = [processes.Process(target=add_in_parts, args=(cache.path.parent, part)) for part in parts]
    for each in started:
        each.start()
    for each in started:
        each.join(60)
    assert [each.exitcode for each in started] == [0, 0, 0]
    expected = drawn(range(50))
    assert same(cache.find(list(expected), LENGTH), expected)


# The limit

LONG = 1000  # numbers: about one to a page of the file


def add_long(cache: EncodingCache, number: int) -> None:
    cache.add(drawn(range(number, number + 1), LONG))


def test_beyond_its_limit_the_older_half_of_a_file_is_dropped(
    cache: EncodingCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        add_long(cache, number)
    size = cache.path.stat().st_size
    monkeypatch.setattr(encodings, "FILE_LIMIT", size)
    add_long(cache, 20)
    assert cache.find([digest(each) for each in range(21)], LONG).keys() == {digest(each) for each in range(10, 21)}


def test_a_file_that_was_halved_grows_again_before_it_is_halved_again(
    cache: EncodingCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file keeps its length, as SQLite uses the room again."""
    monkeypatch.setattr(encodings, "FILE_LIMIT", 20 * 4096)
    most = 0
    for number in range(100):
        add_long(cache, number)
        known = cache.find([digest(each) for each in range(number + 1)], LONG)
        assert known.keys() == {digest(each) for each in range(number + 1 - len(known), number + 1)}, "the newest"
        assert len(known) >= min(number + 1, 8)
        most = max(most, len(known))
    assert most > 14
    assert cache.path.stat().st_size <= 22 * 4096
