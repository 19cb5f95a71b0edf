"""Judging a run: the record, the table, other data, and what is left out when the run's own is gone."""

import shutil
from pathlib import Path

import pytest

from memwrap.errors import SaveError
from memwrap.runs.run import Run
from tests.cli import QUICK, fails, photos, picture, record, run, succeeds
from tests.cli.conftest import Trained


@pytest.fixture
def moved(trained: Trained, tmp_path: Path) -> Trained:
    """A run whose data is no longer where it was."""
    data = shutil.copytree(trained.data, tmp_path / "photos")
    out = tmp_path / "run"
    succeeds("train", data, "--out", out, *QUICK)
    return Trained(out, data.rename(tmp_path / "elsewhere"))


def test_the_record_is_shown_and_kept(trained: Trained, tmp_path: Path) -> None:
    copy = shutil.copytree(trained.run, tmp_path / "copy")
    (copy / "evaluation.json").unlink()
    result = succeeds("evaluate", copy)
    assert result.out.startswith(f"{copy}: memory_wrap, evaluated on 4 test images\n")
    for words in ("accuracy", "explanation accuracy", "counterfactual on top", "calibration error"):
        assert words in result.out
    assert "left out: drawn from the whole training set (the run was trained on all of it)" in result.out
    assert record(copy, "evaluation.json")["images"] == 4


def test_evaluating_again_finds_what_training_found(trained: Trained) -> None:
    assert succeeds("evaluate", trained.run, "--json").json == record(trained.run, "evaluation.json")


def test_json_is_the_record_and_nothing_else(trained: Trained) -> None:
    result = succeeds("evaluate", trained.run, "--json")
    assert result.json["classes"] == ["cat", "dog"]
    assert result.json["remembered"]["memory_size"] == 16
    assert len(result.json["drawn"]["training_subset"]["accuracy"]["repeats"]) == 5
    assert result.err == "reading images ...\n"


def test_images_that_are_not_held_in_memory_are_classified_alike(trained: Trained) -> None:
    held = succeeds("evaluate", trained.run, "--json").json
    assert succeeds("evaluate", trained.run, "--json", "--hold-mb", 0, "--workers", 0).json == held


def test_a_classifier_without_memory_has_one_column(data: Path, out: Path) -> None:
    result = succeeds("train", data, "--out", out, *QUICK, "--variant", "standard")
    assert "no memory" in result.out
    assert "explanation" not in result.out
    assert "memory:" not in result.out


def test_the_validation_images_can_be_evaluated(data: Path, out: Path) -> None:
    succeeds("train", data, "--out", out, *QUICK, "--validation", 6, "--no-evaluate")
    assert succeeds("evaluate", out, "--split", "validation", "--json").json["images"] == 6
    assert "evaluated on 6 validation images" in run("evaluate", out, "--split", "validation").out


def test_images_that_were_not_set_apart_cannot_be_evaluated(trained: Trained) -> None:
    message = fails(3, "evaluate", trained.run, "--split", "validation")
    assert "the run has no validation images; train with --validation to hold some out, or give --data" in message


def test_only_test_and_validation_are_splits(trained: Trained) -> None:
    assert "split is 'train'; expected test or validation" in fails(2, "evaluate", trained.run, "--split", "train")


# other data


def test_another_folder_can_be_evaluated_which_changes_no_record(trained: Trained, tmp_path: Path) -> None:
    before = record(trained.run, "evaluation.json")
    other = photos(tmp_path / "other", count=3, seed=50)
    result = succeeds("evaluate", trained.run, "--data", other)
    assert f"evaluated on 6 images of {other}" in result.out
    assert "drawn from" in result.out, "the run's own data is there, too"
    assert record(trained.run, "evaluation.json") == before


def test_labels_of_another_folder_are_the_names_of_its_folders(trained: Trained, tmp_path: Path) -> None:
    other = photos(tmp_path / "other", seed=7)
    shutil.copytree(other / "cat", tmp_path / "swapped" / "dog")
    shutil.copytree(other / "dog", tmp_path / "swapped" / "cat")
    accuracies = [
        succeeds("evaluate", trained.run, "--data", folder, "--json").json["remembered"]["accuracy"]
        for folder in (other, tmp_path / "swapped")
    ]
    assert sum(accuracies) == pytest.approx(1)
    assert accuracies[0] != accuracies[1]


def test_classes_that_the_run_does_not_know_are_named(trained: Trained, tmp_path: Path) -> None:
    other = photos(tmp_path / "other", classes=("cat", "zebra"))
    message = fails(3, "evaluate", trained.run, "--data", other)
    assert "has classes that the model does not know (zebra); it knows cat, dog" in message


def test_bad_files_of_another_folder_can_be_left_out(trained: Trained, tmp_path: Path) -> None:
    other = photos(tmp_path / "other", seed=7)
    (other / "cat" / "bad.png").write_text("no picture")
    assert "cat/bad.png" in fails(3, "evaluate", trained.run, "--data", other)
    result = succeeds("evaluate", trained.run, "--data", other, "--skip-bad")
    assert "warning: 1 files are left out" in result.err
    assert "evaluated on 20 images" in result.out


# without the run's own data


def test_without_the_data_nothing_can_be_evaluated_but_the_memory(moved: Trained) -> None:
    before = record(moved.run, "evaluation.json")
    result = run("evaluate", moved.run)
    assert result.code == 3
    assert "memory: 16 images; the model predicts" in result.out
    assert result.err.startswith("memwrap: no images to evaluate on: ")
    assert "give --run-data" in result.err
    assert record(moved.run, "evaluation.json") == before


