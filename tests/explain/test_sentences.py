"""Sentences: which classes, weights and numbers they name."""

import re
from typing import Any

import pytest
from torch import tensor

from memwrap.explain import sentences
from memwrap.explain.record import CheckRecord, ExplanationRecord, FlipSetRecord, SampleRecord
from memwrap.nn.reading import DecidedBy
from tests.worlds import explained, hand_made

NAMES = ("cat", "dog", "eel")
NO_FLIP = (None, None, False, 3)


def a_record(
    prediction: int,
    *used: tuple[float, int | None],
    uncertain: bool | None = False,
    flip_set: tuple[tuple[int, ...] | None, int | None, bool, int] = NO_FLIP,
    labels: tuple[int, ...] | None = None,
    effects: tuple[float, ...] | None = None,
    names: tuple[str, ...] = NAMES,
    decided_by: DecidedBy = "head",
    other: int | None = None,
    memory_size: int = 9,
) -> ExplanationRecord:
    """used: weight and predicted class of each memory image; labels: where they differ. flip_set: its four fields.

    other: the class of what did not decide.
    """
    samples = [
        SampleRecord(
            index=index,
            file=None,
            label=(own or 0) if labels is None else labels[index],
            label_name=names[(own or 0) if labels is None else labels[index]],
            prediction=own,
            prediction_name=None if own is None else names[own],
            weight=weight,
            effect=None if effects is None else effects[index],
            shares=None,
        )
        for index, (weight, own) in enumerate(used)
    ]
    indices, flipped, proven, tried = flip_set
    votes = [sum(sample.weight for sample in samples if sample.label == label) for label in range(len(names))]
    decided_by_memory = decided_by != "classifier"
    return ExplanationRecord(
        path=None,
        prediction=prediction,
        prediction_name=names[prediction],
        probability=0.5,
        uncertain=uncertain,
        decided_by=decided_by,
        votes=tuple(votes),
        other_prediction=other,
        other_prediction_name=None if other is None else names[other],
        label=None,
        label_name=None,
        probabilities=(0.5, 0.5),
        second=None,
        memory_size=memory_size,
        samples=tuple(samples),
        flip_set=FlipSetRecord(
            indices=indices,
            prediction=flipped,
            prediction_name=None if flipped is None else names[flipped],
            proven=proven,
            tried=tried,
        )
        if decided_by_memory
        else None,
        check=CheckRecord(same_prediction=True, logit_difference=0.0, tolerance=1e-4, kept=len(used), left_out=0)
        if decided_by_memory
        else None,
        heatmap=None,
    )


# The comparison


@pytest.mark.parametrize(
    ("record", "parts"),
    [
        (a_record(0, (0.6, 2), (0.4, 0), uncertain=True), ["Unsure", "an eel."]),
        (a_record(0, (0.6, 2), (0.4, 0), uncertain=True, labels=(1, 1)), ["Unsure", "an eel; its label is dog."]),
        (a_record(1, (0.6, 1), (0.4, 1)), ["All memory images", "a dog, too."]),
        (a_record(1, (0.6, 1), (0.25, 1), (0.15, 1), labels=(1, 0, 2)), ["All memory images", "a dog", "(40.0 % on"]),
        (
            a_record(1, (0.6, 1), (0.25, 1), (0.15, 0), labels=(1, 0, 2)),
            ["85.0 % of", "a dog", "(25.0 % on", "cat, with 15.0 %."],
        ),
        # The class of most weight in sum, not that of the strongest image.
        (a_record(0, (0.3, 0), (0.25, 1), (0.2, 2), (0.15, 2), (0.1, 0)), ["40.0 % of", "a cat", "eel, with 35.0 %."]),
        # Of classes with the same weight the lower.
        (a_record(0, (0.5, 0), (0.25, 2), (0.25, 1)), ["50.0 % of", "a cat", "dog, with 25.0 %."]),
        (a_record(0, (1.0, None), uncertain=None, memory_size=1), ["a single image"]),
    ],
    ids=["unsure", "unsure, label", "all", "all, labels", "some, labels", "sum of weights", "equal weights", "one"],
)
def test_the_comparison_names_classes_and_weights(record: ExplanationRecord, parts: list[str]) -> None:
    found = sentences.comparison_sentence(record)
    assert [part for part in parts if part not in found] == []
    assert found.startswith(("Unsure", "All", "The memory", "85.0", "40.0", "50.0"))
    # Only the effect, whose sign is often another, says what supports a prediction.
    assert not re.search("support|against", found)


