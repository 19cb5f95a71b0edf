"""Kernels are tested on a GPU, or in Triton's interpreter, which tests/fused/test_interpreter.py starts."""

import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

_REASON = "needs a GPU, or Triton's interpreter, which tests/fused/test_interpreter.py starts"
# Triton decides on import whether it compiles or interprets, so the interpreter needs another process.
needs_triton = pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason=_REASON)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """As a plugin (`-p tests.with_kernels`): keep the tests marked with `needs_triton` only."""
    items[:] = [item for item in items if any(mark == needs_triton.mark for mark in item.iter_markers("skipif"))]
