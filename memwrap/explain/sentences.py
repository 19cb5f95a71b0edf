"""What an explanation says, in plain words: the same in a terminal, a report and a browser."""

import math
import re
from collections.abc import Callable

from memwrap.explain.explanation import Explanation

SMALL_EFFECT = 0.01  # on the probability: up to this, a memory image alone decided nothing

_AN = re.compile(r"[aeiou8]|1[18](?!\d)", re.IGNORECASE)  # how a class begins that is "an" one


# Words, and numbers between them, which the words alone cannot tell from numbers in names.
Parts = list[str | float]


def sentence(explanation: Explanation, class_name: Callable[[int], str]) -> str:
    """What the model takes the memory images for that it used."""
    return joined(sentence_parts(explanation, class_name), percent)


def sentence_parts(explanation: Explanation, class_name: Callable[[int], str]) -> Parts:
    """The same in pieces: words, and shares between them."""
    if explanation.uncertain is None:
        return ["The memory holds a single image, so there is no other to compare it with."]
    own, top = _a(class_name(explanation.prediction)), explanation.samples[0]
    if explanation.uncertain:
        taken = f"Unsure: the model takes the most used memory image for {_a(class_name(_known(top.prediction)))}"
        return [f"{taken}; its label is {class_name(top.label)}." if top.label != top.prediction else f"{taken}."]
    examples = explanation.examples
    mislabelled = sum(sample.weight for sample in examples if sample.label != sample.prediction)
    labels: Parts = [" (", mislabelled, " on such with another label)"] if mislabelled else []
    if explanation.counterfactual is None:
        return [f"The model takes all memory images that it used for {own}, too", *labels, "."]
    other, weight = strongest_other(explanation)
    return [
        sum(sample.weight for sample in examples),
        f" of the weight is on memory images that the model takes for {own}, too",
        *labels,
        f"; of the other classes {class_name(other)} has most, ",
        weight,
        " in all.",
    ]


def strongest_other(explanation: Explanation) -> tuple[int, float]:
    """The class with most weight among the counterfactuals, of equal ones the lower, and that weight."""
    sums: dict[int, float] = {}
    for sample in explanation.counterfactuals:
        sums[_known(sample.prediction)] = sums.get(_known(sample.prediction), 0.0) + sample.weight
    return max(sums.items(), key=lambda each: (each[1], -each[0]))


def largest_effect(explanation: Explanation) -> float | None:
    """By how much the probability changes at most if one memory image is taken out; None if that is not known."""
    effects = [abs(sample.effect) for sample in explanation.samples if sample.effect is not None]
    return max(effects) if effects else None


def effect_sentence(explanation: Explanation) -> str:
    """What any one memory image did; nothing if that is not known."""
    return joined(effect_parts(explanation), magnitude)


def effect_parts(explanation: Explanation) -> Parts:
    """The same in pieces: words, and a change of the probability between them."""
    largest = largest_effect(explanation)
    if largest is None:
        return []
    if largest >= SMALL_EFFECT:
        return ["Taking out one memory image changes the probability by up to ", largest, " points."]
    return [
        "Taking out any one memory image changes the probability by at most ",
        max(1, math.ceil(1000 * largest)) / 1000,  # in tenths of a point, rounded up
        " points: the image itself decided, or many of them together.",
    ]


def flip_words(explanation: Explanation, class_name: Callable[[int], str]) -> str:
    """How many memory images the prediction hangs on, as far as that tells people anything."""
    found, own = explanation.flip_set, _a(class_name(explanation.prediction))
    if explanation.uncertain is None:
        return "The only memory image cannot be taken out."
    if found.indices is not None and found.proven:
        other = _a(class_name(_known(found.prediction)))
        listed = ", ".join(f"#{index}" for index in found.indices)
        if len(found.indices) == 1:
            return f"Without memory image {listed} it would be taken for {other}."
        count = len(found.indices)
        return f"Without these {count} memory images it would be taken for {other}: {listed}. No fewer would do."
    if found.indices is None and found.proven:
        return f"Whichever memory images are taken out, it is still taken for {own}."
    if found.tried == 0:
        return "So many memory images were used that it was not tried out which of them it hangs on."
    some = "one is" if found.tried == 1 else f"{found.tried} are"
    return f"It does not hang on a few memory images: whichever {some} taken out, it is still taken for {own}."


def joined(parts: Parts, written: Callable[[float], str]) -> str:
    """written: how the numbers are."""
    return "".join(part if isinstance(part, str) else written(part) for part in parts)


def percent(share: float) -> str:
    """0.8651 as 86.5 %."""
    return f"{100 * share:.1f} %"


def points(change: float) -> str:
    """A change of a probability in points, 0.021 as +2.1; nothing as 0.0."""
    rounded = f"{100 * change:+.1f}"
    return "0.0" if float(rounded) == 0 else rounded.replace("-", "−")


def magnitude(change: float) -> str:
    """Likewise without a sign."""
    return f"{100 * abs(change):.1f}"


def image_name(name: str) -> str:
    """An image by its name, which alone might be taken for a class if it is a mere number: 22 as image 22."""
    return f"image {name}" if name.isdecimal() else name


def _a(name: str) -> str:
    return f"an {name}" if _AN.match(name) else f"a {name}"


def _known(prediction: int | None) -> int:
    if prediction is None:
        raise ValueError("a sample of a memory of one has no prediction")
    return prediction