def by_labels(decided_by: DecidedBy, *used: tuple[float, int], **options: Any) -> ExplanationRecord:
    """A record of class 1, a dog. used: weight and label of each memory image; the model predicts all as cats."""
    labels = tuple(label for _, label in used)
    return a_record(1, *((weight, 0) for weight, _ in used), labels=labels, decided_by=decided_by, **options)


@pytest.mark.parametrize(
    ("record", "parts"),
    [
        (by_labels("vote", (0.6, 1), (0.4, 1), other=1), ["The memory images decided", "labelled dog."]),
        (by_labels("vote", (0.6, 1), (0.4, 1)), ["The memory images decided", "labelled dog."]),
        (
            by_labels("vote", (0.45, 1), (0.3, 2), (0.25, 0)),
            ["The memory images decided", "dog has 45.0 % of the vote", "eel, with 30.0 %."],
        ),
        # The class of most weight in sum, not that of the strongest image.
        (by_labels("vote", (0.4, 1), (0.25, 0), (0.2, 2), (0.15, 2)), ["dog has 40.0 %", "eel, with 35.0 %."]),
        (
            by_labels("vote", (0.4, 2), (0.3, 1), (0.3, 1), uncertain=True, other=1),
            ["Unsure", "dog has 60.0 % of the vote", "largest weight is labelled eel."],
        ),
        (
            by_labels("vote", (0.6, 1), (0.4, 2), uncertain=True, other=2),
            ["Unsure", "dog has 60.0 % of the vote", "predicts eel."],
        ),
        (by_labels("vote", (1.0, 1), memory_size=1), ["a single image"]),
        (by_labels("classifier", (0.6, 1), (0.4, 2), other=1), ["The classifier decided", "agrees (60.0 %)"]),
        (
            by_labels("classifier", (0.4, 2), (0.3, 1), (0.3, 1), uncertain=True, other=1),
            ["Unsure", "another label", "The classifier decided", "agrees (60.0 %)"],
        ),
        (
            by_labels("classifier", (0.7, 2), (0.3, 1), uncertain=True, other=2),
            ["Unsure", "the classifier decided", "it would be eel (70.0 %)."],
        ),
        (by_labels("classifier", (1.0, 1), other=1, memory_size=1), ["The classifier decided", "agrees (100.0 %)"]),
    ],
)
def test_of_a_vote_and_a_classifier_labels_are_named_and_not_predictions(
    record: ExplanationRecord, parts: list[str]
) -> None:
    found = sentences.comparison_sentence(record)
    assert [part for part in parts if part not in found] == []
    assert found.startswith(parts[0]) or parts[0].startswith(("dog", "a single"))
    assert "cat" not in found
    assert ("decided, not these images" in found) == (record.decided_by == "classifier")


def test_sentences_of_a_world_worked_out_by_hand() -> None:
    """The five points of tests/explain/test_explanation.py; the third is predicted as class 0, all others as 1."""
    points = tensor([[4.0, 3.0], [3.0, 4.0], [4.0, -3.0], [0.0, 5.0], [-5.0, 0.0]]).double()
    right, up, below = (
        each.record(class_names=NAMES).sentence
        for each in explained(
            hand_made([[1, 0], [0, 1]]), tensor([[5.0, 0.0], [0.0, 5.0], [4.0, -3.0]]).double(), points, [0, 1, 0, 1, 0]
        )
    )
    assert right.startswith("Unsure")
    assert "a dog; its label is cat." in right
    # Up: similarities .6 (0), .8 (1) and 1 (3), so the threshold is .467, and the first, labelled 0, has .133.
    assert up.startswith("All memory images")
    assert "a dog, too (13.3 % on" in up
    # Below: similarities .28 (0) and 1 (2), so the threshold is .14, and the weights are .86 (2) and .14 (0).
    assert below.startswith("86.0 % of the weight")
    assert below.endswith("dog, with 14.0 %.")


@pytest.mark.parametrize(
    "words", ["a 3", "an 8", "an 80", "a 1", "an 11", "an 18", "a 110", "an Apple", "a dog", "a ", "a 猫"]
)
def test_a_class_has_its_article(words: str) -> None:
    _, name = words.split(" ")
    assert f"predicted as {words}, too." in sentences.comparison_sentence(a_record(0, (1.0, 0), names=(name,)))


# Effects


