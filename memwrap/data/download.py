"""Downloads that resume, are verified by their checksum, and appear under their name only when complete.

What has arrived is in `NAME.part`; it is renamed to `NAME` once it is complete and correct.
"""

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
from memwrap.storage.files import make_folder, sync_folder
from memwrap.storage.locks import exclusive
from memwrap.version import __version__

STALL_SECONDS = 30.0  # a server that sends nothing for this long is given up

_BLOCK = 1 << 16


def download(url: str, target: Path, md5: str | None, progress: Report | None = None) -> None:
    """Download the url to the target, unless the target is already complete.

    md5: None accepts any content. After a failure the next call resumes. If several processes want the same file, one
    downloads it and the others wait.
    """
    report = progress or (lambda *_: None)
    part = target.with_name(target.name + ".part")
    try:
        if is_complete(target, md5):  # also where nothing can be written, not even a lock
            return
        make_folder(target.parent)
        with exclusive(target, waiting=lambda: report(_size(part), None)):
            if not is_complete(target, md5):  # another process may have downloaded it meanwhile
                _fetch(url, part, target, md5, report)
    except OSError as error:
        raise DataError(f"{target}: cannot be written ({brief(error)}); use another folder") from error


def is_complete(path: Path, md5: str | None) -> bool:
    """Whether the file exists and has this checksum; None accepts any content."""
    return path.is_file() and md5 in (None, _md5(path))


def _fetch(url: str, part: Path, target: Path, md5: str | None, report: Report) -> None:
    # An earlier call may have ended between its last byte and the renaming.
    if md5 is None or not is_complete(part, md5):
        _receive(url, part, target, report)
    if not is_complete(part, md5):
        found = _md5(part)
        part.unlink()
        raise DataError(
            f"{target}: {_host(url)} sent a file with the md5 {found}; expected {md5}. It was removed: run this again, "
            "or put the right file there yourself; --data-root sets another folder"
        )
    part.replace(target)
    sync_folder(target.parent)


def _receive(url: str, part: Path, target: Path, report: Report) -> None:
    """Complete the part, from where it ends if the server supports that."""
    total = None
    try:
        with _request(url, _size(part)) as response:
            start, total = _extent(response)
            _store(response, part, start, lambda done: report(done, total))
        if total is not None and _size(part) != total:
            raise ConnectionError("the connection was cut")
    except (OSError, HTTPException) as error:
        length = "an unknown length" if total is None else _format_bytes(total)
        damaged = "; the file that is there is damaged" if target.exists() else ""
        raise DataError(
            f"{target}: {_format_bytes(_size(part))} of {length} have arrived from {_host(url)} ({_cause(error)})"
            f"{damaged}; run this again to continue, or put the file there yourself"
        ) from error


def _store(response: HTTPResponse, part: Path, start: int, report: Callable[[int], None]) -> None:
    with part.open("ab" if start else "wb") as file:
        # read1 returns what is there: nothing that has arrived is lost if no more bytes come.
        while block := response.read1(_BLOCK):
            file.write(block)
            start += len(block)
            report(start)
        file.flush()
        os.fsync(file.fileno())


def _request(url: str, start: int) -> HTTPResponse:
    """A response with the bytes from start, or with all bytes if the server cannot begin there."""
    headers = {"User-Agent": f"memwrap/{__version__}"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response: HTTPResponse = urlopen(Request(url, headers=headers), timeout=STALL_SECONDS)
        if _extent(response)[0] in (0, start):
            return response
        response.close()
    except HTTPError as error:
        if not (start and error.code == 416):  # 416: the part is longer than the file, so it is of another file
            raise
        error.close()
    if not start:
        raise HTTPException("it sent a part that was not asked for")
    return _request(url, 0)


def _extent(response: HTTPResponse) -> tuple[int, int | None]:
    """The position of the response's first byte in the file, -1 if unknown; and the file's length, if known."""
    if response.status != 206:
        return 0, response.length
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    if found is None:
        return -1, None
    return int(found[1]), None if found[2] == "*" else int(found[2])


def _cause(error: Exception) -> str:
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(error, HTTPError):
        return f"it answered {error.code} {error.reason}"
    if isinstance(reason, TimeoutError):
        return f"it sent nothing for {STALL_SECONDS:g} seconds"
    return str(reason) or brief(error)


def _format_bytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count} bytes"


def _host(url: str) -> str:
    return urlsplit(url).hostname or url


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):  # another process may remove it at any time
        return path.stat().st_size
    return 0


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
