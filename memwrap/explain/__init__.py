"""Explanations: the memory samples behind a prediction, and what each of them changed."""

from memwrap.explain.explanation import Explanation, MemorySample
from memwrap.explain.flip_set import FlipSet
from memwrap.explain.record import ExplanationRecord, HeatmapRecord, PredictionRecord, SampleRecord

__all__ = [
    "Explanation",
    "ExplanationRecord",
    "FlipSet",
    "HeatmapRecord",
    "MemorySample",
    "PredictionRecord",
    "SampleRecord",
]
