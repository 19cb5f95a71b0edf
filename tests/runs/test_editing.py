"""The memory of a run, changed without training: images and classes added and dropped, and what is left of the run."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

import memwrap
from memwrap.data import DataSet, digits, open_data
from memwrap.errors import InputError, RunError, SettingsError
from memwrap.models.prediction import predict_files
from memwrap.runs.checking import check_folder
from memwrap.runs.data import data_for, data_of
from memwrap.runs.editing import Added, add_images, drop_images, editable_model, write_edited
from memwrap.runs.run import Run, open_model, open_run
from memwrap.runs.training import begin
from memwrap.training.settings import Settings
from tests.photographs import CLASSES, photographs
from tests.runs.conftest import Quick
from tests.sealing import REMOVED, edit

SIDE = 48
PARTS = ("images", "labels", "encodings")


@pytest.fixture(scope="module")
def original(photos: Path, quick: Quick, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, settings = tmp_path_factory.mktemp("fitted") / "run", quick()
    assert begin(path, data_for(str(photos), settings), settings, "photographs").train()
    return path


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Run:
    return open_run(Path(shutil.copytree(original, tmp_path / "run")))


def opened(path: Path) -> DataSet:
    return open_data(str(path), size=SIDE, fit="crop", channels=3, least_classes=1)


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    """Six photographs of a known class and six of a new one."""
    return opened(photographs(tmp_path_factory.mktemp("more") / "more", ("rings", "discs"), count=6, seed=300))


def tensors(model: memwrap.MemoryClassifier) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.remembered.tensors().items()}


def predicted(model: memwrap.MemoryClassifier, path: Path) -> list[str]:
    return [each.prediction_name for each in predict_files(model, [path])]


# Adding


def test_images_of_known_and_new_classes_are_added(run: Run, more: DataSet) -> None:
    model = editable_model(run)
    before, names = tensors(model), model.remembered.names
    assert add_images(model, more) == Added({"discs": 6, "rings": 6}, repeated=0)
    assert model.classes == (*sorted(CLASSES), "rings")
    memory = model.remembered
    assert len(memory) == len(names) + 12
    for name in PARTS:
        assert torch.equal(memory.tensors()[name][: len(names)], before[name])
    added = memory.tensors()
    assert memory.names == (
        *names,
        *(f"more/{kind}/{number}.png" for kind in ("discs", "rings") for number in range(6)),
    )
    assert added["labels"][len(names) :].tolist() == [model.classes.index("discs")] * 6 + [3] * 6
    assert torch.equal(added["images"][len(names) :], more.train.images.pixels)
    with torch.no_grad():
        expected = model.encoder(model.get_transform()(more.train.images.pixels))
    torch.testing.assert_close(added["encodings"][len(names) :], expected)


def test_a_new_class_is_predicted_without_training(run: Run, more: DataSet, tmp_path: Path) -> None:
    model, rings = editable_model(run), photographs(tmp_path / "new", ("rings",), count=5, seed=700)
    assert "rings" not in predicted(model, rings)
    add_images(model, more)
    assert predicted(model, rings).count("rings") >= 4
    others = photographs(tmp_path / "others", CLASSES, count=4, seed=700)
    right = [Path(each.path).parent.name == each.prediction_name for each in predict_files(model, [others])]
    assert sum(right) >= 11


def test_a_head_reads_no_new_class_and_takes_images_of_its_own(tmp_path: Path) -> None:
    settings = Settings(encoder="tiny", samples=60, test=0.5, epochs=1, batch_size=20, memory_size=20, remember=20)
    data = digits()
    assert begin(tmp_path / "run", data, settings, "default").train()
    run = open_run(tmp_path / "run")
    model = editable_model(run)
    before, classes = tensors(model), model.classes
    with pytest.raises(InputError, match="vote"):
        add_images(model, DataSet("x", ("new",), data.train.at(torch.arange(1)), None, ""))
    assert model.classes == classes
    assert all(torch.equal(tensors(model)[name], before[name]) for name in PARTS)
    nines = data.train.at((data.train.labels == 9).nonzero().flatten()[:4])
    nines = type(nines)(nines.images, torch.zeros(4, dtype=torch.int64), nines.names)
    assert add_images(model, DataSet("more", ("9",), nines, None, "")).counts == {"9": 4}
    assert model.remembered.labels[-4:].tolist() == [9] * 4
    write_edited(run, model)
    assert len(open_run(run.path).model().remembered) == 24


def test_images_of_the_current_folder_are_named_after_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = photographs(tmp_path / "here", ("discs",), count=1)
    monkeypatch.chdir(folder)
    model = editable_model(run)
    add_images(model, opened(Path(os.curdir)))
    assert model.remembered.names[-1] == "here/discs/0.png"


def test_inputs_are_added_to_inputs(photos: Path, quick: Quick, tmp_path: Path, more: DataSet, run: Run) -> None:
    """A model that remembers normalised images, not pixels."""
    model = editable_model(run)
    memory = model.remembered
    model.remember(model.get_transform()(memory.images), memory.labels)
    add_images(model, more)
    assert model.remembered.images.dtype == torch.float32
    expected = model.get_transform()(more.train.images.pixels)
    assert torch.equal(model.remembered.images[-12:], expected)
    assert model.remembered.names[:2] == ("", "")
    assert model.remembered.names[-1] == "more/rings/5.png"


def test_images_that_the_memory_held_before_are_counted(run: Run, more: DataSet, tmp_path: Path) -> None:
    model = editable_model(run)
    add_images(model, more)
    partly = photographs(tmp_path / "partly", ("rings",), count=8, seed=300 - 3)  # three before the six of `more`
    assert add_images(model, opened(partly)) == Added({"rings": 8}, repeated=5)


def test_without_class_names_nothing_is_added(run: Run, more: DataSet) -> None:
    model = editable_model(run)
    model.classes = None
    with pytest.raises(SettingsError, match="no class names"):
        add_images(model, more)


# Dropping


def test_an_image_is_dropped_by_its_name_the_end_of_it_or_its_number(run: Run) -> None:
    model = editable_model(run)
    before, names = tensors(model), model.remembered.names
    wanted = [names[4], "#0", names[7], "#0", "#7", f"./{names[2]}"]
    assert drop_images(model, wanted) == [0, 2, 4, 7]
    kept = [row for row in range(len(names)) if row not in (0, 2, 4, 7)]
    assert model.remembered.names == tuple(names[row] for row in kept)
    assert all(torch.equal(model.remembered.tensors()[name], before[name][kept]) for name in PARTS)


def test_the_end_of_a_path_is_enough_if_no_other_has_it(run: Run, more: DataSet, tmp_path: Path) -> None:
    model = editable_model(run)
    add_images(model, more)
    count = len(model.remembered)
    assert drop_images(model, ["rings/3.png"]) == [count - 3]
    assert drop_images(model, ["more/rings/5.png"]) == [count - 2]
    assert not any(name.endswith(("rings/3.png", "rings/5.png")) for name in model.remembered.names)


def test_the_whole_name_of_an_image_is_no_end_of_another_s(run: Run, more: DataSet) -> None:
    """A training image discs/3.png can be dropped though there is a more/discs/3.png."""
    model = editable_model(run)
    row = next(row for row, name in enumerate(model.remembered.names) if name.startswith("discs/"))
    name = model.remembered.names[row]
    add_images(model, opened(photographs(run.path.parent / "more", ("discs",), count=12, seed=300)))
    assert f"more/{name}" in model.remembered.names
    assert drop_images(model, [name]) == [row]
    assert f"more/{name}" in model.remembered.names
    assert drop_images(model, [name]) != [row], "now the end of one alone"
    assert f"more/{name}" not in model.remembered.names


@pytest.mark.parametrize(
    "wanted",
    [
        "0.png",  # of three classes
        "nowhere.png",
        "",
        "iscs/1.png",
        "#",
        "#29",
        "#-1",
        "#1.5",
        "#" + "9" * 5000,
        "*.png",
        "discs",
    ],
)
def test_names_that_no_image_has_or_several_have_are_refused(wanted: str, run: Run) -> None:
    model = editable_model(run)
    assert len(model.remembered) == 29
    before = model.remembered
    with pytest.raises(SettingsError):
        drop_images(model, ["#1", wanted])
    assert model.remembered is before


def test_the_last_image_cannot_be_dropped(run: Run) -> None:
    model = editable_model(run)
    with pytest.raises(InputError, match="keep at least one"):
        drop_images(model, [f"#{row}" for row in range(29)])
    assert len(model.remembered) == 29


def test_a_class_without_memory_images_cannot_be_predicted(run: Run, tmp_path: Path) -> None:
    model, discs = editable_model(run), photographs(tmp_path / "new", ("discs",), count=5, seed=700)
    assert predicted(model, discs).count("discs") >= 4
    drop_images(model, [name for name in model.remembered.names if name.startswith("discs/")])
    assert "discs" not in predicted(model, discs)
    assert "discs" in model.classes


# Stored


def test_adding_and_dropping_gives_the_memory_of_before_bit_for_bit(run: Run, photos: Path) -> None:
    before, names = tensors(run.model()), run.model().remembered.names
    for step in ("add", "drop"):
        edited = open_run(run.path)
        model = editable_model(edited)
        if step == "add":
            add_images(model, opened(photographs(run.path.parent / "more", ("discs", "checks"), 3, seed=300)))
        else:
            assert drop_images(model, [f"#{row}" for row in range(29, 35)]) == list(range(29, 35))
        write_edited(edited, model)
    model = open_run(run.path).model()
    assert all(torch.equal(model.remembered.tensors()[name], before[name]) for name in PARTS)
    assert model.remembered.names == names
    assert model.classes == tuple(sorted(CLASSES))


def test_an_edited_run_is_opened_and_checked_but_for_its_images(run: Run, more: DataSet) -> None:
    fitted, model = run.state.fitted, editable_model(run)
    calibration = model.calibration
    add_images(model, more)
    drop_images(model, ["#3"])
    write_edited(run, model)
    again = open_run(run.path)
    assert (again.state.edited, again.state.finished, again.state.remembered) == (True, True, None)
    assert again.state.fitted == fitted
    assert again.classes == tuple(sorted(CLASSES))
    loaded = memwrap.load(run.path)
    assert loaded.classes == (*sorted(CLASSES), "rings")
    assert loaded.calibration == calibration
    assert loaded.remembered.names == model.remembered.names
    images = model.get_transform()(more.train.images.pixels)
    assert torch.equal(loaded.predict(images), model.predict(images))
    result = check_folder(again, data_of(again))
    states = {finding.what: finding.state for finding in result.findings}
    assert result.right
    assert states.pop("memory images") == "not checked"
    assert set(states.values()) == {"right"}


def test_images_that_are_not_those_of_the_encodings_are_not_stored(run: Run) -> None:
    model = editable_model(run)
    model.remembered.images.bitwise_not_()  # all, as some are looked at
    with pytest.raises(memwrap.SaveError):
        write_edited(run, model)


def test_a_run_can_be_edited_twice(run: Run, more: DataSet) -> None:
    for _ in range(2):
        edited = open_run(run.path)
        model = editable_model(edited)
        add_images(model, more)
        write_edited(edited, model)
    model = open_run(run.path).model()
    assert len(model.remembered) == 29 + 24
    assert model.classes == (*sorted(CLASSES), "rings")


def test_the_run_s_model_is_the_edited_one_afterwards(run: Run) -> None:
    model = editable_model(run)
    drop_images(model, ["#0"])
    write_edited(run, model)
    assert len(run.model().remembered) == 28
    assert run.model() is not model


def test_a_model_without_a_run_is_edited_too(run: Run, more: DataSet, tmp_path: Path) -> None:
    run.model().save(tmp_path / "model")
    folder = open_model(tmp_path / "model")
    model = editable_model(folder)
    add_images(model, more)
    write_edited(folder, model)
    assert len(open_model(tmp_path / "model").model().remembered) == 41
    assert memwrap.load(tmp_path / "model").classes[-1] == "rings"


def test_names_of_an_older_run_are_kept(run: Run) -> None:
    """memwrap 0.1 had them next to the state of training."""
    names = list(run.model().remembered.names)
    edit(run.path / "model.json", ["memory_names"], REMOVED)
    edit(run.path / "model.json", ["training", "remembered_names"], names)
    older = open_run(run.path)
    model = editable_model(older)
    drop_images(model, [names[4], "#0"])
    write_edited(older, model)
    assert open_run(run.path).model().remembered.names == (*names[1:4], *names[5:])


def test_what_has_no_memory_or_is_not_finished_is_not_edited(
    photos: Path, quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMWRAP_DATA", str(tmp_path / "cache"))
    settings = quick()
    begin(tmp_path / "stopped", data_for(str(photos), settings), settings, "photographs").train(lambda: True)
    with pytest.raises(RunError, match="is not finished"):
        editable_model(open_run(tmp_path / "stopped"))
    standard = Settings(encoder="tiny", variant="standard", samples=20, test=0.5, epochs=1)
    begin(tmp_path / "standard", digits(), standard, "default").train()
    with pytest.raises(SettingsError, match="no memory"):
        editable_model(open_run(tmp_path / "standard"))
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=2))
    model.save(tmp_path / "forgetful")
    with pytest.raises(SettingsError, match="no memory"):
        editable_model(open_model(tmp_path / "forgetful"))


def test_nobody_edits_where_another_process_trains(run: Run) -> None:
    model = editable_model(run)
    before = json.loads((run.path / "model.json").read_text())["root"]
    drop_images(model, ["#0"])
    with open_run(run.path).locked(), pytest.raises(RunError, match="another process"):
        write_edited(run, model)
    assert json.loads((run.path / "model.json").read_text())["root"] == before
