"""The GPU engine: train several runs of one network at once, each step one captured CUDA graph of fused kernels.

`docs/fused.md` explains it. Start reading at `engine.py`.
"""

from memwrap.fused.engine import FusedEngine, unsupported_reason

__all__ = ["FusedEngine", "unsupported_reason"]
