"""Downloads against a server on this machine that cuts, stalls, forgets and lies."""

import errno
import hashlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO

import pytest

from memwrap.data import download as module
from memwrap.data.download import download
from memwrap.errors import DataError
from memwrap.storage import locks
from memwrap.storage.locks import exclusive

CONTENT = bytes(range(256)) * 4000  # 1,024,000 bytes: more than one block, and more than a socket buffers at once
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `files` by name. What it does wrong is set on it, and what it was asked is kept in `asked`."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = files
        self.asked: list[tuple[str, str | None]] = []  # name, Range
        self.cut_after: int | None = None  # bytes of an answer, then the connection is closed
        self.stall_after: int | None = None  # bytes of an answer, then nothing more comes
        self.honours_range = True
        self.wrong_range = ""  # a Content-Range to lie with
        self.sends_length = True
        self.released = threading.Event()  # ends all stalls

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"

    @property
    def ranges(self) -> list[str | None]:
        return [asked for _, asked in self.asked]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name, asked = self.path.removeprefix("/"), self.headers["Range"]
        self.server.asked.append((name, asked))
        if name not in self.server.files:
            return self.send_error(404)
        content = self.server.files[name]
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.server.honours_range else 0
        if start and start >= len(content):
            return self.send_error(416)
        self.send_head(start, len(content))
        return self.send_body(content[start:])

    def send_head(self, start: int, length: int) -> None:
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", self.server.wrong_range or f"bytes {start}-{length - 1}/{length}")
        if self.server.sends_length:
            self.send_header("Content-Length", str(length - start))
        self.end_headers()

    def send_body(self, content: bytes) -> None:
        if self.server.stall_after is not None:
            self.wfile.write(content[: self.server.stall_after])
            self.server.released.wait()
        elif self.server.cut_after is not None:
            self.wfile.write(content[: self.server.cut_after])
        else:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing on the terminal."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server({"file.bin": CONTENT}) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.released.set()
        running.shutdown()
        thread.join()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "file.bin"


def files(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir())


