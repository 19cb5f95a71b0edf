"""Sentences: what the model compared an image with, what that did, and on how many memory images it hangs."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
from torch import tensor

from memwrap.explain import sentences
from memwrap.explain.explanation import MemorySample
from memwrap.explain.flip_set import FlipSet
from tests.worlds import explained, hand_made

NAMES = ("cat", "dog", "eel")


def class_name(label: int) -> str:
    return NAMES[label]


def an_explanation(
    prediction: int,
    *used: tuple[float, int | None],
    uncertain: bool | None = False,
    flip_set: FlipSet | None = None,
    labels: tuple[int, ...] | None = None,
    effects: tuple[float, ...] | None = None,
) -> Any:
    """used: weight and the model's class for each memory sample; labels: where they are others."""
    samples = [
        MemorySample(
            index,
            weight,
            (own or 0) if labels is None else labels[index],
            own,
            None if effects is None else effects[index],
            None,
        )
        for index, (weight, own) in enumerate(used)
    ]
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
    assert sentences.sentence(unsure, class_name) == "Unsure: the model takes the most used memory image for an eel."


def test_that_its_label_is_another_is_said() -> None:
    unsure = an_explanation(0, (0.6, 2), (0.4, 0), uncertain=True, labels=(1, 1))
    assert sentences.sentence(unsure, class_name) == (
        "Unsure: the model takes the most used memory image for an eel; its label is dog."
    )


def test_weight_on_images_with_another_label_is_said() -> None:
    agreed = an_explanation(1, (0.6, 1), (0.25, 1), (0.15, 1), labels=(1, 0, 2))
    assert sentences.sentence(agreed, class_name) == (
        "The model takes all memory images that it used for a dog, too (40.0 % on such with another label)."
    )
    mixed = an_explanation(1, (0.6, 1), (0.25, 1), (0.15, 0), labels=(1, 0, 2))
    assert sentences.sentence(mixed, class_name) == (
        "85.0 % of the weight is on memory images that the model takes for a dog, too (25.0 % on such with another "
        "label); of the other classes cat has most, 15.0 % in all."
    )


def test_that_all_agree_is_said() -> None:
    agreed = an_explanation(1, (0.6, 1), (0.4, 1))
    assert sentences.sentence(agreed, class_name) == "The model takes all memory images that it used for a dog, too."


def test_the_other_class_is_that_of_most_weight_not_of_the_strongest_image() -> None:
    mixed = an_explanation(0, (0.3, 0), (0.25, 1), (0.2, 2), (0.15, 2), (0.1, 0))
    assert sentences.sentence(mixed, class_name) == (
        "40.0 % of the weight is on memory images that the model takes for a cat, too; of the other classes eel has "
        "most, 35.0 % in all."
    )


def test_of_classes_that_weigh_the_same_the_first_is_named() -> None:
    assert sentences.strongest_other(an_explanation(0, (0.5, 0), (0.25, 2), (0.25, 1))) == (1, 0.25)


def test_shares_stand_apart_from_the_words() -> None:
    """A class may be called 40.0 %, and is no number."""
    mixed = an_explanation(0, (0.75, 0), (0.25, 1))
    parts = sentences.sentence_parts(mixed, lambda label: ("40.0 %", "12.5")[label])
    assert parts == [
        0.75,
        " of the weight is on memory images that the model takes for a 40.0 %, too",
        "; of the other classes 12.5 has most, ",
        0.25,
        " in all.",
    ]


def test_no_class_is_said_to_speak_for_or_against() -> None:
    """That is for the effect to say, whose sign is often another."""
    for explanation in (
        an_explanation(0, (0.6, 2), (0.4, 0), uncertain=True),
        an_explanation(0, (0.6, 0), (0.4, 1)),
        an_explanation(0, (1.0, 0)),
    ):
        assert not re.search("speak|spoke|against", sentences.sentence(explanation, class_name))


def test_a_memory_of_one_has_nothing_to_be_compared_with() -> None:
    alone = an_explanation(0, (1.0, None), uncertain=None)
    assert sentences.sentence(alone, class_name) == (
        "The memory holds a single image, so there is no other to compare it with."
    )


