"""Appending to record files, from several processes and on disks that may be full.

A file of records is only ever appended to.
"""

import errno
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memwrap.errors import SaveError
from memwrap.reproduce.records import Failure, RunRecord, to_json
from memwrap.storage.files import make_folder, sync_folder
from memwrap.storage.locks import exclusive, exclusive_if_free

RESERVE = 1 << 20  # bytes, enough for a hundred records


def append_record(path: Path, entry: RunRecord | Failure) -> None:
    """Append a line, which is on disk when this returns; several processes may do so at the same time."""
    content = (json.dumps(to_json(entry), allow_nan=False) + "\n").encode()
    try:
        make_folder(path.parent)
        # Opened before it is locked: a lock waits for ever where no file can be made.
        with path.open("ab+", buffering=0) as file, exclusive(path):
            # A line that a killed process or a full disk cut short must not swallow this one.
            content = content if _ends_with_newline(file) else b"\n" + content
            _write_all(file, content)
            os.fsync(file.fileno())
            sync_folder(path.parent)
    except OSError as error:
        raise SaveError(f"{path}: the record of {entry.task.name} cannot be written ({error})") from error


@contextmanager
def claim(path: Path) -> Iterator[bool]:
    """Yield whether this is the only process that trains runs for the file; others see False until it ends."""
    check_writable(path)
    with ExitStack() as held:
        try:
            is_only = held.enter_context(exclusive_if_free(path.with_name(f"{path.name}.runs")))
        except OSError as error:
            raise _not_writable(path, error) from error
        yield is_only


def check_writable(path: Path) -> None:
    """Raise a SaveError now if lines could not be appended later, or if the disk is nearly full."""
    try:
        make_folder(path.parent)
        with path.open("ab"), exclusive(path), tempfile.TemporaryFile(dir=path.parent, buffering=0) as probe:
            _write_all(probe, bytes(RESERVE))
    except OSError as error:
        raise _not_writable(path, error) from error


@dataclass
class RecordWriter:
    """Appends entries to a file; once that fails, to a temporary file.

    Runs that were trained together finish at once, and must not be lost with the first one that cannot be written.
    """

    path: Path
    error: SaveError | None = None  # of the first entry that could not be written
    fallback: Path | None = None  # the temporary file
    rescued: int = 0  # entries in it

    def write(self, entry: RunRecord | Failure) -> None:
        """Append the entry; a SaveError if neither file can take it."""
        if self.error is None:
            try:
                append_record(self.path, entry)
                return
            except SaveError as error:
                self.error = error
        self.fallback = self.fallback or self._create_fallback()
        append_record(self.fallback, entry)
        self.rescued += 1

    @property
    def files(self) -> list[Path]:
        """The files that hold entries."""
        found = [self.path, *([self.fallback] if self.fallback and self.rescued else [])]
        return [path for path in found if path.exists()]

    def check(self) -> None:
        """Raise a SaveError that names the temporary file, if it was needed."""
        if self.error is not None:
            raise SaveError(
                f"{self.error}; the last {self.rescued} entries are in {self.fallback} instead. Free some space and "
                f"give both files: --records {self.path} --records {self.fallback}"
            ) from self.error

    def _create_fallback(self) -> Path:
        try:
            number, name = tempfile.mkstemp(prefix="memwrap-records-", suffix=".jsonl")
        except OSError as error:
            raise SaveError(f"{self.error}; a temporary file cannot be written either ({error})") from error
        os.close(number)
        return Path(name)


def _not_writable(path: Path, error: OSError) -> SaveError:
    return SaveError(f"{path}: records cannot be written there ({error}); free some space or name another file")


def _write_all(file: Any, content: bytes) -> None:
    if file.write(content) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _ends_with_newline(file: Any) -> bool:
    if file.seek(0, os.SEEK_END) == 0:
        return True
    file.seek(-1, os.SEEK_END)
    return bool(file.read(1) == b"\n")
