"""memwrap add and memwrap drop: the memory of a run, changed without training."""

import shutil
from pathlib import Path

import pytest

import memwrap
from memwrap.runs.data import data_of
from memwrap.runs.editing import write_edited
from memwrap.runs.run import open_run
from tests.cli import QUICK, fails, photos, picture, record, run, same_weights, succeeds
from tests.cli.conftest import Trained


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run whose memory votes, not to be changed."""
    path = tmp_path_factory.mktemp("voting")
    data = photos(path / "photos")
    succeeds("train", data, "--out", path / "run", *QUICK, "--variant", "vote")
    return Trained(path / "run", data)


@pytest.fixture
def voting(original: Trained, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original.run, tmp_path / "run"))


@pytest.fixture
def more(tmp_path: Path) -> Path:
    """Three images of a known class, and four of a new one, which are the brightest."""
    for index in range(3):
        picture(tmp_path / "more" / "cat" / f"{index}.png", 0, seed=600 + index)
    for index in range(4):
        picture(tmp_path / "more" / "owl" / f"{index}.png", 90, seed=700 + index)
    return tmp_path / "more"


def names(path: Path) -> tuple[str, ...]:
    """Of the memory images of a run."""
    found = open_run(path).memory_names
    assert found is not None
    return found


def accuracy(path: Path) -> float:
    found: float = succeeds("evaluate", path, "--json").json["remembered"]["accuracy"]
    return found


# add


def test_images_and_classes_are_added(voting: Path, more: Path) -> None:
    before = accuracy(voting)
    result = succeeds("add", voting, more)
    after = accuracy(voting)
    assert "3 images of cat added\n4 images of owl added, a new class\n" in result.err
    lines = result.out.splitlines()
    assert lines[0].startswith("the memory has 23 images now; predictions are decided by the vote")
    assert f"{100 * before:.2f} % before, {100 * after:.2f} % after" in lines[1]
    assert memwrap.load(voting).classes == ("cat", "dog", "owl")
    assert {"more/owl/3.png", "more/cat/2.png"} <= set(names(voting))


def test_json_tells_what_was_added(voting: Path, more: Path, original: Trained) -> None:
    found = succeeds("add", voting, more, "--json").json
    assert list(found) == ["run", "added", "repeated", "new_classes", "memory", "decided_by", "before", "after"]
    assert found["run"] == str(voting)
    assert (found["added"], found["new_classes"], found["memory"]) == ({"cat": 3, "owl": 4}, ["owl"], 23)
    assert found["before"] == accuracy(original.run)
    assert found["after"] == accuracy(voting)
    assert found["repeated"] == 0
    again = succeeds("add", voting, more, "--json").json
    assert again["repeated"] == 7
    assert (again["new_classes"], again["memory"], again["before"]) == ([], 30, found["after"])


def test_a_new_class_is_predicted_and_explained(voting: Path, more: Path) -> None:
    owl = picture(voting.parent / "owl.png", 90, seed=999)
    assert "owl" not in succeeds("predict", voting, owl, "--json").json[0]["prediction_name"]
    succeeds("add", voting, more)
    assert succeeds("predict", voting, owl, "--json").json[0]["prediction_name"] == "owl"
    (explained,) = succeeds("explain", voting, owl, "--json").json
    assert len(explained["votes"]) == len(explained["probabilities"]) == 3
    assert explained["samples"][0]["file"].startswith("more/owl/")
    assert "more/owl/" in succeeds("explain", voting, owl).out
    page = voting.parent / "report.html"
    succeeds("explain", voting, owl, "--html", page)
    succeeds("verify", page)


def test_weights_and_settings_stay(voting: Path, more: Path, original: Trained) -> None:
    succeeds("add", voting, more)
    assert same_weights(voting, original.run)
    for name in ("run.json", "splits.json"):
        assert (voting / name).read_bytes() == (original.run / name).read_bytes()
    found = succeeds("check", voting, "--json").json
    assert found["right"]
    states = {finding["what"]: finding["state"] for finding in found["findings"]}
    assert states["memory images"] == "not checked"
    assert states["memory"] == states["splits"] == states["data"] == "right"


def test_a_zip_can_be_added(voting: Path, more: Path) -> None:
    archive = shutil.make_archive(str(more), "zip", more)
    assert succeeds("add", voting, archive, "--json").json["memory"] == 23
    assert "more.zip/owl/0.png" in names(voting)


def test_one_image_is_one_image(voting: Path, tmp_path: Path) -> None:
    picture(tmp_path / "one" / "dog" / "x.png", 180, seed=5)
    assert "1 image of dog added\n" in succeeds("add", voting, tmp_path / "one").err
    assert "1 image dropped\n" in succeeds("drop", voting, "x.png").err


def test_bad_files_can_be_skipped(voting: Path, more: Path) -> None:
    (more / "cat" / "bad.png").write_text("no picture")
    root = record(voting, "model.json")["root"]
    assert "cat/bad.png" in fails(3, "add", voting, more)
    assert record(voting, "model.json")["root"] == root
    result = succeeds("add", voting, more, "--skip-bad")
    assert "warning: 1 files are left out" in result.err
    assert "the memory has 23 images now" in result.out


def test_a_head_takes_images_of_its_classes_alone(trained: Trained, more: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(trained.run, tmp_path / "copy"))
    root = record(copy, "model.json")["root"]
    assert "vote" in fails(2, "add", copy, more)
    assert record(copy, "model.json")["root"] == root
    shutil.rmtree(more / "owl")
    assert "the memory has 19 images now" in succeeds("add", copy, more).out


def test_images_that_the_run_is_tested_on_are_not_added(original: Trained, voting: Path, tmp_path: Path) -> None:
    tested = record(voting, "splits.json")["test"][0]
    files = sorted(original.data.glob("*/*.png"))
    more = tmp_path / "more" / files[tested].parent.name
    more.mkdir(parents=True)
    shutil.copy(files[tested], more / "again.png")
    message = fails(2, "add", voting, more.parent)
    assert "1 of the images are test images of the run" in message
    assert f"{more.name}/again.png" in message
    assert len(names(voting)) == 16


def test_a_memory_with_test_images_is_warned_about(original: Trained, voting: Path) -> None:
    run = open_run(voting)
    model, data = run.model(), data_of(run)
    test = run.splits.of(data, "test")
    model.remember(test.images.pixels, test.labels, extend=True)
    write_edited(run, model)
    message = succeeds("evaluate", voting).err
    assert "4 of the 4 images of test are in its memory: the scores are too good" in message


def test_a_class_leaves_with_its_last_image(voting: Path, more: Path) -> None:
    succeeds("add", voting, more)
    owls = [name for name in names(voting) if "/owl/" in name]
    succeeds("drop", voting, *owls[1:])
    assert memwrap.load(voting).classes == ("cat", "dog", "owl")
    succeeds("drop", voting, owls[0])
    model = memwrap.load(voting)
    assert (model.classes, model.layer.num_classes) == (("cat", "dog"), 2)
    succeeds("drop", voting, *(name for name in names(voting) if "dog" in name))
    assert memwrap.load(voting).classes == ("cat", "dog")  # which the last layer knows


# drop


def test_images_are_dropped_by_name_and_number(voting: Path) -> None:
    before = names(voting)
    result = succeeds("drop", voting, before[5], "#0")
    assert "2 images dropped" in result.err
    assert result.out.startswith("the memory has 14 images now; predictions are decided by the vote")
    assert names(voting) == (*before[1:5], *before[6:])


def test_json_tells_what_was_dropped(voting: Path, original: Trained) -> None:
    found = succeeds("drop", voting, "#7", names(voting)[2], "#7", "--json").json
    assert list(found) == ["run", "dropped", "memory", "decided_by", "before", "after"]
    assert (found["dropped"], found["memory"], found["run"]) == ([2, 7], 14, str(voting))
    assert found["before"] == accuracy(original.run)
    assert found["after"] == accuracy(voting)


def test_the_stored_evaluation_is_that_of_the_changed_memory(voting: Path, original: Trained) -> None:
    succeeds("drop", voting, *(name for name in names(voting) if name.startswith("cat/")))
    stored = record(voting, "evaluation.json")
    assert stored != record(original.run, "evaluation.json")
    assert stored == succeeds("evaluate", voting, "--json").json


def test_an_evaluation_that_cannot_be_repeated_is_removed(tmp_path: Path) -> None:
    data = photos(tmp_path / "photos")
    succeeds("train", data, "--out", tmp_path / "run", *QUICK, "--variant", "vote", "--validation", 4)
    succeeds("evaluate", tmp_path / "run", "--split", "validation")
    data.rename(tmp_path / "elsewhere")
    assert len(list((tmp_path / "run").glob("evaluation*.json"))) == 2
    succeeds("drop", tmp_path / "run", "#0")
    assert not list((tmp_path / "run").glob("evaluation*.json"))


def test_adding_and_dropping_gives_the_memory_of_before(voting: Path, more: Path, original: Trained) -> None:
    shutil.rmtree(more / "owl")
    succeeds("add", voting, more)
    succeeds("drop", voting, *(f"more/cat/{number}.png" for number in range(3)))
    files = [record(path, "model.json")["files"] for path in (voting, original.run)]
    assert files[0]["memory"]["sha256"] == files[1]["memory"]["sha256"]
    assert names(voting) == names(original.run)


def test_a_class_without_images_is_not_predicted(voting: Path, original: Trained) -> None:
    cats = [name for name in names(voting) if name.startswith("cat/")]
    told = succeeds("drop", voting, *cats, "--json").json
    assert told["before"] == accuracy(original.run) > told["after"] == accuracy(voting) == 0.5
    found = succeeds("predict", voting, original.data, "--json").json
    assert {each["prediction_name"] for each in found} == {"dog"}


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (["99.png"], "no memory image is called '99.png'"),
        (["#16"], "there is no memory image #16; the memory has #0 to #15"),
        (["cat"], "no memory image is called 'cat'"),
        ([f"#{row}" for row in range(16)], "keep at least one"),
    ],
)
def test_what_cannot_be_dropped_changes_nothing(wanted: list[str], words: str, voting: Path) -> None:
    root = record(voting, "model.json")["root"]
    assert words in fails(2, "drop", voting, "#0", *wanted)
    assert record(voting, "model.json")["root"] == root


def test_a_name_that_several_images_have_is_refused(voting: Path, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        picture(tmp_path / folder / "cat" / "new.png", 0, seed=500)
        succeeds("add", voting, tmp_path / folder)
    assert "2 memory images are called 'cat/new.png'" in fails(2, "drop", voting, "cat/new.png")
    succeeds("drop", voting, "two/cat/new.png")
    succeeds("drop", voting, "cat/new.png")


# Without the run's data, and without a run


def test_without_the_data_the_memory_is_changed_and_accuracy_is_not_known(tmp_path: Path, more: Path) -> None:
    data = photos(tmp_path / "photos")
    succeeds("train", data, "--out", tmp_path / "run", *QUICK, "--variant", "vote", "--no-evaluate")
    data.rename(tmp_path / "elsewhere")
    result = succeeds("add", tmp_path / "run", more)
    assert "accuracy is not known: the images of the run are no longer at" in result.out
    found = succeeds("drop", tmp_path / "run", "#0", "--json").json
    assert (found["before"], found["after"], found["memory"]) == (None, None, 22)
    found = succeeds("drop", tmp_path / "run", "#0", "--json", "--run-data", tmp_path / "elsewhere").json
    assert 0 <= found["after"] <= 1


def test_without_test_images_accuracy_is_not_known(data: Path, out: Path, more: Path) -> None:
    succeeds("train", data, "--out", out, *QUICK, "--variant", "vote", "--test", 0)
    assert "accuracy is not known: the run has no test images" in succeeds("add", out, more).out


def test_a_model_without_a_run_is_changed_too(voting: Path, more: Path, tmp_path: Path) -> None:
    memwrap.load(voting).save(tmp_path / "model")
    result = succeeds("add", tmp_path / "model", more)
    assert "accuracy is not known: it is a model without a run" in result.out
    assert succeeds("drop", tmp_path / "model", "more/owl/0.png", "--json").json["memory"] == 22
    assert memwrap.load(tmp_path / "model").classes == ("cat", "dog", "owl")


def test_what_has_no_memory_or_is_no_run_is_refused(data: Path, out: Path, more: Path, tmp_path: Path) -> None:
    succeeds("train", data, "--out", out, *QUICK, "--variant", "standard", "--no-evaluate")
    assert "the model has no memory that could be changed" in fails(2, "add", out, more)
    assert "the model has no memory that could be changed" in fails(2, "drop", out, "#0")
    for command in (("add", tmp_path / "nowhere", more), ("drop", data, "#0")):
        assert "is not a run" in fails(4, *command)
    assert "Missing argument" in run("drop", out).err


def test_images_that_are_not_there_are_named(voting: Path, tmp_path: Path) -> None:
    assert "nowhere" in fails(3, "add", voting, tmp_path / "nowhere")
