"""Training into a folder: stopped and gone on with, it ends as if it had not been; and what is there at the end."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import memwrap
from memwrap.data import DataSet, digits, generator
from memwrap.errors import DataError, NonFiniteError, RunError, SettingsError
from memwrap.runs import training
from memwrap.runs.data import data_for, data_of
from memwrap.runs.evaluation import evaluate_run
from memwrap.runs.run import open_run
from memwrap.runs.training import begin, resume
from memwrap.storage import checkpoint, log
from memwrap.training.settings import Settings, with_changes
from tests.runs.test_kill import outcome

SETTINGS = Settings(
    encoder="tiny", samples=32, test=0.5, validation=20, epochs=3, batch_size=16, memory_size=8, remember=15
)
STEPS = 6


@pytest.fixture(scope="module")
def data() -> DataSet:
    return digits()


def changed(**changes: Any) -> Settings:
    return with_changes(SETTINGS, changes, "test")


def after(steps: int) -> Callable[[], bool]:
    """Says to stop when it has been asked so often."""
    asked = iter([False] * (steps - 1) + [True])
    return lambda: next(asked)


def trained(path: Path, data: DataSet, settings: Settings = SETTINGS) -> dict[str, Any]:
    assert begin(path, data, settings, "default").train()
    return outcome(path)


# Stopped and gone on with


@pytest.fixture(scope="module")
def whole(data: DataSet, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run comes to that nobody has stopped."""
    return trained(tmp_path_factory.mktemp("whole") / "run", data)


@pytest.mark.parametrize("step", range(1, STEPS))
def test_a_run_stopped_after_any_step_ends_as_if_it_had_not_been(
    step: int, data: DataSet, tmp_path: Path, whole: dict[str, Any]
) -> None:
    assert not begin(tmp_path / "run", data, SETTINGS, "default").train(after(step))
    begun = resume(open_run(tmp_path / "run"), data)
    assert begun.trainer.progress.step == step
    assert begun.train()
    assert outcome(tmp_path / "run") == whole