def test_without_the_data_json_says_what_is_left_out(moved: Trained) -> None:
    result = run("evaluate", moved.run, "--json")
    assert result.code == 3
    assert "no images to evaluate on" in result.json["left_out"]["accuracy"]
    assert result.json["memory"]["size"] == 16


def test_without_the_data_other_images_are_classified_and_the_rest_is_left_out(moved: Trained, tmp_path: Path) -> None:
    other = photos(tmp_path / "other", seed=50)
    result = succeeds("evaluate", moved.run, "--data", other)
    assert "evaluated on 20 images" in result.out
    assert "left out: drawn from the training subset (" in result.out
    assert "subset:" not in result.out


def test_data_that_has_moved_can_be_named(moved: Trained) -> None:
    result = succeeds("evaluate", moved.run, "--run-data", moved.data)
    assert "evaluated on 4 test images" in result.out


def test_data_that_has_changed_is_not_used_as_the_runs_own(moved: Trained) -> None:
    photos(moved.data, count=1, seed=99)
    result = run("evaluate", moved.run, "--run-data", moved.data)
    assert result.code == 3
    assert "images were added, removed, changed or renamed since" in result.err


# what surrounds it


def test_a_run_that_cannot_be_written_to_is_evaluated_all_the_same(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise SaveError("evaluation.json: cannot be written (Read-only file system)")

    monkeypatch.setattr(Run, "write_json", refuse)
    result = succeeds("evaluate", trained.run)
    assert "evaluated on 4 test images" in result.out
    assert "warning: evaluation.json: cannot be written (Read-only file system)" in result.err


ODD = ("[red]x", "<b>", ":cat:", "[/]")


def test_odd_names_show_as_they_are(tmp_path: Path) -> None:
    data = photos(tmp_path / "[blue]photos", classes=(*ODD[:3], "back\\"), count=6)
    out = tmp_path / "[bold]run"
    trained = succeeds("train", data, "--out", out, *QUICK, "--memory-size", 4, "--remember", 4)
    for shown in (trained.out, succeeds("evaluate", out).out):
        assert f"{out}: memory_wrap" in shown
        for name in (*ODD[:3], "back\\"):
            assert any(line.startswith(f"{name} ") for line in shown.splitlines()), name
    predicted = succeeds("predict", out, data / "<b>").out
    assert all(line.startswith(f"{data}/<b>/") for line in predicted.splitlines())


def test_what_is_no_run_is_reported(trained: Trained, tmp_path: Path) -> None:
    for path in (trained.data, tmp_path / "nowhere"):
        assert "is not a run, as it has no run.json; memwrap train --out makes one" in fails(4, "evaluate", path)


def test_the_data_that_a_run_was_trained_on_is_not_evaluated_whole(trained: Trained) -> None:
    assert "training images included" in fails(2, "evaluate", trained.run, "--data", trained.data)


def test_the_validation_has_a_record_of_its_own(data: Path, out: Path) -> None:
    succeeds("train", data, "--out", out, *QUICK, "--validation", 4)
    before = record(out, "evaluation.json")
    succeeds("evaluate", out, "--split", "validation")
    assert record(out, "evaluation.json") == before
    assert record(out, "evaluation-validation.json")["split"] == "validation"


def test_training_images_among_others_are_counted(trained: Trained, tmp_path: Path) -> None:
    """A copy of the folder with one image more is not the same folder, but nearly all of it was trained on."""
    copy = tmp_path / "copy"
    shutil.copytree(trained.data, copy)
    picture(copy / "cat" / "new.png", 10, seed=99)
    result = succeeds("evaluate", trained.run, "--data", copy)
    assert "16 of the 21 images of" in result.err
    assert "are training images of the run" in result.err
    assert "training images" not in succeeds("evaluate", trained.run, "--data", photos(tmp_path / "new", seed=1000)).err


def test_new_images_of_one_class_can_be_evaluated(trained: Trained, tmp_path: Path) -> None:
    judged = succeeds("evaluate", trained.run, "--data", photos(tmp_path / "dogs", classes=["dog"], seed=5), "--json")
    assert [sum(row) for row in judged.json["remembered"]["confusion"]] == [0, 10]
    assert "classes that the model does not know (wolf)" in fails(
        3, "evaluate", trained.run, "--data", photos(tmp_path / "wolves", classes=["wolf"])
    )


def test_a_split_belongs_to_the_runs_own_images(trained: Trained, tmp_path: Path) -> None:
    assert "give one of them" in fails(2, "evaluate", trained.run, "--data", tmp_path, "--split", "validation")


def test_a_given_place_of_the_data_is_not_asked_for(moved: Trained, tmp_path: Path) -> None:
    other = photos(tmp_path / "other", seed=5)
    message = fails(3, "evaluate", moved.run, "--run-data", other)
    assert "is not the data that the run" in message
    assert "give --run-data" not in message
    assert "give --run-data" in fails(3, "evaluate", moved.run)


def test_on_few_images_shares_are_reported_with_their_counts(trained: Trained) -> None:
    record = succeeds("evaluate", trained.run, "--json").json
    scores, images = record["remembered"], record["images"]
    assert images == 4
    lines = succeeds("evaluate", trained.run).out.splitlines()

    def told(start: str) -> str:
        (line,) = [line for line in lines if line.startswith(start)]
        return line.removeprefix(start).strip()

    right = sum(scores["confusion"][row][row] for row in range(2))
    assert told("accuracy ").startswith(f"{100 * right / 4:.2f} % ({right} of 4)")
    unsure = round(4 * scores["counterfactual_share"])
    assert f"({unsure} of 4)" in told("counterfactual on top")
    others = told("  accuracy on the others")
    assert f" of {4 - unsure})" in others if unsure < 4 else others.startswith("-")
    assert "(" not in told("calibration error")
