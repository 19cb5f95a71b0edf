"""Why a model predicted what it did: the memory samples that it used, for and against (paper, sec. 3.2).

A sample is an example if the model itself puts it into the class that it predicts for the input, a counterfactual if
into another. Its label plays no part in that, and is kept beside: a difference between the two is worth a look.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from memwrap.explain.ablation import Ablation
from memwrap.explain.flip_set import FlipSet, find_flip_set
from memwrap.metrics import predict_classes, top_is_counterfactual
from memwrap.nn.layer import Reading
from memwrap.nn.precision import to_full_precision

# How far logits may move, as a share of the largest, when samples of weight zero are left out: rounding alone. In half
# precision that is more: so many times the gap between one and the next number.
TOLERANCE, GAPS = 1e-4, 8
STRONGEST = 3  # samples that are shown in short


@dataclass(frozen=True)
class MemorySample:
    """A memory sample that a prediction used.

    prediction: the model's own class for it; None in a memory of one, where there is nothing to make it with. effect:
    by how much the predicted class's probability changes when the sample is taken out of the whole memory, below zero
    if it spoke for the prediction; None if it was not asked for, or nothing would be left. shares (C,): what it adds to
    each logit, with a linear head; None with another.
    """

    index: int
    weight: float
    label: int
    prediction: int | None
    effect: float | None
    shares: Tensor | None


@dataclass(frozen=True)
class Check:
    """What came of leaving all samples of weight zero out of the memory. True if the prediction is what it was."""

    same_prediction: bool
    logit_difference: float  # the largest, as a share of the largest logit, or of 1 if that is smaller
    tolerance: float  # what rounding may make of it
    kept: int
    left_out: int

    def __bool__(self) -> bool:
        return self.same_prediction and self.logit_difference <= self.tolerance


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """One input's prediction and the memory samples behind it.

    logits (C,), probabilities (C,), weights (M,). effects (M,): NaN for samples of weight zero, None if they were not
    asked for or nothing would be left. All on the CPU.
    """

    prediction: int
    logits: Tensor
    probabilities: Tensor
    weights: Tensor
    uncertain: bool | None  # whether the strongest sample of all is a counterfactual; None in a memory of one
    effects: Tensor | None
    labels: Tensor  # (M,), of the whole memory
    memory_predictions: Tensor | None  # (M,), likewise
    ablation: Ablation
    row: int  # of the input in `ablation`

    @cached_property
    def samples(self) -> tuple[MemorySample, ...]:
        """All of positive weight, the strongest first, of equal ones the lower index."""
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
        """The samples that the model puts into the predicted class, the strongest first."""
        return tuple(sample for sample in self.samples if sample.prediction == self.prediction)

    @property
    def counterfactuals(self) -> tuple[MemorySample, ...]:
        """The samples that the model puts into other classes, the strongest first."""
        return tuple(sample for sample in self.samples if sample.prediction not in (self.prediction, None))

    @property
    def unused(self) -> tuple[int, ...]:
        """The indices of the memory samples of weight zero."""
        return tuple((self.weights == 0).nonzero().squeeze(1).tolist())

    @property
    def example(self) -> MemorySample | None:
        """The strongest example; None if the prediction used none."""
        return next(iter(self.examples), None)

    @property
    def counterfactual(self) -> MemorySample | None:
        """The strongest counterfactual; None if the prediction used none: the model is sure."""
        return next(iter(self.counterfactuals), None)

    @cached_property
    def flip_set(self) -> FlipSet:
        """The smallest set of memory samples whose removal changes the prediction, as far as it can be found."""
        return find_flip_set(self.ablation, self.row, self.prediction)

    def __repr__(self) -> str:
        """In short: tensors tell people little."""
        probability = float(self.probabilities[self.prediction])
        doubt = ", uncertain" if self.uncertain else ""
        shown = [
            f"#{sample.index} {100 * sample.weight:.1f} %"
            + ("" if sample.effect is None else f" (effect {100 * sample.effect:+.1f} points)")
            for sample in self.samples[:STRONGEST]
        ]
        more = ", ..." if len(self.samples) > STRONGEST else ""
        return (
            f"<Explanation: class {self.prediction}, {100 * probability:.1f} %{doubt}; uses {len(self.samples)} of "
            f"{len(self.weights)} memory samples: {', '.join(shown)}{more}>"
        )

    def check(self) -> Check:
        """Judge the input once more with a memory that holds nothing but the samples used."""
        used = self.weights.nonzero().squeeze(1)
        logits = self.ablation.judge_with_only(self.row, used.to(self.ablation.encodings.device)).cpu()
        return Check(
            same_prediction=int(predict_classes(logits.unsqueeze(0))) == self.prediction,
            logit_difference=float((logits - self.logits).abs().max() / self.logits.abs().max().clamp(min=1)),
            tolerance=max(TOLERANCE, GAPS * torch.finfo(logits.dtype).eps),
            kept=len(used),
            left_out=len(self.weights) - len(used),
        )

    def _shares(self, samples: Tensor) -> Tensor | None:
        """(n, C)"""
        if self.ablation.layer.head_kind != "linear":
            return None
        device = self.ablation.encodings.device
        return self.ablation.shares(samples.to(device), self.weights[samples].to(device)).cpu()


def explain(reading: Reading, ablation: Ablation, effects: bool = True) -> list[Explanation]:
    """One for each input of a reading of the remembered memory. effects: whether each sample's is computed."""
    predictions, memory = predict_classes(reading.logits), ablation.memory
    own, nothing = memory.predictions, [None] * len(predictions)
    columns = zip(
        predictions.tolist(),
        reading.logits.cpu(),
        to_full_precision(reading.logits).softmax(dim=1).cpu(),
        reading.weights.cpu(),
        nothing if own is None else top_is_counterfactual(reading.weights, predictions, own).tolist(),
        removal_effects(ablation, reading, predictions).cpu() if effects and len(memory) > 1 else nothing,
        strict=True,
    )
    labels, own = memory.labels.cpu(), None if own is None else own.cpu()
    return [
        Explanation(prediction, logits, probabilities, weights, uncertain, effect, labels, own, ablation, row)
        for row, (prediction, logits, probabilities, weights, uncertain, effect) in enumerate(columns)
    ]


def removal_effects(ablation: Ablation, reading: Reading, predictions: Tensor) -> Tensor:
    """How the probability of the predicted class changes when a sample is taken out, others may then enter: (B, M).

    predictions (B,). NaN for samples of weight zero, whose removal changes nothing.
    """
    inputs, samples = (reading.weights > 0).nonzero(as_tuple=True)
    without = _probability(ablation.logits(inputs, samples.unsqueeze(1)), predictions[inputs])
    before = _probability(reading.logits, predictions)
    effects = torch.full_like(reading.weights, torch.nan)
    effects[inputs, samples] = (without - before[inputs]).to(effects.dtype)
    return effects


def _probability(logits: Tensor, classes: Tensor) -> Tensor:
    """Of one class for each row. logits (N, C), classes (N,) -> (N,)"""
    return to_full_precision(logits).softmax(dim=1).gather(1, classes.unsqueeze(1)).squeeze(1)
