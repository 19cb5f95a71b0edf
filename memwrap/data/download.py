"""Fetching a published file: continued where it stopped, proved by its checksum, and whole once it has its name.

What has arrived lies in `NAME.part`; `NAME` appears in one step when all of it is there and right.
"""

import errno
import hashlib
import os
import re
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from memwrap.data.progress import Report
from memwrap.errors import DataError, brief
from memwrap.storage.locks import alone
from memwrap.version import __version__

STALL_SECONDS = 30.0  # a server that sends nothing for so long is given up

_BLOCK = 1 << 16


def download(url: str, target: Path, md5: str | None, progress: Report | None = None) -> None:
    """See to it that the target is the file behind the url; when it is already, nothing is fetched.

    md5: None takes the server's word for the content. When this fails half-way, the next call continues. Several
    processes may want the same file: one fetches it, the others wait.
    """
    report = progress or _nothing
    part = target.with_name(target.name + ".part")
    try:
        if is_whole(target, md5):  # also where nothing can be written, not even a lock
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with alone(target, waiting=lambda: report(_size(part), None)):
            if not is_whole(target, md5):  # nobody else has fetched it meanwhile
                _fetch(url, part, target, md5, report)
    except OSError as error:
        raise DataError(f"{target}: cannot be made ({brief(error)}); use a folder that can be written to") from error


def is_whole(path: Path, md5: str | None) -> bool:
    """Whether the file is there, with the content that the checksum tells; None: whatever its content."""
    return path.is_file() and md5 in (None, _md5(path))


def _fetch(url: str, part: Path, target: Path, md5: str | None, report: Report) -> None:
    # A whole part: an earlier call was ended between its last byte and taking its name.
    if md5 is None or not is_whole(part, md5):
        _receive(url, part, target, report)
    if not is_whole(part, md5):
        found = _md5(part)
        part.unlink()
        raise DataError(
            f"{target}: what {_host(url)} sent has the md5 {found}; expected {md5}. It was removed: run this again, or "
            "put the right file there yourself; --data-root names another place"
        )
    part.replace(target)


def _receive(url: str, part: Path, target: Path, report: Report) -> None:
    """Complete the part: from where it ends, if the server can do that."""
    total = None
    try:
        with _answer(url, _size(part)) as response:
            start, total = _extent(response)
            _store(response, part, start, lambda done: report(done, total))
        if total is not None and _size(part) != total:
            raise ConnectionError("the connection was cut")
    except (OSError, HTTPException) as error:
        raise DataError(_interrupted(url, target, _size(part), total, error)) from error


def _store(response: HTTPResponse, part: Path, start: int, report: Callable[[int], None]) -> None:
    with part.open("ab" if start else "wb") as file:
        # read1 gives what is there: nothing that has arrived is lost when the next bytes never come.
        while block := response.read1(_BLOCK):
            file.write(block)
            start += len(block)
            report(start)
        file.flush()
        os.fsync(file.fileno())


def _answer(url: str, start: int) -> HTTPResponse:
    """The server's answer, with the bytes from start on, or all of them if it cannot begin there."""
    headers = {"User-Agent": f"memwrap/{__version__}"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response: HTTPResponse = urlopen(Request(url, headers=headers), timeout=STALL_SECONDS)
        if _extent(response)[0] in (0, start):
            return response
        response.close()
    except HTTPError as error:
        if not (start and error.code == 416):  # 416: the part is longer than the file, so it belongs to another one
            raise
        error.close()
    if not start:
        raise HTTPException("it sent a part that was not asked for")
    return _answer(url, 0)


def _extent(response: HTTPResponse) -> tuple[int, int | None]:
    """The position of the answer's first byte in the file, -1 if it is not told; and the file's length, if told."""
    if response.status != 206:
        return 0, response.length
    told = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    if told is None:
        return -1, None
    return int(told[1]), None if told[2] == "*" else int(told[2])


def _interrupted(url: str, target: Path, arrived: int, total: int | None, error: Exception) -> str:
    whole = "an unknown length" if total is None else _amount(total)
    room = "make room on the disk and " if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) else ""
    damaged = "; the file that is there is damaged" if target.exists() else ""
    return (
        f"{target}: {_amount(arrived)} of {whole} have arrived from {_host(url)} ({_cause(error)}){damaged}; {room}run "
        "this again to continue, or put the file there yourself"
    )


def _cause(error: Exception) -> str:
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(error, HTTPError):
        return f"it answered {error.code} {error.reason}"
    if isinstance(reason, TimeoutError):
        return f"it sent nothing for {STALL_SECONDS:g} seconds"
    return str(reason) or brief(error)


def _nothing(done: int, total: int | None) -> None:
    """What is called where nobody wants to know how far it is."""


def _amount(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count} bytes"


def _host(url: str) -> str:
    return urlsplit(url).hostname or url


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):  # another process may take it away at any time
        return path.stat().st_size
    return 0


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
