"""What an explanation says, in plain words: the same in a terminal, a report and a browser."""

import re
from collections.abc import Callable

from memwrap.explanation import Explanation

MOST_LISTED = 10  # memory images, by number

_AN = re.compile(r"[aeiou8]|1[18](?!\d)", re.IGNORECASE)  # how a class begins that is "an" one


def sentence(explanation: Explanation, class_name: Callable[[int], str]) -> str:
    """Who decided, and what speaks against it."""
    parts = sentence_parts(explanation, class_name)
    return "".join(part if isinstance(part, str) else percent(part) for part in parts)


def sentence_parts(explanation: Explanation, class_name: Callable[[int], str]) -> list[str | float]:
    """The same in pieces: words, and shares between them, which the words alone cannot tell from numbers in names."""
    if explanation.uncertain is None:
        return ["The memory holds a single image, so nothing can be held against it."]
    own, top = _a(class_name(explanation.prediction)), explanation.samples[0]
    if explanation.uncertain:
        return [f"Unsure: the most used memory image is {_a(class_name(_known(top.prediction)))}."]
    if explanation.counterfactual is None:
        return [f"All memory images used are {own}, too."]
    other, against = strongest_other(explanation)
    return [
        sum(sample.weight for sample in explanation.examples),
        f" of the weight is on memory images that are {own}, too; what speaks against it most is "
        f"{_a(class_name(other))} with ",
        against,
        ".",
    ]


def strongest_other(explanation: Explanation) -> tuple[int, float]:
    """The class with most weight among the counterfactuals, of equal ones the lower, and that weight."""
    sums: dict[int, float] = {}
    for sample in explanation.counterfactuals:
        sums[_known(sample.prediction)] = sums.get(_known(sample.prediction), 0.0) + sample.weight
    return max(sums.items(), key=lambda each: (each[1], -each[0]))


def flip_words(explanation: Explanation, class_name: Callable[[int], str]) -> str:
    """How many memory images the prediction hangs on."""
    found = explanation.flip_set
    if found.indices is None and found.proven:
        return "No removal of memory images changes it."
    if found.indices is None:
        return (
            f"No removal of memory images was found to change the prediction (all of up to {found.tried} were tried)."
        )
    count, other = len(found.indices), _a(class_name(_known(found.prediction)))
    images = "one memory image" if count == 1 else f"{count} memory images"
    smallest = found.proven or count == found.tried + 1  # as all sets up to that size were tried in vain
    fewer = " and no fewer" if smallest else f"; perhaps fewer suffice, but more than {found.tried}"
    listed = ", ".join(f"#{index}" for index in found.indices)
    which = f" ({listed})" if count <= MOST_LISTED else ""  # nobody looks at more
    return f"It would become {other} without {images}{which}{fewer}."


def percent(share: float) -> str:
    """0.8651 as 86.5 %."""
    return f"{100 * share:.1f} %"


def points(change: float) -> str:
    """A change of a probability in points, 0.021 as +2.1; nothing as 0.0."""
    rounded = f"{100 * change:+.1f}"
    return "0.0" if float(rounded) == 0 else rounded.replace("-", "−")


def _a(name: str) -> str:
    return f"an {name}" if _AN.match(name) else f"a {name}"


def _known(prediction: int | None) -> int:
    if prediction is None:
        raise ValueError("a sample of a memory of one has no prediction")
    return prediction
