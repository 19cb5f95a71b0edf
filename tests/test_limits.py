"""docs/limits.md and the code name the same limits."""

import ast
import importlib
import re
from datetime import timedelta
from pathlib import Path

import pytest
from PIL import Image

from memwrap.data import opening
from memwrap.data.budget import Budget

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "limits.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("|") and "`" in line
]
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "million": 10**6, "day": 24 * 3600}
NAMES = re.compile(
    r"LIMIT$|^MAX_|^MOST_|^SPARE_|_PER_|^LARGEST|^LONGEST|^LEAST|^SLACK|^SAMPLED|_SECONDS$|_TENSORS$|_IMAGES$"
)
# Constants of such names for what is shown, tried, timed or computed, and not for what a file may say.
NO_LIMITS_OF_FILES = {
    ("cli/callbacks.py", "LOG_SECONDS"),
    ("cli/callbacks.py", "STEP_SECONDS"),
    ("cli/explain.py", "MOST_EXPLAINED"),
    ("cli/failures.py", "MOST_SHOWN"),
    ("cli/reproduce.py", "MAX_PROBLEMS"),
    ("cli/reproduce.py", "MAX_SEEDS"),
    ("cli/show.py", "LEAST_NAME"),
    ("cli/show.py", "MOST_CLASSES"),
    ("data/download.py", "STALL_SECONDS"),
    ("data/folders.py", "AUTO_SIZE_LIMIT"),
    ("data/published.py", "CINIC10_IMAGES"),
    ("data/sampling.py", "MANY_IMAGES"),
    ("encoders/timm_models.py", "HUB_SECONDS"),
    ("explain/flip_set.py", "MAX_REMOVED"),
    ("explain/flip_set.py", "MAX_SETS"),
    ("fused/engine.py", "STEPS_PER_TRANSFER"),
    ("models/memory_check.py", "LEAST"),
    ("models/surgery/last_layer.py", "MOST_NAMED"),
    ("report/figures.py", "MOST_INPUTS"),
    ("report/page.py", "LEAST_SHOWN"),
    ("report/pictures.py", "LARGEST_HEATMAP"),
    ("report/record.py", "MOST_LISTED"),
    ("report/verification.py", "LONGEST"),
    ("report/verification.py", "MOST_LISTED"),
    ("reproduce/bench/context.py", "RANDOM_IMAGES"),
    ("reproduce/bench/large_memory.py", "SAMPLED"),
    ("reproduce/comparison.py", "LARGEST"),
    ("reproduce/estimates.py", "OTHER_IMAGES"),
    ("reproduce/estimates.py", "STEP_SECONDS"),
    ("reproduce/estimates.py", "TEST_IMAGES"),
    ("reproduce/runner.py", "GIB_PER_RUN"),
    ("reproduce/runner.py", "MAX_SIDE_BY_SIDE"),
    ("reproduce/tasks.py", "TRAINING_IMAGES"),
    ("metrics/evidence.py", "MOST_COMPARED"),
    ("nn/calibration.py", "MOST_HALVINGS"),
    ("nn/calibration.py", "MOST_STEPS"),
    ("runs/api.py", "MOST_EXPLAINED"),
    ("runs/base.py", "CHECKPOINT_SECONDS"),
    ("runs/calibrating.py", "LEAST"),
    ("runs/editing.py", "MOST_DIGITS"),
    ("runs/editing.py", "MOST_NAMED"),
    ("storage/encodings.py", "BUSY_SECONDS"),
    ("storage/encodings.py", "FILE_LIMIT"),
    ("training/fitting.py", "MOST_COMPARED"),
    ("storage/locks.py", "POLL_SECONDS"),
}


def test_there_are_tables() -> None:
    assert len(ROWS) > 10


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_row_has_the_value_of_its_constant(row: list[str]) -> None:
    number, unit = re.fullmatch(r"([\d.,e+-]+) ?(\w*).*", row[1]).groups()  # type: ignore[union-attr]
    file, name = re.fullmatch(r"`(\S+)\.py` `(\w+)`", row[2]).groups()  # type: ignore[union-attr]
    constant = getattr(importlib.import_module(f"memwrap.{file.replace('/', '.')}"), name)
    if isinstance(constant, Budget):
        constant = constant.total
    elif isinstance(constant, timedelta):
        constant = constant.total_seconds()
    assert float(number.replace(",", "")) * UNITS.get(unit, 1) == constant


def test_every_limit_in_the_code_has_a_row() -> None:
    """By name; and the list of other constants of such names has no more than there are."""
    listed = {tuple(re.findall(r"`([^`]+)`", row[2])) for row in ROWS}
    found = {
        (str(file.relative_to(ROOT / "memwrap")), name)
        for file in (ROOT / "memwrap").rglob("*.py")
        for name in constants(file)
        if NAMES.search(name) and not name.startswith("_")
    }
    assert found - listed == NO_LIMITS_OF_FILES


def constants(file: Path) -> list[str]:
    """The names that are assigned in a module, several in one line included."""
    targets = [
        target
        for line in ast.parse(file.read_text()).body
        if isinstance(line, ast.Assign | ast.AnnAssign)
        for target in (line.targets if isinstance(line, ast.Assign) else [line.target])
    ]
    return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]


def test_the_text_has_the_formats_and_sizes_of_images() -> None:
    text = TEXT.partition("## Runs")[0]
    (formats,) = re.findall(r"Images are (.*?)\.", text)
    assert set(re.findall(r"\w+", formats)) - {"and"} == set(opening.FORMATS)
    shares = {"WEBP": "0.75", "AVIF": "0.75"}
    assert {name: str(share) for name, share in opening._PIXEL_SHARES.items()} == shares
    assert f"{Image.MAX_IMAGE_PIXELS:,}" in text
    assert "75 % of that for WEBP and AVIF" in text
