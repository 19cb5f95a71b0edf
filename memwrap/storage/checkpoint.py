"""A folder of tensors and JSON settings that can be loaded at every moment, whatever happens while it is written.

A folder cannot be renamed over a full one, but a file can. So `model.json` lists the tensor files with their hashes:
new files are written next to the old ones, `model.json` is replaced in one step, and then the old files are removed.

`model.json` also lists the hashes of other files of the folder, and holds a hash of all that it says: the root hash.
An edit of any file is noticed by it. It is no signature: whoever can write all files can write another root hash.
"""

import hashlib
import json
import os
import re
import secrets
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Annotated, Any, Literal

from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from memwrap.errors import LoadError, MemwrapWarning, SaveError, brief
from memwrap.storage import headers
from memwrap.storage.files import make_folder, open_file, read_exactly, read_file, write_file
from memwrap.storage.locks import exclusive, exclusive_if_supported
from memwrap.storage.validation import JSON_LIMIT, Record, check_format, parse, read_json
from memwrap.version import __version__

MANIFEST = "model.json"
FORMAT: Literal["memwrap model"] = "memwrap model"
FORMAT_VERSION = 1

WITHOUT_ROOT = "0.1."  # versions that wrote no root hash
PARTS = ("weights", "memory", "probe", "optimizer", "queue")
PART_LIMIT = 8 << 30  # bytes of a file of tensors
LOCK_SECONDS = 600.0  # to wait for another process that saves to the same folder

_TENSORS = re.compile(rf"({'|'.join(PARTS)})\.[0-9a-f]{{16}}\.safetensors")
_PARTIAL = re.compile(r"\..+\.[0-9a-f]{16}\.partial")

Parts = dict[str, dict[str, Tensor]]
Part = Annotated[str, Field(pattern=f"^({'|'.join(PARTS)})$")]
Hash = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Document = Annotated[str, Field(pattern="^[a-z]{1,64}[.]json$")]


class StoredFile(Record):
    """An entry of the manifest: a file of tensors."""

    name: str = Field(pattern=f"^{_TENSORS.pattern}$")
    bytes: int = Field(ge=0)
    sha256: Hash


class Manifest(Record, extra="allow"):
    """`model.json`: the files of a checkpoint, and the settings stored with them as further fields."""

    format: Literal["memwrap model"] = FORMAT
    format_version: int = FORMAT_VERSION
    memwrap: str = Field(max_length=64)  # the version that wrote it
    files: dict[Part, StoredFile]
    documents: dict[Document, Hash] = Field(default_factory=dict)  # other files of the folder, which are written once
    root: Hash | None = None  # of all other fields; None in files of memwrap 0.1

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class StoredParts(Mapping[str, dict[str, Tensor]]):
    """The tensors of a checkpoint by part; each part is read, and checked against its hash, when it is first used.

    The files stay open, so another process may replace the checkpoint meanwhile.
    """

    def __init__(self, folder: Path, files: Mapping[str, StoredFile]) -> None:
        self._folder, self._files = folder, dict(files)
        self._open: dict[str, IO[bytes]] = {}
        self._read: dict[str, dict[str, Tensor]] = {}
        try:
            for part, file in files.items():
                self._open[part] = _open_tensors(folder / file.name, file)
        except BaseException:
            self.close()
            raise

    def __getitem__(self, part: str) -> dict[str, Tensor]:
        if part not in self._read:
            self._read[part] = _read_tensors(self._folder / self._files[part].name, self._open[part], self._files[part])
        return self._read[part]

    def __contains__(self, part: object) -> bool:
        return part in self._files  # without reading it

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def elements(self, part: str) -> int:
        """How many numbers a part holds, by the header of its file."""
        try:
            return headers.elements(self._open[part], self._files[part].bytes)
        except (OSError, ValueError) as error:
            path = self._folder / self._files[part].name
            raise LoadError(f"{path}: is not a safetensors file ({brief(error)})") from error

    def read_all(self) -> Parts:
        """All parts; the files are closed."""
        with self:
            return dict(self.items())

    def close(self) -> None:
        for file in self._open.values():
            file.close()

    def __enter__(self) -> "StoredParts":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def write(
    folder: Path,
    settings: Mapping[str, Any],
    parts: Parts,
    documents: Mapping[str, str] | None = None,
    create: bool = True,
) -> None:
    """Store settings (JSON values) and tensors, by the names in PARTS, in place of the folder's last checkpoint.

    documents: hashes of other files of the folder, which become part of the root hash. create: whether to make the
    folder; if not, one that is gone, or holds a checkpoint with other documents, is a SaveError.
    """
    json.dumps(settings)  # fails before anything is written
    documents = dict(documents or {})
    try:
        if create:
            make_folder(folder)
        with exclusive_if_supported(folder / MANIFEST, LOCK_SECONDS) as alone:
            before = _listed(folder)
            if not create:
                _check_same(folder, documents)
            files = {part: _write_tensors(folder, part, tensors) for part, tensors in parts.items()}
            manifest = Manifest(memwrap=__version__, files=files, documents=documents, **settings)
            content = json.loads(json.dumps(manifest.model_dump(exclude={"root"})))  # what a reader will hash
            content["root"] = root_hash(content)
            write_file(folder / MANIFEST, json.dumps(content, indent=2).encode())
            # The new checkpoint is complete by now: an old file that cannot be removed does no harm.
            # Without a lock others may be saving, too: only what the last manifest listed is known to be needless.
            _remove_unlisted(folder, None if alone else before)
    except OSError as error:
        raise SaveError(f"{folder}: cannot be written ({error}); what it held before is still there") from error


