"""memwrap predict: good files are classified, bad ones named."""

import os
import shutil
from pathlib import Path

import pytest

import memwrap
from memwrap.cli import predict as command
from memwrap.explain.record import PredictionRecord
from tests.cli import fails, picture, run, run_apart, succeeds
from tests.cli.conftest import Trained


def test_each_image_has_a_line_with_class_and_probability(trained: Trained) -> None:
    files = [trained.data / "cat" / "0.png", trained.data / "dog" / "1.png"]
    result = succeeds("predict", trained.run, *files)
    lines = result.out.splitlines()
    assert len(lines) == 2
    for file, line in zip(files, lines, strict=True):
        path, rest = line.split(": ", 1)
        name, probability = rest.split(" (")
        assert path == str(file)
        assert name in ("cat", "dog")
        assert 50 <= float(probability.split("%")[0]) <= 100
    assert result.err == ""


def test_an_unsure_prediction_is_called_so(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    cat = PredictionRecord(
        path="a.png", prediction=0, prediction_name="cat", probability=0.5134, uncertain=True, decided_by="head"
    )
    found = [cat.model_copy(update={"uncertain": uncertain}) for uncertain in (True, False, None)]
    monkeypatch.setattr(command, "predict_files", lambda *_: iter(found))
    result = succeeds("predict", trained.run, "a.png")
    assert result.out.splitlines() == ["a.png: cat (51.3% by head, unsure)", *["a.png: cat (51.3% by head)"] * 2]


def test_where_vote_and_last_layer_differ_both_classes_are_shown(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    cat = PredictionRecord(
        path="a.png",
        prediction=0,
        prediction_name="cat",
        probability=0.75,
        uncertain=True,
        decided_by="vote",
        other_prediction=1,
        other_prediction_name="dog",
    )
    found = [cat, cat.model_copy(update={"other_prediction": 0, "uncertain": False})]
    monkeypatch.setattr(command, "predict_files", lambda *_: iter(found))
    assert succeeds("predict", trained.run, "a.png").out.splitlines() == [
        "a.png: cat (75.0% by vote, unsure: the last layer predicts dog)",
        "a.png: cat (75.0% by vote)",
    ]


def test_a_folder_means_all_images_in_it(trained: Trained) -> None:
    lines = succeeds("predict", trained.run, trained.data).out.splitlines()
    assert len(lines) == 20


def test_good_files_are_classified_and_bad_ones_are_named(trained: Trained, mixture: Path) -> None:
    result = run("predict", trained.run, mixture)
    assert result.code == 3
    assert [line.split(": ")[0] for line in result.out.splitlines()] == [f"{mixture}/a.png", f"{mixture}/deep/b.png"]
    assert [line.split(", ")[0] for line in result.err.splitlines()] == [
        f"{mixture}/empty.png: cannot be read",
        f"{mixture}/letter.jpg: cannot be read",
    ]


def test_json_has_good_and_bad_files_and_the_bad_ones_are_named_as_well(trained: Trained, mixture: Path) -> None:
    result = run("predict", trained.run, mixture, "--json")
    assert result.code == 3
    good, deep, empty, letter = result.json
    assert good.keys() == deep.keys() == PredictionRecord.model_fields.keys()
    assert good["decided_by"] == "head"
    assert good["prediction_name"] == ["cat", "dog"][good["prediction"]]
    assert empty.keys() == letter.keys() == {"path", "reason"}
    assert result.err.count("cannot be read") == 2


def test_json_of_good_files_is_all_there_is(trained: Trained) -> None:
    result = succeeds("predict", trained.run, trained.data / "cat", "--json")
    assert len(result.json) == 10
    assert result.err == ""


def test_the_run_needs_no_data(trained: Trained, mixture: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(trained.run, tmp_path / "copy")
    assert succeeds("predict", copy, mixture / "a.png").out == succeeds("predict", trained.run, mixture / "a.png").out


def test_a_missing_file_is_named_before_anything_is_classified(trained: Trained, mixture: Path) -> None:
    result = run("predict", trained.run, mixture / "a.png", "nowhere.png")
    assert result.code == 2
    assert "nowhere.png: there is no such file or folder" in result.err
    assert result.out == ""


def test_a_folder_without_files_is_an_error(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert f"there are no files in {tmp_path / 'empty'}" in fails(3, "predict", trained.run, tmp_path / "empty")


def test_a_file_name_in_no_known_encoding_is_shown_somehow(trained: Trained, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    picture(tmp_path / "images" / "plain.png", 0, seed=70).rename(tmp_path / "images" / name)
    result = run_apart("predict", trained.run, tmp_path / "images")
    assert result.code == 0, result.err
    assert "caf\\udce9.png: " in result.out


def test_a_reader_that_goes_away_is_no_failure_worth_a_traceback(trained: Trained) -> None:
    """As in `memwrap predict ... | head -1`."""
    closed = "import os; r, w = os.pipe(); os.close(r); os.dup2(w, 1)"
    result = run_apart("predict", trained.run, trained.data, before=closed)
    assert "Traceback" not in result.err
    assert "unexpected" not in result.err


def test_a_model_saved_from_python_predicts_the_same(trained: Trained, tmp_path: Path) -> None:
    memwrap.load(trained.run).save(tmp_path / "model")
    expected = succeeds("predict", trained.run, trained.data, "--json").json
    assert succeeds("predict", tmp_path / "model", trained.data, "--json").json == expected
