"""What is said before training begins, and models that take other pictures than coloured ones."""

from pathlib import Path

from PIL import Image

from tests.cli import QUICK, picture, succeeds


def test_it_is_reported_how_many_images_changed_their_shape(data: Path, out: Path) -> None:
    Image.new("RGB", (20, 8)).save(data / "cat" / "wide.png")
    assert "1 images were cropped to make them square" in succeeds("train", data, "--out", out, *QUICK).err


def test_nothing_is_reported_of_images_that_kept_their_shape(data: Path, out: Path) -> None:
    assert "to make them square" not in succeeds("train", data, "--out", out, *QUICK).err


def test_a_frozen_encoder_with_random_weights_is_warned_of(data: Path, out: Path) -> None:
    assert "frozen, but has random weights" in succeeds("train", data, "--out", out, *QUICK, "--freeze").err


def test_a_model_of_gray_images_takes_coloured_files(out: Path, tmp_path: Path) -> None:
    succeeds("train", "digits", "--out", out, "--samples", 30, "--no-evaluate", *QUICK)
    for digit in ("1", "7"):
        picture(tmp_path / "own" / digit / "a.png", 50, int(digit))
    assert succeeds("evaluate", out, "--data", tmp_path / "own", "--json").json["images"] == 2


def test_random_weights_that_are_to_be_finetuned_are_warned_of(data: Path, out: Path) -> None:
    assert (
        "finetuned, but has random weights" in succeeds("train", data, "--out", out, *QUICK, "--recipe", "finetune").err
    )
