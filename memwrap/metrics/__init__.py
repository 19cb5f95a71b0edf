"""Metrics of predictions and of explanations, as functions on tensors of a whole test set.

Shapes: B inputs, M memory samples, C classes. Predictions come before labels in every signature. Accuracies and shares
go from 0 to 1. Join batches with torch.cat before scoring; call what takes weights once for each memory.
"""

from memwrap.metrics.classification import (
    accuracy,
    calibration_error,
    class_accuracies,
    confusion,
    mean_and_spread,
    one_minus_confidence,
    predict_classes,
)
from memwrap.metrics.evidence import DeletionCurve, deletion_curve, samples_for_half, specificity
from memwrap.metrics.explanations import (
    ExplanationScores,
    MemoryUse,
    counterfactual_weight,
    explanation_scores,
    majority_vote,
    memory_use,
    top_is_counterfactual,
    top_samples,
)
from memwrap.metrics.selective import FlagScores, SelectiveScores, flag_scores, selective_scores

__all__ = [
    "DeletionCurve",
    "ExplanationScores",
    "FlagScores",
    "MemoryUse",
    "SelectiveScores",
    "accuracy",
    "calibration_error",
    "class_accuracies",
    "confusion",
    "counterfactual_weight",
    "deletion_curve",
    "explanation_scores",
    "flag_scores",
    "majority_vote",
    "mean_and_spread",
    "memory_use",
    "one_minus_confidence",
    "predict_classes",
    "samples_for_half",
    "selective_scores",
    "specificity",
    "top_is_counterfactual",
    "top_samples",
]
