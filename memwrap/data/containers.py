"""Folders and zips of files, read alike: what they hold, by relative names, and nothing that leads out of them."""

import os
import stat
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Protocol

from memwrap.errors import DataError, brief

# No image is larger than this, and whatever is would be read into memory as a whole.
FILE_LIMIT = 512 << 20
# Images hardly shrink in a zip; one that grows so much and to so many bytes is made to fill the memory.
GROWTH_LIMIT = 100
GROWTH_ALLOWED = 256 << 20

_SYSTEM_FILES = ("thumbs.db", "desktop.ini")
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, length of the name, length of the extra field
_ENCRYPTED = 0x41  # flags: in the old way or in the strong one


class Container(Protocol):
    """Files under relative POSIX names, without those that operating systems leave behind."""

    @property
    def path(self) -> Path: ...

    def names(self) -> list[str]:
        """The files, sorted."""

    def folders(self) -> list[str]:
        """The folders at every depth, sorted, empty ones too."""

    def read(self, name: str) -> bytes:
        """A file's content; a DataError says in short why it cannot be read."""


def open_container(path: Path) -> Container:
    """The folder or zip at this path; a zip is checked before anything is read from it."""
    try:
        if path.is_dir():
            return Folder(path)
        if path.is_file():
            return Archive(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({brief(error)})") from error
    found = "is neither a folder nor a file" if path.exists() else "does not exist"
    raise DataError(f"{path}: {found}; expected a folder or a zip of images")


class Folder:
    """A folder on disk. Links to folders are not followed: they count as files that cannot be read."""

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
            if not stat.S_ISREG(status.st_mode):  # a pipe would never end
                raise DataError("not a regular file")
            if status.st_size > FILE_LIMIT:
                raise DataError(f"too large: {status.st_size} bytes")
            return path.read_bytes()
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}") from error

    def _walk(self) -> Iterator[tuple[str, bool]]:
        """Every relative name and whether it is a folder's."""
        for place, folders, files in os.walk(self.path, onerror=_refuse_unreadable):
            folders[:] = [name for name in folders if not _is_system(name)]  # os.walk goes into those left here
            above = "".join(f"{part}/" for part in Path(place).relative_to(self.path).parts)
            yield from ((above + name, True) for name in folders)
            yield from ((above + name, False) for name in files if not _is_system(name))


class Archive:
    """A zip, read in place. Each read opens the file anew, so threads and forked processes share nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        entries = _entries(path)
        _refuse_unsafe(path, entries)
        self._files = {_plain_name(entry): entry for entry in entries if not _is_folder(entry)}
        self._folders = {_plain_name(entry) for entry in entries if _is_folder(entry)}

    def __reduce__(self) -> tuple[type["Archive"], tuple[Path]]:
        return Archive, (self.path,)

    def names(self) -> list[str]:
        return sorted(name for name in self._files if not _is_hidden(name))

    def folders(self) -> list[str]:
        parents = {str(parent) for name in [*self._files, *self._folders] for parent in PurePosixPath(name).parents}
        return sorted(name for name in parents | self._folders if name not in ("", ".") and not _is_hidden(name))

    def read(self, name: str) -> bytes:
        entry = self._files[name]
        try:
            with self.path.open("rb") as file:
                _skip_local_header(file, entry)
                with zipfile.ZipExtFile(file, "r", entry) as stream:
                    content = stream.read(entry.file_size)
        except Exception as error:  # each way of compression has errors of its own
            raise DataError(f"damaged in the zip: {brief(error)}") from error
        if len(content) != entry.file_size:
            raise DataError(f"damaged in the zip: {len(content)} bytes where {entry.file_size} are declared")
        return content


def _entries(path: Path) -> list[zipfile.ZipInfo]:
    """What the zip's own directory, at its end, says of each entry."""
    try:
        with path.open("rb") as file:
            start = file.read(2)
        if not zipfile.is_zipfile(path) and start != b"PK":
            raise DataError(f"{path}: is neither a folder nor a zip; expected a folder or a zip of images")
        with zipfile.ZipFile(path) as archive:
            return archive.infolist()
    except DataError:
        raise
    except Exception as error:  # a damaged directory breaks zipfile in many ways
        raise DataError(f"{path}: is a damaged zip ({brief(error)}); copy or download it again") from error


