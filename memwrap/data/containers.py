"""Folders and zips of files behind one interface."""

import errno
import itertools
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from memwrap.data.zip_directory import DEPTH_LIMIT, FILE_LIMIT, read_entries, seek_data
from memwrap.errors import DataError, brief
from memwrap.storage.files import read_file

# In a zip. Each file may be in as many folders as DEPTH_LIMIT, and all are listed.
FOLDERS_LIMIT = 1 << 18

# What operating systems create for themselves.
_SYSTEM = re.compile(r"(?:^|/)(?:\.|__MACOSX(?:/|$)|(?i:thumbs\.db|desktop\.ini)(?:/|$))", re.ASCII)


class Container(Protocol):
    """Files under relative POSIX names, without those that operating systems leave behind."""

    @property
    def path(self) -> Path: ...

    def names(self) -> list[str]:
        """The files, sorted."""

    def folders(self) -> list[str]:
        """The folders at every depth, sorted, including empty ones."""

    def size(self, name: str) -> int:
        """The memory in bytes that a file's content takes; 0 if it cannot be read."""

    def read(self, name: str) -> bytes:
        """A file's content; a DataError gives the reason if it cannot be read."""


def open_container(path: Path) -> Container:
    """Open a folder or zip; a zip is checked before anything is read from it."""
    try:
        if path.is_dir():
            return Folder(path)
        if path.is_file():
            return ZipArchive(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({brief(error)})") from error
    found = "is neither a folder nor a file" if path.exists() else "does not exist"
    raise DataError(f"{path}: {found}; expected a folder or a zip of images")


class Folder:
    """A folder on disk. Links to folders are not followed: they are listed as files that cannot be read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        return sorted(name for name, is_folder, is_link in self._walk() if is_link or not is_folder)

    def folders(self) -> list[str]:
        return sorted(name for name, is_folder, _ in self._walk() if is_folder)

    def size(self, name: str) -> int:
        try:
            size = (self.path / name).stat().st_size
        except OSError:
            return 0
        return size if size <= FILE_LIMIT else 0

    def read(self, name: str) -> bytes:
        path = self.path / name
        try:
            return read_file(path, FILE_LIMIT, follow_links=True)
        except OSError as error:
            if error.errno == errno.EINVAL and path.is_dir():
                raise DataError("a link to a folder, which is not followed") from None
            raise DataError(f"cannot be read: {error.strerror}") from error

    def _walk(self) -> Iterator[tuple[str, bool, bool]]:
        """Every relative name, whether it is a folder, and whether it is a link."""
        waiting = [""]
        while waiting:
            parent = waiting.pop()
            if parent.count("/") > DEPTH_LIMIT:
                raise DataError(
                    f"{self.path}: {parent[:200]}... is in more than {DEPTH_LIMIT} folders within each other; move the "
                    "images up, or the folder away"
                )
            for name, is_folder, is_link in _list_folder(self.path / parent):
                yield parent + name, is_folder, is_link
                if is_folder and not is_link:
                    waiting.append(f"{parent}{name}/")


class ZipArchive:
    """A zip, read in place. Each read opens the file again, so threads and forked processes share nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files, self._folders = read_entries(path)

    def __reduce__(self) -> tuple[type["ZipArchive"], tuple[Path]]:
        return ZipArchive, (self.path,)

    def names(self) -> list[str]:
        return sorted(name for name in self._files if not _SYSTEM.search(name))

    def folders(self) -> list[str]:
        found = {""}
        for name in itertools.chain(self._folders, (name.rpartition("/")[0] for name in self._files)):
            while name not in found:
                found.add(name)
                name = name.rpartition("/")[0]
            if len(found) > FOLDERS_LIMIT:
                raise DataError(f"{self.path}: holds more than {FOLDERS_LIMIT} folders; unpack it and give the folder")
        return sorted(name for name in found if name and not _SYSTEM.search(name))

    def size(self, name: str) -> int:
        return self._files[name].file_size

    def read(self, name: str) -> bytes:
        entry = self._files[name]
        try:
            with self.path.open("rb") as file:
                seek_data(file, entry)
                with zipfile.ZipExtFile(file, "r", entry) as stream:
                    content = stream.read(entry.file_size)
        except MemoryError:  # which is not the fault of the zip
            raise
        except Exception as error:  # each compression method has its own errors
            raise DataError(f"damaged in the zip: {brief(error)}") from error
        if len(content) != entry.file_size:
            raise DataError(f"damaged in the zip: {len(content)} bytes; expected {entry.file_size}")
        return content


def _list_folder(path: Path) -> list[tuple[str, bool, bool]]:
    """The names in a folder, without those of operating systems; whether each is a folder, and whether a link."""
    try:
        with os.scandir(path) as entries:
            return [
                (each.name, _is_folder(each), each.is_symlink()) for each in entries if not _SYSTEM.search(each.name)
            ]
    except OSError as error:
        raise DataError(f"{path}: the folder cannot be read ({error.strerror}); allow it, or move it away") from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads nowhere: a file that cannot be read
        return False