KINDS = {
    "the batch as memory": {"memory": "batch"},
    "adamw": {"optimizer": "adamw", "lr": 0.001, "variant": "only_memory", "memory": "balanced"},
    "without momentum": {"momentum": 0.0, "schedule": "steps", "drops": [0.5]},
    "without a memory": {"variant": "standard"},
    "a queue": {"memory": "queue", "memory_size": 20, "contrast": 0.5},
    "a queue of fewer than a batch": {"memory": "queue", "memory_size": 5, "variant": "only_memory"},
    "contrast without a memory": {"variant": "standard", "memory": "queue", "memory_size": 20, "contrast": 0.5},
    "contrast of a vote, projected": {"variant": "vote", "contrast": 1.0, "project": 6},
    "contrast of a frozen encoder": {"freeze": True, "augment": "none", "project": 5, "contrast": 0.5},
    "a frozen encoder": {"freeze": True},
    "encoded once": {"freeze": True, "augment": "none", "project": 5},
    "with dropout": {
        "encoder": "efficientnet_b0",
        "samples": 8,
        "batch_size": 4,
        "memory_size": 4,
        "remember": 4,
        "epochs": 1,
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_stopped_after_every_step_ends_as_if_it_had_not_been(kind: str, data: DataSet, tmp_path: Path) -> None:
    settings = changed(**{"epochs": 2, **KINDS[kind]})
    expected = trained(tmp_path / "whole", data, settings)
    path = tmp_path / "run"
    stops, begun = 0, begin(path, data, settings, "default")
    while not begun.train(after(1)):
        stops, begun = stops + 1, resume(open_run(path), data)
    assert stops == 2 * settings.epochs - 1
    assert outcome(path) == expected


def test_a_stop_is_asked_for_after_every_step_but_the_last(data: DataSet, tmp_path: Path) -> None:
    steps = []
    begun = begin(tmp_path / "run", data, SETTINGS, "default")

    def stop() -> bool:
        steps.append(begun.trainer.progress.step)
        return False

    assert begun.train(stop)
    assert steps == [1, 2, 3, 4, 5]


def test_whatever_was_drawn_elsewhere_does_not_matter(data: DataSet, tmp_path: Path, whole: dict[str, Any]) -> None:
    torch.manual_seed(12345)
    begun = begin(tmp_path / "run", data, SETTINGS, "default")
    torch.manual_seed(54321)
    begun.train(after(3))
    torch.rand(100)
    resume(open_run(tmp_path / "run"), data).train()
    assert outcome(tmp_path / "run") == whole


# The same seed, the same run


def test_the_same_seed_gives_the_same_numbers_twice(data: DataSet, tmp_path: Path) -> None:
    records = []
    for name in ("first", "second"):
        trained(tmp_path / name, data)
        run = open_run(tmp_path / name)
        records.append(evaluate_run(run, run.model(), data, None, "test") | {"run": ""})
    assert outcome(tmp_path / "first") == outcome(tmp_path / "second")
    assert json.dumps(records[0]) == json.dumps(records[1])


def test_another_seed_gives_others(data: DataSet, tmp_path: Path, whole: dict[str, Any]) -> None:
    other = trained(tmp_path / "run", data, changed(seed=1))
    assert other["tensors"]["weights"] != whole["tensors"]["weights"]
    assert other["splits"] != whole["splits"]


# The log


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("epochs", "validated"),
    [(1, [1]), (3, [1, 2, 3]), (10, [*range(1, 11)]), (25, [3, 5, 8, 10, 13, 15, 18, 20, 23, 25])],
)
def test_there_is_a_line_for_each_epoch_and_a_validation_in_about_ten_and_the_last(
    epochs: int, validated: list[int], data: DataSet, tmp_path: Path
) -> None:
    trained(tmp_path / "run", data, changed(epochs=epochs, samples=16))
    lines = lines_of(tmp_path / "run")
    assert [line["epoch"] for line in lines] == list(range(1, epochs + 1))
    assert [line["step"] for line in lines] == list(range(1, epochs + 1))
    assert [line["epoch"] for line in lines if "validation_accuracy" in line] == validated


def test_without_validation_images_there_is_no_validation(data: DataSet, tmp_path: Path) -> None:
    trained(tmp_path / "run", data, changed(validation=0))
    assert not any("validation_accuracy" in line for line in lines_of(tmp_path / "run"))


@pytest.mark.parametrize("variant", ["memory_wrap", "standard"])
def test_validation_accuracy_is_that_of_the_model_of_then(variant: str, data: DataSet, tmp_path: Path) -> None:
    """The last one's: by a loop over the images, with the memory drawn again."""
    path = tmp_path / "run"
    trained(path, data, changed(variant=variant, epochs=12, samples=120, batch_size=40, validation=200))
    run, model = open_run(path), memwrap.load(path)
    order = torch.randperm(120, generator=generator(0, "validation memory", 12))[:8]
    memory = run.splits.of(data, "train").images.at(order).pixels  # type: ignore[attr-defined]
    judged = run.splits.of(data, "validation")
    correct = 0
    for pixels, label in zip(judged.images.pixels, judged.labels, strict=True):  # type: ignore[attr-defined]
        image = model.transform(pixels).unsqueeze(0)
        logits = model(image) if variant == "standard" else model(image, memory=model.transform(memory))
        correct += int(logits.argmax() == label)
    assert correct > 30
    assert lines_of(path)[-1]["validation_accuracy"] == correct / len(judged)


def test_validating_does_not_change_what_is_learnt(
    data: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: dict[str, Any]
) -> None:
    monkeypatch.setattr(training, "VALIDATIONS", 1)
    seldom = trained(tmp_path / "run", data)
    assert sum("validation_accuracy" in line for line in seldom["metrics"]) == 1
    assert seldom["tensors"] == whole["tensors"]


def test_a_torn_line_and_epochs_that_were_not_saved_are_cut_on_resume(
    data: DataSet, tmp_path: Path, whole: dict[str, Any]
) -> None:
    path = tmp_path / "run"
    begin(path, data, SETTINGS, "default").train(after(3))
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 2, "step": 4, "loss": 0.0}\n{"epoch": 3, "st')
    resume(open_run(path), data).train()
    assert outcome(path) == whole


def test_seconds_continue_counting(data: DataSet, tmp_path: Path) -> None:
    path = tmp_path / "run"
    begin(path, data, SETTINGS, "default").train(after(3))
    settings, parts = checkpoint.read(path)
    settings["training"]["seconds"] = 1000.0
    open_run(path).write(settings, parts)
    begun = resume(open_run(path), data)
    begun.train()
    assert begun.seconds > 1000
    assert [line["seconds"] > 1000 for line in lines_of(path)] == [False, True, True]


class Recorder:
    """A callback that keeps what it is told."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.lines: list[dict[str, Any]] = []

    def on_step(self, metrics: Any, rate: float) -> None:
        self.steps.append(metrics.step)

    def on_epoch(self, line: dict[str, Any]) -> None:
        self.lines.append(line)


def test_callbacks_get_every_step_and_line(data: DataSet, tmp_path: Path) -> None:
    begun, recorder = begin(tmp_path / "run", data, SETTINGS, "default"), Recorder()
    begun.callbacks.append(recorder)
    begun.train()
    assert recorder.steps == [1, 2, 3, 4, 5, 6]
    assert recorder.lines == lines_of(tmp_path / "run")


# What a finished run holds


@pytest.fixture(scope="module")
def finished(data: DataSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learnt something; not to be changed."""
    path = tmp_path_factory.mktemp("finished") / "run"
    trained(path, data, changed(samples=200, epochs=20, remember=25, memory="batch", batch_size=64))
    return path


def test_a_finished_run_holds_no_state_of_an_optimiser(finished: Path) -> None:
    settings, parts = checkpoint.read(finished)
    assert set(parts) == {"weights", "probe", "memory"}
    assert settings["training"]["finished"] is True
    assert not list(finished.glob("optimizer*"))


def test_a_finished_run_remembers_as_many_of_each_class_as_of_any_other(finished: Path) -> None:
    counts = memwrap.load(finished).remembered.labels.bincount(minlength=10)
    assert counts.sum() == 25
    assert sorted(counts.tolist()) == [2] * 5 + [3] * 5


def test_what_is_remembered_are_training_images_and_the_record_says_which(finished: Path, data: DataSet) -> None:
    run, model = open_run(finished), memwrap.load(finished)
    remembered = checkpoint.read(finished)[0]["training"]["remembered"]
    assert len(set(remembered)) == 25
    assert set(remembered) <= set(run.splits.train.tolist())
    images = data.train.at(torch.tensor(remembered))
    assert torch.equal(model.remembered.labels, images.labels)
    assert torch.equal(model.remembered.images, images.images.pixels)  # type: ignore[attr-defined]
    assert model.remembered.names == images.names


def test_the_model_of_a_finished_run_predicts(finished: Path, data: DataSet) -> None:
    model = memwrap.load(finished)
    test = open_run(finished).splits.of(data, "test")
    predictions = model(model.transform(test.images.pixels)).argmax(1)  # type: ignore[attr-defined]
    assert (predictions == test.labels).float().mean() > 0.5
    assert model.classes == tuple("0123456789")


def test_a_standard_run_holds_no_memory(data: DataSet, tmp_path: Path) -> None:
    trained(tmp_path / "run", data, changed(variant="standard"))
    settings, parts = checkpoint.read(tmp_path / "run")
    assert set(parts) == {"weights", "probe"}
    assert "remembered" not in settings["training"]


def test_a_finished_run_is_not_resumed(finished: Path, data: DataSet) -> None:
    with pytest.raises(RunError, match=re.escape(f"{finished}: the run is finished; there is nothing to resume")):
        resume(open_run(finished), data)


def test_a_run_that_is_not_finished_has_no_finished_model(data: DataSet, tmp_path: Path) -> None:
    path = tmp_path / "run"
    begin(path, data, SETTINGS, "default").train(after(2))
    message = f"{path}: the run is not finished, 2 steps are done; resume it with: memwrap train --resume --out {path}"
    with pytest.raises(RunError, match=re.escape(message)):
        open_run(path).model()


# What cannot come to a good end is refused at the start


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory": "batch", "memory_size": 33}, "memory_size is 33, but there are 32 training images"),
        ({"memory": "random", "memory_size": 33}, "memory_size is 33, but there are 32 training images"),
        ({"remember": 33}, "remember is 33, but there are 32 training images"),
        ({"batch_size": 33}, "batch_size is 33, but there are 32 training images"),
    ],
)
def test_settings_that_the_images_do_not_suffice_for_are_refused_before_anything_is_written(
    changes: dict[str, Any], message: str, data: DataSet, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=re.escape(message)):
        begin(tmp_path / "run", data, changed(**changes), "default")
    assert list(tmp_path.iterdir()) == []


