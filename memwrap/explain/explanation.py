"""The memory samples behind a prediction, for and against it (paper, sec. 3.2).

Where a head reads the memory, a sample is an example if the model predicts the input's predicted class for it as well,
and a counterfactual if it predicts another. Where samples vote, or stand next to a classifier, their labels say which.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from memwrap.explain.ablation import Ablation
from memwrap.explain.flip_set import FlipSet, find_flip_set
from memwrap.metrics import predict_classes
from memwrap.nn.memory import UNKNOWN
from memwrap.nn.precision import to_full_precision
from memwrap.nn.reading import DecidedBy, Reading

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
    of the predicted class's probability when the sample is removed, or of its share of a vote; negative if the sample
    supported the prediction; None if not asked for, if nothing would be left, or if a classifier decided. shares (C,):
    what it adds to each logit, with a linear head that reads the memory; else None.
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
    logit_difference: float  # the largest, relative to the largest logit or to 1 if that is smaller; of a vote's shares
    tolerance: float  # what rounding may cause
    kept: int
    left_out: int

    def __bool__(self) -> bool:
        return self.same_prediction and self.logit_difference <= self.tolerance


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """One input's prediction and the memory samples behind it, or next to it.

    logits (C,), probabilities (C,), calibrated if the model is; weights (M,). votes (C,): the weights summed by the
    label of the samples. decided_by: "vote", "head" for one that reads the memory, or "classifier" for one that does
    not: then the samples are similar images that did not decide. other_prediction: the class of the head next to a
    vote, or of the vote next to a classifier; None if there is one decision alone. effects (M,): NaN for samples of
    weight zero; None if they were not asked for, nothing would be left, or a classifier decided. Indices are those of
    the whole memory, and a sample that `keep` removed has weight zero. All on the CPU.
    """

    prediction: int
    logits: Tensor
    probabilities: Tensor
    weights: Tensor
    votes: Tensor
    decided_by: DecidedBy
    other_prediction: int | None
    uncertain: bool | None  # see `RememberedMemory.is_uncertain`; None in a memory of one
    effects: Tensor | None
    labels: Tensor  # (M,), of the memory
    memory_predictions: Tensor | None  # (M,), of the samples used; others are unknown
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
        """The used samples of the predicted class, the strongest first."""
        return tuple(sample for sample in self.samples if self.class_of(sample) == self.prediction)

    @property
    def counterfactuals(self) -> tuple[MemorySample, ...]:
        """The used samples of another class, the strongest first."""
        return tuple(sample for sample in self.samples if self.class_of(sample) not in (self.prediction, None))

    def class_of(self, sample: MemorySample) -> int | None:
        """What makes a sample an example or a counterfactual: the model's prediction for it, or its label."""
        return sample.prediction if self.decided_by == "head" else sample.label

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
    def flip_set(self) -> FlipSet | None:
        """The smallest set of memory samples whose removal changes the prediction, as far as it can be found.

        None if a classifier decided, which no removal changes.
        """
        if self.decided_by == "classifier":
            return None
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
            f"<Explanation: class {self.prediction}, {100 * probability:.1f} %{doubt}, decided by the "
            f"{self.decided_by}; {'similar' if self.decided_by == 'classifier' else 'uses'} {len(self.samples)} of "
            f"{self.ablation.memory_size} memory samples: {', '.join(shown)}{more}>"
        )

    def check(self) -> Check | None:
        """Classify the input again with a memory of the used samples alone; None if a classifier decided."""
        if self.decided_by == "classifier":
            return None
        used = self.weights.nonzero().squeeze(1)
        logits = self.ablation.logits_with_only(self.row, used.to(self.ablation.encodings.device)).cpu()
        found, expected = logits, self.logits
        if self.decided_by == "vote":  # the logarithm of a tiny share would show how that is rounded, and no more
            found, expected = found.softmax(0), expected.softmax(0)
        return Check(
            same_prediction=int(predict_classes(logits.unsqueeze(0))) == self.prediction,
            logit_difference=float((found - expected).abs().max() / expected.abs().max().clamp(min=1)),
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

        class_names: numbers if None. memory_names: file names of the memory's images; those that it has if None. label:
        the human's, if known. path: the image's name.
        """
        from memwrap.explain.record import explanation_record  # pydantic takes time to import

        names = self.ablation.memory.names if memory_names is None else memory_names
        return explanation_record(self, class_names, names, label, path)

    def _shares(self, samples: Tensor) -> Tensor | None:
        """(n, C)"""
        device = self.ablation.encodings.device
        shares = self.ablation.shares(samples.to(device), self.weights[samples].to(device))
        return None if shares is None else shares.cpu()


def explain(
    reading: Reading, ablation: Ablation, probabilities: Tensor, effects: bool = True, temperature: float = 1.0
) -> list[Explanation]:
    """One explanation for each input of a reading of the remembered memory.

    probabilities (B, C): what is shown. effects: whether to compute the effect of each sample, at this temperature.
    """
    layer, memory = ablation.layer, ablation.memory
    predictions, nothing = predict_classes(reading.logits), [None] * len(reading.logits)
    assert reading.votes is not None  # of a remembered memory, which has labels
    uncertain = memory.is_uncertain(reading, ablation.keep)
    has_effects = effects and ablation.memory_size > 1 and layer.decided_by != "classifier"
    columns = zip(
        predictions.tolist(),
        reading.logits.cpu(),
        probabilities.cpu(),
        reading.weights.cpu(),
        reading.votes.cpu(),
        other_predictions(reading, layer.decided_by),
        nothing if uncertain is None else uncertain.tolist(),
        removal_effects(ablation, reading, predictions, temperature).cpu() if has_effects else nothing,
        strict=True,
    )
    labels, own = memory.labels.cpu(), _own_predictions(ablation, reading)
    return [
        Explanation(
            prediction,
            logits,
            shown,
            weights,
            votes,
            layer.decided_by,
            other,
            doubt,
            effect,
            labels,
            own,
            ablation,
            row,
        )
        for row, (prediction, logits, shown, weights, votes, other, doubt, effect) in enumerate(columns)
    ]


def other_predictions(reading: Reading, decided_by: DecidedBy) -> list[int | None]:
    """The class of what did not decide: of the head next to a vote, if it knows the vote's class, or of the vote."""
    if decided_by == "head" or reading.head_logits is None or reading.votes is None:
        return [None] * len(reading.logits)
    if decided_by == "classifier":
        return list(predict_classes(reading.votes).tolist())
    known = predict_classes(reading.votes) < reading.head_logits.shape[1]
    pairs = zip(predict_classes(reading.head_logits).tolist(), known.tolist(), strict=True)
    return [head if is_known else None for head, is_known in pairs]


def _own_predictions(ablation: Ablation, reading: Reading) -> Tensor | None:
    """The model's class for each memory sample that an input used, (M,); None in a memory of one."""
    used = (reading.weights > 0).any(0).nonzero().squeeze(1)
    found = ablation.memory.predictions_of(used, ablation.keep)
    if found is None:
        return None
    return torch.full((len(ablation.memory),), UNKNOWN, device=found.device).index_copy(0, used, found).cpu()


def removal_effects(ablation: Ablation, reading: Reading, predictions: Tensor, temperature: float = 1.0) -> Tensor:
    """The change of the predicted class's probability when a sample is removed and others may enter: (B, M).

    predictions (B,); temperature: of the softmax. NaN for samples of weight zero, whose removal changes nothing.
    """
    inputs, samples = (reading.weights > 0).nonzero(as_tuple=True)
    without = _probability(ablation.logits(inputs, samples.unsqueeze(1)) / temperature, predictions[inputs])
    before = _probability(reading.logits / temperature, predictions)
    effects = torch.full_like(reading.weights, torch.nan)
    effects[inputs, samples] = (without - before[inputs]).to(effects.dtype)
    return effects


def _probability(logits: Tensor, classes: Tensor) -> Tensor:
    """The probability of one class in each row. logits (N, C), classes (N,) -> (N,)"""
    return to_full_precision(logits).softmax(dim=1).gather(1, classes.unsqueeze(1)).squeeze(1)
