"""Which commits have the programs that records were made by.

A record has the hash of its program's code. It also has a commit; but on a machine that was given the files of a later
one and not its history, that is an earlier one, "with changes". `programs.json` names the commit that has these very
files, by the hash.
"""

import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from memwrap.errors import RunError
from memwrap.reproduce.records import Origin, code_of

PACKAGE = "memwrap"


def named_in(folder: Path) -> dict[str, str]:
    """Commits by the hash of their code, if a folder of records names any."""
    path = folder / "programs.json"
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise RunError(f"{path}: is no JSON ({error}); expected commits by the hash of their code") from error
    if not isinstance(found, dict) or not all(isinstance(commit, str) for commit in found.values()):
        raise RunError(f"{path}: holds {json.dumps(found)[:80]}; expected commits by the hash of their code")
    return found


def with_commit(origin: Origin, named: Mapping[str, str]) -> Origin:
    """With the commit that has its program, if one is named."""
    commit = named.get(origin.code) if origin.dirty else None
    return origin if commit is None else replace(origin, commit=commit, dirty=False)


def contradicted(named: Mapping[str, str], repository: Path) -> list[str]:
    """What is named wrongly, as far as the history of the repository reaches."""
    found = {commit: _code_at(commit, repository) for commit in named.values()}
    return [
        f"programs.json: commit {commit} has not the code {code}, but {found[commit]}"
        for code, commit in named.items()
        if found[commit] not in (None, code)
    ]


def _code_at(commit: str, repository: Path) -> str | None:
    """The hash of the package at a commit; None if the commit is not there."""
    try:
        archive = subprocess.run(
            ["git", "archive", commit, PACKAGE], cwd=repository, capture_output=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
        return code_of(Path(folder) / PACKAGE)
