"""A run judged: on its own splits, on other images, and as far as it goes without its data."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from memwrap.data import DataSet, LabelledImages, digits, generator
from memwrap.errors import DataError, RunError
from memwrap.explain.record import PredictionRecord
from memwrap.models.evaluation import Encoded, draw_memories, drawn_scores
from memwrap.models.loading import Model
from memwrap.models.prediction import predict_files
from memwrap.runs.evaluation import evaluate_run, labelled_like
from memwrap.runs.run import Run, open_run
from memwrap.runs.training import begin
from memwrap.training.settings import Settings, with_changes

SETTINGS = Settings(
    encoder="tiny",
    samples=100,
    test=90,
    validation=30,
    epochs=8,
    batch_size=32,
    memory="batch",
    memory_size=20,
    remember=30,
    seed=4,
)


@pytest.fixture(scope="module")
def data() -> DataSet:
    return digits()


Train = Callable[..., tuple[Run, Model]]


@pytest.fixture(scope="module")
def train(data: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Trains with some settings changed, on these data or the digits."""

    def trained(images: DataSet = data, **changes: Any) -> tuple[Run, Model]:
        path = tmp_path_factory.mktemp("runs") / "run"
        begin(path, images, with_changes(SETTINGS, changes, "test"), "default").train()
        run = open_run(path)
        return run, run.model()

    return trained


@pytest.fixture(scope="module")
def run(train: Train) -> tuple[Run, Model]:
    return train()


@pytest.fixture(scope="module")
def standard(train: Train) -> tuple[Run, Model]:
    return train(variant="standard")


def pixels(images: LabelledImages) -> torch.Tensor:
    (found,) = images.images.batches([torch.arange(len(images))])
    return found


def predictions_of(model: Model, images: LabelledImages) -> list[int]:
    """One picture at a time, as its user would."""
    return [int(model(model.transform(image).unsqueeze(0)).argmax()) for image in pixels(images)]


def accuracy_of(model: Model, images: LabelledImages) -> float:
    pairs = list(zip(predictions_of(model, images), images.labels.tolist(), strict=True))
    return sum(predicted == label for predicted, label in pairs) / len(pairs)


# On its own data


def test_a_run_is_evaluated_with_its_memory_and_with_drawn_ones(run: tuple[Run, Model], data: DataSet) -> None:
    opened, model = run
    record = evaluate_run(opened, model, data, None, "test")
    assert {key: record[key] for key in ("run", "variant", "classes", "split", "images", "left_out")} == {
        "run": str(opened.path),
        "variant": "memory_wrap",
        "classes": list("0123456789"),
        "split": "test",
        "images": 90,
        "left_out": {},
    }
    assert record["remembered"]["memory_size"] == 30
    assert {name: scores["drawn_from"] for name, scores in record["drawn"].items()} == {
        "training_subset": 100,
        "whole_training_set": 1797 - 90 - 30,
    }
    assert {scores["memory_size"] for scores in record["drawn"].values()} == {20}


def test_a_record_is_made_of_json_values(run: tuple[Run, Model], standard: tuple[Run, Model], data: DataSet) -> None:
    for each in (run, standard):
        record = evaluate_run(*each, data, None, "test")
        assert json.loads(json.dumps(record)) == record


def test_the_accuracy_with_the_remembered_memory_is_that_of_its_predictions(
    run: tuple[Run, Model], data: DataSet
) -> None:
    opened, model = run
    record = evaluate_run(opened, model, data, None, "test")
    expected = accuracy_of(model, opened.splits.of(data, "test"))
    assert 0.3 < expected < 1
    assert record["remembered"]["accuracy"] == expected


def test_it_is_that_of_what_is_predicted_for_the_same_pictures(
    run: tuple[Run, Model], data: DataSet, tmp_path: Path
) -> None:
    opened, model = run
    test = opened.splits.of(data, "test")
    files = [tmp_path / f"{name}.png" for name in test.names]
    for file, image in zip(files, pixels(test), strict=True):
        Image.fromarray(image[0].numpy()).save(file)
    predictions = [each for each in predict_files(model, files) if isinstance(each, PredictionRecord)]
    scores = evaluate_run(opened, model, data, None, "test")["remembered"]
    correct = [each.prediction == label for each, label in zip(predictions, test.labels.tolist(), strict=True)]
    assert scores["accuracy"] == sum(correct) / 90
    unsure = sum(bool(each.uncertain) for each in predictions)
    assert scores["counterfactual_share"] == unsure / 90
    doubted = [right for right, each in zip(correct, predictions, strict=True) if each.uncertain]
    assert doubted
    assert scores["counterfactual_accuracy"] == sum(doubted) / len(doubted)
    surest = sorted(zip(predictions, correct, strict=True), key=lambda pair: -pair[0].probability)[: 90 - unsure]
    assert scores["selective"]["flag"] == {
        "coverage": pytest.approx(1 - unsure / 90),
        "accuracy": (sum(correct) - sum(doubted)) / (90 - unsure),
        "confidence_accuracy": pytest.approx(sum(right for _, right in surest) / (90 - unsure)),
    }


