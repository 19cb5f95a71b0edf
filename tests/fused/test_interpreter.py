"""Run the tests of all Triton kernels in Triton's interpreter where there is no GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
DEPTHWISE = "tests/fused/kernels/test_depthwise.py"  # takes as long as all others


@pytest.mark.skipif(torch.cuda.is_available(), reason="the tests run on the GPU")
@pytest.mark.parametrize(
    "selection",
    [
        [DEPTHWISE],
        ["tests/fused/kernels", f"--ignore={DEPTHWISE}"],
        ["tests/fused/stacked", "tests/nn/test_attention_kernel.py"],
    ],
    ids=["depthwise", "other kernels", "layers"],
)
def test_kernels_in_the_interpreter(selection: list[str]) -> None:
    pytest.importorskip("triton")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.with_kernels", *selection],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:]
    assert " passed" in result.stdout
