"""Reports on models whose memory votes, or stands next to a classifier: what they say, against slow loops."""

import re
from typing import Any

import pytest
import torch

from memwrap import DataError, MemoryClassifier, VoteLayer
from memwrap.models.base import Origin
from memwrap.nn.calibration import VoteCalibration
from memwrap.nn.probabilities import TemperatureCalibration
from memwrap.nn.reading import DecidedBy
from memwrap.report import read_record, verify
from memwrap.report.create import hashes, memory_pixels
from memwrap.report.figures import figure
from tests.report import HOSTILE, STEPS, Node, ReportWorld, is_genuine, make_report, network, noise, parsed
from tests.report.test_page import with_record

KINDS: tuple[DecidedBy, ...] = ("vote", "classifier")


@pytest.fixture(scope="module", params=KINDS)
def world(request: pytest.FixtureRequest) -> ReportWorld:
    """Eight pictures with heatmaps, and a memory of 30."""
    return make_report(network(memory=30, decided_by=request.param), noise(8), heatmaps=STEPS)


@pytest.fixture(scope="module")
def page(world: ReportWorld) -> Node:
    return parsed(world.page)


def read(world: ReportWorld, **options: Any) -> Any:
    model = world.source.model
    with torch.no_grad():
        return model.read(model.transform(world.inputs.pixels), **options)


def test_the_record_has_votes_and_what_did_not_decide(world: ReportWorld) -> None:
    model, reading = world.source.model, read(world)
    assert world.record.decided_by == model.decided_by
    unsure = 0
    for row, each in enumerate(world.record.explanations):
        assert each.decided_by == model.decided_by
        assert each.votes == pytest.approx(reading.votes[row].tolist(), abs=1e-5)
        vote, head = int(reading.votes[row].argmax()), int(reading.head_logits[row].argmax())
        decided, other = (vote, head) if each.decided_by == "vote" else (head, vote)
        assert (each.prediction, each.other_prediction) == (decided, other)
        assert each.other_prediction_name == HOSTILE[other]
        strongest = int(reading.weights[row].argmax()) % 4
        assert each.uncertain == (len({decided, other, strongest}) > 1)
        unsure += each.uncertain
        shown = reading.votes[row] if each.decided_by == "vote" else reading.head_logits[row].softmax(0)
        assert each.probabilities == pytest.approx(shown.tolist(), abs=1e-5)
        assert (each.flip_set is None) == (each.check is None) == (each.decided_by == "classifier")
    assert 0 < unsure < 8


def test_effects_are_those_on_the_share_of_the_vote(world: ReportWorld) -> None:
    reading = read(world)
    for row, each in enumerate(world.record.explanations):
        for sample in each.samples:
            if each.decided_by == "classifier":
                assert sample.effect is None
                continue
            without = read(world, keep=torch.arange(30) != sample.index).votes[row]
            change = float((without - reading.votes[row])[each.prediction])
            assert sample.effect == pytest.approx(change, abs=1e-5)


def test_memory_images_are_of_a_class_by_their_label(page: Node, world: ReportWorld) -> None:
    marked = 0
    for each, article in zip(world.record.explanations, page.all("article"), strict=True):
        assert each.example == next((s for s in each.samples if s.index % 4 == each.prediction), None)
        assert each.counterfactual == next((s for s in each.samples if s.index % 4 != each.prediction), None)
        for name, taken, label, _, _, *effect in article.one("table").rows():
            index = int(re.match(r"#(\d+) ", name)[1])
            other = index % 4 != each.prediction
            marked += other
            assert label.startswith(HOSTILE[index % 4])
            assert ("other class" in label) == other
            assert "other class" not in taken
            assert (effect == []) == (each.decided_by == "classifier")
        bars = article.one("table").all("span", class_="bar")
        shown = each.shown_samples(world.record.shown)
        assert ["other" in bar.attributes["class"].split() for bar in bars] == [
            sample.index % 4 != each.prediction for sample in shown
        ]
    assert marked


def test_the_page_says_what_decided(page: Node, world: ReportWorld) -> None:
    decided = "vote" if world.record.decided_by == "vote" else "They did not decide"
    assert decided in page.one("header").text
    for each, article in zip(world.record.explanations, page.all("article"), strict=True):
        sentences = article.one("div", class_="top").text.replace("\u00a0", " ")
        assert each.sentence in sentences
        assert each.effect_sentence in sentences
        assert not [node for node in article.all("p") if node.text == ""]
        if world.record.decided_by == "classifier":
            assert each.flip_sentence == ""
            assert "The classifier decided" in sentences or "the classifier decided" in sentences
    totals = page.one("ul", class_="totals").text
    assert f"{sum(bool(each.uncertain) for each in world.record.explanations)} unsure" in totals
    assert ("trained last layer differs" in totals) == (world.record.decided_by == "vote")
    assert ("their vote differs" in totals) == (world.record.decided_by == "classifier")


