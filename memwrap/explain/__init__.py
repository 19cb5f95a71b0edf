"""Explanations: the memory samples behind a prediction, and what each of them changed."""

from memwrap.explain.explanation import Explanation, MemorySample
from memwrap.explain.flip_set import FlipSet

__all__ = ["Explanation", "FlipSet", "MemorySample"]
