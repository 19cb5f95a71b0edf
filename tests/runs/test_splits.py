"""Which image goes where: every one to a single place, by seed alone, in the order test, validation, samples."""

import json
import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from memwrap.data import DataSet, InMemoryImages, LabelledImages, generator
from memwrap.errors import DataError, RunError
from memwrap.runs import splits as splits_module
from memwrap.runs.splits import Splits, read_splits, split
from memwrap.storage.validation import JSON_LIMIT
from memwrap.training.settings import VARIANTS, Settings


def images_of(labels: Tensor) -> LabelledImages:
    """Each image is filled with its own number."""
    pixels = torch.arange(len(labels)).to(torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    return LabelledImages(InMemoryImages(pixels), labels, tuple(f"image {index}" for index in range(len(labels))))


def data_of(labels: Tensor, test: int | None = None) -> DataSet:
    """So many training images as there are labels, and test images of class 0; None: no test split."""
    own = None if test is None else images_of(torch.zeros(test, dtype=torch.int64))
    return DataSet("toy", ("a", "b", "c"), images_of(labels), own, "print")


LABELS = torch.arange(120) % 3  # 40 of each class
SORTED = torch.arange(120) // 40


def lists(splits: Splits) -> dict[str, list[int]]:
    return {name: getattr(splits, name).tolist() for name in ("train", "validation", "test", "rest")}


@given(
    labels=st.lists(st.integers(0, 2), min_size=6, max_size=80),
    test=st.none() | st.integers(1, 20),
    test_amount=st.sampled_from([0, 0.1, 0.5, 1, 7]),
    validation=st.sampled_from([0, 0.1, 0.5, 1, 7]),
    samples=st.none() | st.integers(2, 60),
    seed=st.integers(0, 1000),
)
def test_every_image_is_in_one_split(
    labels: list[int],
    test: int | None,
    test_amount: float,
    validation: float,
    samples: int | None,
    seed: int,
) -> None:
    data = data_of(torch.tensor(labels), test)
    settings = Settings(test=test_amount, validation=validation, samples=samples, seed=seed)
    try:
        found = lists(split(data, settings))
    except DataError:  # too few images
        return
    if test is not None:
        assert found["test"] == list(range(test))
        del found["test"]
    assert sorted(chain(*found.values())) == list(range(len(labels)))
    assert all(indices == sorted(indices) for indices in found.values())
    assert samples is None or len(found["train"]) == samples
    assert samples is not None or not found["rest"]


def test_amounts_are_counts_or_shares_of_what_is_left() -> None:
    splits = split(data_of(LABELS), Settings(test=0.25, validation=0.1, samples=50))
    assert {name: len(found) for name, found in lists(splits).items()} == {
        "test": 30,  # a quarter of 120
        "validation": 9,  # a tenth of 90
        "train": 50,
        "rest": 31,
    }
    splits = split(data_of(LABELS), Settings(test=30, validation=1))
    assert {name: len(found) for name, found in lists(splits).items()} == {
        "test": 30,
        "validation": 1,
        "train": 89,
        "rest": 0,
    }


def test_the_test_is_drawn_before_the_validation_and_that_before_the_samples() -> None:
    data = data_of(LABELS)
    plain = split(data, Settings(test=30))
    validated = split(data, Settings(test=30, validation=20))
    few = split(data, Settings(test=30, validation=20, samples=10))
    assert torch.equal(plain.test, validated.test)
    assert torch.equal(plain.test, few.test)
    assert torch.equal(validated.validation, few.validation)


def test_variant_encoder_and_training_do_not_matter() -> None:
    data, settings = data_of(LABELS), Settings(test=30, validation=20, samples=10, seed=3)
    expected = lists(split(data, settings))
    for variant in VARIANTS:
        other = settings.replace(variant=variant, encoder="tiny", epochs=7, memory_size=5, batch_size=4, lr=0.3)
        assert lists(split(data, other)) == expected


def test_another_seed_splits_otherwise() -> None:
    data = data_of(LABELS)
    first, second = (split(data, Settings(test=30, validation=20, samples=10, seed=seed)) for seed in (0, 1))
    for name in ("train", "validation", "test", "rest"):
        assert not torch.equal(getattr(first, name), getattr(second, name))


def counts(labels: Tensor, indices: Tensor) -> list[int]:
    return labels[indices].bincount(minlength=3).tolist()


def test_without_a_split_of_its_own_test_and_validation_are_stratified() -> None:
    labels = torch.tensor([0] * 60 + [1] * 40 + [2] * 20)
    splits = split(data_of(labels), Settings(test=12, validation=12, seed=5))
    assert counts(labels, splits.test) == [6, 4, 2]
    assert counts(labels, splits.validation) == [6, 4, 2]  # of 54, 36 and 18


def test_with_a_split_of_its_own_validation_and_samples_are_drawn_as_in_the_paper() -> None:
    """Whatever the classes: 20 of all training images set apart, then 10 of the others."""
    for seed in range(3):
        settings = Settings(test=0.2, validation=20, samples=10, seed=seed)
        splits = split(data_of(SORTED, test=9), settings)
        order = torch.randperm(120, generator=generator(seed, "validation"))
        validation = sorted(order[:20].tolist())
        left = sorted(order[20:].tolist())
        order = torch.randperm(100, generator=generator(seed, "subset"))
        train = sorted(left[place] for place in order[:10].tolist())
        assert lists(splits)["validation"] == validation
        assert lists(splits)["train"] == train
        assert lists(splits)["test"] == list(range(9))
        assert splits.own_test


def test_samples_are_drawn_whatever_their_class_even_where_the_test_is_stratified() -> None:
    splits = split(data_of(SORTED), Settings(test=0.25, samples=9, seed=2))
    left = [index for index in range(120) if index not in splits.test.tolist()]
    order = torch.randperm(90, generator=generator(2, "subset"))
    assert splits.train.tolist() == sorted(left[place] for place in order[:9].tolist())


def test_the_images_of_a_split_come_with_their_labels_and_names() -> None:
    data = data_of(LABELS)
    splits = split(data, Settings(test=0.25, validation=10, samples=20))
    for name, indices in lists(splits).items():
        found = splits.of(data, name)
        assert found.names == tuple(f"image {index}" for index in indices)
        assert found.labels.tolist() == [index % 3 for index in indices]
        (pixels,) = found.images.batches([torch.arange(len(indices))])
        assert pixels[:, 0, 0, 0].tolist() == indices


def test_the_test_is_the_data_s_own_where_it_has_one() -> None:
    data = data_of(LABELS, test=5)
    found = split(data, Settings(validation=10)).of(data, "test")
    assert found.names == data.test.names  # type: ignore[union-attr]
    assert found.labels.tolist() == [0] * 5


def test_a_test_of_none_sets_nothing_apart() -> None:
    splits = split(data_of(LABELS), Settings(test=0))
    assert len(splits.test) == 0
    assert len(splits.train) == 120


@pytest.mark.parametrize(
    ("count", "settings", "message"),
    [
        (12, {"samples": 11}, "11 images are asked for, but there are 10"),
        (12, {"test": 12}, "test images cannot be set apart: 12 of 12 images"),
        (12, {"test": 0.01}, "test images cannot be set apart: a share of 0.01 of 12 images is no image at all"),
        (12, {"validation": 50}, "validation images cannot be set apart: 50 of 10 images"),
        (12, {"samples": 1}, "1 images are left to train on; expected at least 2"),
        (2, {"test": 0}, None),
        (1, {"test": 0}, "1 images are left to train on; expected at least 2"),
    ],
)
def test_too_few_images_are_named(count: int, settings: dict[str, Any], message: str | None) -> None:
    data = data_of(torch.arange(count) % 3)
    if message is None:
        split(data, Settings(**settings))
        return
    with pytest.raises(DataError, match=re.escape(message)):
        split(data, Settings(**settings))


@pytest.mark.parametrize("test", [None, 20])
def test_more_images_than_a_run_stores_are_refused(test: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    count = len(LABELS) + (test or 0)
    monkeypatch.setattr(splits_module, "IMAGES_LIMIT", count)
    split(data_of(LABELS, test), Settings())
    monkeypatch.setattr(splits_module, "IMAGES_LIMIT", count - 1)
    with pytest.raises(DataError, match=f"{count} images"):
        split(data_of(LABELS, test), Settings())


def test_the_splits_of_as_many_images_as_allowed_can_be_read_again() -> None:
    """In bytes; to read four million would take a while."""
    empty = torch.arange(0)
    splits = Splits(torch.arange(splits_module.IMAGES_LIMIT), empty, empty, empty, own_test=False)
    assert 0.8 * JSON_LIMIT < len(splits.content()) < JSON_LIMIT


def stored(content: object, folder: Path) -> Splits:
    (folder / "splits.json").write_text(json.dumps(content))
    return read_splits(folder)


@pytest.mark.parametrize("test", [None, 5])
def test_splits_come_back_from_json(test: int | None, tmp_path: Path) -> None:
    splits = split(data_of(LABELS, test), Settings(validation=10, samples=20))
    (tmp_path / "splits.json").write_bytes(splits.content())
    back = read_splits(tmp_path)
    assert lists(back) == lists(splits)
    assert back.own_test == splits.own_test
    assert {getattr(back, name).dtype for name in lists(back)} == {torch.int64}


GOOD = {"train": [0, 2], "validation": [3], "test": [1], "rest": [4], "own_test": False}


@pytest.mark.parametrize(
    "change",
    [
        {"train": [0, 3]},  # in two splits
        {"train": [0]},  # an image lost
        {"rest": [5]},
        {"rest": [-1]},
        {"rest": [4.0]},
        {"rest": [True]},
        {"rest": ["4"]},
        {"rest": [[4]]},
        {"rest": [10**30]},
        {"rest": {"4": 4}},
        {"rest": "4"},
        {"rest": None},
        {"own_test": "false"},
        {"own_test": True},  # then there is no training image 1
    ],
)
def test_splits_that_cannot_be_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    stored(GOOD, tmp_path)
    with pytest.raises(RunError):
        stored({**GOOD, **change}, tmp_path)


def test_a_split_is_not_taken_from_other_data() -> None:
    splits = split(data_of(LABELS, test=5), Settings(validation=10))
    for name, other, message in (
        ("train", data_of(LABELS[:-1], test=5), "the data has 119 training images"),
        ("test", data_of(LABELS, test=6), "the data has 6 test images"),
        ("test", data_of(LABELS), "the data has no test split any more"),
    ):
        with pytest.raises(RunError, match=re.escape(message)):
            splits.of(other, name)
