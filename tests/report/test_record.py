"""The record of a report: its totals and lists against slow loops, and values that it refuses."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from memwrap import MemoryClassifier
from memwrap.report import Inputs, ReportRecord, Source, create_report
from memwrap.report.record import title_of
from tests.report import HOSTILE, STEPS, ReportWorld, make_report, network, noise


def weights_of(model: MemoryClassifier, pixels: Tensor) -> Tensor:
    """(N, M), one image at a time"""
    with torch.no_grad():
        return torch.cat([model.read(model.transform(each).unsqueeze(0)).weights for each in pixels])


def predictions_of(model: MemoryClassifier) -> list[int]:
    return model(model.transform(noise(10))).argmax(1).tolist()


def a_report(model: MemoryClassifier, labels: list[int] | None) -> ReportRecord:
    return create_report(Source("run", model), Inputs(noise(10), tuple(map(str, range(10))), labels), shown=3)


def unsure_rows(model: MemoryClassifier) -> list[int]:
    own, predictions = model.remembered.predictions, predictions_of(model)
    tops = weights_of(model, noise(10)).argmax(1)
    return [row for row in range(10) if int(own[tops[row]]) != predictions[row]]


def test_right_wrong_and_unsure_are_counted(model: MemoryClassifier) -> None:
    predictions, unsure = predictions_of(model), unsure_rows(model)
    labels = [label if row % 3 else (label + 1) % 4 for row, label in enumerate(predictions)]
    record = a_report(model, labels)
    assert record.correct == 6
    assert [number for number, each in record.numbered if each.wrong] == [1, 4, 7, 10]
    assert [number - 1 for number, _ in record.uncertain] == unsure
    assert 0 < len(unsure) < 10
    assert record.wrong_and_unsure == len({0, 3, 6, 9} & set(unsure))
    assert {number - 1 for number, _ in record.confidently_wrong} == {0, 3, 6, 9} - set(unsure)


def test_without_labels_nothing_is_wrong(model: MemoryClassifier) -> None:
    record = a_report(model, None)
    assert not record.labelled
    assert (record.confusions, record.confidently_wrong, record.wrong_and_unsure) == ([], [], 0)


def test_of_the_confidently_wrong_the_most_probable_comes_first(model: MemoryClassifier) -> None:
    """As far as one can see: the last bit depends on the machine."""
    record = a_report(model, [3] * 10)
    changes = {"uncertain": False, "label": 3, "prediction": 0}
    probabilities = [0.5, 1 - 1e-7, 0.7, 1.0, 0.99999]
    explanations = tuple(
        each.model_copy(update={**changes, "probability": probability})
        for each, probability in zip(record.explanations, probabilities, strict=False)
    )
    changed = record.model_copy(update={"explanations": explanations})
    assert [number for number, _ in changed.confidently_wrong] == [2, 4, 5, 3, 1]


def test_confusions_are_counted_and_the_most_frequent_comes_first(model: MemoryClassifier) -> None:
    predictions = predictions_of(model)
    counts = {label: predictions.count(label) for label in set(predictions) - {3}}
    confusions = a_report(model, [3] * 10).confusions
    assert len(counts) > 1
    assert sorted(confusions) == sorted((HOSTILE[3], HOSTILE[label], count) for label, count in counts.items())
    assert [count for _, _, count in confusions] == sorted(counts.values(), reverse=True)
    assert a_report(model, predictions).confusions == []


def test_the_use_of_the_memory_is_summed_over_all_images(reported: ReportWorld) -> None:
    model, record = reported.source.model, reported.record
    weights = weights_of(model, reported.inputs.pixels)
    assert [use.share for use in record.uses] == sorted((use.share for use in record.uses), reverse=True)
    assert sum(use.share for use in record.uses) == pytest.approx(1)
    for image, share, inputs in record.uses:
        column = weights[:, image.index].tolist()
        assert share == pytest.approx(sum(column) / 6, abs=1e-6)
        assert inputs == sum(weight > 0 for weight in column)
    never = [index for index in range(30) if not any(weights[:, index] > 0)]
    assert [image.index for image in record.unused] == never[:12]
    assert record.unused_count == len(never) > 0
    for image in record.unused:
        own = int(model.remembered.predictions[image.index])
        assert (image.label_name, image.prediction_name) == (HOSTILE[image.index % 4], HOSTILE[own])
        assert image.file == f"{image.index}.png"


def test_a_memory_of_one(model: MemoryClassifier) -> None:
    record = make_report(network(memory=1), noise(3)).record
    ((image, share, inputs),) = record.uses
    assert (image.index, image.prediction, share, inputs) == (0, None, 1.0, 3)
    assert (record.uncertain, record.memory_size, record.unused_count, record.unused) == ([], 1, 0, ())


@pytest.mark.parametrize(
    ("run", "title"), [("/runs/a", "a"), ("/runs/a/", "a"), ("C:\\runs\\b", "b"), ("a", "a"), ("/", "")]
)
def test_a_report_is_called_by_the_last_part_of_its_run(run: str, title: str) -> None:
    assert title_of(run) == title


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ({"title": "Certified by the FDA"}, "Certified by the FDA"),
        ({"created": "2020-01-01, audited by Dr. X"}, "created"),
        ({"created": "2020-13-01T00:00:00+00:00"}, "created"),
        ({"created": "2020-01-01"}, "created"),
        ({"memwrap_version": "0.1.0, audited"}, "memwrap_version"),
        ({"memwrap_version": "٣.1"}, "memwrap_version"),
        ({"hashes": {"model": "a", "memory": "b", "inputs": "c"}}, "hashes.model"),
        ({"seeds": {"run": 0}}, "seeds.deletion"),
        ({"shown": 0}, "shown"),
        ({"heatmaps": {"method": "magic"}}, "magic"),
        ({"heatmaps": {"baseline": "pink"}}, "pink"),
        ({"heatmaps": {"tolerance": float("inf")}}, "heatmaps.tolerance"),
        ({"heatmaps": {"tolerance": 0.0}}, "heatmaps.tolerance"),
        ({"heatmaps": {"max_steps": 0}}, "heatmaps.max_steps"),
        ({"heatmaps": {"luck": 13}}, "heatmaps.luck"),
        ({"heatmaps": None}, "image 1"),
        ({"explanations": ()}, "explanations"),
        ({"pictures": {}}, "heatmap-1"),
        ({"format": "a letter"}, "format"),
        ({"extra": 1}, "extra"),
    ],
    ids=str,
)
def test_values_that_no_report_has_are_refused(reported: ReportWorld, change: dict[str, Any], value: str) -> None:
    fields = {name: getattr(reported.record, name) for name in ReportRecord.model_fields}
    assert ReportRecord.model_validate(fields) == reported.record
    with pytest.raises(ValidationError) as error:
        ReportRecord.model_validate({**fields, **change})
    assert value in str(error.value)


@pytest.mark.parametrize("change", [{"label": None, "label_name": None}, {"path": None}, {"heatmap": None}], ids=str)
def test_labels_paths_and_heatmaps_are_there_for_all_images(model: MemoryClassifier, change: dict[str, Any]) -> None:
    record = make_report(model, noise(2), heatmaps=STEPS).record
    fields = {name: getattr(record, name) for name in ReportRecord.model_fields}
    first, second = record.explanations
    with pytest.raises(ValidationError) as error:
        ReportRecord.model_validate({**fields, "explanations": (first, second.model_copy(update=change))})
    assert "image 2" in str(error.value)