def test_a_report_is_confirmed_and_read_back(world: ReportWorld) -> None:
    assert read_record(world.page) == world.record
    assert verify(world.page, world.source).equal


FORGED = {
    "votes": lambda each: {"votes": each.votes[::-1]},
    "a vote": lambda each: {"votes": (each.votes[0] + 0.01, *each.votes[1:])},
    "the other class": lambda each: {"other_prediction": (each.other_prediction + 1) % 4},
    "the name of the other class": lambda _: {"other_prediction_name": "cat"},
    "no other class": lambda _: {"other_prediction": None, "other_prediction_name": None},
    "certainty": lambda each: {"uncertain": not each.uncertain},
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_field_is_noticed(case: str, world: ReportWorld) -> None:
    first, *rest = world.record.explanations
    forged = first.model_copy(update=FORGED[case](first))
    changed = world.changed(explanations=(forged, *rest))
    assert not is_genuine(changed.page, world)


def test_votes_of_too_few_classes_are_noticed(world: ReportWorld) -> None:
    """No page can be made of them, but they can be written into one."""
    page = with_record(world.page, lambda stored: stored["explanations"][0].update(votes=[]))
    with pytest.raises(DataError, match="cannot be shown"):
        verify(page, world.source)


@pytest.mark.parametrize("other", ["head", "vote", "classifier"])
def test_another_decider_is_noticed(other: DecidedBy, world: ReportWorld) -> None:
    if other == world.record.decided_by:
        return
    changed = tuple(each.model_copy(update={"decided_by": other}) for each in world.record.explanations)
    assert not is_genuine(world.changed(explanations=changed).page, world)
    page = with_record(world.page, lambda stored: stored["explanations"][1].update(decided_by=other))
    with pytest.raises(DataError, match=f"image 2 was decided by the {other}"):
        read_record(page)


def test_pixels_of_a_memory_are_shown_as_they_are() -> None:
    model = network(decided_by="vote")
    assert torch.equal(memory_pixels(model), noise(12, seed=1))


def test_the_figure_names_labels_and_what_decided(world: ReportWorld) -> None:
    model = network(memory=30, decided_by=world.record.decided_by)
    model.classes = ("cat", "dog", "eel", "fox")
    plain = make_report(model, noise(4))
    text = " ".join(re.findall(r">([^<>]+)</text>", figure(plain.record, ".svg").decode()))
    assert "They decided by their vote" in text if model.decided_by == "vote" else "They did not decide" in text
    assert "label:" not in text


@pytest.mark.parametrize("kind", KINDS)
def test_the_calibration_is_part_of_the_model_s_hash_and_of_its_probabilities(kind: DecidedBy) -> None:
    model = network(memory=30, decided_by=kind)
    before = make_report(model, noise(4))
    model.calibration = (
        VoteCalibration((1.0, 0.5, 0.7), (1.2, 0.8, 0.1), (0.9, 0.4, 0.2), 0.6)
        if kind == "vote"
        else TemperatureCalibration(3.0)
    )
    after = make_report(model, noise(4))
    assert hashes(model, before.inputs).model != before.record.hashes.model
    assert after.record.hashes.memory == before.record.hashes.memory
    for one, other in zip(before.record.explanations, after.record.explanations, strict=True):
        assert one.prediction == other.prediction
        assert one.votes == other.votes
        assert one.probability != other.probability
        assert max(other.probabilities) == other.probability
    assert verify(after.page, after.source).equal
    model.calibration = None
    assert not is_genuine(after.page, after)


@pytest.mark.parametrize("kind", KINDS)
def test_a_memory_of_one(kind: DecidedBy) -> None:
    world = make_report(network(memory=1, decided_by=kind), noise(3))
    page = parsed(world.page)
    for article in page.all("article"):
        ((_, taken, label, weight, _, *effect),) = article.one("table").rows()
        assert (weight, effect) == ("100.0 %", [] if kind == "classifier" else ["-"])
        assert taken == "-"
        assert label.startswith(HOSTILE[0])
    assert verify(world.page, world.source).equal


def test_a_model_without_a_head_has_no_other_prediction() -> None:
    full = network(memory=30, decided_by="vote")
    model = MemoryClassifier(
        full.encoder, VoteLayer(48, 4, scale=4.0, head_classes=0), Origin("", 48, (3, 4, 4))
    ).eval()
    model.classes, model.transform = full.classes, full.transform
    model.remember(full.remembered.images, full.remembered.labels)
    world = make_report(model, noise(4), heatmaps=STEPS)
    assert {each.other_prediction for each in world.record.explanations} == {None}
    assert verify(world.page, world.source).equal
