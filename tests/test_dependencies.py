"""The pinned versions are allowed by the floors in `pyproject.toml`."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent


def test_pinned_versions_are_above_the_floors() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [
        *project["dependencies"],
        *(each for group in project["optional-dependencies"].values() for each in group),
    ]
    pinned = {
        line.partition("==")[0]: Version(line.partition("==")[2])
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    checked = 0
    for requirement in map(Requirement, listed):
        if requirement.name in pinned:
            assert requirement.specifier.contains(pinned[requirement.name]), requirement
            checked += 1
    assert checked >= 20