def test_a_standard_run_does_not_care_how_large_a_memory_would_be(data: DataSet, tmp_path: Path) -> None:
    trained(tmp_path / "run", data, changed(variant="standard", memory_size=33, remember=33))


# The data of a run


@pytest.fixture
def pictures(data: DataSet, tmp_path: Path) -> Path:
    """A folder of 60 digits, twenty of each of three classes, as files."""
    folder = tmp_path / "pictures"
    for label, name in enumerate(("zero", "one", "two")):
        (folder / name).mkdir(parents=True)
        chosen = (data.train.labels == label).nonzero().flatten()[:20]
        for index in chosen.tolist():
            pixels = data.train.images.pixels[index, 0]  # type: ignore[attr-defined]
            Image.fromarray(pixels.numpy()).save(folder / name / f"{index}.png")
    return folder


FEW = with_changes(SETTINGS, {"samples": 32, "test": 10, "validation": 6}, "test")


@pytest.fixture
def stopped(pictures: Path, tmp_path: Path) -> Path:
    """A run on these files, stopped after two steps."""
    path = tmp_path / "run"
    begin(path, data_for(str(pictures), FEW), FEW, "default").train(after(2))
    return path


def first(folder: Path) -> Path:
    return min(folder.glob("zero/*"))


def change_an_image(pictures: Path) -> None:
    Image.new("L", (8, 8), 77).save(first(pictures))


