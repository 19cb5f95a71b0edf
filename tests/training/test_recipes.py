"""Recipes: the paper's value by value, and what the data decides where a recipe leaves it open."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memwrap.errors import SettingsError
from memwrap.training.recipes import encoder_for, recipe, resolve_settings
from memwrap.training.settings import AUGMENTATIONS, Settings

WORDS = ("cat", "dog")
DIGITS = tuple("0123456789")

# The table "Recipe" of the paper's experiments. What it does not name is left as the experiments had it: no warm-up, no
# label smoothing, no clipping of gradients, images as they are.
PAPER: dict[str, Any] = {
    "samples": None,
    "test": 0.2,  # of no effect: all three data sets have test images of their own
    "size": None,
    "fit": "crop",
    "skip_bad": False,
    "encoder": "mobilenet_v2",
    "variant": "memory_wrap",
    "head": "mlp",
    "project": None,
    "scale": 1.0,
    "pretrained": False,
    "weights": None,
    "freeze": False,
    "memory": "random",
    "memory_size": 100,
    "remember": 100,
    "batch_size": 128,
    "optimizer": "sgd",
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "clip": 0.0,
    "warmup": 0.0,
    "label_smoothing": 0.0,
    "contrast": 0.0,
    "precision": "auto",
    "seed": 0,
}
BY_DATA: dict[str, dict[str, Any]] = {
    "svhn": {
        "validation": 6000,
        "epochs": 40,
        "schedule": "steps",
        "drops": (20 / 40, 30 / 40),
        "augment": (),
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
    },
    "cifar10": {
        "validation": 6000,
        "epochs": 300,
        "schedule": "steps",
        "drops": (150 / 300, 225 / 300),
        "augment": ("flip",),
        "mean": (0.4914, 0.4822, 0.4465),
        "std": (0.2023, 0.1994, 0.2010),
    },
    "cinic10": {
        "validation": 10,
        "epochs": 300,
        "schedule": "cosine",
        "drops": (),
        "augment": ("flip",),
        "mean": (0.47889522, 0.47227842, 0.43047404),
        "std": (0.24205776, 0.23828046, 0.25874835),
    },
}


@pytest.mark.parametrize("name", BY_DATA)
def test_the_paper_s_recipes_value_by_value(name: str) -> None:
    assert dict(recipe(name)) == {**PAPER, **BY_DATA[name]}


@pytest.mark.parametrize("name", BY_DATA)
@pytest.mark.parametrize("images", [1000, 67_257])
def test_the_data_change_nothing_of_the_paper_s_recipes(name: str, images: int) -> None:
    assert dict(resolve_settings(recipe(name), images, DIGITS)) == dict(recipe(name))


def test_an_unknown_recipe_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match=r"'mnist'.* default, finetune, frozen, photographs, svhn"):
        recipe("mnist")


@pytest.mark.parametrize(
    ("images", "epochs", "batch_size"),
    [
        # 200 · sqrt(1000 / images) epochs from 30 to 400; the largest power of two up to an eighth of the images.
        (1000, 200, 64),
        (4000, 100, 128),
        (500, 283, 32),  # 200 · sqrt(2) = 282.8; 500 / 8 = 62.5
        (512, 280, 64),
        (511, 280, 32),
        (250, 400, 32),
        (100, 400, 32),
        (40_000, 32, 128),  # 200 / sqrt(40) = 31.6
        (1_000_000, 30, 128),
        (20, 400, 20),
        (2, 400, 2),
    ],
)
def test_epochs_and_batch_size_by_the_number_of_images(images: int, epochs: int, batch_size: int) -> None:
    found = resolve_settings(Settings(), images, WORDS)
    assert (found.epochs, found.batch_size) == (epochs, batch_size)


@pytest.mark.parametrize(("images", "size"), [(2, 2), (99, 99), (100, 100), (101, 100), (5000, 100)])
def test_memories_hold_a_hundred_images_or_all_that_there_are(images: int, size: int) -> None:
    found = resolve_settings(Settings(), images, WORDS)
    assert (found.memory_size, found.remember) == (size, size)


@pytest.mark.parametrize(
    ("batch_size", "classes", "memory"),
    [(60, 10, "batch"), (61, 10, "batch"), (59, 10, "random"), (128, 21, "batch"), (128, 22, "random")],
)
def test_the_batch_is_the_memory_where_half_of_it_has_three_images_of_each_class(
    batch_size: int, classes: int, memory: str
) -> None:
    names = [f"class {number}" for number in range(classes)]
    assert resolve_settings(Settings(batch_size=batch_size), 5000, names).memory == memory


def test_the_batch_is_never_the_memory_of_only_memory() -> None:
    assert resolve_settings(Settings(variant="only_memory", batch_size=1000), 5000, WORDS).memory == "random"
    assert (
        resolve_settings(Settings(variant="only_memory", memory="batch"), 5000, WORDS).memory == "batch"
    )  # unless asked for


@pytest.mark.parametrize(
    ("classes", "flips"),
    [
        (DIGITS, False),
        (("a", "b", "ß"), False),
        (("cat", "dog"), True),
        (("a", "dog"), True),  # one class of many letters shows that these are no characters
        (("10", "11"), True),
    ],
)
def test_images_are_mirrored_unless_classes_are_single_characters(classes: tuple[str, ...], flips: bool) -> None:
    found = resolve_settings(Settings(), 1000, classes).augment
    assert ("flip" in found) == flips
    assert {*found, "flip"} == set(AUGMENTATIONS)


EXPLICIT: dict[str, Any] = {
    "encoder": "densenet",
    "memory": "balanced",
    "memory_size": 7,
    "remember": 9,
    "epochs": 3,
    "batch_size": 11,
    "augment": ("flip",),
}


@pytest.mark.parametrize("name", EXPLICIT)
def test_what_is_reported_is_not_settled(name: str) -> None:
    found = resolve_settings(Settings(**{name: EXPLICIT[name]}), 1000, DIGITS)
    assert getattr(found, name) == EXPLICIT[name]
    assert getattr(resolve_settings(Settings(), 1000, DIGITS), name) != EXPLICIT[name]


def test_no_augmentation_stays_none() -> None:
    assert resolve_settings(Settings(augment="none"), 1000, WORDS).augment == ()


@given(
    images=st.integers(2, 10**6),
    classes=st.integers(2, 200),
    variant=st.sampled_from(["memory_wrap", "only_memory", "standard"]),
)
def test_settled_settings_fit_the_data(images: int, classes: int, variant: str) -> None:
    found = resolve_settings(Settings(variant=variant), images, [f"class {number}" for number in range(classes)])
    assert 1 <= found.batch_size <= min(images, 128)
    assert 1 <= found.memory_size <= images
    assert 30 <= found.epochs <= 400
    assert resolve_settings(found, images, ["other"]) == found


@pytest.mark.parametrize(
    ("side", "device", "encoder"),
    [(32, "cuda", "resnet18"), (8, "cuda", "resnet18"), (16, "cpu", "tiny"), (17, "cpu", "small")],
)
def test_the_encoder_suits_images_and_device(side: int, device: str, encoder: str) -> None:
    assert encoder_for(side, device) == encoder
    assert resolve_settings(Settings(), 1000, WORDS, encoder).encoder == encoder
