"""Explanations for scripts: what `predict --json` says, and the rest as plain values."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from memwrap import MemoryClassifier
from memwrap.models.prediction import Prediction
from memwrap.report.records import as_record
from tests.report import HOSTILE, STEPS, ReportWorld, network, noise, parsed, told


def records(model: MemoryClassifier, **others: Any) -> list[dict[str, Any]]:
    world = told(model, noise(4), **others)
    found = [as_record(card, world.source.memory_names) for card in world.content.cards]
    return json.loads(json.dumps(found, allow_nan=False))


def test_the_first_fields_are_those_of_a_prediction(model: MemoryClassifier) -> None:
    for record in records(model):
        fields = list(Prediction.__dataclass_fields__)
        assert list(record)[: len(fields)] == fields


def test_a_record_says_what_the_model_says(model: MemoryClassifier) -> None:
    own = model.remembered.predictions.tolist()
    for row, record in enumerate(records(model)):
        with torch.no_grad():
            reading = model.read(model.transform(noise(4)[row : row + 1]))
        probabilities, weights = reading.logits.softmax(1)[0], reading.weights[0]
        label = int(probabilities.argmax())
        assert record["path"] == f"picture {row}.png"
        assert (record["label"], record["name"]) == (label, HOSTILE[label])
        assert record["probability"] == pytest.approx(float(probabilities[label]), abs=1e-6)
        assert record["probabilities"] == pytest.approx(probabilities.tolist(), abs=1e-6)
        assert record["uncertain"] == (own[int(weights.argmax())] != label)
        assert record["true_label"] == row
        assert {each["index"]: each["weight"] for each in record["samples"]} == pytest.approx(
            {index: float(weight) for index, weight in enumerate(weights) if weight > 0}, abs=1e-6
        )


def test_effects_are_those_of_removing_one_memory_image(model: MemoryClassifier) -> None:
    for row, record in enumerate(records(model)):
        image = model.transform(noise(4)[row : row + 1])
        for sample in record["samples"]:
            keep = torch.ones(12, dtype=torch.bool)
            keep[sample["index"]] = False
            with torch.no_grad():
                without = model.read(image, keep=keep).logits.softmax(1)[0, record["label"]]
            assert sample["effect"] == pytest.approx(float(without) - record["probability"], abs=1e-5)


def test_what_any_one_memory_image_did_is_said(model: MemoryClassifier) -> None:
    for record in records(model):
        assert record["largest_effect"] == max(abs(sample["effect"]) for sample in record["samples"])
        assert record["effect_sentence"].startswith("Taking out ")


def test_samples_have_their_names_and_classes(model: MemoryClassifier) -> None:
    own = model.remembered.predictions.tolist()
    for record in records(model):
        for sample in record["samples"]:
            index = sample["index"]
            assert sample["file"] == f"{index}.png"
            assert (sample["label"], sample["label_name"]) == (index % 4, HOSTILE[index % 4])
            assert (sample["prediction"], sample["prediction_name"]) == (own[index], HOSTILE[own[index]])
            assert sample["shares"] is None


def test_all_samples_are_there_however_few_are_shown(model: MemoryClassifier) -> None:
    assert records(model, shown=1) == records(model, shown=9)


def test_with_a_linear_head_shares_add_up_to_the_logits() -> None:
    model = network(head="linear")
    bias = model.layer.head.first.bias.tolist()
    world = told(model, noise(4))
    for card in world.content.cards:
        record = as_record(card, None)
        assert all(len(sample["shares"]) == 4 for sample in record["samples"])
        own = (
            model.layer.head.first.weight[:, : -model.layer.width]
            @ model.encode(model.transform(card.pixels.unsqueeze(0)))[0]
        )
        total = torch.tensor([sample["shares"] for sample in record["samples"]]).sum(0) + own + torch.tensor(bias)
        assert total.tolist() == pytest.approx(card.explanation.logits.tolist(), abs=1e-4)


def test_what_a_prediction_hangs_on_and_the_check_are_there(model: MemoryClassifier) -> None:
    for record in records(model):
        assert record["flip_set"].keys() == {"indices", "prediction", "proven", "tried"}
        assert record["check"]["same_prediction"] is True
        assert record["check"]["kept"] == len(record["samples"])


def test_what_heatmaps_are_worth_is_what_the_page_says(reported: ReportWorld) -> None:
    for card, article in zip(reported.content.cards, parsed(reported.page).all("article"), strict=True):
        heat = json.loads(json.dumps(as_record(card, None), allow_nan=False))["heatmap"]
        words = article.one("details").text
        assert (heat["method"], heat["baseline"]) == ("integrated_gradients", "white")
        assert f"{heat['steps']} steps." in words
        assert heat["reliable"] == ("Do not rely on these maps" not in words)
        assert heat["converged"] == ("too much" not in words)
        maps = [each.attributes["alt"] for each in article.one("ul", class_="heat").all("img", class_="heatmap")]
        assert maps[1:] == [f"heatmap of memory image {index}" for index in heat["moved"]]
        used = {sample.index for sample in card.explanation.samples}
        assert sorted([*heat["moved"], *heat["still"]]) == sorted(used)
        assert f"the probability is {100 * heat['deletion']['score']:.1f} % on average" in words
        assert f"in random order {100 * heat['deletion']['random_score']:.1f} %." in words
        assert len(heat) == 9


def test_without_a_path_or_without_heatmaps_there_is_less_to_tell(model: MemoryClassifier) -> None:
    assert [record["heatmap"] for record in records(model)] == [None] * 4
    heat = records(model, heatmaps=replace(STEPS, method="saliency"))[0]["heatmap"]
    assert [heat[name] for name in ("method", "steps", "error", "converged")] == ["saliency", None, None, None]


def test_what_is_not_known_is_null() -> None:
    (record, *_) = records(network(memory=1), labelled=False, memory_names=None)
    (sample,) = record["samples"]
    assert record["true_label"] is None
    assert record["uncertain"] is None
    assert record["largest_effect"] is None
    assert record["effect_sentence"] == ""
    assert record["flip_sentence"] == "The only memory image cannot be taken out."
    assert [sample[name] for name in ("file", "effect", "prediction", "prediction_name", "shares")] == [None] * 5
