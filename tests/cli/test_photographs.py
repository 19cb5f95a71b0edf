"""Photographs from the command line: which encoder they get and why, and what decided, in all that is said of it."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memwrap.cli.show import fit_lines
from memwrap.models import caching
from memwrap.runs import fitting
from memwrap.runs.record import FitSummary
from memwrap.training.settings import Settings
from tests.cli import fails, photos, record, run, same_weights, succeeds
from tests.cli.conftest import Trained
from tests.photographs import CLASSES, photographs

SMALL = ("--size", 32)


@pytest.fixture
def by_classifier(monkeypatch: pytest.MonkeyPatch, photographed: Trained, out: Path) -> Path:
    """A run whose vote was found to be worse than its last layer."""
    choose = fitting.choose_layer
    monkeypatch.setattr(
        fitting, "choose_layer", lambda *given, **named: replace(choose(*given, **named), decide="head")
    )
    result = succeeds("train", photographed.data, "--out", out, *SMALL, "--fit", "crop")
    assert "the last layer decides, as the vote of the images is more than a point worse" in result.err
    assert "decided by the classifier, without the memory images" in result.out
    return out


def test_it_says_which_encoder_photographs_get_and_why_and_how_to_choose_another(
    photographed: Trained, out: Path
) -> None:
    result = succeeds("train", photographed.data, "--out", out, *SMALL)
    lines = result.err.splitlines()
    for words in ("photographs", "72 pixels", "lite0", "--encoder small", "--encoder timm:NAME --pretrained"):
        assert words in lines[0]
    (announced,) = [line for line in lines if line.startswith("29 images of 3 classes")]
    assert announced == "29 images of 3 classes at 32x32, lite0, vote on cpu, recipe photographs"
    (held_out,) = [line for line in lines if line.startswith("on training images that were held out")]
    found = record(out, "model.json")["training"]["fitted"]
    assert f"vote {100 * found['vote_accuracy']:.1f} % with {found['images_used']:.1f} images each" in held_out
    assert f"last layer alone {100 * found['head_accuracy']:.1f} %" in held_out
    assert not any(line.startswith("epoch") for line in lines)
    assert record(out)["recipe"] == "photographs"
    assert record(out)["settings"]["fit"] in ("crop", "stretch")


@pytest.mark.parametrize(
    ("flags", "recipe"),
    [
        (["--encoder", "tiny", "--size", "16", "--epochs", "1"], "default"),
        (["--recipe", "default", "--encoder", "tiny", "--size", "16", "--epochs", "1"], "default"),
        (["--recipe", "photographs", "--size", "32", "--fit", "crop"], "photographs"),
    ],
)
def test_nothing_is_said_of_it_where_something_else_was_asked_for(
    flags: list[str], recipe: str, photographed: Trained, out: Path
) -> None:
    result = succeeds("train", photographed.data, "--out", out, *flags, "--no-evaluate")
    assert "the images are photographs" not in result.err
    assert record(out)["recipe"] == recipe


def test_small_images_are_trained_on_from_scratch(tmp_path: Path, out: Path) -> None:
    result = succeeds("train", photos(tmp_path / "small"), "--out", out, "--epochs", 1, "--no-evaluate")
    assert result.err.startswith("the images are small (the shorter side has 8 pixels, as the median)")
    assert "--recipe photographs" in result.err
    assert record(out)["recipe"] == "default"


def test_a_settings_file_chooses_as_flags_do(photographed: Trained, out: Path, tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("encoder: tiny\nsize: 16\nepochs: 1\n")
    result = succeeds("train", photographed.data, "--out", out, "--config", tmp_path / "settings.yaml", "--no-evaluate")
    assert "the images are photographs" not in result.err
    assert record(out)["settings"]["encoder"] == "tiny"


def test_a_run_json_gives_the_same_run_again(photographed: Trained, out: Path) -> None:
    succeeds("train", photographed.data, "--out", out, "--config", photographed.run / "run.json", "--no-evaluate")
    assert same_weights(out, photographed.run)
    assert record(out)["recipe"] == "photographs"


def test_a_poor_encoder_is_named(photographed: Trained, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose = fitting.choose_layer

    def poor(*given: Any, **named: Any) -> object:
        found = choose(*given, **named)
        return replace(found, scores=replace(found.scores, head_accuracy=0.6, vote_accuracy=0.4))

    monkeypatch.setattr(fitting, "choose_layer", poor)
    message = succeeds("train", photographed.data, "--out", out, *SMALL, "--fit", "crop", "--no-evaluate").err
    assert "the encoder lite0 tells these classes apart poorly" in message
    assert "--encoder small" in message


@pytest.mark.parametrize(
    ("accuracy", "classes", "poor"),
    [
        (0.61, ["ants", "bees"], True),  # 22 % of the way from guessing to all right
        (0.8, ["ants", "bees"], False),
        (0.55, [f"kind {number}" for number in range(100)], False),
        (0.45, [f"kind {number}" for number in range(100)], True),
        (0.93, list("0123456789"), True),
        (0.93, [f"digit {number}" for number in range(10)], False),
        (0.99, list("0123456789"), False),
    ],
)
def test_what_is_poor_depends_on_the_classes(accuracy: float, classes: list[str], poor: bool) -> None:
    found = FitSummary(
        held_out=300,
        head_accuracy=accuracy - 0.1,
        vote_accuracy=accuracy,
        plain_vote_accuracy=accuracy,
        images_used=5.0,
        shrinkage=None,
        scale=4.0,
        penalty=0.01,
    )
    lines = list(fit_lines(found, "vote", Settings(encoder="lite0"), classes))
    assert any("tells these classes apart poorly" in line for line in lines) == poor


def test_with_too_few_images_it_says_that_nothing_was_chosen(tmp_path: Path, out: Path) -> None:
    data = photographs(tmp_path / "few", CLASSES[:2], count=1)
    message = succeeds("train", data, "--out", out, *SMALL, "--fit", "crop", "--test", 0).err
    assert "too few images to hold some out" in message


def test_json_tells_what_decided(photographed: Trained, out: Path) -> None:
    result = succeeds("train", photographed.data, "--out", out, *SMALL, "--fit", "crop", "--json")
    assert result.json["steps"] == 1
    evaluation = result.json["evaluation"]
    assert evaluation == record(out, "evaluation.json")
    assert evaluation["decided_by"] == "vote"
    assert evaluation["variant"] == "vote"
    assert {"vote_accuracy", "head_accuracy", "agreement", "uncalibrated"} <= evaluation["remembered"].keys()
    assert "drawn" not in evaluation


# Stopped


def test_a_run_stopped_while_encoding_is_continued(
    photographed: Trained, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEMWRAP_DATA", str(tmp_path / "cache"))
    flags = ("--size", 40, "--fit", "crop")
    with monkeypatch.context() as patch:
        patch.setattr(caching.CachedEncoder, "_encode_missing", lambda *_: (_ for _ in ()).throw(caching.Interrupted()))
        stopped = run("train", photographed.data, "--out", out, *flags)
    assert stopped.code == 130
    assert "stopped while encoding" in stopped.err
    assert f"memwrap train --resume --out {out}" in stopped.err
    assert "is not finished" in fails(4, "predict", out, photographed.data)
    resumed = succeeds("train", "--resume", "--out", out)
    assert "evaluated on 7 test images" in resumed.out
    assert "the images are photographs" not in resumed.err
    succeeds("train", photographed.data, "--out", tmp_path / "whole", *flags, "--no-evaluate")
    assert same_weights(out, tmp_path / "whole")


def test_a_second_run_encodes_nothing(photographed: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMWRAP_DATA", str(tmp_path / "cache"))
    command = ("train", photographed.data, *SMALL, "--fit", "crop", "--out")
    assert succeeds(*command, tmp_path / "first").err.count("encoding images ...") == 2, "of training and test"
    assert "encoding images" not in succeeds(*command, tmp_path / "second").err
    assert "encoding images" not in succeeds("evaluate", tmp_path / "second").err
    assert [path.suffix for path in (tmp_path / "cache" / "encodings").iterdir()] == [".sqlite"]


# What decided


def test_a_vote_is_named_wherever_it_decided(photographed: Trained, tmp_path: Path) -> None:
    evaluated = succeeds("evaluate", photographed.run)
    assert "decided by the vote of the memory images, by their labels" in evaluated.out
    for words in ("vote by label accuracy", "last layer accuracy", "vote and last layer agree", "calibrated"):
        assert words in evaluated.out
    new = photographs(tmp_path / "new", count=1, seed=900)
    predicted = succeeds("predict", photographed.run, new).out.splitlines()
    assert len(predicted) == 3
    assert all("% by vote" in line for line in predicted)
    for each in succeeds("predict", photographed.run, new, "--json").json:
        assert each["decided_by"] == "vote"
        assert each["prediction_name"] == Path(each["path"]).parent.name
    explained = succeeds("explain", photographed.run, new).out
    assert explained.count("The memory images decided: ") + explained.count("Unsure: ") == 3
    for each in succeeds("explain", photographed.run, new, "--json").json:
        assert each["decided_by"] == "vote"
        assert sum(each["votes"]) == pytest.approx(1)
        assert each["votes"][each["prediction"]] == max(each["votes"])
        weights = [sample["weight"] for sample in each["samples"] if sample["label"] == each["prediction"]]
        assert each["votes"][each["prediction"]] == pytest.approx(sum(weights))
        assert each["other_prediction_name"] in CLASSES
        assert each["flip_set"] is not None


def test_it_is_said_that_images_did_not_decide_where_the_classifier_did(
    by_classifier: Path, photographed: Trained, tmp_path: Path
) -> None:
    assert "decided by the classifier, without the memory images" in succeeds("evaluate", by_classifier).out
    new = photographs(tmp_path / "new", count=1, seed=900)
    predicted = succeeds("predict", by_classifier, new).out.splitlines()
    assert all("% by classifier" in line for line in predicted)
    explained = succeeds("explain", by_classifier, new).out
    assert explained.count("he classifier decided, not these images") == 3
    assert "The memory images decided" not in explained
    assert not any(line.strip() == "" and line for line in explained.splitlines())
    for each in succeeds("explain", by_classifier, new, "--json").json:
        assert (each["decided_by"], each["flip_set"], each["check"]) == ("classifier", None, None)
        assert all(sample["effect"] is None for sample in each["samples"])
        assert each["other_prediction"] == each["votes"].index(max(each["votes"]))
    page = tmp_path / "report.html"
    succeeds("explain", by_classifier, new, "--html", page)
    succeeds("verify", page)
    assert "right" in succeeds("check", by_classifier).out


def test_a_report_of_a_vote_is_genuine(photographed: Trained, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    succeeds("explain", photographed.run, "--html", page)
    result = succeeds("verify", page, "--json")
    assert (result.json["equal"], result.json["images"]) == (True, 7)


def test_the_data_can_be_checked_and_named_elsewhere(photographed: Trained, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(photographed.data, tmp_path / "copy"))
    found = succeeds("check", photographed.run, "--run-data", copy, "--json").json
    assert found["right"]
    assert all(finding["state"] == "right" for finding in found["findings"])
