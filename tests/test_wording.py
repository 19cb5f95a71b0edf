"""Sentences: who decided, what speaks against it, and on how many memory images it hangs."""

from types import SimpleNamespace
from typing import Any

import pytest
from torch import tensor

from memwrap import wording
from memwrap.explanation import MemorySample
from memwrap.flip_set import FlipSet
from tests.worlds import explained, hand_made

NAMES = ("cat", "dog", "eel")


def class_name(label: int) -> str:
    return NAMES[label]


def an_explanation(
    prediction: int, *used: tuple[float, int | None], uncertain: bool | None = False, flip_set: FlipSet | None = None
) -> Any:
    """used: weight and the model's class for each memory sample."""
    samples = [MemorySample(index, weight, 0, own, None, None) for index, (weight, own) in enumerate(used)]
    against = [sample for sample in samples if sample.prediction not in (prediction, None)]
    return SimpleNamespace(
        prediction=prediction,
        samples=samples,
        uncertain=uncertain,
        examples=[sample for sample in samples if sample.prediction == prediction],
        counterfactuals=against,
        counterfactual=against[0] if against else None,
        flip_set=flip_set,
    )


# The sentence


def test_what_was_used_most_is_named_if_it_is_of_another_class() -> None:
    unsure = an_explanation(0, (0.6, 2), (0.4, 0), uncertain=True)
    assert wording.sentence(unsure, class_name) == "Unsure: the most used memory image is an eel."


def test_that_all_agree_is_said() -> None:
    assert (
        wording.sentence(an_explanation(1, (0.6, 1), (0.4, 1)), class_name) == "All memory images used are a dog, too."
    )


def test_what_speaks_against_it_is_the_class_of_most_weight_not_the_strongest_image() -> None:
    mixed = an_explanation(0, (0.3, 0), (0.25, 1), (0.2, 2), (0.15, 2), (0.1, 0))
    assert wording.sentence(mixed, class_name) == (
        "40.0 % of the weight is on memory images that are a cat, too; what speaks against it most is an eel with "
        "35.0 %."
    )


def test_of_classes_that_weigh_the_same_the_first_speaks() -> None:
    assert wording.strongest_other(an_explanation(0, (0.5, 0), (0.25, 2), (0.25, 1))) == (1, 0.25)


def test_shares_stand_apart_from_the_words() -> None:
    """A class may be called 40.0 %, and is no number."""
    mixed = an_explanation(0, (0.75, 0), (0.25, 1))
    parts = wording.sentence_parts(mixed, lambda label: ("40.0 %", "12.5")[label])
    assert parts == [
        0.75,
        " of the weight is on memory images that are a 40.0 %, too; what speaks against it most is a 12.5 with ",
        0.25,
        ".",
    ]


def test_a_memory_of_one_has_nothing_to_hold_against() -> None:
    alone = an_explanation(0, (1.0, None), uncertain=None)
    assert wording.sentence(alone, class_name) == "The memory holds a single image, so nothing can be held against it."


def test_sentences_of_a_world_worked_out_by_hand() -> None:
    """The five points of tests/test_explanation.py, whose model takes the third for class 0, all others for class 1."""
    points = tensor([[4.0, 3.0], [3.0, 4.0], [4.0, -3.0], [0.0, 5.0], [-5.0, 0.0]]).double()
    # Below: similarities .28 (0) and 1 (2), so the threshold is .14, and the weights are .86 (2) and .14 (0).
    right, up, below = explained(
        hand_made([[1, 0], [0, 1]]), tensor([[5.0, 0.0], [0.0, 5.0], [4.0, -3.0]]).double(), points, [0, 1, 0, 1, 0]
    )
    assert wording.sentence(right, class_name) == "Unsure: the most used memory image is a dog."
    assert wording.sentence(up, class_name) == "All memory images used are a dog, too."
    assert wording.sentence(below, class_name) == (
        "86.0 % of the weight is on memory images that are a cat, too; what speaks against it most is a dog with "
        "14.0 %."
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("3", "a 3"),
        ("8", "an 8"),
        ("80", "an 80"),
        ("1", "a 1"),
        ("11", "an 11"),
        ("18", "an 18"),
        ("110", "a 110"),
        ("Apple", "an Apple"),
        ("dog", "a dog"),
        ("", "a "),
        ("猫", "a 猫"),
    ],
)
def test_a_class_is_a_or_an(name: str, words: str) -> None:
    sure = an_explanation(0, (1.0, 0))
    assert wording.sentence(sure, lambda _: name) == f"All memory images used are {words}, too."


# What would change it


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (FlipSet((4,), 1, proven=True, tried=0), "It would become a dog without one memory image (#4) and no fewer."),
        (
            FlipSet((4, 17), 2, proven=True, tried=1),
            "It would become an eel without 2 memory images (#4, #17) and no fewer.",
        ),
        (
            FlipSet((4, 1, 2, 3), 1, proven=False, tried=3),
            "It would become a dog without 4 memory images (#4, #1, #2, #3) and no fewer.",
        ),
        (
            FlipSet((4, 1, 2, 3, 0), 1, proven=False, tried=3),
            "It would become a dog without 5 memory images (#4, #1, #2, #3, #0); perhaps fewer suffice, but more than "
            "3.",
        ),
        (
            FlipSet(tuple(range(11)), 1, proven=False, tried=3),
            "It would become a dog without 11 memory images; perhaps fewer suffice, but more than 3.",
        ),
        (FlipSet(None, None, proven=True, tried=2), "No removal of memory images changes it."),
        (
            FlipSet(None, None, proven=False, tried=3),
            "No removal of memory images was found to change the prediction (all of up to 3 were tried).",
        ),
    ],
    ids=["one", "proven", "next to those tried", "greedy", "many", "none", "none found"],
)
def test_what_a_prediction_hangs_on_is_said(found: FlipSet, words: str) -> None:
    assert wording.flip_words(an_explanation(0, (1.0, 0), flip_set=found), class_name) == words


def test_ten_memory_images_are_still_listed() -> None:
    found = FlipSet(tuple(range(10)), 1, proven=True, tried=9)
    assert ", #9) and no fewer." in wording.flip_words(an_explanation(0, (1.0, 0), flip_set=found), class_name)


# Numbers


@pytest.mark.parametrize(
    ("share", "words"), [(0.0, "0.0 %"), (1.0, "100.0 %"), (0.86549, "86.5 %"), (0.0004, "0.0 %"), (1 / 3, "33.3 %")]
)
def test_a_share_has_one_digit(share: float, words: str) -> None:
    assert wording.percent(share) == words


@pytest.mark.parametrize(
    ("change", "words"),
    [(0.0, "0.0"), (-0.0, "0.0"), (0.021, "+2.1"), (-0.5, "−50.0"), (0.0004, "0.0"), (-0.0004, "0.0"), (1.0, "+100.0")],
)
def test_a_change_has_its_sign_but_nothing_has_none(change: float, words: str) -> None:
    assert wording.points(change) == words
