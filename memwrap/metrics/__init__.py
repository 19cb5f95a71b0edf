"""How good predictions are, and how far the memory samples behind them explain them; from tensors of a whole test set.

The letters in the shapes: B inputs, M memory samples, C classes. Predictions come before labels in every signature.
Shares and accuracies go from 0 to 1. Batches are joined before they are scored, by torch.cat of their predictions. What
takes weights is called for each memory by itself, and its answers, one for each input, are joined likewise.
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
    "ExplanationScores",
    "FlagScores",
    "MemoryUse",
    "SelectiveScores",
    "accuracy",
    "calibration_error",
    "class_accuracies",
    "confusion",
    "counterfactual_weight",
    "explanation_scores",
    "flag_scores",
    "majority_vote",
    "mean_and_spread",
    "memory_use",
    "one_minus_confidence",
    "predict_classes",
    "selective_scores",
    "top_is_counterfactual",
    "top_samples",
]