def encoded(model: Model, *images: LabelledImages) -> Encoded:
    with torch.no_grad():
        encodings = torch.cat([model.encode(model.transform(pixels(each))) for each in images])
    return Encoded(encodings, torch.cat([each.labels for each in images]))


def test_memories_are_drawn_from_the_training_subset_and_from_all_but_test_and_validation(
    run: tuple[Run, Model], data: DataSet
) -> None:
    opened, model = run
    test, subset, rest = (opened.splits.of(data, name) for name in ("test", "train", "rest"))
    record = evaluate_run(opened, model, data, None, "test")
    sources = {"training_subset": (subset,), "whole_training_set": (subset, rest)}
    for number, (name, source) in enumerate(sources.items()):
        with torch.no_grad():
            inputs, images = encoded(model, test), encoded(model, *source)
            draws = draw_memories(len(inputs), images.labels, 20, generator(4, "evaluation", number))
            expected = drawn_scores(model.layer, inputs, images, draws)
        assert record["drawn"][name] == expected


def test_the_validation_images_can_be_evaluated(run: tuple[Run, Model], data: DataSet) -> None:
    opened, model = run
    record = evaluate_run(opened, model, data, None, "validation")
    assert (record["split"], record["images"]) == ("validation", 30)
    assert record["remembered"]["accuracy"] == accuracy_of(model, opened.splits.of(data, "validation"))


@pytest.mark.parametrize(("setting", "split"), [("test", "test"), ("validation", "validation")])
def test_a_split_without_images_is_named(setting: str, split: str, train: Train, data: DataSet) -> None:
    opened, model = train(**{setting: 0, "epochs": 1})
    with pytest.raises(DataError, match=re.escape(f"the run has no {split} images; train with --{split}")):
        evaluate_run(opened, model, data, None, split)


def test_for_a_run_trained_on_all_images_the_whole_training_set_is_left_out(train: Train, data: DataSet) -> None:
    few = replace(data, train=data.train.at(torch.arange(150)))
    opened, model = train(images=few, samples=None, test=30, validation=0, epochs=1)
    record = evaluate_run(opened, model, few, None, "test")
    assert set(record["drawn"]) == {"training_subset"}
    assert record["left_out"] == {"drawn from the whole training set": "the run was trained on all of it"}


def test_a_standard_run_has_one_score(standard: tuple[Run, Model], data: DataSet) -> None:
    opened, model = standard
    record = evaluate_run(opened, model, data, None, "test")
    assert record["standard"]["accuracy"] == accuracy_of(model, opened.splits.of(data, "test"))
    assert set(record["standard"]["selective"]) == {"confidence"}
    assert not {"memory", "remembered", "drawn"} & record.keys()


def test_what_is_reported_of_the_memory_can_be_counted(run: tuple[Run, Model], data: DataSet) -> None:
    """Each sample is judged by the memory less itself, one at a time."""
    opened, model = run
    memory = model.remembered
    images = model.transform(memory.images)
    agreeing = 0
    for sample in range(30):
        others = torch.arange(30) != sample
        logits = model(images[sample : sample + 1], memory=images[others])
        agreeing += int(logits.argmax() == memory.labels[sample])
    facts = evaluate_run(opened, model, data, None, "test")["memory"]
    assert facts == {"size": 30, "own_accuracy": agreeing / 30}


def test_a_memory_of_one_has_no_explanation_scores(train: Train, data: DataSet) -> None:
    opened, model = train(remember=1, memory_size=1, memory="random", epochs=1)
    record = evaluate_run(opened, model, data, None, "test")
    assert record["memory"] == {"size": 1, "own_accuracy": None}
    assert not {"explanation_accuracy", "memory_use"} & record["remembered"].keys()
    assert set(record["remembered"]["selective"]) == {"confidence"}
    assert record["remembered"]["accuracy"] == accuracy_of(model, opened.splits.of(data, "test"))
    assert record["drawn"]["training_subset"]["memory_size"] == 1