def remove_leftovers(folder: Path) -> None:
    """Remove the files of interrupted saves."""
    with suppress(OSError), exclusive(folder / MANIFEST, seconds=LOCK_SECONDS):
        _remove_unlisted(folder, None)


def open_parts(folder: Path) -> tuple[Manifest, StoredParts]:
    """The manifest and the tensors that `write` stored; all but the tensors is checked against its hash."""
    manifest = read_manifest(folder)
    while True:
        try:
            return manifest, StoredParts(folder, manifest.files)
        except LoadError:
            # Another process may have replaced the checkpoint in the meantime: then read the new one.
            newer = read_manifest(folder)
            if newer.files == manifest.files:
                raise
            manifest = newer


def read(folder: Path) -> tuple[dict[str, Any], Parts]:
    """The settings and tensors that `write` stored, every file checked against its hash."""
    manifest, parts = open_parts(folder)
    return manifest.settings, parts.read_all()


def read_manifest(folder: Path) -> Manifest:
    """What `model.json` says, checked against the root hash, if there is one, with all documents that are there.

    A model is loaded without them: who copies it elsewhere needs no others than its own files.
    """
    path = folder / MANIFEST
    try:
        content = read_json(path, LoadError)
    except NotADirectoryError:
        raise LoadError(f"{folder}: is a file; expected the folder that model.save made") from None
    except FileNotFoundError:
        raise LoadError(f"{folder}: no model is saved here, as there is no {MANIFEST}; was model.save run?") from None
    check_format(path, content, FORMAT, FORMAT_VERSION, LoadError)
    manifest = parse(Manifest, content, LoadError, path)
    if manifest.root is None and not manifest.memwrap.startswith(WITHOUT_ROOT):
        raise LoadError(f"{path}: has no root hash, which memwrap {manifest.memwrap} writes; {_RESTORE}")
    if manifest.root not in (None, root_hash(content)):
        raise LoadError(f"{path}: was edited after it was saved, as it does not give the root hash in it; {_RESTORE}")
    for name in present(folder, manifest):
        if document_hash(folder / name) != manifest.documents[name]:
            raise LoadError(f"{folder / name}: was edited, as {MANIFEST} has another hash; {_RESTORE}")
    return manifest


def present(folder: Path, manifest: Manifest) -> list[str]:
    """The documents that are in the folder, as files or anything else."""
    return [name for name in manifest.documents if os.path.lexists(folder / name)]


_RESTORE = "restore it from a copy"


