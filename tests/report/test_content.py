"""What a report says, against slow loops over `model.read`."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from memwrap import MemoryClassifier
from memwrap.report.content import Content, Pictures, content_of, explain_each, shown_samples
from tests.report import HOSTILE, ReportWorld, network, noise, told


def weights_of(model: MemoryClassifier, pixels: Tensor) -> Tensor:
    """(N, M), one image at a time"""
    with torch.no_grad():
        return torch.cat([model.read(model.transform(each).unsqueeze(0)).weights for each in pixels])


# One image


def test_a_card_says_what_the_model_says(reported: ReportWorld) -> None:
    model, content = reported.source.model, reported.content
    for row, card in enumerate(content.cards):
        with torch.no_grad():
            probabilities = model(model.transform(reported.pictures.pixels[row : row + 1])).softmax(1)[0]
        label = row % 4
        assert card.number == row + 1
        assert card.name == f"picture {row}.png"
        assert card.pixels.equal(reported.pictures.pixels[row])
        assert card.prediction == HOSTILE[int(probabilities.argmax())]
        assert card.probability == pytest.approx(float(probabilities.max()), abs=1e-6)
        assert card.true_class == HOSTILE[label]
        assert card.wrong == (int(probabilities.argmax()) != label)


@pytest.mark.parametrize(
    ("probabilities", "second"),
    [
        ([0.3, 0.6, 0.1, 0.0], (HOSTILE[0], 0.3)),
        ([0.0, 0.6, 0.1, 0.3], (HOSTILE[3], 0.3)),
        ([0.4, 0.4, 0.1, 0.1], (HOSTILE[0], 0.4)),
        ([0.0004, 0.9995, 0.0001, 0.0], None),
        ([0.0005, 0.9994, 0.0001, 0.0], (HOSTILE[0], 0.0005)),
    ],
)
def test_the_class_that_comes_next_is_told_if_it_is_worth_it(
    reported: ReportWorld, probabilities: list[float], second: tuple[str, float] | None
) -> None:
    explanation = SimpleNamespace(prediction=1, probabilities=torch.tensor(probabilities, dtype=torch.float64))
    card = replace(reported.content.cards[0], explanation=explanation)  # type: ignore[arg-type]
    assert card.second == second


@pytest.mark.parametrize(
    ("converged", "score", "chance", "holds"),
    [
        (True, 0.3, 0.5, True),
        (None, 0.3, 0.5, True),
        (False, 0.3, 0.5, False),
        (True, 0.5, 0.3, False),
        (True, 0.5, 0.505, False),
        (None, 0.5, 0.5, False),
    ],
)
def test_heatmaps_hold_if_they_add_up_and_what_they_highlight_matters(
    reported: ReportWorld, converged: bool | None, score: float, chance: float, holds: bool
) -> None:
    card = reported.content.cards[0]
    assert card.heatmap is not None
    assert card.deletion is not None
    changed = replace(
        card,
        heatmap=replace(card.heatmap, converged=converged),
        deletion=replace(card.deletion, score=score, random_score=chance),
    )
    assert changed.maps_hold is holds
    page = replace(reported, content=replace(reported.content, cards=(changed,))).page
    assert ("These maps passed their checks" in page) == holds
    assert ("Do not rely on these maps" in page) == (not holds)


def test_an_image_without_a_label_is_not_wrong(model: MemoryClassifier) -> None:
    content = told(model, noise(4), labelled=False).content
    assert not content.labelled
    assert [(card.label, card.true_class, card.wrong) for card in content.cards] == [(None, None, False)] * 4


def test_those_shown_and_the_others_are_all_that_was_used(reported: ReportWorld) -> None:
    for card in reported.content.cards:
        used = card.explanation.samples
        assert sorted((*card.samples, *card.others), key=lambda each: each.index) == sorted(
            used, key=lambda each: each.index
        )
        assert sum(each.weight for each in (*card.samples, *card.others)) == pytest.approx(1, abs=1e-6)


def test_the_strongest_are_shown_and_the_strongest_of_either_kind(reported: ReportWorld) -> None:
    beyond = set()
    for explanation in [card.explanation for card in reported.content.cards]:
        kinds = {"example": explanation.example, "counterfactual": explanation.counterfactual}
        for shown in (1, 2, 3):
            found = shown_samples(explanation, shown)
            assert found[:shown] == explanation.samples[:shown]
            assert all(kind in found for kind in kinds.values() if kind is not None)
            assert [each.weight for each in found] == sorted((each.weight for each in found), reverse=True)
            beyond |= {name for name, kind in kinds.items() if kind in found[shown:]}
            assert len(found) <= shown + 1
    assert beyond == {"example", "counterfactual"}, "else nothing is tested"


def test_more_than_were_used_are_not_shown(reported: ReportWorld) -> None:
    explanation = reported.content.cards[0].explanation
    assert shown_samples(explanation, 1000) == explanation.samples


def test_images_are_explained_each_by_itself(model: MemoryClassifier) -> None:
    pixels = noise(5)
    together, (alone,) = explain_each(model, pixels), explain_each(model, pixels[3:4])
    assert together[3].logits.equal(alone.logits)
    assert together[3].weights.equal(alone.weights)
    assert [each.prediction for each in together] == model(model.transform(pixels)).argmax(1).tolist()


# All of them


def a_content(model: MemoryClassifier, labels: list[int] | None, count: int = 10) -> Content:
    pixels = noise(count)
    pictures = Pictures(pixels, tuple(map(str, range(count))), None if labels is None else torch.tensor(labels))
    return content_of(model, pictures, explain_each(model, pixels), 3)


def test_right_and_wrong_are_counted(model: MemoryClassifier) -> None:
    predictions = model(model.transform(noise(10))).argmax(1).tolist()
    labels = [label if row % 3 else (label + 1) % 4 for row, label in enumerate(predictions)]
    content = a_content(model, labels)
    assert content.correct == 6
    assert [card.number for card in content.cards if card.wrong] == [1, 4, 7, 10]


def test_the_unsure_are_those_whose_strongest_sample_is_of_another_class(model: MemoryClassifier) -> None:
    content, expected = a_content(model, None), []
    own = model.remembered.predictions
    for row, weights in enumerate(weights_of(model, noise(10))):
        prediction = int(model(model.transform(noise(10)[row : row + 1])).argmax())
        if int(own[int(weights.argmax())]) != prediction:
            expected.append(row + 1)
    assert [card.number for card in content.uncertain] == expected
    assert 0 < len(expected) < 10


def test_the_wrong_are_unsure_or_confident(model: MemoryClassifier) -> None:
    content, own = a_content(model, [3] * 10), model.remembered.predictions
    unsure = []
    for row, weights in enumerate(weights_of(model, noise(10))):
        prediction = int(model(model.transform(noise(10)[row : row + 1])).argmax())
        unsure += [row] if 3 != prediction != int(own[int(weights.argmax())]) else []
    assert content.wrong_and_unsure == len(unsure) > 0
    assert content.wrong_and_unsure + len(content.confidently_wrong) == 10 - content.correct


def test_the_confidently_wrong_carry_no_warning(model: MemoryClassifier) -> None:
    content = a_content(model, [3] * 10)
    found = {card.number for card in content.confidently_wrong}
    assert found == {
        card.number for card in content.cards if card.prediction != HOSTILE[3] and not card.explanation.uncertain
    }
    assert len(found) > 1


def test_of_the_confidently_wrong_the_most_probable_comes_first() -> None:
    """As far as one can see: the last bit, which another machine rounds otherwise, says nothing."""
    probabilities = [0.5, 1 - 1e-7, 0.7, 1.0, 0.99999]
    cards = [
        SimpleNamespace(
            number=number, wrong=True, explanation=SimpleNamespace(uncertain=False), probability=probability
        )
        for number, probability in enumerate(probabilities, start=1)
    ]
    content = Content(tuple(cards), 1, labelled=True)  # type: ignore[arg-type]
    assert [card.number for card in content.confidently_wrong] == [2, 4, 5, 3, 1]


def test_confusions_are_counted_and_the_most_frequent_comes_first(model: MemoryClassifier) -> None:
    predictions = model(model.transform(noise(10))).argmax(1).tolist()
    content = a_content(model, [3] * 10)
    counts = {label: predictions.count(label) for label in set(predictions) - {3}}
    assert len(counts) > 1
    assert sorted(content.confusions) == sorted((HOSTILE[3], HOSTILE[label], count) for label, count in counts.items())
    assert [count for _, _, count in content.confusions] == sorted(counts.values(), reverse=True)


def test_a_class_is_confused_with_another_not_with_itself(model: MemoryClassifier) -> None:
    predictions = model(model.transform(noise(10))).argmax(1).tolist()
    assert a_content(model, predictions).confusions == []
    assert a_content(model, predictions).confidently_wrong == ()


def test_the_use_of_the_memory_is_summed_over_all_images(reported: ReportWorld) -> None:
    model = reported.source.model
    weights = weights_of(model, reported.pictures.pixels)
    uses = reported.content.uses
    assert sorted(use.index for use in uses) == list(range(30))
    assert [use.share for use in uses] == sorted((use.share for use in uses), reverse=True)
    assert sum(use.share for use in uses) == pytest.approx(1)
    for use in uses:
        column = weights[:, use.index].tolist()
        assert use.share == pytest.approx(sum(column) / 6, abs=1e-6)
        assert use.images == sum(weight > 0 for weight in column)
        assert use.label == use.index % 4
        assert use.prediction == int(model.remembered.predictions[use.index])
    never = [use.index for use in reported.content.never_used]
    assert sorted(never) == [index for index in range(30) if not any(weights[:, index] > 0)]
    assert never, "all were used"


def test_a_memory_of_one_has_no_opinion_of_itself() -> None:
    content = told(network(memory=1), noise(3)).content
    assert [(use.index, use.share, use.images, use.prediction) for use in content.uses] == [(0, 1.0, 3, None)]
    assert content.uncertain == ()
    assert content.memory_size == 1
    assert content.never_used == ()


def test_cards_hold_the_heatmaps_of_their_own_image(reported: ReportWorld) -> None:
    for card in reported.content.cards:
        assert card.heatmap.target == card.explanation.prediction
        assert list(card.heatmap.moved) == [sample.index for sample in card.samples]
