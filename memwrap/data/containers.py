"""Folders and zips of files behind one interface; zips are checked for unsafe entries before anything is read."""

import os
import stat
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

from memwrap.errors import DataError, brief

FILE_LIMIT = 512 << 20  # bytes; no image is larger, and files are read into memory as a whole
# Images hardly shrink in a zip. One that unpacks to more than both of these is a zip bomb.
RATIO_LIMIT = 100
UNPACKED_LIMIT = 256 << 20

_SYSTEM_FILES = ("thumbs.db", "desktop.ini")
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, length of the name, length of the extra field
_ENCRYPTED = 0x41  # flag bits of both kinds of encryption


class Container(Protocol):
    """Files under relative POSIX names, without those that operating systems leave behind."""

    @property
    def path(self) -> Path: ...

    def names(self) -> list[str]:
        """The files, sorted."""

    def folders(self) -> list[str]:
        """The folders at every depth, sorted, including empty ones."""

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
        return sorted(name for name, is_folder in self._walk() if not is_folder or (self.path / name).is_symlink())

    def folders(self) -> list[str]:
        return sorted(name for name, is_folder in self._walk() if is_folder)

    def read(self, name: str) -> bytes:
        path = self.path / name
        try:
            status = path.stat()
            if path.is_dir():
                raise DataError("a link to a folder, which is not followed")
            if not stat.S_ISREG(status.st_mode):  # reading a pipe would never end
                raise DataError("not a regular file")
            if status.st_size > FILE_LIMIT:
                raise DataError(f"too large: {status.st_size} bytes")
            return path.read_bytes()
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}") from error

    def _walk(self) -> Iterator[tuple[str, bool]]:
        """Every relative name, and whether it is a folder."""
        for place, folders, files in os.walk(self.path, onerror=_raise_unreadable):
            folders[:] = [name for name in folders if not _is_system(name)]  # os.walk descends into these
            parent = "".join(f"{part}/" for part in Path(place).relative_to(self.path).parts)
            yield from ((parent + name, True) for name in folders)
            yield from ((parent + name, False) for name in files if not _is_system(name))


class ZipArchive:
    """A zip, read in place. Each read opens the file again, so threads and forked processes share nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        entries = _read_directory(path)
        _check_entries(path, entries)
        self._files = {_normalize_name(entry): entry for entry in entries if not _is_folder(entry)}
        self._folders = {_normalize_name(entry) for entry in entries if _is_folder(entry)}

    def __reduce__(self) -> tuple[type["ZipArchive"], tuple[Path]]:
        return ZipArchive, (self.path,)

    def names(self) -> list[str]:
        return sorted(name for name in self._files if not _is_system(name))

    def folders(self) -> list[str]:
        parents = {str(parent) for name in [*self._files, *self._folders] for parent in PurePosixPath(name).parents}
        return sorted(name for name in parents | self._folders if name not in ("", ".") and not _is_system(name))

    def read(self, name: str) -> bytes:
        entry = self._files[name]
        try:
            with self.path.open("rb") as file:
                _seek_data(file, entry)
                with zipfile.ZipExtFile(file, "r", entry) as stream:
                    content = stream.read(entry.file_size)
        except Exception as error:  # each compression method has its own errors
            raise DataError(f"damaged in the zip: {brief(error)}") from error
        if len(content) != entry.file_size:
            raise DataError(f"damaged in the zip: {len(content)} bytes; expected {entry.file_size}")
        return content


def _read_directory(path: Path) -> list[zipfile.ZipInfo]:
    """The entries that the zip's central directory lists."""
    try:
        with path.open("rb") as file:
            start = file.read(2)
        if not zipfile.is_zipfile(path) and start != b"PK":
            raise DataError(f"{path}: is neither a folder nor a zip; expected a folder or a zip of images")
        with zipfile.ZipFile(path) as archive:
            return archive.infolist()
    except DataError:
        raise
    except Exception as error:  # a damaged directory makes zipfile raise nearly anything
        raise DataError(f"{path}: is a damaged zip ({brief(error)}); copy or download it again") from error


def _check_entries(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    """Refuse a zip that is not a plain archive of files, naming the first unsafe entry."""
    seen: set[str] = set()
    for entry in entries:
        fault = _find_fault(entry)
        if not fault and not _is_folder(entry) and _normalize_name(entry) in seen:
            fault = "occurs twice"
        if fault:
            raise DataError(f"{path}: the entry {entry.orig_filename!r} {fault}; create the zip again from plain files")
        seen.add(_normalize_name(entry))
    _check_overlap(path, entries)
    _check_ratio(path, entries)


def _find_fault(entry: zipfile.ZipInfo) -> str | None:
    name = entry.orig_filename.replace("\\", "/")
    if name.startswith("/") or name[1:2] == ":":
        return "has an absolute name"
    if ".." in name.split("/"):
        return "has a name that leads out of the zip"
    if "\0" in name or not (_is_folder(entry) or _normalize_name(entry)):
        return "has no valid name"
    if stat.S_ISLNK(entry.external_attr >> 16):
        return "is a symbolic link"
    if entry.flag_bits & _ENCRYPTED:
        return "is encrypted"
    # zipfile decompresses other methods without a limit on the output.
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"has an unsupported compression (method {entry.compress_type})"
    if entry.file_size > FILE_LIMIT:
        return f"unpacks to {entry.file_size} bytes, more than the {FILE_LIMIT} allowed"
    return None


def _check_overlap(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    """Refuse entries that share data: each of them modest, together they could unpack to any size."""
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.header_offset < end:
            raise DataError(f"{path}: the entry {entry.orig_filename!r} overlaps another; create the zip again")
        end = entry.header_offset + _LOCAL_HEADER.size + entry.compress_size


def _check_ratio(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    unpacked, packed = sum(entry.file_size for entry in entries), path.stat().st_size
    if unpacked > max(UNPACKED_LIMIT, RATIO_LIMIT * packed):
        largest = max(entries, key=lambda entry: entry.file_size).orig_filename
        raise DataError(
            f"{path}: unpacks from {packed} to {unpacked} bytes, most of them in {largest!r}, which images do not; "
            "if you trust where it comes from, unpack it and give the folder"
        )


def _seek_data(file: IO[bytes], entry: zipfile.ZipInfo) -> None:
    """Move to where the entry's data begin, after its local header."""
    file.seek(entry.header_offset)
    signature, name_length, extra_length = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    if signature != b"PK\x03\x04":
        raise zipfile.BadZipFile("no entry begins at the offset in the zip's directory")
    file.seek(name_length + extra_length, os.SEEK_CUR)


def _is_folder(entry: zipfile.ZipInfo) -> bool:
    return entry.orig_filename.endswith(("/", "\\"))


def _normalize_name(entry: zipfile.ZipInfo) -> str:
    """The name with "/" as separator, which some Windows programs do not write, and without "." parts."""
    return "/".join(part for part in entry.orig_filename.replace("\\", "/").split("/") if part not in ("", "."))


def _is_system(name: str) -> bool:
    """Whether an operating system created the file for itself, or a folder that it is in."""
    parts = name.split("/")
    return any(part.startswith(".") or part == "__MACOSX" or part.lower() in _SYSTEM_FILES for part in parts)


def _raise_unreadable(error: OSError) -> None:
    raise DataError(f"{error.filename}: the folder cannot be read ({error.strerror}); allow it, or move it away")
