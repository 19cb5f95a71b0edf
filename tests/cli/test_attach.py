"""memwrap attach: a trained classifier gets a memory, and nothing is trained."""

from pathlib import Path

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import memwrap
from tests.cli import fails, photos, record, run, succeeds
from tests.photographs import photographs

SMALL = ("--size", 32)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a classifier of two classes."""
    return stored(tmp_path_factory.mktemp("weights") / "mine.safetensors", num_classes=2)


def stored(path: Path, num_classes: int) -> Path:
    torch.manual_seed(3)
    save_file(timm.create_model("test_resnet", num_classes=num_classes).state_dict(), path)
    return path


def attach(weights: Path, data: Path, out: Path, *flags: object) -> tuple[object, ...]:
    named = ("--weights", weights, "--data", data, "--out", out)
    return ("attach", "timm:test_resnet", *named, *SMALL, "--test", 0.2, *flags)


def test_the_classifier_decides_with_weights_of_its_own(weights: Path, data: Path, out: Path) -> None:
    result = succeeds(*attach(weights, data, out))
    assert result.out.startswith(f"{out}: vote, evaluated on 4 test images\n")
    assert "decided by the classifier, without the memory images" in result.out
    assert result.err.splitlines()[-1] == f"nothing was trained; the run is in {out}"
    assert record(out)["recipe"] == "attached"
    assert record(out, "evaluation.json")["decided_by"] == "classifier"
    assert record(out, "model.json")["training"]["finished"] is True
    network = timm.create_model("test_resnet", num_classes=2).eval()
    network.load_state_dict(load_file(weights))
    transform = memwrap.load(out).transform
    for each in succeeds("predict", out, data, "--json").json:
        with Image.open(each["path"]) as image, torch.no_grad():
            expected = network(transform(image).unsqueeze(0)).softmax(1)[0]
        assert each["decided_by"] == "classifier"
        assert each["prediction"] == int(expected.argmax())
        assert each["probability"] == pytest.approx(float(expected.max()), abs=1e-5)


def test_images_decide_if_one_asks_for_it(weights: Path, data: Path, out: Path) -> None:
    result = succeeds(*attach(weights, data, out, "--decide", "vote", "--scale", 3.5))
    assert "decided by the vote of the memory images" in result.out
    assert "last layer accuracy" in result.out
    assert memwrap.load(out).layer.similarity.scale == 3.5
    assert "% by vote" in succeeds("predict", out, data / "cat" / "0.png").out


def test_json_is_the_record_that_is_kept(weights: Path, data: Path, out: Path) -> None:
    found = succeeds(*attach(weights, data, out, "--json")).json
    assert found == record(out, "evaluation.json")
    assert (found["run"], found["images"], found["variant"], found["decided_by"]) == (str(out), 4, "vote", "classifier")
    assert found["memory"]["size"] == 16
    assert {"head_accuracy", "vote_accuracy", "agreement"} <= found["remembered"].keys()
    assert "drawn" not in found


def test_without_test_images_json_says_what_is_left_out(weights: Path, data: Path, out: Path) -> None:
    result = succeeds(*attach(weights, data, out, "--test", 0, "--json"))
    assert "no test images" in result.json["left_out"]["accuracy"]
    assert result.json["memory"]["size"] == 20
    assert not (out / "evaluation.json").exists()
    assert "the classifier may have been trained on all of DATA" in result.err


def test_all_other_commands_take_the_run(weights: Path, data: Path, out: Path, tmp_path: Path) -> None:
    succeeds(*attach(weights, data, out))
    assert succeeds("evaluate", out, "--json").json == record(out, "evaluation.json")
    assert all(each["state"] == "right" for each in succeeds("check", out, "--json").json["findings"])
    assert succeeds("explain", out, "--limit", 4).out.count("he classifier decided, not these images") == 4
    succeeds("explain", out, "--html", tmp_path / "report.html")
    succeeds("verify", tmp_path / "report.html")
    assert "there is nothing to resume" in fails(4, "train", "--resume", "--out", out)
    assert "holds a run already" in fails(4, *attach(weights, data, out))


def test_fewer_images_can_be_remembered_and_other_seeds_be_drawn(weights: Path, data: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        flags = ("--remember", 4, "--seed", seed, "--test", 6, "--fit", "stretch")
        succeeds(*attach(weights, data, tmp_path / str(seed), *flags))
    first, second = (record(tmp_path / name, "splits.json") for name in "01")
    assert len(first["test"]) == 6
    assert first["test"] != second["test"]
    assert record(tmp_path / "0", "evaluation.json")["memory"]["size"] == 4
    assert record(tmp_path / "0")["settings"]["fit"] == "stretch"


def test_validation_images_calibrate(weights: Path, tmp_path: Path, out: Path) -> None:
    data = photos(tmp_path / "many", count=40)
    result = succeeds(*attach(weights, data, out, "--validation", 30))
    assert "probabilities are calibrated" in result.out
    assert "temperature" in record(out, "model.json")["calibration"]
    assert "uncalibrated" in record(out, "evaluation.json")["remembered"]


def test_a_pretrained_encoder_votes_by_default(tmp_path: Path, out: Path) -> None:
    data = photographs(tmp_path / "photos", count=5)
    result = succeeds("attach", "lite0", "--data", data, "--out", out, "--size", 64)
    assert "decided by the vote of the memory images" in result.out
    assert record(out, "evaluation.json")["remembered"]["agreement"] is None
    message = fails(2, "attach", "lite0", "--data", data, "--out", tmp_path / "x", "--size", 64, "--decide", "head")
    assert "--decide vote" in message
    assert not (tmp_path / "x").exists()


def test_weights_of_other_classes_cannot_decide(data: Path, out: Path, tmp_path: Path) -> None:
    others = stored(tmp_path / "imagenet.safetensors", num_classes=1000)
    message = fails(2, *attach(others, data, out))
    assert "no last layer for these 2 classes (cat, dog)" in message
    assert not out.exists()
    succeeds(*attach(others, data, out, "--decide", "vote"))
    assert record(out, "evaluation.json")["remembered"]["head_accuracy"] is None
    assert "-" in next(line for line in succeeds("evaluate", out).out.splitlines() if "last layer accuracy" in line)


@pytest.mark.parametrize(
    ("classifier", "flags", "words"),
    [
        ("small", [], "the classifier is 'small'; expected timm:NAME, lite0"),
        ("resnet18", [], "expected timm:NAME"),
        ("timm:resnet19", [], "timm has no model 'resnet19'"),
        ("timm:test_resnet", ["--decide", "both"], "decide is 'both'"),
        ("timm:test_resnet", ["--weights", "nowhere.safetensors"], "there is no such file"),
        ("timm:test_resnet", ["--weights", "{bad}"], "are not available"),
        ("timm:test_resnet", ["--weights", "{good}", "--remember", 99], "remember is 99"),
        ("timm:test_resnet", ["--weights", "{good}", "--fit", "squash"], "fit is 'squash'"),
        ("timm:test_resnet", ["--weights", "{good}", "--scale", -1], "scale"),
        ("lite0", ["--weights", "{good}"], "takes no file of weights"),
    ],
)
def test_what_cannot_be_attached_is_refused(
    classifier: str, flags: list[object], words: str, weights: Path, data: Path, out: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.safetensors"
    bad.write_text("no weights")
    given = [str(flag).format(bad=bad, good=weights) for flag in flags]
    assert words in fails(2, "attach", classifier, "--data", data, "--out", out, *SMALL, *given)
    assert not out.exists()


def test_data_and_folders_that_cannot_be_used_are_named(weights: Path, data: Path, tmp_path: Path) -> None:
    assert "nowhere" in fails(3, *attach(weights, tmp_path / "nowhere", tmp_path / "run"))
    (data / "cat" / "bad.png").write_text("no picture")
    assert "cat/bad.png" in fails(3, *attach(weights, data, tmp_path / "run"))
    assert "is not a run of memwrap" in fails(4, *attach(weights, data, data))
    assert "Missing option '--data'" in run("attach", "lite0", "--out", tmp_path / "run").err