def add_an_image(pictures: Path) -> None:
    Image.new("L", (8, 8), 77).save(pictures / "zero" / "zzz.png")


def remove_an_image(pictures: Path) -> None:
    first(pictures).unlink()


def rename_an_image(pictures: Path) -> None:
    first(pictures).rename(pictures / "zero" / "zzz.png")


def swap_two_images(pictures: Path) -> None:
    one, two = first(pictures), min(pictures.glob("one/*"))
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)


def rename_a_class(pictures: Path) -> None:
    (pictures / "two").rename(pictures / "three")


def move_an_image_to_another_class(pictures: Path) -> None:
    first(pictures).rename(pictures / "one" / "zzz.png")


@pytest.mark.parametrize(
    "change",
    [
        change_an_image,
        add_an_image,
        remove_an_image,
        rename_an_image,
        swap_two_images,
        rename_a_class,
        move_an_image_to_another_class,
    ],
)
def test_a_run_is_not_resumed_on_other_data(change: Callable[[Path], None], pictures: Path, stopped: Path) -> None:
    data_of(open_run(stopped))
    change(pictures)
    with pytest.raises(DataError, match=r"is not the data that the run .* was made with"):
        data_of(open_run(stopped))
    with pytest.raises(DataError, match=r"is not the data that the run .* was made with"):
        data_of(open_run(stopped), source=str(pictures))


def test_data_that_has_moved_is_found_where_it_is_reported_to_be(pictures: Path, stopped: Path, tmp_path: Path) -> None:
    trained(tmp_path / "whole", data_for(str(pictures), FEW), FEW)
    pictures.rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="no longer at"):
        data_of(open_run(stopped))
    data = data_of(open_run(stopped), source=str(tmp_path / "elsewhere"))
    resume(open_run(stopped), data).train()
    assert outcome(stopped) == outcome(tmp_path / "whole")


def test_a_zip_of_the_same_files_is_the_same_data(pictures: Path, stopped: Path, tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "pictures"), "zip", pictures)
    resume(open_run(stopped), data_of(open_run(stopped), source=archive)).train()


def test_images_that_are_read_on_demand_give_the_same_run(pictures: Path, stopped: Path, tmp_path: Path) -> None:
    trained(tmp_path / "whole", data_for(str(pictures), FEW), FEW)
    data = data_of(open_run(stopped), hold_bytes=0)
    resume(open_run(stopped), data).train()
    assert outcome(stopped) == outcome(tmp_path / "whole")


def test_a_relative_path_is_found_from_elsewhere(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pictures.parent)
    begin(Path("run"), data_for("pictures", FEW), FEW, "default")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    data_of(open_run(tmp_path / "run"))


def test_a_size_that_was_asked_for_is_asked_for_again(tmp_path: Path) -> None:
    settings = changed(size=12)
    begin(tmp_path / "run", data_for("digits", settings), settings, "default").train(after(1))
    data = data_of(open_run(tmp_path / "run"))
    assert data.train.images.shape == (1, 12, 12)
    resume(open_run(tmp_path / "run"), data).train()


def test_lines_of_the_log_can_be_read_while_the_run_continues(data: DataSet, tmp_path: Path) -> None:
    path = tmp_path / "run"
    seen = []

    def stop() -> bool:
        seen.append(len(log.read(path / "metrics.jsonl")))
        return False

    begin(path, data, SETTINGS, "default").train(stop)
    assert seen == [0, 1, 1, 2, 2]


def test_a_run_that_another_process_has_passed_meanwhile_is_not_trained_again(data: DataSet, tmp_path: Path) -> None:
    late = begin(tmp_path / "run", data, SETTINGS, "default")
    assert resume(open_run(tmp_path / "run"), data).train()
    with pytest.raises(RunError, match="another process has trained here"):
        late.train()
    open_run(tmp_path / "run").model()


def test_a_plain_classifier_that_diverged_does_not_replace_its_last_good_state(data: DataSet, tmp_path: Path) -> None:
    begun = begin(tmp_path / "run", data, changed(variant="standard"), "default")
    with torch.no_grad():
        begun.model.layer.weight.fill_(float("nan"))
    with pytest.raises(NonFiniteError):
        begun.save()
    assert resume(open_run(tmp_path / "run"), data).trainer.progress.step == 0


# Where it is trained


def test_the_record_says_on_what_and_in_which_precision(data: DataSet, tmp_path: Path) -> None:
    run = begin(tmp_path / "run", data, changed(precision="auto"), "default").run
    stored = open_run(run.path)
    assert (run.record.device, run.settings.precision) == ("cpu", "fp32")
    assert stored.record == run.record