def part_of(target: Path, content: bytes) -> Path:
    """What an interrupted download has left."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name("file.bin.part")
    part.write_bytes(content)
    return part


@pytest.mark.parametrize("md5", [MD5, None])
@pytest.mark.parametrize("sends_length", [True, False])
def test_the_file_arrives_and_nothing_else_stays(
    server: Server, target: Path, md5: str | None, sends_length: bool
) -> None:
    server.sends_length = sends_length
    download(server.url("file.bin"), target, md5)
    assert target.read_bytes() == CONTENT
    assert files(target) == ["file.bin"]


def test_progress_rises_to_the_whole_length(server: Server, target: Path) -> None:
    calls: list[tuple[int, int | None]] = []
    download(server.url("file.bin"), target, MD5, lambda done, total: calls.append((done, total)))
    done = [count for count, _ in calls]
    assert done == sorted(done)
    assert len(done) > 1
    assert done[-1] == len(CONTENT)
    assert {total for _, total in calls} == {len(CONTENT)}


def test_a_cut_connection_is_reported_and_the_next_call_resumes(server: Server, target: Path) -> None:
    server.cut_after = 300_000
    message = (
        f"{target}: 300000 bytes of 1.0 MB have arrived from 127.0.0.1 (the connection was cut); run this again to "
        "continue, or put the file there yourself"
    )
    with pytest.raises(DataError, match=re.escape(message)):
        download(server.url("file.bin"), target, MD5)
    assert files(target) == ["file.bin.part"]

    server.cut_after = None
    calls: list[tuple[int, int | None]] = []
    download(server.url("file.bin"), target, MD5, lambda done, total: calls.append((done, total)))
    assert target.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-"]
    assert calls[0][0] > 300_000
    assert calls[-1] == (len(CONTENT), len(CONTENT))


def test_a_download_that_is_cut_again_and_again_comes_to_its_end(server: Server, target: Path) -> None:
    server.cut_after = 400_000
    for _ in range(2):
        with pytest.raises(DataError, match="run this again to continue"):
            download(server.url("file.bin"), target, MD5)
    download(server.url("file.bin"), target, MD5)
    assert target.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=400000-", "bytes=800000-"]


def test_a_server_that_cannot_resume_sends_all(server: Server, target: Path) -> None:
    part_of(target, CONTENT[:5000])
    server.honours_range = False
    download(server.url("file.bin"), target, MD5)
    assert target.read_bytes() == CONTENT
    assert server.ranges == ["bytes=5000-"]


@pytest.mark.parametrize("header", ["bytes 4000-1023999/1024000", "nonsense"])
def test_an_answer_that_does_not_begin_where_the_part_ends_is_not_used(
    server: Server, target: Path, header: str
) -> None:
    part_of(target, CONTENT[:5000])
    server.wrong_range = header
    download(server.url("file.bin"), target, MD5)
    assert target.read_bytes() == CONTENT
    assert server.ranges == ["bytes=5000-", None]


def test_a_part_longer_than_the_file_is_restarted(server: Server, target: Path) -> None:
    part_of(target, CONTENT + b"more")
    download(server.url("file.bin"), target, MD5)
    assert target.read_bytes() == CONTENT


def test_a_part_that_is_complete_only_takes_its_name(server: Server, target: Path) -> None:
    part_of(target, CONTENT)
    download(server.url("file.bin"), target, MD5)
    assert target.read_bytes() == CONTENT
    assert server.asked == []


def test_a_part_of_another_file_is_found_out_and_removed(server: Server, target: Path) -> None:
    part_of(target, b"other" * 1000)
    with pytest.raises(DataError, match="It was removed: run this again"):
        download(server.url("file.bin"), target, MD5)
    download(server.url("file.bin"), target, MD5)
    assert target.read_bytes() == CONTENT


def test_wrong_content_never_gets_the_name(server: Server, target: Path) -> None:
    server.files["file.bin"] = b"not what was published"
    found = hashlib.md5(b"not what was published").hexdigest()
    with pytest.raises(DataError, match=rf"{re.escape(str(target))}: 127.0.0.1 .*{found}; expected {MD5}"):
        download(server.url("file.bin"), target, MD5)
    assert files(target) == []


@pytest.mark.parametrize("md5", [MD5, None])
def test_a_whole_file_is_not_fetched_again(server: Server, target: Path, md5: str | None) -> None:
    target.parent.mkdir()
    target.write_bytes(CONTENT)
    download(server.url("file.bin"), target, md5)
    assert server.asked == []


def test_a_damaged_file_is_replaced(server: Server, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(CONTENT[:-1])
    download(server.url("file.bin"), target, MD5)
    assert target.read_bytes() == CONTENT


def test_a_damaged_file_that_cannot_be_replaced_stays_and_is_reported(server: Server, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(CONTENT[:-1])
    with pytest.raises(DataError, match="the file that is there is damaged; run this again"):
        download(server.url("missing.bin"), target, MD5)
    assert target.read_bytes() == CONTENT[:-1]


def test_an_address_without_a_file_is_reported(server: Server, target: Path) -> None:
    message = "0 bytes of an unknown length have arrived from 127.0.0.1 (it answered 404 Not Found)"
    with pytest.raises(DataError, match=re.escape(message)):
        download(server.url("missing.bin"), target, MD5)
    assert files(target) == []


def test_no_server_at_all_is_reported_and_what_has_arrived_stays(server: Server, target: Path) -> None:
    part = part_of(target, CONTENT[:5000])
    with Server({}) as gone:
        address = gone.url("file.bin")  # free again once the server is closed
    with pytest.raises(DataError, match=re.escape("5000 bytes of an unknown length")) as caught:
        download(address, target, MD5)
    assert "Connection refused" in str(caught.value)
    assert part.read_bytes() == CONTENT[:5000]


def test_a_server_that_stalls_is_given_up_and_nothing_that_arrived_is_lost(
    server: Server, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STALL_SECONDS", 0.3)
    server.stall_after = 123_456
    message = "123456 bytes of 1.0 MB have arrived from 127.0.0.1 (it sent nothing for 0.3 seconds)"
    with pytest.raises(DataError, match=re.escape(message)):
        download(server.url("file.bin"), target, MD5)

    server.stall_after = None
    download(server.url("file.bin"), target, MD5)
    assert target.read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=123456-"]


def test_a_full_disk_is_reported_and_the_next_call_resumes(
    server: Server, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    server.cut_after = 500_000
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DataError, match=r"No space left on device.*run this again to continue"):
            download(server.url("file.bin"), target, MD5)
    server.cut_after = None
    download(server.url("file.bin"), target, MD5)
    assert target.read_bytes() == CONTENT


def test_a_folder_that_cannot_be_made_is_reported(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot be written .FileExistsError"):
        download(server.url("file.bin"), tmp_path / "file" / "file.bin", MD5)


def test_an_interrupt_from_the_keyboard_keeps_what_has_arrived(server: Server, target: Path) -> None:
    def interrupt(done: int, total: int | None) -> None:
        if done > 200_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(server.url("file.bin"), target, MD5, interrupt)
    assert files(target) == ["file.bin.part"]
    download(server.url("file.bin"), target, MD5)
    assert server.ranges[1] == f"bytes={server_start(server)}-"
    assert server_start(server) > 200_000
    assert target.read_bytes() == CONTENT


def server_start(server: Server) -> int:
    """Where the last request began."""
    return int(str(server.ranges[-1]).removeprefix("bytes=").removesuffix("-"))


def test_several_at_once_fetch_the_file_once(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "POLL_SECONDS", 0.01)
    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(download, server.url("file.bin"), target, MD5) for _ in range(6)]:
            done.result()
    assert target.read_bytes() == CONTENT
    assert server.ranges == [None]
    assert files(target) == ["file.bin"]


SCRIPT = """
import sys
from pathlib import Path
from memwrap.data.download import download
download(sys.argv[1], Path(sys.argv[2]), sys.argv[3], lambda done, total: print(done, total, flush=True))
"""


def in_another_process(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], stdout=subprocess.PIPE, text=True)


def lines(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def test_another_process_waits_and_takes_over_when_the_first_is_killed(server: Server, target: Path) -> None:
    server.stall_after = 100_000
    with in_another_process(server.url("file.bin"), str(target), MD5) as first:
        assert lines(first.stdout).readline().endswith(f"{len(CONTENT)}\n")  # it is in the midst of it
        calls: list[tuple[int, int | None]] = []
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(
                download, server.url("file.bin"), target, MD5, lambda done, total: calls.append((done, total))
            )
            while not calls:
                time.sleep(0.01)
            assert calls[0][1] is None  # waits, and shows what the other one has
            assert len(server.asked) == 1
            server.stall_after = None
            first.kill()
            waiting.result(timeout=20)
    assert target.read_bytes() == CONTENT
    assert files(target) == ["file.bin"]


def test_alone_admits_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "POLL_SECONDS", 0.0)
    within: list[int] = []
    most: list[int] = []

    def enter(number: int) -> None:
        for _ in range(20):
            with exclusive(tmp_path / "thing"):
                within.append(number)
                time.sleep(0.0005)
                most.append(len(within))
                within.remove(number)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(enter, number) for number in range(4)]:
            done.result()
    assert most == [1] * 80
    assert list(tmp_path.iterdir()) == []
