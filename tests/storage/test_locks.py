"""Locks: one at a time, between threads and processes, and none outlives its holder."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from memwrap.storage import locks
from memwrap.storage.locks import exclusive, exclusive_if_free, remove_abandoned

HOLDER = """
import sys, time
from pathlib import Path
from memwrap.storage.locks import exclusive
with exclusive(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "POLL_SECONDS", 0.01)


def test_threads_are_within_one_after_the_other(tmp_path: Path) -> None:
    within, most = 0, 0

    def work() -> None:
        nonlocal within, most
        for _ in range(5):
            with exclusive(tmp_path / "file"):
                within += 1
                most = max(most, within)
                time.sleep(0.002)
                within -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (within, most) == (0, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_holds_nothing_any_more(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path / "file"], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline().strip() == b"held"
        waited = []

        def waiting() -> None:
            waited.append(holder.poll())
            if len(waited) == 3:
                holder.kill()

        with exclusive(tmp_path / "file", waiting):
            assert len(waited) >= 3
            assert waited[0] is None  # it was alive when this process began to wait


def test_exclusive_if_free_does_not_wait(tmp_path: Path) -> None:
    with exclusive_if_free(tmp_path / "file") as first:
        with exclusive_if_free(tmp_path / "file") as second:
            assert (first, second) == (True, False)
        with exclusive_if_free(tmp_path / "file") as third:
            assert not third  # the second has taken nothing away
    with exclusive(tmp_path / "file", waiting=pytest.fail), exclusive_if_free(tmp_path / "file") as held:
        assert not held
    assert list(tmp_path.iterdir()) == []


def test_other_paths_are_not_waited_for(tmp_path: Path) -> None:
    with exclusive(tmp_path / "one", waiting=pytest.fail), exclusive(tmp_path / "other", waiting=pytest.fail):
        assert sorted(path.name for path in tmp_path.iterdir()) == [".one.lock", ".other.lock"]


def test_an_error_within_ends_the_lock(tmp_path: Path) -> None:
    with pytest.raises(KeyError), exclusive(tmp_path / "file"):
        raise KeyError
    with exclusive(tmp_path / "file", waiting=pytest.fail):
        pass


def test_whoever_waits_may_give_up(tmp_path: Path) -> None:
    def give_up() -> None:
        raise TimeoutError

    with exclusive(tmp_path / "file"):
        with pytest.raises(TimeoutError), exclusive(tmp_path / "file", give_up):
            pytest.fail("nobody else is to be within")
        with pytest.raises(TimeoutError), exclusive(tmp_path / "file", give_up):  # it is held as before
            pytest.fail("nobody else is to be within")


def test_a_lock_left_behind_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".file.lock").touch()
    with exclusive(tmp_path / "file", waiting=pytest.fail):
        pass


@pytest.mark.parametrize("lock", [exclusive, exclusive_if_free])
def test_a_lock_that_cannot_be_created_is_an_error(lock: Any, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"), lock(tmp_path / "nowhere" / "file"):
        pass


def test_the_file_of_a_killed_process_is_removed_and_that_of_another_stays(tmp_path: Path) -> None:
    file = tmp_path / ".file.lock"
    remove_abandoned(tmp_path / "file")
    assert list(tmp_path.iterdir()) == []
    with exclusive(tmp_path / "file"):
        remove_abandoned(tmp_path / "file")
        assert file.exists()
    file.touch()
    remove_abandoned(tmp_path / "file")
    assert list(tmp_path.iterdir()) == []
