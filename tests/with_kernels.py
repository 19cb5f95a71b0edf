"""Tests of what Triton's kernels compute: on a GPU; without one, slowly, by Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# Triton decides when it is imported whether it compiles or interprets: without a GPU, another process runs these.
runs_kernels = pytest.mark.skipif(
    not (INTERPRETED or torch.cuda.is_available()),
    reason="needs a GPU, or Triton's interpreter, which another test starts",
)
starts_the_interpreter = pytest.mark.skipif(
    INTERPRETED or torch.cuda.is_available(), reason="the tests that it would start run by themselves"
)


def run_by_the_interpreter(file: str) -> None:
    """All tests of a file that are marked with `runs_kernels`, and others."""
    pytest.importorskip("triton")
    here = Path(file)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(here)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:]
    assert " passed" in result.stdout
