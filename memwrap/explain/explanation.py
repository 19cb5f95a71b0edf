"""The memory samples behind a prediction, for and against it (paper, sec. 3.2).

A sample is an example if the model predicts the input's predicted class for it as well, a counterfactual if it predicts
another. Its label plays no part in that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from memwrap.explain.ablation import Ablation
from memwrap.explain.flip_set import FlipSet, find_flip_set
from memwrap.metrics import predict_classes, top_is_counterfactual
from memwrap.nn.layer import Reading
from memwrap.nn.precision import to_full_precision

if TYPE_CHECKING:
    from memwrap.explain.record import ExplanationRecord

# How far rounding may move logits, relative to the largest, when samples of weight zero are removed; in half precision
# this many times the machine epsilon.
TOLERANCE, EPSILONS = 1e-4, 8
SHOWN_IN_REPR = 3  # samples


@dataclass(frozen=True)
class MemorySample:
    """A memory sample that a prediction used.

    prediction: the model's class for it, made with the rest of the memory; None in a memory of one. effect: the change
    of the predicted class's probability when the sample is removed, negative if it supported the prediction; None if
    not asked for, or if nothing would be left. shares (C,): what it adds to each logit, with a linear head; else None.
    """

    index: int
    weight: float
    label: int
    prediction: int | None
    effect: float | None
    shares: Tensor | None


@dataclass(frozen=True)
class Check:
    """The result of removing all samples of weight zero from the memory; true if the prediction stays the same."""

    same_prediction: bool
    logit_difference: float  # the largest, relative to the largest logit, or to 1 if that is smaller
    tolerance: float  # what rounding may cause
    kept: int
    left_out: int

    def __bool__(self) -> bool:
        return self.same_prediction and self.logit_difference <= self.tolerance


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """One input's prediction and the memory samples behind it.

    logits (C,), probabilities (C,), weights (M,). effects (M,): NaN for samples of weight zero; None if they were not
    asked for or nothing would be left. Indices are those of the whole memory, and a sample that `keep` removed has
    weight zero. All on the CPU.
    """

    prediction: int
    logits: Tensor
    probabilities: Tensor
    weights: Tensor
    uncertain: bool | None  # whether the strongest sample of all is a counterfactual; None in a memory of one
    effects: Tensor | None
    labels: Tensor  # (M,), of the memory
    memory_predictions: Tensor | None  # (M,), of the memory
    ablation: Ablation
    row: int  # of the input in `ablation`

    @cached_property
    def samples(self) -> tuple[MemorySample, ...]:
        """The samples of positive weight, the strongest first, of equal ones the lower index."""
        order = self.weights.argsort(descending=True, stable=True)[: int(self.weights.count_nonzero())]
        shares = self._shares(order)
        nothing = [None] * len(order)
        columns = zip(
            order.tolist(),
            self.weights[order].tolist(),
            self.labels[order].tolist(),
            nothing if self.memory_predictions is None else self.memory_predictions[order].tolist(),
            nothing if self.effects is None else self.effects[order].tolist(),
            nothing if shares is None else shares,
            strict=True,
        )
        return tuple(MemorySample(*fields) for fields in columns)

    @property
    def examples(self) -> tuple[MemorySample, ...]:
        """The used samples that the model predicts the same class for, the strongest first."""
        return tuple(sample for sample in self.samples if sample.prediction == self.prediction)

    @property
    def counterfactuals(self) -> tuple[MemorySample, ...]:
        """The used samples that the model predicts another class for, the strongest first."""
        return tuple(sample for sample in self.samples if sample.prediction not in (self.prediction, None))

    @property
    def unused(self) -> tuple[int, ...]:
        """The indices of the memory samples of weight zero, without those that `keep` removed."""
        unused = self.weights == 0
        if self.ablation.keep is not None:
            unused &= self.ablation.keep.cpu()
        return tuple(unused.nonzero().squeeze(1).tolist())

    @property
    def example(self) -> MemorySample | None:
        """The strongest example; None if the prediction used none."""
        return next(iter(self.examples), None)

    @property
    def counterfactual(self) -> MemorySample | None:
        """The strongest counterfactual; None if the prediction used none."""
        return next(iter(self.counterfactuals), None)

    @cached_property
    def flip_set(self) -> FlipSet:
        """The smallest set of memory samples whose removal changes the prediction, as far as it can be found."""
        return find_flip_set(self.ablation, self.row, self.prediction)

    def __repr__(self) -> str:
        probability = float(self.probabilities[self.prediction])
        doubt = ", uncertain" if self.uncertain else ""
        shown = [
            f"#{sample.index} {100 * sample.weight:.1f} %"
            + ("" if sample.effect is None else f" (effect {100 * sample.effect:+.1f} points)")
            for sample in self.samples[:SHOWN_IN_REPR]
        ]
        more = ", ..." if len(self.samples) > SHOWN_IN_REPR else ""
        return (
            f"<Explanation: class {self.prediction}, {100 * probability:.1f} %{doubt}; uses {len(self.samples)} of "
            f"{self.ablation.memory_size} memory samples: {', '.join(shown)}{more}>"
        )

    def check(self) -> Check:
        """Classify the input again with a memory of the used samples alone."""
        used = self.weights.nonzero().squeeze(1)
        logits = self.ablation.logits_with_only(self.row, used.to(self.ablation.encodings.device)).cpu()
        return Check(
            same_prediction=int(predict_classes(logits.unsqueeze(0))) == self.prediction,
            logit_difference=float((logits - self.logits).abs().max() / self.logits.abs().max().clamp(min=1)),
            tolerance=max(TOLERANCE, EPSILONS * torch.finfo(logits.dtype).eps),
            kept=len(used),
            left_out=self.ablation.memory_size - len(used),
        )

    def record(
        self,
        *,
        class_names: Sequence[str] | None = None,
        memory_names: Sequence[str] | None = None,
        label: int | None = None,
        path: str | None = None,
    ) -> "ExplanationRecord":
        """The explanation as plain data (pydantic), with its flip set, check and sentences.

        class_names: numbers if None. memory_names: file names of the memory's images. label: the human's, if known.
        path: the image's name.
        """
        from memwrap.explain.record import explanation_record  # pydantic takes time to import

        return explanation_record(self, class_names, memory_names, label, path)

    def _shares(self, samples: Tensor) -> Tensor | None:
        """(n, C)"""
        if self.ablation.layer.head_kind != "linear":
            return None
        device = self.ablation.encodings.device
        return self.ablation.shares(samples.to(device), self.weights[samples].to(device)).cpu()


def explain(
    reading: Reading, ablation: Ablation, memory_predictions: Tensor | None, effects: bool = True
) -> list[Explanation]:
    """One explanation for each input of a reading of the remembered memory.

    memory_predictions (M,): the model's class for each sample, made with the rest of the kept memory; None for a memory
    of one. effects: whether to compute the effect of each sample.
    """
    predictions = predict_classes(reading.logits)
    own, nothing = memory_predictions, [None] * len(predictions)
    columns = zip(
        predictions.tolist(),
        reading.logits.cpu(),
        to_full_precision(reading.logits).softmax(dim=1).cpu(),
        reading.weights.cpu(),
        nothing if own is None else top_is_counterfactual(reading.weights, predictions, own).tolist(),
        removal_effects(ablation, reading, predictions).cpu() if effects and ablation.memory_size > 1 else nothing,
        strict=True,
    )
    labels, own = ablation.memory.labels.cpu(), None if own is None else own.cpu()
    return [
        Explanation(prediction, logits, probabilities, weights, uncertain, effect, labels, own, ablation, row)
        for row, (prediction, logits, probabilities, weights, uncertain, effect) in enumerate(columns)
    ]


def removal_effects(ablation: Ablation, reading: Reading, predictions: Tensor) -> Tensor:
    """The change of the predicted class's probability when a sample is removed and others may enter: (B, M).

    predictions (B,). NaN for samples of weight zero, whose removal changes nothing.
    """
    inputs, samples = (reading.weights > 0).nonzero(as_tuple=True)
    without = _probability(ablation.logits(inputs, samples.unsqueeze(1)), predictions[inputs])
    before = _probability(reading.logits, predictions)
    effects = torch.full_like(reading.weights, torch.nan)
    effects[inputs, samples] = (without - before[inputs]).to(effects.dtype)
    return effects


def _probability(logits: Tensor, classes: Tensor) -> Tensor:
    """The probability of one class in each row. logits (N, C), classes (N,) -> (N,)"""
    return to_full_precision(logits).softmax(dim=1).gather(1, classes.unsqueeze(1)).squeeze(1)
