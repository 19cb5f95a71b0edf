"""Which recipe a training starts from: photographs get a pretrained encoder, unless anything else is asked for."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from memwrap.errors import SettingsError
from memwrap.runs.choosing import Choice, choose_recipe, choose_settings
from memwrap.training.recipes import RECIPES
from memwrap.training.settings import Settings


def pictures(path: Path, *sizes: tuple[int, int]) -> Path:
    """A folder of two classes, with a picture of each of these sizes (width, height) in both."""
    for name in ("cat", "dog"):
        (path / name).mkdir(parents=True)
        for number, size in enumerate(sizes):
            Image.new("RGB", size, (number, 0, 0)).save(path / name / f"{number}.png")
    return path


PHOTOGRAPHS = [
    [(64, 64)],
    [(500, 64)],
    [(64, 500)],
    [(63, 63), (64, 80), (65, 65)],
    [(10, 10), (200, 100), (300, 400)],
]
SMALLER = [
    [(63, 63)],
    [(500, 63)],
    [(63, 500)],
    [(63, 63), (63, 80), (1000, 1000)],
    [(8, 8), (9, 900), (400, 400)],
]


@pytest.mark.parametrize("sizes", PHOTOGRAPHS)
def test_images_whose_shorter_side_has_64_pixels_as_the_median_are_photographs(
    sizes: list[tuple[int, int]], tmp_path: Path
) -> None:
    choice = choose_recipe(str(pictures(tmp_path / "data", *sizes)), {})
    assert choice.recipe == "photographs"
    median = sorted(min(size) for size in sizes)[len(sizes) // 2]
    for words in (f"{median} pixels", "lite0", "--encoder small"):
        assert words in choice.reason


@pytest.mark.parametrize("sizes", SMALLER)
def test_smaller_images_are_not(sizes: list[tuple[int, int]], tmp_path: Path) -> None:
    choice = choose_recipe(str(pictures(tmp_path / "data", *sizes)), {})
    assert choice.recipe == "default"
    for words in (f"{sorted(min(size) for size in sizes)[len(sizes) // 2]} pixels", "--recipe photographs"):
        assert words in choice.reason


def test_a_zip_and_a_folder_with_splits_are_looked_into(tmp_path: Path) -> None:
    """Of the splits, the training images."""
    pictures(tmp_path / "data" / "train", (64, 64))
    pictures(tmp_path / "data" / "test", (20, 20), (20, 20))
    archive = shutil.make_archive(str(tmp_path / "data"), "zip", tmp_path / "data")
    assert choose_recipe(str(tmp_path / "data"), {}).recipe == "photographs"
    assert choose_recipe(archive, {}).recipe == "photographs"


def test_files_that_are_no_images_do_not_count(tmp_path: Path) -> None:
    data = pictures(tmp_path / "data", (64, 64))
    for number in range(9):
        (data / "cat" / f"bad{number}.png").write_text("no picture")
    assert choose_recipe(str(data), {}).recipe == "photographs"


@pytest.mark.parametrize(
    ("given", "recipe"),
    [
        ({"encoder": "small"}, "default"),
        ({"encoder": "lite0"}, "default"),
        ({"encoder": "small", "pretrained": False}, "default"),
        ({"pretrained": True}, "finetune"),
        ({"encoder": "lite1", "pretrained": True}, "finetune"),
        ({"encoder": "timm:test_resnet", "weights": "a.safetensors"}, "finetune"),
        ({"freeze": True}, "frozen"),
        ({"freeze": True, "pretrained": True}, "frozen"),
        ({"freeze": False}, "default"),
        ({"pretrained": False}, "default"),
        ({"epochs": 5, "seed": 3}, "photographs"),
        ({"encoder": None, "freeze": None, "pretrained": None}, "photographs"),
        ({"variant": "memory_wrap"}, "photographs"),
    ],
)
def test_what_is_asked_for_wins(given: dict[str, Any], recipe: str, tmp_path: Path) -> None:
    choice = choose_recipe(str(pictures(tmp_path / "data", (64, 64))), given)
    assert choice.recipe == recipe
    assert bool(choice.reason) == (recipe == "photographs")


@pytest.mark.parametrize(
    ("source", "recipe"), [("digits", "default"), ("svhn", "svhn"), ("cifar10", "cifar10"), ("cinic10", "cinic10")]
)
def test_published_data_sets_have_their_recipes(source: str, recipe: str) -> None:
    assert choose_recipe(source, {}) == Choice(recipe)
    assert choose_recipe(source, {"encoder": "small"}) == Choice(recipe)
    assert choose_recipe(source, {"pretrained": True}) == Choice("finetune")


def test_what_cannot_be_read_gets_the_default_and_is_reported_later(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("no zip")
    (tmp_path / "broken.zip").write_bytes(b"PK\x03\x04 no zip")
    bad = pictures(tmp_path / "bad", (64, 64))
    for path in bad.glob("*/*.png"):
        path.write_text("no picture")
    for source in (tmp_path / "nowhere", tmp_path / "empty", tmp_path / "file.txt", tmp_path / "broken.zip", bad, ""):
        assert choose_recipe(str(source), {}) == Choice("default")


# Settings


def test_settings_start_from_the_recipe_and_given_ones_win(tmp_path: Path) -> None:
    data = str(pictures(tmp_path / "data", (64, 64)))
    chosen = choose_settings(data, {"seed": 3, "variant": "only_memory"})
    assert chosen.recipe == "photographs"
    assert chosen.reason
    assert chosen.settings == RECIPES["photographs"].replace(seed=3, variant="only_memory")
    own = choose_settings(data, {"encoder": "tiny"})
    assert (own.recipe, own.settings, own.reason) == ("default", Settings(encoder="tiny"), "")


def test_a_recipe_that_is_named_is_taken_for_any_images(tmp_path: Path) -> None:
    data = str(pictures(tmp_path / "data", (64, 64)))
    for name in RECIPES:
        chosen = choose_settings(data, {}, name)
        assert (chosen.recipe, chosen.settings, chosen.reason) == (name, RECIPES[name], "")
    small = str(pictures(tmp_path / "small", (8, 8)))
    assert choose_settings(small, {}, "photographs").settings.encoder == "lite0"


def test_settings_that_cannot_be_are_named_with_their_origin(tmp_path: Path) -> None:
    for given in ({"colour": "red"}, {"epochs": 0}):
        with pytest.raises(SettingsError, match="flags: "):
            choose_settings(str(tmp_path), given, where="flags")
    with pytest.raises(SettingsError, match="painting"):
        choose_settings(str(tmp_path), {}, "painting")