def test_sentences_of_a_world_worked_out_by_hand() -> None:
    """The five points of tests/test_explanation.py, whose model takes the third for class 0, all others for class 1."""
    points = tensor([[4.0, 3.0], [3.0, 4.0], [4.0, -3.0], [0.0, 5.0], [-5.0, 0.0]]).double()
    # Below: similarities .28 (0) and 1 (2), so the threshold is .14, and the weights are .86 (2) and .14 (0).
    right, up, below = explained(
        hand_made([[1, 0], [0, 1]]), tensor([[5.0, 0.0], [0.0, 5.0], [4.0, -3.0]]).double(), points, [0, 1, 0, 1, 0]
    )
    assert sentences.sentence(right, class_name) == (
        "Unsure: the model takes the most used memory image for a dog; its label is cat."
    )
    # Up: similarities .6 (0), .8 (1) and 1 (3), so the threshold is .467, and the first, labelled 0, has .133.
    assert sentences.sentence(up, class_name) == (
        "The model takes all memory images that it used for a dog, too (13.3 % on such with another label)."
    )
    assert sentences.sentence(below, class_name) == (
        "86.0 % of the weight is on memory images that the model takes for a cat, too; of the other classes dog has "
        "most, 14.0 % in all."
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
    assert sentences.sentence(sure, lambda _: name) == (
        f"The model takes all memory images that it used for {words}, too."
    )


# What any one of them did


@pytest.mark.parametrize(
    ("effects", "words"),
    [
        ((0.0002, -0.0031), "any one memory image changes the probability by at most 0.4 points: the image itself"),
        ((0.0, 0.0), "any one memory image changes the probability by at most 0.1 points: the image itself decided"),
        ((0.0099, -0.0001), "any one memory image changes the probability by at most 1.0 points: the image itself"),
        ((0.02, -0.3456), "one memory image changes the probability by up to 34.6 points."),
        ((0.02, -0.001), "one memory image changes the probability by up to 2.0 points."),
    ],
)
def test_what_taking_out_one_memory_image_does_is_said(effects: tuple[float, float], words: str) -> None:
    found = sentences.effect_sentence(an_explanation(0, (0.6, 0), (0.4, 1), effects=effects))
    assert found.startswith(f"Taking out {words}")
    assert found.endswith((" points.", " points: the image itself decided, or many of them together."))
    assert sentences.largest_effect(an_explanation(0, (0.6, 0), (0.4, 1), effects=effects)) == max(map(abs, effects))


def test_no_row_shows_more_than_the_sentence_says() -> None:
    for tenths in range(100):
        effect = tenths * 1e-4 + 3e-5
        said = sentences.effect_parts(an_explanation(0, (1.0, 0), effects=(-effect,)))[1]
        assert float(sentences.points(effect)) <= float(sentences.magnitude(said))
        assert effect <= said < effect + 0.00101


def test_where_effects_are_not_known_nothing_is_said_of_them() -> None:
    unknown = an_explanation(0, (1.0, None), uncertain=None)
    assert sentences.effect_sentence(unknown) == ""
    assert sentences.largest_effect(unknown) is None


# What would change it


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (FlipSet((4,), 1, proven=True, tried=0), "Without memory image #4 it would be taken for a dog."),
        (
            FlipSet((4, 17), 2, proven=True, tried=1),
            "Without these 2 memory images it would be taken for an eel: #4, #17. No fewer would do.",
        ),
        (
            FlipSet((4, 1, 2, 3), 1, proven=True, tried=3),
            "Without these 4 memory images it would be taken for a dog: #4, #1, #2, #3. No fewer would do.",
        ),
        (
            FlipSet((4, 1, 2, 3, 0), 1, proven=False, tried=3),
            "It does not hang on a few memory images: whichever 3 are taken out, it is still taken for a cat.",
        ),
        (
            FlipSet((4, 1, 2), 1, proven=False, tried=1),
            "It does not hang on a few memory images: whichever one is taken out, it is still taken for a cat.",
        ),
        (
            FlipSet(None, None, proven=True, tried=2),
            "Whichever memory images are taken out, it is still taken for a cat.",
        ),
        (
            FlipSet(None, None, proven=False, tried=3),
            "It does not hang on a few memory images: whichever 3 are taken out, it is still taken for a cat.",
        ),
        (
            FlipSet(None, None, proven=False, tried=0),
            "So many memory images were used that it was not tried out which of them it hangs on.",
        ),
    ],
    ids=["one", "proven", "next to those tried", "greedy", "few tried", "none", "none found", "none tried"],
)
def test_what_a_prediction_hangs_on_is_said(found: FlipSet, words: str) -> None:
    assert sentences.flip_words(an_explanation(0, (1.0, 0), flip_set=found), class_name) == words


def test_the_only_memory_image_cannot_be_taken_out() -> None:
    alone = an_explanation(0, (1.0, None), uncertain=None, flip_set=FlipSet(None, None, proven=True, tried=0))
    assert sentences.flip_words(alone, class_name) == "The only memory image cannot be taken out."


# Names


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("22", "image 22"),
        ("007", "image 007"),
        ("22.png", "22.png"),
        ("digit 22", "digit 22"),
        ("2.5", "2.5"),
        ("-2", "-2"),
        ("", ""),
    ],
)
def test_a_name_that_is_a_mere_number_is_not_to_be_taken_for_a_class(name: str, words: str) -> None:
    assert sentences.image_name(name) == words


# Numbers


@pytest.mark.parametrize(
    ("share", "words"), [(0.0, "0.0 %"), (1.0, "100.0 %"), (0.86549, "86.5 %"), (0.0004, "0.0 %"), (1 / 3, "33.3 %")]
)
def test_a_share_has_one_digit(share: float, words: str) -> None:
    assert sentences.percent(share) == words


@pytest.mark.parametrize(
    ("change", "words"),
    [(0.0, "0.0"), (-0.0, "0.0"), (0.021, "+2.1"), (-0.5, "−50.0"), (0.0004, "0.0"), (-0.0004, "0.0"), (1.0, "+100.0")],
)
def test_a_change_has_its_sign_but_nothing_has_none(change: float, words: str) -> None:
    assert sentences.points(change) == words
