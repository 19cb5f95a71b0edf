"""What a report says, as plain values: from a model, the pictures that it is asked about, and nothing else.

So the same report can be made again from what it carries and the run that it names, which is how it is verified.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from memwrap.explain.attribution import Attribution, Deletion
from memwrap.explain.explanation import Explanation, MemorySample
from memwrap.explain.sentences import Parts, effect_parts, effect_sentence, flip_words, sentence, sentence_parts
from memwrap.models.classifier import MemoryClassifier

MOST_LISTED = 20  # in the lists of the summary
LEAST_SHOWN = 0.0005  # of probability: a second class with less shows as 0.0 %
SOONER = 0.01  # by which the probability has to fall sooner, with highlighted pixels deleted, for a heatmap to count


@dataclass(frozen=True)
class Pictures:
    """What is explained: pixels uint8 (N, C, H, W) of the model's size, names, and labels (N,) where they are known."""

    pixels: Tensor
    names: tuple[str, ...]
    labels: Tensor | None

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Card:
    """One image: what it was taken for, and why."""

    number: int  # from 1, as people count
    name: str
    pixels: Tensor
    explanation: Explanation
    class_name: Callable[[int], str]
    label: int | None
    shown: int  # memory images at most
    heatmap: Attribution | None
    deletion: Deletion | None

    @property
    def prediction(self) -> str:
        return self.class_name(self.explanation.prediction)

    @property
    def probability(self) -> float:
        return float(self.explanation.probabilities[self.explanation.prediction])

    @property
    def wrong(self) -> bool:
        return self.label is not None and self.label != self.explanation.prediction

    @property
    def true_class(self) -> str | None:
        return None if self.label is None else self.class_name(self.label)

    @property
    def sentence(self) -> str:
        return sentence(self.explanation, self.class_name)

    @property
    def sentence_parts(self) -> Parts:
        return sentence_parts(self.explanation, self.class_name)

    @property
    def effect_sentence(self) -> str:
        return effect_sentence(self.explanation)

    @property
    def effect_parts(self) -> Parts:
        return effect_parts(self.explanation)

    @property
    def second(self) -> tuple[str, float] | None:
        """The class that comes next, and its probability; None if that is next to nothing."""
        if len(self.explanation.probabilities) < 2:
            return None
        values, labels = self.explanation.probabilities.topk(2)
        if float(values[1]) < LEAST_SHOWN:
            return None
        other = next(label for label in labels.tolist() if label != self.explanation.prediction)
        return self.class_name(other), float(values[1])

    @cached_property
    def flip(self) -> str:
        return flip_words(self.explanation, self.class_name)

    @cached_property
    def samples(self) -> tuple[MemorySample, ...]:
        """Those that are shown, the strongest first."""
        return shown_samples(self.explanation, self.shown)

    @property
    def strongest(self) -> tuple[MemorySample, ...]:
        """Those of them that are shown for their weight."""
        return self.samples[: self.shown]

    @property
    def further(self) -> tuple[MemorySample, ...]:
        """Those of them, one at most, that are further down, and shown as the strongest of their kind."""
        return self.samples[self.shown :]

    @property
    def further_words(self) -> str:
        """What these are."""
        if any(sample.prediction == self.explanation.prediction for sample in self.further):
            return "further down: the strongest of the predicted class"
        return "further down: the strongest of another class"

    @property
    def maps_hold(self) -> bool | None:
        """Whether the heatmaps passed both checks: that they add up, and that the pixels they highlight matter."""
        if self.heatmap is None or self.deletion is None:
            return None
        return self.heatmap.converged is not False and self.maps_matter

    @property
    def maps_matter(self) -> bool:
        """Whether the probability falls sooner with highlighted pixels deleted first than in random order."""
        if self.deletion is None:
            return False
        return self.deletion.difference >= SOONER

    @property
    def others(self) -> tuple[MemorySample, ...]:
        """Those that were used, but are not shown."""
        shown = {sample.index for sample in self.samples}
        return tuple(sample for sample in self.explanation.samples if sample.index not in shown)


