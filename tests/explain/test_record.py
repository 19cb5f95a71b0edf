"""The record of an explanation: all values against `model.read`, what is unknown, and what JSON holds."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from memwrap import Explanation, MemoryClassifier
from memwrap.explain.record import ExplanationRecord, PredictionRecord
from tests.report import HOSTILE, STEPS, make_report, network, noise

FILES = [f"{number}.png" for number in range(30)]


def explanations(model: MemoryClassifier, count: int = 4) -> list[Explanation]:
    return [each for image in model.transform(noise(count)) for each in model.explain(image.unsqueeze(0))]


@pytest.fixture(scope="module")
def model() -> MemoryClassifier:
    return network(memory=30)


@pytest.fixture(scope="module")
def records(model: MemoryClassifier) -> list[ExplanationRecord]:
    return [
        each.record(class_names=model.classes, memory_names=FILES, label=row, path=f"picture {row}.png")
        for row, each in enumerate(explanations(model))
    ]


def as_json(record: ExplanationRecord) -> dict[str, Any]:
    return json.loads(json.dumps(record.model_dump(mode="json"), allow_nan=False))


def test_a_record_has_the_values_of_the_model(model: MemoryClassifier, records: list[ExplanationRecord]) -> None:
    own = model.remembered.predictions.tolist()
    for row, record in enumerate(records):
        with torch.no_grad():
            reading = model.read(model.transform(noise(4)[row : row + 1]))
        probabilities, weights = reading.logits.softmax(1)[0], reading.weights[0]
        prediction = int(probabilities.argmax())
        assert record.path == f"picture {row}.png"
        assert (record.prediction, record.prediction_name) == (prediction, HOSTILE[prediction])
        assert (record.label, record.label_name, record.wrong) == (row, HOSTILE[row], row != prediction)
        assert record.probability == pytest.approx(float(probabilities[prediction]), abs=1e-6)
        assert record.probabilities == pytest.approx(probabilities.tolist(), abs=1e-6)
        assert record.uncertain == (own[int(weights.argmax())] != prediction)
        assert record.memory_size == 30
        assert {each.index: each.weight for each in record.samples} == pytest.approx(
            {index: float(weight) for index, weight in enumerate(weights) if weight > 0}, abs=1e-6
        )


def test_effects_are_those_of_removing_one_sample(model: MemoryClassifier, records: list[ExplanationRecord]) -> None:
    for row, record in enumerate(records):
        image = model.transform(noise(4)[row : row + 1])
        for sample in record.samples:
            keep = torch.arange(30) != sample.index
            with torch.no_grad():
                without = model.read(image, keep=keep).logits.softmax(1)[0, record.prediction]
            assert sample.effect == pytest.approx(float(without) - record.probability, abs=1e-5)


def test_samples_have_files_labels_and_predictions(model: MemoryClassifier, records: list[ExplanationRecord]) -> None:
    own = model.remembered.predictions.tolist()
    for sample in (sample for record in records for sample in record.samples):
        index = sample.index
        assert sample.file == f"{index}.png"
        assert (sample.label, sample.label_name) == (index % 4, HOSTILE[index % 4])
        assert (sample.prediction, sample.prediction_name) == (own[index], HOSTILE[own[index]])
        assert sample.shares is None


def test_flip_set_and_check_are_those_of_the_explanation(model: MemoryClassifier) -> None:
    for each in explanations(model):
        record = each.record(class_names=model.classes)
        flip_set = record.flip_set
        assert (flip_set.indices, flip_set.prediction, flip_set.proven, flip_set.tried) == (
            each.flip_set.indices,
            each.flip_set.prediction,
            each.flip_set.proven,
            each.flip_set.tried,
        )
        assert flip_set.prediction_name == (None if flip_set.prediction is None else HOSTILE[flip_set.prediction])
        assert record.check.same_prediction
        assert record.check.kept == len(record.samples)


def test_with_a_linear_head_shares_add_up_to_the_logits() -> None:
    model = network(head="linear")
    bias = model.layer.head.first.bias
    for row, each in enumerate(explanations(model)):
        record = each.record()
        own = (
            model.layer.head.first.weight[:, : -model.layer.width]
            @ model.encode(model.transform(noise(4)[row : row + 1]))[0]
        )
        total = torch.tensor([sample.shares for sample in record.samples]).sum(0) + own + bias
        assert total.tolist() == pytest.approx(each.logits.tolist(), abs=1e-4)


def test_with_memory_removed_indices_are_those_of_the_whole_memory(model: MemoryClassifier) -> None:
    image = model.transform(noise(1))
    removed = [sample.index for sample in model.explain(image)[0].samples[:2]]
    keep = torch.ones(30, dtype=torch.bool)
    keep[removed] = False
    record = model.explain(image, keep=keep)[0].record(memory_names=FILES)
    assert record.memory_size == 28
    assert not {sample.index for sample in record.samples} & set(removed)
    assert all(sample.file == f"{sample.index}.png" for sample in record.samples)
    assert record.check.kept + record.check.left_out == 28


def test_nothing_has_to_be_given(model: MemoryClassifier) -> None:
    record = explanations(model, 1)[0].record()
    assert record.prediction_name == str(record.prediction)
    assert (record.path, record.label, record.label_name, record.heatmap) == (None, None, None, None)
    assert not record.wrong
    assert record.samples[0].file is None
    assert record.samples[0].label_name == str(record.samples[0].label)


def test_samples_are_named_by_the_memory_if_no_names_are_given() -> None:
    model = network(memory=30)
    model.remembered.names = FILES
    record = explanations(model, 1)[0].record()
    assert [sample.file for sample in record.samples] == [f"{sample.index}.png" for sample in record.samples]


def test_a_memory_of_one_leaves_values_unknown() -> None:
    record = explanations(network(memory=1), 1)[0].record()
    (sample,) = record.samples
    assert (record.uncertain, record.largest_effect, record.effect_sentence) == (None, None, "")
    assert (record.example, record.counterfactual) == (None, None)
    assert (sample.effect, sample.prediction, sample.prediction_name) == (None, None, None)
    assert not record.is_other(sample)
    assert record.shown_samples(3) == (sample,)


def test_json_has_sentences_and_starts_with_the_prediction(records: list[ExplanationRecord]) -> None:
    for record in records:
        found = as_json(record)
        prediction = list(PredictionRecord.model_fields)
        assert list(found)[: len(prediction)] == prediction
        assert found["sentence"] == record.sentence
        assert found["effect_sentence"] == record.effect_sentence
        assert found["flip_sentence"] == record.flip_sentence
        assert found["largest_effect"] == max(abs(sample.effect) for sample in record.samples)


def test_a_record_is_read_back_from_its_stored_form(records: list[ExplanationRecord]) -> None:
    for record in records:
        stored = record.model_dump_json(round_trip=True)
        assert ExplanationRecord.model_validate_json(stored) == record
        assert "sentence" not in stored


@pytest.mark.parametrize("change", [{"extra": 1}, {"probability": float("nan")}, {"samples": [{}]}, {"label": "cat"}])
def test_a_record_is_validated_and_frozen(records: list[ExplanationRecord], change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ExplanationRecord.model_validate({**records[0].model_dump(round_trip=True), **change})
    with pytest.raises(ValidationError):
        records[0].label = 3  # type: ignore[misc]


def test_a_file_name_that_is_no_text_is_escaped(model: MemoryClassifier) -> None:
    record = explanations(model, 1)[0].record(path="caf\udce9.png", memory_names=["\udce9"] * 30)
    assert (record.path, record.samples[0].file) == ("caf\\udce9.png", "\\udce9")


@pytest.mark.parametrize(
    ("probabilities", "second"),
    [
        ([0.3, 0.6, 0.1, 0.0], (0, 0.3)),
        ([0.0, 0.6, 0.1, 0.3], (3, 0.3)),
        ([0.4, 0.4, 0.1, 0.1], (0, 0.4)),
        ([0.5, 0.5, 0.0, 0.0], (0, 0.5)),
        ([0.1, 0.8, 0.05, 0.05], (0, 0.1)),
    ],
)
def test_the_second_class_is_the_most_probable_other(
    model: MemoryClassifier, probabilities: list[float], second: tuple[int, float]
) -> None:
    explanation = replace(
        explanations(model, 1)[0], prediction=1, probabilities=torch.tensor(probabilities, dtype=torch.float64)
    )
    found = explanation.record(class_names=HOSTILE).second
    assert (found.prediction, found.prediction_name, found.probability) == (second[0], HOSTILE[second[0]], second[1])


# Samples to show


def test_the_strongest_samples_are_shown_and_the_strongest_of_either_kind(model: MemoryClassifier) -> None:
    beyond = set()
    for each in explanations(model, 6):
        record = each.record()
        kinds = {"example": record.example, "counterfactual": record.counterfactual}
        assert record.example == next((s for s in record.samples if s.prediction == record.prediction), None)
        assert record.counterfactual == next((s for s in record.samples if s.prediction != record.prediction), None)
        for count in (1, 2, 3):
            shown = record.shown_samples(count)
            assert shown[:count] == record.samples[:count]
            assert all(kind in shown for kind in kinds.values() if kind is not None)
            assert len(shown) <= count + 1
            assert sorted((*shown, *record.hidden_samples(count)), key=lambda s: -s.weight) == list(record.samples)
            for name, kind in kinds.items():
                if kind in shown[count:]:
                    beyond.add(name)
                    assert ("the predicted class" in record.further_title(kind)) == (name == "example")
        assert record.shown_samples(1000) == record.samples
        assert record.hidden_samples(1000) == ()
    assert beyond == {"example", "counterfactual"}, "else nothing is tested"


# Heatmaps


@pytest.mark.parametrize(
    ("converged", "score", "chance", "reliable"),
    [
        (True, 0.3, 0.5, True),
        (None, 0.3, 0.5, True),
        (False, 0.3, 0.5, False),
        (True, 0.5, 0.3, False),
        (True, 0.5, 0.505, False),
        (None, 0.5, 0.5, False),
    ],
)
def test_heatmaps_are_reliable_if_they_add_up_and_highlight_what_matters(
    model: MemoryClassifier, converged: bool | None, score: float, chance: float, reliable: bool
) -> None:
    heatmap = make_report(model, noise(1), heatmaps=STEPS).record.explanations[0].heatmap
    deletion = heatmap.deletion.model_copy(update={"score": score, "random_score": chance})
    changed = heatmap.model_copy(update={"converged": converged, "deletion": deletion})
    assert changed.reliable is reliable
    assert changed.model_dump()["reliable"] is reliable
