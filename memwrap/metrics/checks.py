"""Argument checks of the metrics, and small steps that they share."""

import operator

import torch
from torch import Tensor

from memwrap.errors import InputError

# How far a sum of probabilities may be from one: a softmax in bfloat16 stays within 1/512, logits hardly ever do.
SUM_TOLERANCE = 0.01


def fraction(flags: Tensor) -> float:
    """The fraction of true flags (N,), N > 0."""
    return int(flags.sum()) / len(flags)


def first_argmax(values: Tensor) -> Tensor:
    """The first index of each row's maximum; torch.argmax may return any of several. values (B, N) -> (B,), int64"""
    indices = torch.arange(values.shape[1], device=values.device, dtype=torch.int32)
    largest = values == values.amax(1, keepdim=True)
    return torch.where(largest, indices, values.shape[1]).amin(1).long()


def correct_predictions(predictions: Tensor, labels: Tensor) -> Tensor:
    """predictions (B,), labels (B,) -> (B,), bool"""
    predictions, labels = check_classes("predictions", predictions), check_classes("labels", labels)
    check_lengths(predictions=predictions, labels=labels)
    return predictions == labels


def check_count(name: str, count: int) -> int:
    """Check for a whole number of at least one, of Python, NumPy or torch."""
    try:
        whole = operator.index(count)
    except TypeError:
        raise InputError(f"{name} is a {type(count).__name__}; expected a whole number") from None
    if whole < 1:
        raise InputError(f"{name} is {whole}; expected at least 1")
    return whole


def check_classes(name: str, classes: Tensor, num_classes: int | None = None, shape: str = "(N,)") -> Tensor:
    """Check for integers from 0 to num_classes - 1, or of any size if None; returned in int64."""
    check_tensor(name, classes, shape, "integer")
    classes = classes.long()  # a small integer type may not hold the number of classes
    lowest, highest = int(classes.min()), int(classes.max())
    if lowest < 0 or (num_classes is not None and highest >= num_classes):
        expected = "0 or more" if num_classes is None else f"0 to {num_classes - 1}, for {num_classes} classes"
        raise InputError(
            f"{name} goes from {lowest} to {highest}; expected {expected}: leave out inputs without a class"
        )
    return classes


def check_uncertainty(uncertainty: Tensor) -> Tensor:
    """Check for floats (B,) without NaN; returned in float64 on the CPU, without a graph."""
    check_tensor("uncertainty", uncertainty, "(B,)", "floating point")
    if count := int(uncertainty.isnan().sum()):
        raise InputError(f"uncertainty of {count} of {len(uncertainty)} inputs is NaN; expected numbers to sort by")
    return uncertainty.detach().cpu().double()


def check_memory(weights: Tensor, memory_predictions: Tensor, num_classes: int | None = None) -> tuple[Tensor, Tensor]:
    """Check weights (B, M) and memory_predictions, (M,) of one memory or (B, M) of one per input -> both (B, M)"""
    weights = check_weights(weights)
    per_input = isinstance(memory_predictions, Tensor) and memory_predictions.ndim == 2
    classes = check_classes("memory_predictions", memory_predictions, num_classes, "(B, M)" if per_input else "(M,)")
    if per_input:
        check_lengths(weights=weights, memory_predictions=classes)
    if weights.shape[1] != classes.shape[-1]:
        raise InputError(
            f"weights has {weights.shape[1]} columns but memory_predictions {classes.shape[-1]}; expected one for each "
            "memory sample"
        )
    return weights, classes.expand_as(weights)


def check_weights(weights: Tensor) -> Tensor:
    """Check for finite weights (B, M), none negative, at least one positive for each input; without a graph."""
    check_tensor("weights", weights, "(B, M)", "floating point")
    weights = weights.detach()
    least, largest = weights.amin(1), weights.amax(1)
    # NaN fails each comparison. Rows need not sum to one: no metric depends on it.
    valid = (least >= 0) & (largest > 0) & (largest < torch.inf)
    expected = "finite weights, none negative, at least one positive: give the weights of a Reading, not similarities"
    _check_rows("weights", valid, expected, least=least, largest=largest)
    return weights


def check_probabilities(probabilities: Tensor) -> Tensor:
    """Check for probabilities (B, C), none negative, whose rows sum to one; without a graph."""
    check_tensor("probabilities", probabilities, "(B, C)", "floating point")
    probabilities = probabilities.detach()
    least, total = probabilities.amin(1), probabilities.sum(1, dtype=torch.float32)
    valid = (least >= 0) & ((total - 1).abs() <= SUM_TOLERANCE)  # NaN fails both
    expected = "rows that sum to one, none negative: give logits.softmax(1)"
    _check_rows("probabilities", valid, expected, sum=total, least=least)
    return probabilities


def _check_rows(name: str, valid: Tensor, expected: str, **measures: Tensor) -> None:
    """Refuse invalid rows, with the measures of the first one. valid (B,), bool, measures (B,)"""
    if bool(valid.all()):
        return
    first = int((~valid).nonzero()[0])
    found = ", ".join(f"{key} {float(values[first]):.4g}" for key, values in measures.items())
    raise InputError(
        f"{name} of {int((~valid).sum())} of {len(valid)} inputs are invalid, first those of input {first} ({found}); "
        f"expected {expected}"
    )


def check_tensor(name: str, tensor: Tensor, shape: str, kind: str) -> None:
    """Check for a tensor with entries, with one dimension per letter of `shape` and this kind of dtype."""
    if not isinstance(tensor, Tensor):
        raise InputError(f"{name} is a {type(tensor).__name__}; expected a tensor {shape}, {kind}")
    is_integer = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    kinds = {"integer": is_integer, "floating point": tensor.is_floating_point(), "bool": tensor.dtype == torch.bool}
    if tensor.ndim != sum(map(str.isalpha, shape)) or not kinds[kind]:
        raise InputError(
            f"{name} has shape {tuple(tensor.shape)} and dtype {tensor.dtype}; expected shape {shape}, {kind}"
        )
    if tensor.numel() == 0:
        raise InputError(f"{name} is empty: its shape is {tuple(tensor.shape)}; give at least one entry")


def check_lengths(**tensors: Tensor) -> None:
    """Check that all tensors have one entry, or row, for each input."""
    lengths = {name: len(tensor) for name, tensor in tensors.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{length} {name}" for name, length in lengths.items())
        raise InputError(f"{found}; expected one of each for every input")
