"""A folder of tensors and JSON settings that can be loaded at every moment, whatever happens while it is written.

A folder cannot be renamed over a full one, but a file can. So `model.json` lists the tensor files with their hashes:
new files are written next to the old ones, `model.json` is replaced in one step, and then the old files are removed.
"""

import hashlib
import json
import math
import re
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from memwrap.errors import LoadError, SaveError, brief
from memwrap.storage.files import write_file
from memwrap.storage.validation import Record, check_format, parse, read_json
from memwrap.version import __version__

MANIFEST = "model.json"
FORMAT: Literal["memwrap model"] = "memwrap model"
FORMAT_VERSION = 1

# A file that no manifest lists may belong to a save in progress in another process, unless it is this old.
ABANDONED_AFTER = 3600  # seconds

PARTS = ("weights", "memory", "probe", "optimizer")

_TENSORS = re.compile(rf"({'|'.join(PARTS)})\.[0-9a-f]{{16}}\.safetensors")
_PARTIAL = re.compile(r"\..+\.[0-9a-f]{16}\.partial")

Parts = dict[str, dict[str, Tensor]]


class StoredFile(Record):
    """An entry of the manifest: a file of tensors."""

    name: str = Field(pattern=f"^{_TENSORS.pattern}$")
    bytes: int
    sha256: str


class Manifest(Record, extra="allow"):
    """`model.json`: the files of a checkpoint, and the settings stored with them as further fields."""

    format: Literal["memwrap model"] = FORMAT
    format_version: int = FORMAT_VERSION
    memwrap: str | None = __version__
    files: dict[str, StoredFile]

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


def write(folder: Path, settings: Mapping[str, Any], parts: Parts) -> None:
    """Store settings (JSON values) and tensors, by the names in PARTS, in place of the folder's last checkpoint."""
    json.dumps(settings)  # fails before anything is written
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = _listed_files(folder)
        files = {part: _write_tensors(folder, part, tensors) for part, tensors in parts.items()}
        manifest = Manifest(files=files, **settings)
        write_file(folder / MANIFEST, json.dumps(manifest.model_dump(), indent=2).encode())
    except OSError as error:
        raise SaveError(f"{folder}: cannot be written ({error}); what it held before is still there") from error
    # The new checkpoint is complete by now: an old file that cannot be removed does no harm.
    _remove_old(folder, before, ABANDONED_AFTER)


def remove_leftovers(folder: Path) -> None:
    """Remove the files of interrupted saves. Only for a caller that knows that no other process is saving here."""
    _remove_old(folder, set(), -math.inf)


def read(folder: Path) -> tuple[dict[str, Any], Parts]:
    """The settings and tensors that `write` stored, every file checked against its hash."""
    manifest = _read_manifest(folder)
    while True:
        try:
            return manifest.settings, {part: _read_tensors(folder, file) for part, file in manifest.files.items()}
        except LoadError:
            # Another process may have replaced the checkpoint in the meantime: then read the new one.
            newer = _read_manifest(folder)
            if newer.files == manifest.files:
                raise
            manifest = newer


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings that `write` stored, without reading the tensors."""
    return _read_manifest(folder).settings


def _write_tensors(folder: Path, part: str, tensors: dict[str, Tensor]) -> StoredFile:
    try:
        content = save(_independent(tensors))
    except (SafetensorError, KeyError, RuntimeError, ValueError) as error:
        raise SaveError(f"the {part} hold a tensor that safetensors cannot store ({brief(error)})") from error
    # A new name for every save: another process may be removing the files of a checkpoint with the same content.
    name = f"{part}.{secrets.token_hex(8)}.safetensors"
    write_file(folder / name, content)
    return StoredFile(name=name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def _independent(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, contiguous and without shared memory, as safetensors requires."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _remove_old(folder: Path, before: set[str], seconds: float) -> None:
    """Remove our files that the manifest does not list, if they are in `before` or older than `seconds`."""
    now = _listed_files(folder)
    for path in folder.iterdir():
        ours = _TENSORS.fullmatch(path.name) or _PARTIAL.fullmatch(path.name)
        if ours and path.name not in now:
            with suppress(OSError):  # another process may have removed it by now
                if path.name in before or time.time() - path.stat().st_mtime > seconds:
                    path.unlink()


def _listed_files(folder: Path) -> set[str]:
    """The files that the folder's manifest lists; none if it cannot be read."""
    try:
        return {file.name for file in _read_manifest(folder).files.values()}
    except LoadError:
        return set()


def _read_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        content = read_json(path, LoadError)
    except NotADirectoryError:
        raise LoadError(f"{folder}: is a file; expected the folder that model.save made") from None
    except FileNotFoundError:
        raise LoadError(f"{folder}: no model is saved here, as there is no {MANIFEST}; was model.save run?") from None
    check_format(path, content, FORMAT, FORMAT_VERSION, LoadError)
    return parse(Manifest, content, LoadError, path)


def _read_tensors(folder: Path, file: StoredFile) -> dict[str, Tensor]:
    path = folder / file.name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LoadError(f"{path}: cannot be read ({error}), but {MANIFEST} lists it") from error
    if len(content) != file.bytes or hashlib.sha256(content).hexdigest() != file.sha256:
        raise LoadError(
            f"{path}: is not the file that was saved: {len(content)} bytes where {file.bytes} were written"
            f"{', or other content' if len(content) == file.bytes else ''}; restore it from a copy, or save again"
        )
    try:
        return load(content)
    except SafetensorError as error:
        raise LoadError(f"{path}: is not a safetensors file ({error})") from error
