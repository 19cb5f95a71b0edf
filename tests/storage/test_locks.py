"""Locks: one at a time, between threads and processes, and none outlives its holder."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from memwrap.storage import locks
from memwrap.storage.locks import alone, alone_if_free, try_lock

HOLDER = """
import sys, time
from pathlib import Path
from memwrap.storage.locks import alone
with alone(Path(sys.argv[1])):
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
            with alone(tmp_path / "file"):
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

        with alone(tmp_path / "file", waiting):
            assert len(waited) >= 3
            assert waited[0] is None  # it was alive when this process began to wait


def test_who_does_not_wait_is_told_whether_it_is_alone(tmp_path: Path) -> None:
    with alone_if_free(tmp_path / "file") as first:
        with alone_if_free(tmp_path / "file") as second:
            assert (first, second) == (True, False)
        with alone_if_free(tmp_path / "file") as third:
            assert not third  # the second has taken nothing away
    with alone(tmp_path / "file", waiting=pytest.fail), alone_if_free(tmp_path / "file") as beside:
        assert not beside
    assert list(tmp_path.iterdir()) == []


def test_other_paths_are_not_waited_for(tmp_path: Path) -> None:
    with alone(tmp_path / "one", waiting=pytest.fail), alone(tmp_path / "other", waiting=pytest.fail):
        assert sorted(path.name for path in tmp_path.iterdir()) == [".one.lock", ".other.lock"]


def test_an_error_within_ends_the_lock(tmp_path: Path) -> None:
    with pytest.raises(KeyError), alone(tmp_path / "file"):
        raise KeyError
    with alone(tmp_path / "file", waiting=pytest.fail):
        pass


def test_whoever_waits_may_give_up(tmp_path: Path) -> None:
    def give_up() -> None:
        raise TimeoutError

    with alone(tmp_path / "file"):
        with pytest.raises(TimeoutError), alone(tmp_path / "file", give_up):
            pytest.fail("nobody else is to be within")
        with pytest.raises(TimeoutError), alone(tmp_path / "file", give_up):  # it is held as before
            pytest.fail("nobody else is to be within")


def test_a_lock_left_behind_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".file.lock").touch()
    with alone(tmp_path / "file", waiting=pytest.fail):
        pass


def test_an_open_file_is_locked_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("ab") as first, path.open("ab") as second:
        assert try_lock(first)
        assert not try_lock(second)
        first.close()
        assert try_lock(second)