@pytest.mark.parametrize(
    ("effects", "parts"),
    [
        ((0.0002, -0.0031), ("at most 0.4 points", "the image itself")),
        ((0.0, 0.0), ("at most 0.1 points", "the image itself")),
        ((0.0099, -0.0001), ("at most 1.0 points", "the image itself")),
        ((0.02, -0.3456), ("up to 34.6 points",)),
        ((0.02, -0.001), ("up to 2.0 points",)),
    ],
)
def test_the_effect_of_removing_one_memory_image(effects: tuple[float, float], parts: tuple[str, ...]) -> None:
    record = a_record(0, (0.6, 0), (0.4, 1), effects=effects)
    found = sentences.effect_sentence(record)
    assert all(part in found for part in parts)
    assert ("the image itself" in found) == (len(parts) == 2)
    assert record.largest_effect == max(map(abs, effects))


@pytest.mark.parametrize(("effects", "part"), [((0.02, -0.3456), "up to 34.6"), ((0.0002, -0.0031), "at most 0.4")])
def test_the_effect_on_a_vote_is_one_on_the_share_of_its_class(effects: tuple[float, float], part: str) -> None:
    found = sentences.effect_sentence(by_labels("vote", (0.6, 1), (0.4, 2), effects=effects))
    assert "dog's share of the vote" in found
    assert part in found
    assert "the image itself" not in found  # which has no part in a vote


def test_no_row_shows_more_than_the_sentence() -> None:
    for tenths in range(100):
        effect = tenths * 1e-4 + 3e-5
        found = sentences.effect_sentence(a_record(0, (1.0, 0), effects=(-effect,)))
        stated = float(re.search(r"at most (\d\.\d) points", found)[1])
        assert float(sentences.points(effect)) <= stated
        assert 100 * effect <= stated + 1e-9 < 100 * effect + 0.101


def test_unknown_effects_have_no_sentence() -> None:
    unknown = a_record(0, (1.0, None), uncertain=None, memory_size=1)
    assert sentences.effect_sentence(unknown) == ""
    assert unknown.largest_effect is None


# Flip sets


@pytest.mark.parametrize(
    ("flip_set", "parts"),
    [
        (((4,), 1, True, 0), ["Without memory image #4 ", "a dog."]),
        (((4, 17), 2, True, 1), ["these 2 memory images", "an eel: #4, #17. No smaller"]),
        (((4, 1, 2, 3), 1, True, 3), ["these 4 memory images", "a dog: #4, #1, #2, #3. No smaller"]),
        (((4, 1, 2, 3, 0), 1, False, 3), ["whichever 3 are removed", "a cat."]),
        (((4, 1, 2), 1, False, 1), ["whichever one is removed", "a cat."]),
        ((None, None, True, 2), ["Whichever memory images are removed", "a cat."]),
        ((None, None, False, 3), ["whichever 3 are removed", "a cat."]),
        ((None, None, False, 0), ["Too many memory images"]),
    ],
    ids=["one", "proven", "next to those tried", "greedy", "few tried", "none", "none found", "none tried"],
)
def test_the_flip_set_names_images_and_class(
    flip_set: tuple[tuple[int, ...] | None, int | None, bool, int], parts: list[str]
) -> None:
    found = sentences.flip_sentence(a_record(0, (1.0, 0), flip_set=flip_set))
    assert [part for part in parts if part not in found] == []


def test_the_only_memory_image_has_no_flip_set() -> None:
    alone = a_record(0, (1.0, None), uncertain=None, flip_set=(None, None, True, 0), memory_size=1)
    assert sentences.flip_sentence(alone) == "The only memory image cannot be removed."


def test_a_classifier_s_prediction_depends_on_no_memory_image() -> None:
    assert sentences.flip_sentence(by_labels("classifier", (1.0, 1), other=1)) == ""


# Names and numbers


@pytest.mark.parametrize(
    ("name", "words"),
    [("22", "image 22"), ("007", "image 007")] + [(each, each) for each in ("22.png", "digit 22", "2.5", "-2", "")],
)
def test_a_name_that_is_a_number_does_not_look_like_a_class(name: str, words: str) -> None:
    assert sentences.image_name(name) == words


@pytest.mark.parametrize(
    ("share", "words"), [(0.0, "0.0 %"), (1.0, "100.0 %"), (0.86549, "86.5 %"), (0.0004, "0.0 %"), (1 / 3, "33.3 %")]
)
def test_a_share_has_one_digit(share: float, words: str) -> None:
    assert sentences.percent(share) == words


@pytest.mark.parametrize(
    ("change", "words"),
    [(0.0, "0.0"), (-0.0, "0.0"), (0.021, "+2.1"), (-0.5, "−50.0"), (0.0004, "0.0"), (-0.0004, "0.0"), (1.0, "+100.0")],
)
def test_a_change_has_its_sign_but_zero_has_none(change: float, words: str) -> None:
    assert sentences.points(change) == words
