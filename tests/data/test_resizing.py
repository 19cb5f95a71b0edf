"""Data sets at another image size: as Pillow resizes, in memory or on demand."""

import numpy as np
import pytest
import torch
from PIL import Image

from memwrap.data.dataset import DataSet, InMemoryImages, LabelledImages
from memwrap.data.published import digits
from memwrap.data.resizing import ResizedImages, resize
from memwrap.data.sources import open_data


def two_images(size: int) -> LabelledImages:
    pixels = torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8)
    return LabelledImages(InMemoryImages(pixels), torch.tensor([0, 1]), ("cat/a.png", "dog/b.png"))


def all_pixels(split: LabelledImages) -> torch.Tensor:
    return next(split.images.batches([torch.arange(len(split))]))


def test_without_a_size_or_with_its_own_a_published_data_set_is_as_it_is() -> None:
    for data in (open_data("digits"), open_data("digits", size=8)):
        assert data.fingerprint == digits().fingerprint
        assert data.record == digits().record


@pytest.mark.parametrize("size", [5, 20])
def test_a_size_resizes_as_pillow_does(size: int) -> None:
    data, original = open_data("digits", size=size), digits()
    assert data.train.images.shape == (1, size, size)
    ours, theirs = all_pixels(data.train)[:50, 0].numpy(), all_pixels(original.train)[:50, 0].numpy()
    for one, other in zip(ours, theirs, strict=True):
        expected = np.asarray(Image.fromarray(other).resize((size, size), Image.Resampling.BILINEAR))
        assert np.abs(one.astype(int) - expected).max() <= 1  # Pillow rounds after each of two passes
    assert data.train.labels.equal(original.train.labels)
    assert data.train.names == original.train.names


def test_a_resized_data_set_records_it() -> None:
    data = open_data("digits", size=16)
    assert data.record == {
        "kind": "published",
        "root": None,
        "size": [16, 16],
        "resized_from": [8, 8],
        "held": True,
    }
    assert len({data.fingerprint, open_data("digits", size=17).fingerprint, digits().fingerprint}) == 3
    assert isinstance(data.train.images, InMemoryImages)


def test_images_too_many_to_hold_are_resized_when_asked_for() -> None:
    held, not_held = open_data("digits", size=16), open_data("digits", size=16, hold_bytes=1797 * 256 - 1)
    assert isinstance(open_data("digits", size=16, hold_bytes=1797 * 256).train.images, InMemoryImages)
    assert isinstance(not_held.train.images, ResizedImages)
    assert not_held.record == {**held.record, "held": False}
    assert not_held.fingerprint == held.fingerprint
    rows = torch.tensor([5, 3, 1796])
    assert not_held.train.images.shape == (1, 16, 16)
    assert len(not_held.train.images) == 1797
    assert all_pixels(not_held.train).equal(all_pixels(held.train))
    assert all_pixels(not_held.train.at(rows)).equal(all_pixels(held.train.at(rows)))
    assert not_held.train.images.at(rows[:0]).shape == (1, 16, 16)
    assert next(not_held.train.images.batches([rows[:0]])).shape == (0, 1, 16, 16)


def test_both_splits_are_resized() -> None:
    data = DataSet("both", ("a", "b"), two_images(32), two_images(32), "print", {"size": [32, 32]})
    for hold_bytes in (0, 1 << 30):
        smaller = resize(data, 8, hold_bytes)
        assert smaller.test is not None
        assert smaller.train.images.shape == smaller.test.images.shape == (3, 8, 8)


def test_a_plain_image_stays_plain_and_in_range_at_every_size() -> None:
    pixels = torch.tensor([0, 255, 128], dtype=torch.uint8).reshape(1, 3, 1, 1).expand(1, 3, 8, 8)
    split = LabelledImages(InMemoryImages(pixels), torch.tensor([0]), ("0",))
    data = DataSet("plain", ("a",), split, None, "print", {})
    for size in (1, 3, 7, 9, 31):
        assert all_pixels(resize(data, size, 1 << 30).train).equal(pixels[:, :, :1, :1].expand(1, 3, size, size))


def test_resized_pixels_are_rounded_to_the_nearest_level() -> None:
    pixels = torch.tensor([[0, 1], [1, 1]], dtype=torch.uint8).reshape(1, 1, 2, 2)
    split = LabelledImages(InMemoryImages(pixels), torch.tensor([0]), ("0",))
    data = DataSet("corner", ("a",), split, None, "print", {})
    assert all_pixels(resize(data, 1, 1 << 30).train).item() == 1  # their mean is 0.75