def warn_without_root(folder: Path, manifest: Manifest) -> None:
    """Say that a folder, which an older version wrote, has no root hash."""
    if manifest.root is None:
        warnings.warn(
            f"{folder}: has no root hash, as memwrap {manifest.memwrap} wrote none: an edit of its settings would go "
            "unnoticed",
            MemwrapWarning,
            stacklevel=3,
        )


def root_hash(content: Mapping[str, Any]) -> str:
    """SHA-256 of the content of a manifest, except its root hash: of JSON without spaces, with sorted keys."""
    others = {key: value for key, value in content.items() if key != "root"}
    return hashlib.sha256(json.dumps(others, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def document_hash(path: Path) -> str:
    """SHA-256 of a file."""
    try:
        return hashlib.sha256(read_file(path, JSON_LIMIT)).hexdigest()
    except OSError as problem:
        raise LoadError(f"{path}: cannot be read ({problem}), but {MANIFEST} lists it") from problem


def _check_same(folder: Path, documents: dict[str, str]) -> None:
    try:
        found = read_manifest(folder)
    except LoadError:
        return  # damaged: it is about to be replaced
    if found.root is not None and found.documents != documents:
        raise OSError("another run has taken its place")


def _write_tensors(folder: Path, part: str, tensors: dict[str, Tensor]) -> StoredFile:
    try:
        content = save(_independent(tensors))
    except (SafetensorError, KeyError, RuntimeError, ValueError) as error:
        raise SaveError(f"the {part} hold a tensor that safetensors cannot store ({brief(error)})") from error
    if len(content) > PART_LIMIT:
        raise SaveError(f"the {part} take {len(content)} bytes; at most {PART_LIMIT} could be loaded again")
    # A new name for every save: another process may be reading the files of the last one.
    name = f"{part}.{secrets.token_hex(8)}.safetensors"
    write_file(folder / name, content)
    return StoredFile(name=name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def _independent(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, contiguous and without shared memory, as safetensors requires."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _remove_unlisted(folder: Path, names: set[str] | None) -> None:
    """Remove our files that the manifest does not list. names: only these; None, while the lock is held: all."""
    listed = _listed(folder)
    if not listed:
        return  # without a list, none of them is known to be needless
    for path in folder.iterdir():
        ours = _TENSORS.fullmatch(path.name) or _PARTIAL.fullmatch(path.name)
        if ours and path.name not in listed and (names is None or path.name in names):
            with suppress(OSError):
                path.unlink()


def _listed(folder: Path) -> set[str]:
    """The files that the folder's manifest lists; none if it cannot be read."""
    try:
        return {file["name"] for file in read_json(folder / MANIFEST, LoadError)["files"].values()}
    except (LoadError, OSError, KeyError, TypeError, AttributeError):
        return set()


def _open_tensors(path: Path, file: StoredFile) -> IO[bytes]:
    """Open a file of tensors; its size is checked before anything is read."""
    if file.bytes > PART_LIMIT:
        raise LoadError(f"{path}: has {file.bytes} bytes by {MANIFEST}; at most {PART_LIMIT} are read")
    try:
        opened = open_file(path)
    except OSError as error:
        raise LoadError(f"{path}: cannot be read ({error}), but {MANIFEST} lists it") from error
    size = os.fstat(opened.fileno()).st_size
    if size != file.bytes:
        opened.close()
        raise LoadError(
            f"{path}: is not the file that was saved: {size} bytes where {file.bytes} were written; {_RESTORE}"
        )
    return opened


def _read_tensors(path: Path, opened: IO[bytes], file: StoredFile) -> dict[str, Tensor]:
    try:
        opened.seek(0)
        content = read_exactly(opened, file.bytes)
    except OSError as error:
        raise LoadError(f"{path}: cannot be read ({error})") from error
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise LoadError(f"{path}: is not the file that was saved, as its content has another hash; {_RESTORE}")
    try:
        return load(content)
    except (SafetensorError, KeyError, RuntimeError, ValueError) as error:  # KeyError: a dtype that torch lacks
        raise LoadError(f"{path}: is not a safetensors file ({brief(error)})") from error
