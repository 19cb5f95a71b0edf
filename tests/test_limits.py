"""docs/limits.md and the code name the same limits."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs" / "limits.md").read_text().splitlines()
    if line.startswith("|") and "`" in line
]
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "million": 10**6}


def test_there_are_tables() -> None:
    assert len(ROWS) > 10


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_row_has_the_value_of_its_constant(row: list[str]) -> None:
    number, unit = re.fullmatch(r"([\d.,e+-]+) ?(\w*).*", row[1]).groups()  # type: ignore[union-attr]
    file, name = re.fullmatch(r"`(\S+)\.py` `(\w+)`", row[2]).groups()  # type: ignore[union-attr]
    constant = getattr(importlib.import_module(f"memwrap.{file.replace('/', '.')}"), name)
    assert float(number.replace(",", "")) * UNITS.get(unit, 1) == constant


def test_every_limit_in_the_code_has_a_row() -> None:
    """By name: what ends with LIMIT."""
    listed = {tuple(re.findall(r"`([^`]+)`", row[2])) for row in ROWS}
    for file in (ROOT / "memwrap").rglob("*.py"):
        for name in re.findall(r"^([A-Z]\w*LIMIT|LIMIT)\b.* = ", file.read_text(), flags=re.MULTILINE):
            place = str(file.relative_to(ROOT / "memwrap"))
            assert (place, name) in listed or name == "AUTO_SIZE_LIMIT", f"{place} {name}"
