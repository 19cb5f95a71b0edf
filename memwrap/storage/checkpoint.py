"""A folder of tensors and settings that is whole at every moment, whatever happens while it is written.

A folder cannot be renamed over a full one, but a file can. So `model.json` names the files that belong to it, with
their hashes; new files are written beside the old ones, `model.json` is replaced in one step, and then the old files
are removed.
"""

import hashlib
import json
import math
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from memwrap.errors import LoadError, SaveError, brief
from memwrap.version import __version__

MANIFEST = "model.json"
FORMAT = "memwrap model"
FORMAT_VERSION = 1

# A file that no manifest names may belong to a save that another process is in the midst of, unless it is this old.
ABANDONED_AFTER = 3600  # seconds

PARTS = ("weights", "memory", "probe", "optimizer")

_TENSORS = re.compile(rf"({'|'.join(PARTS)})\.[0-9a-f]{{16}}\.safetensors")
_PARTIAL = re.compile(r"\..+\.[0-9a-f]{16}\.partial")

Parts = dict[str, dict[str, Tensor]]


def write(folder: Path, settings: Mapping[str, Any], parts: Parts) -> None:
    """Store settings (JSON values) and tensors, by the names in PARTS; what the folder held before is replaced last."""
    json.dumps(settings)  # before anything is written
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = _named_files(folder)
        files = {part: _write_tensors(folder, part, tensors) for part, tensors in parts.items()}
        heading = {"format": FORMAT, "format_version": FORMAT_VERSION, "memwrap": __version__}
        manifest = {**heading, **settings, "files": files}
        write_file(folder / MANIFEST, json.dumps(manifest, indent=2).encode())
    except OSError as error:
        raise SaveError(f"{folder}: cannot be written ({error}); what it held before is still there") from error
    # The new model is whole by now: an old file that stays does no harm.
    _remove_old(folder, before, ABANDONED_AFTER)


def tidy(folder: Path) -> None:
    """Remove what saves that were cut off have left, for whoever knows that no other process is saving here."""
    _remove_old(folder, set(), -math.inf)


def read(folder: Path) -> tuple[dict[str, Any], Parts]:
    """The settings and tensors that `write` stored, each file proved by its hash."""
    manifest = _read_manifest(folder)
    while True:
        try:
            return manifest, {part: _read_tensors(folder, file) for part, file in manifest["files"].items()}
        except LoadError:
            # Another process may have replaced the model meanwhile; then the new one is there to be read.
            newer = _read_manifest(folder)
            if newer == manifest:
                raise
            manifest = newer


def _write_tensors(folder: Path, part: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    try:
        content = save(_independent(tensors))
    except (SafetensorError, KeyError, RuntimeError, ValueError) as error:
        raise SaveError(f"the {part} hold a tensor that safetensors cannot store ({brief(error)})") from error
    # A name that no save had before: another process may be removing the files of a model with the same content.
    name = f"{part}.{secrets.token_hex(8)}.safetensors"
    write_file(folder / name, content)
    return {"name": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _independent(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, contiguous, none sharing memory with another: the format wants it so."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def write_file(path: Path, content: bytes) -> None:
    """Write to disk under another name, then take the name in one step."""
    # No other process or thread has this name; and it is short, as the file's own may be as long as names can be.
    partial = path.with_name(f".memwrap.{secrets.token_hex(8)}.partial")
    try:
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    # The file is in its place; that this outlasts a loss of power is asked for, not insisted on.
    with suppress(OSError), _opened_folder(path.parent) as descriptor:
        if descriptor is not None:
            os.fsync(descriptor)


@contextmanager
def _opened_folder(folder: Path) -> Iterator[int | None]:
    """A descriptor to make a rename lasting with; None where folders cannot be opened (Windows)."""
    if os.name == "nt":
        yield None
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _remove_old(folder: Path, before: set[str], seconds: float) -> None:
    """Remove what the last model held and what saves given up so long ago left, unless the model of now names it."""
    now = _named_files(folder)
    for path in folder.iterdir():
        ours = _TENSORS.fullmatch(path.name) or _PARTIAL.fullmatch(path.name)
        if ours and path.name not in now:
            with suppress(OSError):  # another process may have removed it by now
                if path.name in before or time.time() - path.stat().st_mtime > seconds:
                    path.unlink()


def _named_files(folder: Path) -> set[str]:
    """The files of the model that the folder holds; none if it holds no model that can be read."""
    try:
        return {file["name"] for file in _read_manifest(folder)["files"].values()}
    except LoadError:
        return set()


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except NotADirectoryError:
        raise LoadError(f"{folder}: is a file; expected the folder that model.save made") from None
    except FileNotFoundError:
        raise LoadError(f"{folder}: no model is saved here, as there is no {MANIFEST}; was model.save run?") from None
    except (OSError, ValueError, RecursionError) as error:
        raise LoadError(f"{path}: cannot be read ({error}); the file is damaged or no memwrap model") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise LoadError(f"{path}: not a memwrap model, as it does not say {FORMAT!r} in its field 'format'")
    version = manifest.get("format_version")
    if type(version) is not int or version < 1:
        raise LoadError(f"{path}: has format version {version!r}; expected a number: the file is damaged")
    if version > FORMAT_VERSION:
        raise LoadError(
            f"{path}: has format version {version}, made by memwrap {manifest.get('memwrap')}; memwrap {__version__} "
            f"reads up to version {FORMAT_VERSION}: install a newer memwrap"
        )
    _check_files(path, manifest.get("files"))
    return manifest


def _check_files(path: Path, files: object) -> None:
    if not isinstance(files, dict):
        raise LoadError(f"{path}: lacks its field 'files'; the file is damaged")
    for file in files.values():
        if not (isinstance(file, dict) and {"name", "bytes", "sha256"} <= file.keys()):
            raise LoadError(f"{path}: an entry of its field 'files' is incomplete; the file is damaged")
        if not _TENSORS.fullmatch(str(file["name"])):
            raise LoadError(f"{path}: names the file {file['name']!r}, which no memwrap model has")


def _read_tensors(folder: Path, file: Mapping[str, Any]) -> dict[str, Tensor]:
    path = folder / str(file["name"])
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LoadError(f"{path}: cannot be read ({error}), but {MANIFEST} names it") from error
    if len(content) != file["bytes"] or hashlib.sha256(content).hexdigest() != file["sha256"]:
        raise LoadError(
            f"{path}: is not the file that was saved: {len(content)} bytes where {file['bytes']} were written"
            f"{', or other content' if len(content) == file['bytes'] else ''}; restore it from a copy, or save anew"
        )
    try:
        return load(content)
    except SafetensorError as error:
        raise LoadError(f"{path}: is no safetensors file ({error})") from error
