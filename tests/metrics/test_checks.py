"""Arguments that the metrics refuse, by the values that their errors name; and graphs that they do not keep."""

from collections.abc import Callable

import pytest
import torch
from torch import tensor

from memwrap.errors import InputError
from memwrap.metrics import (
    accuracy,
    calibration_error,
    class_accuracies,
    confusion,
    counterfactual_weight,
    explanation_scores,
    flag_scores,
    majority_vote,
    mean_and_spread,
    memory_use,
    one_minus_confidence,
    selective_scores,
    top_is_counterfactual,
    top_samples,
)
from tests.metrics.cases import LABELS, MEMORY_PREDICTIONS, PREDICTIONS, WEIGHTS

FLAGS = PREDICTIONS == LABELS
ONE = tensor([1])

# What is called, and parts of the message.
REFUSED: dict[str, tuple[Callable[[], object], list[str]]] = {
    "fewer labels": (lambda: accuracy(PREDICTIONS, LABELS[:4]), ["5 predictions, 4 labels"]),
    "fewer predictions": (lambda: confusion(PREDICTIONS[:1], LABELS, 3), ["1 predictions, 5 labels"]),
    "no inputs": (lambda: accuracy(PREDICTIONS[:0], LABELS[:0]), ["predictions is empty", "(0,)"]),
    "float labels": (lambda: accuracy(PREDICTIONS, LABELS.float()), ["labels has shape (5,)", "torch.float32"]),
    "bool predictions": (lambda: accuracy(PREDICTIONS.bool(), LABELS), ["predictions has", "torch.bool", "integer"]),
    "logits for predictions": (lambda: accuracy(torch.zeros(5, 3), LABELS), ["predictions has shape (5, 3)", "(N,)"]),
    "a list": (lambda: accuracy([0, 1], LABELS), ["predictions is a list"]),  # type: ignore[arg-type]
    "negative labels": (lambda: accuracy(PREDICTIONS, LABELS - 1), ["labels goes from -1 to 1", "0 or more"]),
    "too high a label": (lambda: confusion(PREDICTIONS, LABELS, 2), ["labels goes from 0 to 2", "0 to 1, for 2"]),
    "too high a prediction": (lambda: confusion(PREDICTIONS + 2, LABELS, 3), ["predictions goes from 2 to 3"]),
    "no classes": (lambda: confusion(PREDICTIONS, LABELS, 0), ["num_classes is 0"]),
    "half a class": (lambda: confusion(PREDICTIONS, LABELS, 2.5), ["num_classes is a float"]),  # type: ignore[arg-type]
    "confusion that is not square": (
        lambda: class_accuracies(torch.ones(2, 3, dtype=torch.int64)),
        ["confusion_counts has shape (2, 3)", "entries from 1"],
    ),
    "negative confusion": (lambda: class_accuracies(tensor([[-1]])), ["shape (1, 1)", "entries from -1"]),
    "normalized confusion": (lambda: class_accuracies(torch.eye(2)), ["confusion_counts has", "torch.float32"]),
    "logits for probabilities": (
        lambda: calibration_error(tensor([[0.5, 0.5], [2.0, -1.5]]), tensor([0, 1])),
        ["probabilities of 1 of 2 inputs", "input 1", "sum 0.5", "least -1.5"],
    ),
    "logits that sum to one": (lambda: calibration_error(tensor([[2.0, -1.0]]), tensor([0])), ["sum 1", "least -1"]),
    "NaN for a probability": (lambda: calibration_error(tensor([[torch.nan, 1.0]]), tensor([0])), ["sum nan"]),
    "labels beyond the probabilities": (
        lambda: calibration_error(tensor([[0.5, 0.5]]), tensor([2])),
        ["labels goes from 2 to 2", "for 2 classes"],
    ),
    "labels of fewer probabilities": (
        lambda: calibration_error(tensor([[0.5, 0.5]] * 2), ONE),
        ["2 probabilities, 1 labels"],
    ),
    "no bins": (lambda: calibration_error(tensor([[1.0]]), tensor([0]), 0), ["bins is 0"]),
    "integer weights": (lambda: top_samples(tensor([[1, 0]])), ["weights has shape (1, 2)", "torch.int64", "(B, M)"]),
    "no memory": (lambda: top_samples(torch.zeros(3, 0)), ["weights is empty", "(3, 0)"]),
    "similarities for weights": (
        lambda: top_samples(tensor([[0.5, 0.5], [0.75, -0.25]])),
        ["weights of 1 of 2 inputs", "input 1", "least -0.25", "largest 0.75"],
    ),
    "no weight at all": (
        lambda: majority_vote(torch.zeros(2, 4), MEMORY_PREDICTIONS, 3),
        ["weights of 2 of 2 inputs", "input 0", "largest 0"],
    ),
    "NaN for a weight": (lambda: majority_vote(tensor([[torch.nan, 1.0]]), tensor([0, 1]), 2), ["least nan"]),
    "infinite weight": (lambda: top_samples(tensor([[0.0, torch.inf]])), ["largest inf"]),
    "weights of other inputs": (
        lambda: top_is_counterfactual(WEIGHTS[:4], PREDICTIONS, MEMORY_PREDICTIONS),
        ["4 weights, 5 predictions"],
    ),
    "weights of another memory": (
        lambda: top_is_counterfactual(WEIGHTS, PREDICTIONS, tensor([0, 1, 2])),
        ["weights has 4 columns", "memory_predictions 3"],
    ),
    "a vote of another memory": (
        lambda: majority_vote(WEIGHTS, tensor([0, 1, 2, 1, 1]), 3),
        ["weights has 4 columns", "memory_predictions 5"],
    ),
    "a vote for an unknown class": (
        lambda: majority_vote(WEIGHTS, MEMORY_PREDICTIONS, 2),
        ["memory_predictions goes from 0 to 2", "for 2 classes"],
    ),
    "integer flags": (
        lambda: explanation_scores(tensor([0, 1, 1, 0, 0]), PREDICTIONS, LABELS),
        ["counterfactual has", "torch.int64", "bool"],
    ),
    "fewer flags": (
        lambda: explanation_scores(tensor([True]), PREDICTIONS, LABELS),
        ["1 counterfactual, 5 predictions"],
    ),
    "counterfactual weight of other inputs": (
        lambda: counterfactual_weight(WEIGHTS[:4], PREDICTIONS, MEMORY_PREDICTIONS),
        ["4 weights, 5 predictions"],
    ),
    "counterfactual weight of another memory": (
        lambda: counterfactual_weight(WEIGHTS, PREDICTIONS, tensor([0, 1, 2])),
        ["weights has 4 columns", "memory_predictions 3"],
    ),
    "NaN for an uncertainty": (
        lambda: selective_scores(tensor([0.5, torch.nan, 1.0, 0.0, torch.nan]), PREDICTIONS, LABELS),
        ["uncertainty of 2 of 5 inputs"],
    ),
    "flags for uncertainty": (
        lambda: selective_scores(FLAGS, PREDICTIONS, LABELS),
        ["uncertainty has", "torch.bool", "floating point"],
    ),
    "fewer uncertainties": (
        lambda: selective_scores(torch.rand(4), PREDICTIONS, LABELS),
        ["4 uncertainty, 5 predictions"],
    ),
    "fewer uncertainties than flags": (
        lambda: flag_scores(FLAGS, torch.rand(4), PREDICTIONS, LABELS),
        ["5 counterfactual, 4 uncertainty, 5 predictions"],
    ),
    "fewer flags than uncertainties": (
        lambda: flag_scores(tensor([True]), torch.rand(5), PREDICTIONS, LABELS),
        ["1 counterfactual, 5 uncertainty, 5 predictions"],
    ),
    "integer flags with uncertainties": (
        lambda: flag_scores(LABELS, torch.rand(5), PREDICTIONS, LABELS),
        ["counterfactual has", "torch.int64"],
    ),
    "weights that are not summed": (lambda: memory_use(WEIGHTS, ONE), ["total_weights has shape (5, 4)", "(M,)"]),
    "a memory without weight": (lambda: memory_use(torch.zeros(3), ONE), ["total_weights goes from 0 to 0"]),
    "sums of similarities": (lambda: memory_use(tensor([-0.5, 1.0]), ONE), ["total_weights goes from -0.5 to 1"]),
    "NaN for a sum of weights": (lambda: memory_use(tensor([torch.nan, 1.0]), ONE), ["goes from nan to nan"]),
    "an infinite sum of weights": (lambda: memory_use(tensor([torch.inf, 1.0]), ONE), ["goes from 1 to inf"]),
    "an input without samples": (
        lambda: memory_use(tensor([1.0, 1.0]), tensor([2, 0])),
        ["used_samples goes from 0 to 2", "1 to 2"],
    ),
    "more samples than there are": (
        lambda: memory_use(tensor([1.0, 1.0]), tensor([3, 1])),
        ["used_samples goes from 1 to 3", "1 to 2"],
    ),
    "float numbers of used samples": (
        lambda: memory_use(tensor([1.0, 1.0]), tensor([0.5])),
        ["used_samples has", "torch.float32", "integer"],
    ),
    "no values": (lambda: mean_and_spread([]), ["values is empty"]),
    "a missing value": (lambda: mean_and_spread([0.5, None]), ["values[1] is None"]),  # type: ignore[list-item]
    "NaN for a value": (lambda: mean_and_spread([float("nan")]), ["values[0] is nan"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_arguments_are_refused_by_name_and_value(case: str) -> None:
    call, parts = REFUSED[case]
    with pytest.raises(InputError) as error:
        call()
    assert [part for part in parts if part not in str(error.value)] == []


@pytest.mark.filterwarnings("error")  # torch warns when a number is taken out of a graph
def test_results_have_no_graph() -> None:
    weights = WEIGHTS.clone().requires_grad_()
    probabilities = tensor([[0.5, 0.5]]).requires_grad_()
    assert not top_samples(weights).requires_grad
    assert not majority_vote(weights, MEMORY_PREDICTIONS, 3).requires_grad
    assert not counterfactual_weight(weights, PREDICTIONS, MEMORY_PREDICTIONS).requires_grad
    assert not one_minus_confidence(weights).requires_grad
    assert type(selective_scores(weights[:, 0], PREDICTIONS, LABELS).area) is float
    assert type(memory_use(weights.sum(0), tensor([1])).effective_samples) is float
    assert type(calibration_error(probabilities, tensor([0]))) is float
    with pytest.raises(InputError, match="not similarities"):
        top_samples(-weights)
