"""Sentences about an explanation, the same in a terminal, a report and a browser."""

import math
import re
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memwrap.explain.record import ExplanationRecord

SMALL_EFFECT = 0.01  # on the probability: below this, no memory image decided by itself

_AN = re.compile(r"[aeiou8]|1[18](?!\d)", re.IGNORECASE)  # how a class name starts that takes "an"


def comparison_sentence(record: "ExplanationRecord") -> str:
    """What decided, and of which classes the memory images are."""
    if record.decided_by == "classifier":
        return _classifier_sentence(record)
    if record.memory_size == 1:
        return "The memory holds a single image, so there is no other to compare it with."
    return _vote_sentence(record) if record.decided_by == "vote" else _head_sentence(record)


def _head_sentence(record: "ExplanationRecord") -> str:
    """How the model predicts the memory images that it used."""
    top = record.samples[0]
    if record.uncertain:
        label = f"; its label is {top.label_name}" if top.label != top.prediction else ""
        return f"Unsure: the memory image with the largest weight is predicted as {_a(top.prediction_name)}{label}."
    examples = [sample for sample in record.samples if not record.is_other(sample)]
    mislabelled = sum(sample.weight for sample in examples if sample.label != sample.prediction)
    labels = f" ({percent(mislabelled)} on images with another label)" if mislabelled else ""
    own = _a(record.prediction_name)
    if len(examples) == len(record.samples):
        return f"All memory images used are predicted as {own}, too{labels}."
    share = percent(sum(sample.weight for sample in examples))
    other, weight = strongest_other(record)
    return (
        f"{share} of the weight is on memory images predicted as {own}, too{labels}; the strongest other class is "
        f"{other}, with {percent(weight)}."
    )


def _vote_sentence(record: "ExplanationRecord") -> str:
    """How the memory images voted."""
    top, vote = (
        record.samples[0],
        f"{record.prediction_name} has {percent(record.votes[record.prediction])} of the vote",
    )
    if record.differs:
        return f"Unsure: {vote}, but the trained last layer predicts {record.other_prediction_name}."
    if record.uncertain:
        return f"Unsure: {vote}, but the memory image with the largest weight is labelled {top.label_name}."
    if not any(map(record.is_other, record.samples)):
        return f"The memory images decided: all that were used are labelled {record.prediction_name}."
    other, weight = strongest_other(record)
    return f"The memory images decided: {vote}; the strongest other class is {other}, with {percent(weight)}."


def _classifier_sentence(record: "ExplanationRecord") -> str:
    """That the memory images did not decide, and what they would have decided."""
    share = percent(record.votes[record.prediction if record.other_prediction is None else record.other_prediction])
    if record.differs:
        return (
            f"Unsure: the classifier decided, not these images; by their vote it would be "
            f"{record.other_prediction_name} ({share})."
        )
    doubt = "Unsure: the most similar one has another label. " if record.uncertain else ""
    return f"{doubt}The classifier decided, not these images; their vote agrees ({share})."


def strongest_other(record: "ExplanationRecord") -> tuple[str, float]:
    """The other class with most weight in sum, of equal ones the lower, and that weight."""
    sums: dict[tuple[int, str], float] = defaultdict(float)
    for sample in filter(record.is_other, record.samples):
        sums[record.class_of(sample) or 0, record.class_name_of(sample) or ""] += sample.weight
    (_, name), weight = max(sums.items(), key=lambda each: (each[1], -each[0][0]))
    return name, weight


def effect_sentence(record: "ExplanationRecord") -> str:
    """What removing one memory image changes; empty if that is not known."""
    if (largest := record.largest_effect) is None:
        return ""
    is_vote = record.decided_by == "vote"
    what = f"{record.prediction_name}'s share of the vote" if is_vote else "the probability"
    if largest >= SMALL_EFFECT:
        return f"Removing one memory image changes {what} by up to {100 * largest:.1f} points."
    tenths = max(1, math.ceil(1000 * largest))  # of a point, rounded up
    together = "many memory images decided together" if is_vote else _NO_SINGLE
    return f"Removing any one memory image changes {what} by at most {tenths / 10:.1f} points: {together}."


_NO_SINGLE = "the image itself decided, or many memory images together"


def flip_sentence(record: "ExplanationRecord") -> str:
    """On how many memory images the prediction depends, as far as the search went; empty if on none."""
    found, own = record.flip_set, _a(record.prediction_name)
    if found is None:
        return ""
    if record.memory_size == 1:
        return "The only memory image cannot be removed."
    if found.indices is not None and found.proven:
        other, listed = _a(found.prediction_name), ", ".join(f"#{index}" for index in found.indices)
        if len(found.indices) == 1:
            return f"Without memory image {listed} it would be predicted as {other}."
        count = len(found.indices)
        return f"Without these {count} memory images it would be predicted as {other}: {listed}. No smaller set does."
    if found.indices is None and found.proven:
        return f"Whichever memory images are removed, it is still predicted as {own}."
    if found.tried == 0:
        return "Too many memory images were used to search for those that the prediction depends on."
    removed = "one is" if found.tried == 1 else f"{found.tried} are"
    return f"It does not depend on a few memory images: whichever {removed} removed, it stays {own}."


def percent(share: float) -> str:
    """0.8651 as 86.5 %; never -0.0 %."""
    return f"{100 * share:z.1f} %"


def points(change: float) -> str:
    """A change of a probability in points, 0.021 as +2.1; nothing as 0.0."""
    rounded = f"{100 * change:+.1f}"
    return "0.0" if float(rounded) == 0 else rounded.replace("-", "−")


def image_name(name: str) -> str:
    """The name of an image; a mere number, which reads like a class, as "image 22"."""
    return f"image {name}" if name.isdecimal() else name


def _a(name: str | None) -> str:
    return f"an {name}" if _AN.match(name or "") else f"a {name}"
