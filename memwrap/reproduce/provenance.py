"""Which program, on which device, made a record."""

import hashlib
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from memwrap.runs.record import versions

STORED = ConfigDict(extra="forbid", strict=True)
PACKAGE = Path(__file__).parent.parent


@dataclass(frozen=True, config=STORED)
class Provenance:
    """The program and device that made a run."""

    commit: str | None  # None: the program is not in a repository
    dirty: bool | None  # whether its files were changed since that commit
    code: str  # SHA-256 of its files, which identifies a program without a repository as well
    versions: dict[str, str]
    device: str
    engine: str
    side_by_side: int  # runs that were trained at the same time


def current_provenance(device: str, engine: str, side_by_side: int) -> Provenance:
    """The running program, on that device."""
    import torch

    commit, dirty = _commit()
    with_cuda = {"cuda": torch.version.cuda} if torch.version.cuda else {}
    return Provenance(commit, dirty, _own_hash(), versions() | with_cuda, device, engine, side_by_side)


def current_date() -> str:
    """The date and time in UTC, as records store it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def hash_code(package: Path) -> str:
    """SHA-256 of the Python files of a package, with their names."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"\0{path.relative_to(package).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def _own_hash() -> str:
    return hash_code(PACKAGE)


@cache
def _commit() -> tuple[str | None, bool | None]:
    """The commit of the program, and whether its files were changed since."""
    # An installed package may lie within a repository that is not its own.
    if _git("ls-files", "--error-unmatch", "version.py") is None or (commit := _git("rev-parse", "HEAD")) is None:
        return None, None
    return commit, bool(_git("status", "--porcelain", "--", "."))


def _git(*arguments: str) -> str | None:
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(["git", *arguments], cwd=PACKAGE, capture_output=True, text=True, timeout=30, check=True)
        return done.stdout.strip()
    return None