def shown_samples(explanation: Explanation, shown: int) -> tuple[MemorySample, ...]:
    """So many of the strongest samples; and the strongest of either kind, where it is not among them."""
    strongest = {sample.index for sample in explanation.samples[:shown]}
    strongest |= {sample.index for sample in (explanation.example, explanation.counterfactual) if sample is not None}
    return tuple(sample for sample in explanation.samples if sample.index in strongest)


@dataclass(frozen=True)
class SampleUse:
    """What a memory image counted, over all images of the report."""

    index: int
    share: float  # of all weight
    images: int  # that used it
    label: int
    prediction: int | None


@dataclass(frozen=True)
class Content:
    """All that the page shows."""

    cards: tuple[Card, ...]
    memory_size: int
    labelled: bool

    @property
    def correct(self) -> int:
        return sum(not card.wrong for card in self.cards)

    @property
    def uncertain(self) -> tuple[Card, ...]:
        return tuple(card for card in self.cards if card.explanation.uncertain)

    @property
    def wrong_and_unsure(self) -> int:
        return sum(card.wrong for card in self.uncertain)

    @property
    def confidently_wrong(self) -> tuple[Card, ...]:
        """Wrong without a warning, the most probable first."""
        found = [card for card in self.cards if card.wrong and not card.explanation.uncertain]
        # As far as is shown: where many are certain, their order would hang on the last bit.
        return tuple(sorted(found, key=lambda card: -round(card.probability, 3)))

    @property
    def confusions(self) -> list[tuple[str, str, int]]:
        """True class, what it was taken for, how often; the most frequent first."""
        pairs = Counter((card.true_class or "", card.prediction) for card in self.cards if card.wrong)
        return [(true, taken, count) for (true, taken), count in sorted(pairs.items(), key=lambda each: -each[1])]

    @cached_property
    def uses(self) -> tuple[SampleUse, ...]:
        """All memory images, the most used first."""
        weights = torch.stack([card.explanation.weights for card in self.cards]).double()
        totals, counts = weights.sum(dim=0), (weights > 0).sum(dim=0).tolist()
        first = self.cards[0].explanation
        own = [None] * self.memory_size if first.memory_predictions is None else first.memory_predictions.tolist()
        labels, shares = first.labels.tolist(), (totals / totals.sum()).tolist()
        return tuple(
            SampleUse(index, shares[index], counts[index], labels[index], own[index])
            for index in totals.argsort(descending=True, stable=True).tolist()
        )

    @property
    def never_used(self) -> tuple[SampleUse, ...]:
        return tuple(use for use in self.uses if use.images == 0)


def explain_each(model: MemoryClassifier, pixels: Tensor) -> list[Explanation]:
    """Of pixels uint8 (N, C, H, W), one by one: so no image's numbers depend on the others of its report."""
    images = model.get_transform()(pixels.to(model.reference.device))
    return [explanation for image in images for explanation in model.explain(image.unsqueeze(0))]


def content_of(
    model: MemoryClassifier,
    pictures: Pictures,
    explanations: Sequence[Explanation],
    shown: int,
    heatmaps: Sequence[tuple[Attribution, Deletion]] | None = None,
) -> Content:
    """explanations, heatmaps: of each picture, the latter if there are any."""
    labels = [None] * len(pictures) if pictures.labels is None else pictures.labels.tolist()
    cards = []
    for row, explanation in enumerate(explanations):
        heatmap, deletion = (None, None) if heatmaps is None else heatmaps[row]
        cards.append(
            Card(
                row + 1,
                pictures.names[row],
                pictures.pixels[row],
                explanation,
                model.class_name,
                labels[row],
                shown,
                heatmap,
                deletion,
            )
        )
    return Content(tuple(cards), len(explanations[0].weights), pictures.labels is not None)
