"""The program that made a record."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from memwrap.reproduce import provenance
from memwrap.reproduce.provenance import current_provenance


@pytest.fixture
def _uncached() -> Any:
    """The commit is cached; here it changes."""
    provenance._commit.cache_clear()
    yield
    provenance._commit.cache_clear()


def test_the_origin_names_device_engine_and_versions() -> None:
    origin = current_provenance("NVIDIA H200", "graph", 5)
    assert (origin.device, origin.engine, origin.side_by_side) == ("NVIDIA H200", "graph", 5)
    assert {"memwrap", "python", "torch"} <= origin.versions.keys()
    assert re.fullmatch("[0-9a-f]{64}", origin.code)


@pytest.mark.usefixtures("_uncached")
def test_the_commit_is_that_of_the_repository_that_the_program_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> str:
        names = ("-c", "user.name=x", "-c", "user.email=x@y")
        done = subprocess.run(["git", *names, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    monkeypatch.setattr(provenance, "PACKAGE", tmp_path)
    git("init")
    git("commit", "--allow-empty", "-m", "of something else")
    assert provenance._commit() == (None, None), "a package within another repository"
    (tmp_path / "version.py").touch()
    git("add", "version.py")
    git("commit", "-m", "first")
    provenance._commit.cache_clear()
    assert provenance._commit() == (git("rev-parse", "HEAD"), False)
    (tmp_path / "new.py").touch()
    provenance._commit.cache_clear()
    assert provenance._commit() == (git("rev-parse", "HEAD"), True)


@pytest.mark.usefixtures("_uncached")
def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert provenance._commit() == (None, None)