def _refuse_unsafe(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    """A DataError that names the first entry for which this is not a plain zip of files."""
    seen: set[str] = set()
    for entry in entries:
        fault = _name_fault(entry) or _content_fault(entry)
        if not fault and not _is_folder(entry) and _plain_name(entry) in seen:
            fault = "is there twice"
        if fault:
            raise DataError(f"{path}: the entry {entry.orig_filename!r} {fault}; make the zip anew from plain files")
        seen.add(_plain_name(entry))
    _refuse_overlap(path, entries)
    _refuse_growth(path, entries)


def _name_fault(entry: zipfile.ZipInfo) -> str | None:
    name = entry.orig_filename.replace("\\", "/")
    if name.startswith("/") or name[1:2] == ":":
        return "has an absolute name"
    if ".." in name.split("/"):
        return "has a name that leads out of the zip"
    if "\0" in name or not (_is_folder(entry) or _plain_name(entry)):
        return "has no proper name"
    return None


def _content_fault(entry: zipfile.ZipInfo) -> str | None:
    if stat.S_ISLNK(entry.external_attr >> 16):
        return "is a symbolic link"
    if entry.flag_bits & _ENCRYPTED:
        return "is encrypted"
    # The other ways would also have to be decompressed whole, however much that makes.
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"is compressed in a way that is not supported (method {entry.compress_type})"
    if entry.file_size > FILE_LIMIT:
        return f"unpacks to {entry.file_size} bytes, more than the {FILE_LIMIT} allowed"
    return None


def _refuse_overlap(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    """Many entries may share one piece of data, each of them modest, to unpack to any size."""
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.header_offset < end:
            raise DataError(f"{path}: the entry {entry.orig_filename!r} overlaps another; make the zip anew")
        end = entry.header_offset + _LOCAL_HEADER.size + entry.compress_size


def _refuse_growth(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    unpacked, packed = sum(entry.file_size for entry in entries), path.stat().st_size
    if unpacked > max(GROWTH_ALLOWED, GROWTH_LIMIT * packed):
        largest = max(entries, key=lambda entry: entry.file_size).orig_filename
        raise DataError(
            f"{path}: unpacks from {packed} to {unpacked} bytes, most of them in {largest!r}: no zip of images does; "
            "if it is one, unpack it and give the folder"
        )


def _skip_local_header(file: IO[bytes], entry: zipfile.ZipInfo) -> None:
    """Leave the file where the entry's data begin."""
    file.seek(entry.header_offset)
    signature, name_length, extra_length = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    if signature != b"PK\x03\x04":
        raise zipfile.BadZipFile("no entry begins where the zip's directory says")
    file.seek(name_length + extra_length, os.SEEK_CUR)


def _is_folder(entry: zipfile.ZipInfo) -> bool:
    return entry.orig_filename.endswith(("/", "\\"))


def _plain_name(entry: zipfile.ZipInfo) -> str:
    """The name with "/" between its parts, as some Windows programs do not write it, and without "." among them."""
    return "/".join(part for part in entry.orig_filename.replace("\\", "/").split("/") if part not in ("", "."))


def _is_hidden(name: str) -> bool:
    return any(_is_system(part) for part in name.split("/"))


def _is_system(name: str) -> bool:
    """Whether an operating system put the file or folder there for itself."""
    return name.startswith(".") or name == "__MACOSX" or name.lower() in _SYSTEM_FILES


def _refuse_unreadable(error: OSError) -> None:
    raise DataError(f"{error.filename}: the folder cannot be read ({error.strerror}); allow it, or move it away")