def test_judging_leaves_the_model_as_it_was(run: tuple[Run, Model], data: DataSet) -> None:
    opened, _ = run
    model = open_run(opened.path).model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    evaluate_run(opened, model, data, None, "test")
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# Without its data


def test_without_data_and_images_nothing_is_evaluated_and_the_reason_is_given(run: tuple[Run, Model]) -> None:
    opened, model = run
    record = evaluate_run(opened, model, "the disk is gone", None, "test")
    assert record["left_out"] == {"accuracy": "no images to evaluate on: the disk is gone"}
    assert record["memory"]["size"] == 30
    assert not {"images", "remembered", "drawn"} & record.keys()


def test_without_data_other_images_are_classified_with_the_remembered_memory(
    run: tuple[Run, Model], data: DataSet
) -> None:
    opened, model = run
    judged = opened.splits.of(data, "test")
    record = evaluate_run(opened, model, "the disk is gone", judged, "elsewhere")
    assert record["split"] == "elsewhere"
    assert record["remembered"] == evaluate_run(opened, model, data, None, "test")["remembered"]
    assert record["drawn"] == {}
    assert record["left_out"] == {
        "drawn from the training subset": "the disk is gone",
        "drawn from the whole training set": "the disk is gone",
    }


def test_a_standard_run_needs_no_data_for_other_images(standard: tuple[Run, Model], data: DataSet) -> None:
    opened, model = standard
    judged = opened.splits.of(data, "test")
    record = evaluate_run(opened, model, "the disk is gone", judged, "elsewhere")
    assert record["left_out"] == {}
    assert record["standard"] == evaluate_run(opened, model, data, None, "test")["standard"]


def test_a_model_that_has_lost_its_memory_is_refused(run: tuple[Run, Model], data: DataSet) -> None:
    opened, _ = run
    model = open_run(opened.path).model()
    model.forget()
    with pytest.raises(RunError, match="the run's model has no memory; the run is damaged"):
        evaluate_run(opened, model, data, None, "test")


# On other images


def relabelled(data: DataSet, classes: str, test: LabelledImages | None = None) -> DataSet:
    """Those of the images that are of these classes, numbered in this order."""
    numbers = torch.tensor([classes.find(str(digit)) for digit in range(10)])[data.train.labels]
    kept = (numbers >= 0).nonzero().flatten()
    train = replace(data.train.at(kept), labels=numbers[kept])
    return DataSet("other", tuple(classes), train, test, "other print")


def test_classes_in_another_order_are_classified_by_their_names(run: tuple[Run, Model], data: DataSet) -> None:
    opened, model = run
    test = replace(data, train=opened.splits.of(data, "test"))
    judged = labelled_like(opened.classes, relabelled(test, "5678901234"), "other")
    assert torch.equal(judged.labels, test.train.labels)
    assert judged.names == test.train.names
    record = evaluate_run(opened, model, data, judged, "other")
    assert record["remembered"] == evaluate_run(opened, model, data, None, "test")["remembered"]


def test_some_of_the_classes_will_do(run: tuple[Run, Model], data: DataSet) -> None:
    opened, model = run
    judged = labelled_like(opened.classes, relabelled(data, "73"), "other")
    assert set(judged.labels.tolist()) == {3, 7}
    scores = evaluate_run(opened, model, data, judged, "other")["remembered"]
    assert [number for number, each in enumerate(scores["class_accuracies"]) if each is not None] == [3, 7]
    assert scores["accuracy"] == accuracy_of(model, judged)


def test_classes_that_the_run_does_not_know_are_refused(run: tuple[Run, Model], data: DataSet) -> None:
    other = replace(relabelled(data, "01"), classes=("0", "letter O"))
    message = "some/folder: has classes that the model does not know (letter O); it knows 0, 1, 2, 3"
    with pytest.raises(DataError, match=re.escape(message)):
        labelled_like(run[0].classes, other, "some/folder")


def test_the_test_split_of_other_data_is_classified_if_it_has_one(run: tuple[Run, Model], data: DataSet) -> None:
    test = replace(data.train.at(torch.arange(5)), labels=torch.tensor([0, 0, 1, 1, 1]))
    judged = labelled_like(run[0].classes, relabelled(data, "98", test), "other")
    assert judged.labels.tolist() == [9, 9, 8, 8, 8]
    assert judged.names == test.names
