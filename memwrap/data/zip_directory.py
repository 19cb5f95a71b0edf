"""The entries that a zip lists, checked before anything is read from it: a zip may come from a stranger."""

import io
import os
import stat
import struct
import zipfile
from pathlib import Path
from typing import IO

from memwrap.errors import DataError, brief

# Bytes. Files are read into memory as a whole; this suffices for any image that is decoded, even uncompressed.
FILE_LIMIT = 384 << 20
# Images hardly shrink in a zip. One that unpacks to more than both of these is a zip bomb.
RATIO_LIMIT = 100
UNPACKED_LIMIT = 256 << 20
# Far above what data sets have. Each entry takes about 600 bytes of memory, and its name is cut into parts.
ENTRIES_LIMIT = 1_200_000
DIRECTORY_LIMIT = 128 << 20  # bytes; a name of emoji takes four times as many in memory
NAME_LIMIT = 1024  # bytes
EXTRA_LIMIT = 2 * NAME_LIMIT  # bytes; some programs store the name here once more
DEPTH_LIMIT = 32  # folders within each other

_ENTRY = struct.Struct("<4s24xHHH12x")  # signature; the lengths of name, extra field and comment, which follow
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, length of the name, length of the extra field
_END_LIMIT = 1 << 17  # bytes; the zip's end record with its comment is the rest of the file that zipfile asks for
_ENCRYPTED = 0x41  # flag bits of both kinds of encryption


def read_entries(path: Path) -> tuple[dict[str, zipfile.ZipInfo], set[str]]:
    """The files of a zip and its folders, by names with "/" between their parts.

    A zip that is not a plain archive of files is refused, with the first unsafe entry.
    """
    entries = _read_directory(path)
    files: dict[str, zipfile.ZipInfo] = {}
    folders: set[str] = set()
    for entry in entries:
        name, is_folder = _normalize(entry.orig_filename), entry.orig_filename.endswith(("/", "\\"))
        fault = _find_fault(entry, name, is_folder)
        if not fault and not is_folder and (name in files or name in folders):
            fault = "occurs twice"
        if fault:
            raise DataError(f"{path}: the entry {_shorten(entry)} {fault}; create the zip again from plain files")
        entry.filename = entry.orig_filename = name  # one copy: those of a million entries take hundreds of megabytes
        if is_folder:
            folders.add(name)
        else:
            files[name] = entry
    _check_overlap(path, entries)
    _check_ratio(path, entries)
    return files, folders


def seek_data(file: IO[bytes], entry: zipfile.ZipInfo) -> None:
    """Move to where the entry's data begin, after its local header."""
    file.seek(entry.header_offset)
    signature, name_length, extra_length = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    if signature != b"PK\x03\x04":
        raise zipfile.BadZipFile("no entry begins at the offset in the zip's directory")
    file.seek(name_length + extra_length, os.SEEK_CUR)


class _BoundedFile(io.BufferedReader):
    """A zip whose directory is checked before zipfile, which reads it at once, takes its entries apart."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            size = _END_LIMIT
        if size > DIRECTORY_LIMIT:
            raise DataError(f"its directory is said to take {size} bytes; at most {DIRECTORY_LIMIT} are read")
        content = super().read(size)
        _check_lengths(content)
        return content


def _check_lengths(directory: bytes) -> None:
    """Bound the number of entries in a zip's directory, and the lengths of what each stores."""
    place = count = 0
    while place + _ENTRY.size <= len(directory):
        signature, name, extra, comment = _ENTRY.unpack_from(directory, place)
        if signature != b"PK\x01\x02":  # where zipfile stops too
            break
        count += 1
        if name > NAME_LIMIT or extra > EXTRA_LIMIT:
            start = directory[place + _ENTRY.size :][:40].decode("utf-8", "replace")
            raise DataError(
                f"the entry that begins with {start!r} has a name of {name} and an extra field of {extra} bytes; "
                f"expected at most {NAME_LIMIT} and {EXTRA_LIMIT}"
            )
        place += _ENTRY.size + name + extra + comment
    if count > ENTRIES_LIMIT:
        raise DataError(f"it has {count} entries; at most {ENTRIES_LIMIT} are read: unpack it and give the folder")


def _read_directory(path: Path) -> list[zipfile.ZipInfo]:
    """The entries that the zip's central directory lists."""
    try:
        with _BoundedFile(io.FileIO(path)) as file:
            start = file.read(2)
            if not zipfile.is_zipfile(file) and start != b"PK":
                raise DataError("is neither a folder nor a zip; expected a folder or a zip of images")
            with zipfile.ZipFile(file) as archive:
                return archive.infolist()
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except MemoryError:
        raise
    except Exception as error:  # a damaged directory makes zipfile raise nearly anything
        raise DataError(f"{path}: is a damaged zip ({brief(error)}); copy or download it again") from error


def _find_fault(entry: zipfile.ZipInfo, name: str, is_folder: bool) -> str | None:
    """What is wrong with an entry. name: normalized."""
    given = entry.orig_filename
    if given.startswith(("/", "\\")) or given[1:2] == ":":
        return "has an absolute name"
    if ".." in name and ".." in name.split("/"):
        return "has a name that leads out of the zip"
    if "\0" in name or not (is_folder or name):
        return "has no valid name"
    if name.count("/") > DEPTH_LIMIT:
        return f"is in {name.count('/')} folders within each other, more than the {DEPTH_LIMIT} allowed"
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
            raise DataError(f"{path}: the entry {_shorten(entry)} overlaps another; create the zip again")
        end = entry.header_offset + _LOCAL_HEADER.size + entry.compress_size


def _check_ratio(path: Path, entries: list[zipfile.ZipInfo]) -> None:
    unpacked, packed = sum(entry.file_size for entry in entries), path.stat().st_size
    if unpacked > max(UNPACKED_LIMIT, RATIO_LIMIT * packed):
        largest = max(entries, key=lambda entry: entry.file_size)
        raise DataError(
            f"{path}: unpacks from {packed} to {unpacked} bytes, most of them in {_shorten(largest)}, which images do "
            "not; if you trust where it comes from, unpack it and give the folder"
        )


def _normalize(name: str) -> str:
    """The name with "/" as separator, which some Windows programs do not write, and without "." parts."""
    name = name.replace("\\", "/")
    if not name.startswith((".", "/")) and "//" not in name and "/." not in name and not name.endswith("/"):
        return name
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def _shorten(entry: zipfile.ZipInfo) -> str:
    name = repr(entry.orig_filename)
    return name if len(name) <= 200 else name[:200] + "..."
