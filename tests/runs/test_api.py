"""What the commands do, from Python: the same runs and scores, and errors before anything is made."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import memwrap
from memwrap.data import digits
from memwrap.errors import (
    DataError,
    InputError,
    MemwrapWarning,
    NoMemoryError,
    RunError,
    SaveError,
    SettingsError,
    StaleMemoryError,
)
from memwrap.report import verify
from memwrap.report.page import read_page
from memwrap.runs.data import data_for
from memwrap.runs.reporting import source_of
from memwrap.runs.run import open_run
from memwrap.runs.training import begin
from memwrap.training.settings import Settings
from tests.photographs import CLASSES, photographs
from tests.runs.conftest import ENCODER, Quick

DIGITS: dict[str, Any] = {"encoder": "tiny", "samples": 100, "epochs": 2, "test": 0.5, "validation": 40}


@pytest.fixture(scope="module")
def photo_run(photos: Path, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> memwrap.TrainedRun:
    settings = {"encoder": ENCODER, "weights": str(weights), "pretrained": False, "size": 48}
    return memwrap.train(photos, tmp_path_factory.mktemp("api") / "run", recipe="photographs", **settings)


def tensors(path: Path) -> dict[str, str]:
    """The hashes of all that was stored."""
    return {part: file["sha256"] for part, file in json.loads((path / "model.json").read_text())["files"].items()}


# Training


def test_training_gives_the_run_of_the_command(tmp_path: Path) -> None:
    trained = memwrap.train("digits", tmp_path / "run", **DIGITS)
    begin(tmp_path / "other", digits(), Settings(**DIGITS), "default").train()
    assert trained.path == tmp_path / "run"
    assert tensors(tmp_path / "run") == tensors(tmp_path / "other")
    assert trained.run.record.recipe == "default"
    assert trained.model.classes == tuple("0123456789")
    assert not trained.model.training


def test_photographs_get_their_recipe_and_the_way_they_are_made_square(
    photo_run: memwrap.TrainedRun, photos: Path, quick: Quick, tmp_path: Path
) -> None:
    run = photo_run.run
    assert run.record.recipe == "photographs"
    assert run.settings.fit in ("crop", "stretch")
    assert photo_run.model.transform.fit == run.settings.fit
    settings = quick(fit=run.settings.fit)
    begin(tmp_path / "other", data_for(str(photos), settings), settings, "photographs").train()
    assert tensors(run.path) == tensors(tmp_path / "other")


def test_a_recipe_is_chosen_by_the_images(photos: Path, tmp_path: Path) -> None:
    for given, recipe in (({}, "photographs"), ({"encoder": "tiny", "size": 8, "epochs": 1}, "default")):
        trained = memwrap.train(photos, tmp_path / recipe, **{"size": 32, "fit": "crop", **given})
        assert trained.run.record.recipe == recipe
        assert trained.run.settings.encoder == ("lite0" if recipe == "photographs" else "tiny")


def test_a_stopped_run_is_resumed(photos: Path, quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMWRAP_DATA", str(tmp_path / "cache"))
    settings = quick()
    assert not begin(tmp_path / "run", data_for(str(photos), settings), settings, "photographs").train(lambda: True)
    resumed = memwrap.train(photos, tmp_path / "run", resume=True)
    assert resumed.run.state.finished
    begin(tmp_path / "whole", data_for(str(photos), settings), settings, "photographs").train()
    assert tensors(tmp_path / "run") == tensors(tmp_path / "whole")
    with pytest.raises(RunError, match="is finished"):
        memwrap.train(photos, tmp_path / "run", resume=True)


def test_a_resumed_run_has_its_settings_and_its_data(tmp_path: Path) -> None:
    stop = iter([False, True])
    assert not begin(tmp_path / "run", digits(), Settings(**DIGITS), "default").train(lambda: next(stop))
    for given in ({"epochs": 5}, {"recipe": "default"}):
        with pytest.raises(SettingsError, match="settings of the run"):
            memwrap.train("digits", tmp_path / "run", resume=True, **given)
    with pytest.raises(DataError, match="is not the data"):
        memwrap.train(photographs(tmp_path / "photos", count=2), tmp_path / "run", resume=True)
    memwrap.train("digits", tmp_path / "run", resume=True)
    memwrap.train("digits", tmp_path / "whole", **DIGITS)
    assert tensors(tmp_path / "run") == tensors(tmp_path / "whole")


def test_settings_without_effect_are_warned_about(photos: Path, tmp_path: Path) -> None:
    with pytest.warns(MemwrapWarning, match="batch_size has no effect"):
        memwrap.train(photos, tmp_path / "run", size=64, fit="crop", batch_size=8, device="cpu")


def test_what_cannot_be_trained_makes_nothing(photos: Path, tmp_path: Path) -> None:
    for kind, given in (
        (SettingsError, {"colour": "red"}),
        (SettingsError, {"recipe": "painting"}),
        (SettingsError, {"encoder": "tiny", "epochs": 0}),
        (SettingsError, {"encoder": "resnet19"}),
    ):
        with pytest.raises(kind):
            memwrap.train(photos, tmp_path / "run", **given)
    with pytest.raises(DataError):
        memwrap.train(tmp_path / "nowhere", tmp_path / "run")
    assert not (tmp_path / "run").exists()
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(RunError, match="exists"):
        memwrap.train(tmp_path / "nowhere", tmp_path / "taken")
    with pytest.raises(RunError, match="is not a run"):
        memwrap.train(photos, tmp_path / "run", resume=True)


def test_progress_is_told(photos: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMWRAP_DATA", str(tmp_path / "cache"))
    titles: list[str] = []

    @contextmanager
    def progress(title: str) -> Iterator[Callable[[int, int | None], None]]:
        titles.append(title)
        yield lambda *_: None

    settings = {"encoder": ENCODER, "weights": str(weights), "pretrained": False, "size": 32}
    memwrap.train(photos, tmp_path / "run", recipe="photographs", progress=progress, **settings)
    assert titles.count("encoding images") == 2, "cropped and stretched"
    assert any("reading" in title for title in titles)


# A trained run


def test_the_scores_are_those_of_the_command(photo_run: memwrap.TrainedRun) -> None:
    record = photo_run.evaluate()
    assert (record["images"], record["split"], record["decided_by"]) == (7, "test", photo_run.model.decided_by)
    test = photo_run.run.splits.of(photo_run.data, "test")
    (pixels,) = test.images.batches([torch.arange(len(test))])
    right = photo_run.model.predict(photo_run.model.transform(pixels)).argmax(1) == test.labels
    assert record["remembered"]["accuracy"] == float(right.double().mean())
    with pytest.raises(DataError, match="no validation images"):
        photo_run.evaluate("validation")


def test_a_run_that_is_opened_again_finds_its_data(photo_run: memwrap.TrainedRun) -> None:
    again = memwrap.TrainedRun(open_run(photo_run.path))
    assert again.data.fingerprint == photo_run.data.fingerprint
    assert again.evaluate() == photo_run.evaluate()


def test_a_report_of_test_images_verifies(photo_run: memwrap.TrainedRun, tmp_path: Path) -> None:
    record = photo_run.report(tmp_path / "report.html", shown=3)
    assert len(record.explanations) == 7
    assert all(each.label is not None for each in record.explanations)
    found = verify(read_page(tmp_path / "report.html"), source_of(open_run(photo_run.path)))
    assert (found.equal, found.images) == (True, 7)


def test_a_report_of_other_images_verifies(photo_run: memwrap.TrainedRun, tmp_path: Path) -> None:
    new = photographs(tmp_path / "new", count=1, seed=80)
    file = new / "discs" / "0.png"
    source = source_of(open_run(photo_run.path))
    for images, count in ((new, 3), (str(new), 3), (file, 1), ([file, str(new / "checks")], 2)):
        record = photo_run.report(tmp_path / "report.html", images)
        assert len(record.explanations) == count
        assert verify(read_page(tmp_path / "report.html"), source).equal
    assert record.explanations[0].path == str(file)


def test_a_report_that_was_changed_does_not_verify(photo_run: memwrap.TrainedRun, tmp_path: Path) -> None:
    photo_run.report(tmp_path / "report.html")
    page = read_page(tmp_path / "report.html")
    changed = page.replace(CLASSES[0], CLASSES[1])
    assert changed != page
    assert not verify(changed, source_of(open_run(photo_run.path))).equal


def test_what_cannot_be_reported_is_named(photo_run: memwrap.TrainedRun, tmp_path: Path) -> None:
    (tmp_path / "letter.png").write_text("Dear Sir or Madam")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"letter\.png"):
        photo_run.report(tmp_path / "report.html", tmp_path / "letter.png")
    with pytest.raises(DataError, match="no images"):
        photo_run.report(tmp_path / "report.html", tmp_path / "empty")
    with pytest.raises(SaveError, match="cannot be written"):
        photo_run.report(tmp_path / "nowhere" / "report.html")
    assert not (tmp_path / "report.html").exists()


# Models of one's own


@pytest.fixture
def test_set() -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(5)
    return torch.randn(40, 3, 8, 8, generator=draws), torch.randint(4, (40,), generator=draws)


@pytest.mark.parametrize("variant", ["memory_wrap", "vote", "standard"])
def test_accuracy_is_that_of_a_loop(
    variant: str, test_set: tuple[Tensor, Tensor], memory: Tensor, labels: Tensor
) -> None:
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=4), variant)
    if isinstance(model, memwrap.MemoryClassifier):
        model.remember(memory, labels)
    inputs, classes = test_set
    model.eval()
    with torch.no_grad():
        right = sum(int(model(image.unsqueeze(0)).argmax() == label) for image, label in zip(*test_set, strict=True))
    assert 0 < right < 40
    model.train()
    for source in (
        (DataLoader(TensorDataset(inputs, classes), batch_size=7),),
        (inputs, classes),
        (inputs.numpy(), classes.tolist()),
        (TensorDataset(inputs, classes),),
    ):
        assert memwrap.evaluate(model, *source)["accuracy"] == right / 40
    assert model.training, "its mode is left as it was"


def test_scores_of_a_vote_tell_both_decisions(test_set: tuple[Tensor, Tensor], memory: Tensor, labels: Tensor) -> None:
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=4), "vote").eval()
    model.remember(memory, labels)
    inputs, classes = test_set
    with torch.no_grad():
        reading = model.read(inputs)
    vote, head = reading.votes.argmax(1), reading.head_logits.argmax(1)
    scores = memwrap.evaluate(model, inputs, classes)
    assert scores["vote_accuracy"] == scores["accuracy"] == float((vote == classes).double().mean())
    assert scores["head_accuracy"] == float((head == classes).double().mean())
    assert scores["agreement"] == float((vote == head).double().mean())


def test_what_cannot_be_evaluated_is_refused(
    model: memwrap.MemoryClassifier, memory: Tensor, labels: Tensor, images: Tensor
) -> None:
    with pytest.raises(NoMemoryError):
        memwrap.evaluate(model, images, [0] * 5)
    model.remember(memory, labels)
    for source in (([],), (images, [0] * 4), (images, [0, 1, 2, 3, 4]), (images, [0.5] * 5), (images,)):
        with pytest.raises(InputError):
            memwrap.evaluate(model, *source)
    with torch.no_grad():
        model.layer.head.first.bias.add_(1)
    with pytest.raises(StaleMemoryError):
        memwrap.evaluate(model, images, [0] * 5)
    with pytest.raises(StaleMemoryError):
        memwrap.calibrate(model, images, [0] * 5)


def test_a_model_is_calibrated_on_images_of_one_s_own(memory: Tensor, labels: Tensor) -> None:
    """Labels that have nothing to do with the images: no probability may stay far above chance."""
    draws = torch.Generator().manual_seed(6)
    images, classes = torch.randn(200, 3, 8, 8, generator=draws), torch.randint(4, (200,), generator=draws)
    for variant in ("vote", "memory_wrap", "standard"):
        model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=4), variant).eval()
        for parameter in model.layer.parameters():
            torch.nn.init.normal_(parameter, 0, 0.3, generator=draws)
        if isinstance(model, memwrap.MemoryClassifier):
            model.remember(memory, labels)
        memwrap.calibrate(model, images[:20], classes[:20])
        assert model.calibration is None, "too few"
        before = memwrap.evaluate(model, images[100:], classes[100:])["calibration_error"]
        memwrap.calibrate(model, DataLoader(TensorDataset(images[:100], classes[:100]), 32))
        scores = memwrap.evaluate(model, images[100:], classes[100:])
        assert scores["calibration_error"] < min(0.2, before)


def test_predictions_of_the_memory_follow_the_scale(memory: Tensor, labels: Tensor, images: Tensor) -> None:
    """Those that were asked for before it was chosen included."""
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=4), "vote", scale=0.01).eval()
    model.remember(memory, labels)
    assert model.remembered.predictions is not None
    memwrap.calibrate(model, memory, labels)
    found = model.remembered.predictions.clone()
    assert model.layer.similarity.scale > 1
    model.remember(memory, labels)
    assert torch.equal(found, model.remembered.predictions)
