"""Transforms: pictures and pixels come to the same, and back; with a model they are saved."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.testing import assert_close

import memwrap
from memwrap import InputError
from memwrap.data.decoding import FITS, to_pixels
from memwrap.data.transform import Transform, normalize

SVHN = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CINIC10 = ((0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835))


def pixels(*shape: int) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8)


def picture(image: Tensor) -> Image.Image:
    """(C, H, W) -> what Pillow makes of it"""
    return Image.fromarray(image.permute(1, 2, 0).squeeze(-1).contiguous().numpy())


def test_pixels_are_normalised_worked_out_by_hand() -> None:
    transform = Transform((1, 1, 2), (0.5,), (0.25,))
    assert_close(transform(torch.tensor([[[0, 255]]], dtype=torch.uint8)), torch.tensor([[[-2.0, 2.0]]]))
    colour = Transform((3, 1, 1), (0.0, 0.2, 0.4), (1.0, 2.0, 0.5))
    image = torch.tensor([51, 102, 153], dtype=torch.uint8).reshape(3, 1, 1)  # 0.2, 0.4, 0.6
    assert_close(colour(image).flatten(), torch.tensor([0.2, 0.1, 0.4]))


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("size", [(6, 6), (9, 5), (3, 7)])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_and_its_pixels_come_to_the_same(channels: int, size: tuple[int, int], fit: str) -> None:
    transform = Transform((channels, 6, 6), (0.4,) * channels, (0.3,) * channels, fit)
    image = pixels(channels, *size)
    assert transform(image).shape == (channels, 6, 6)
    assert torch.equal(transform(image), transform(picture(image)))


def test_other_sizes_are_fitted_as_files_are() -> None:
    image = pixels(3, 20, 31)
    for fit in FITS:
        found = Transform((3, 8, 8), *SVHN, fit)(image)
        assert torch.equal(found, normalize(to_pixels(picture(image), (3, 8, 8), fit), *SVHN))


@pytest.mark.parametrize("size", [8, 11])
def test_many_images_come_to_the_same_as_one_by_one(size: int) -> None:
    transform, images = Transform((3, 8, 8), *SVHN), pixels(4, 3, size, size)
    assert torch.equal(transform(images), torch.stack([transform(image) for image in images]))


@pytest.mark.parametrize("size", [8, 11])
def test_no_images_come_to_none(size: int) -> None:
    assert Transform((3, 8, 8), *SVHN)(pixels(0, 3, size, size)).shape == (0, 3, 8, 8)


def test_pictures_are_converted_to_the_model_s_colours() -> None:
    grey = Image.fromarray(np.full((8, 8), 100, dtype=np.uint8))
    assert torch.equal(Transform((3, 8, 8), *SVHN)(grey), Transform((3, 8, 8), *SVHN)(grey.convert("RGB")))
    assert Transform((1, 8, 8), (0.5,), (0.5,))(grey.convert("RGBA")).shape == (1, 8, 8)


@pytest.mark.parametrize("statistics", [SVHN, CINIC10, ((0.0,) * 3, (1 / 255,) * 3)])
def test_undoing_gives_back_every_level_of_every_channel(statistics: tuple[tuple[float, ...], ...]) -> None:
    transform = Transform((3, 16, 16), *statistics)
    levels = torch.arange(256, dtype=torch.uint8).reshape(16, 16).expand(3, 16, 16)
    assert torch.equal(transform.invert(transform(levels)), levels)
    assert torch.equal(transform.invert(transform(levels.expand(2, 3, 16, 16))), levels.expand(2, 3, 16, 16))


def test_undoing_clips_what_is_no_colour() -> None:
    transform = Transform((1, 1, 2), (0.5,), (0.5,))
    assert transform.invert(torch.tensor([[[-9.0, 9.0]]])).flatten().tolist() == [0, 255]


def test_lists_and_numpy_s_numbers_become_tuples_of_python_s() -> None:
    statistics = np.array(SVHN[0], dtype=np.float32)
    transform = Transform([np.int64(3), 8, 8], statistics, list(SVHN[1]))
    kinds = {type(value) for values in (transform.mean, transform.std) for value in values}
    assert (transform.shape, kinds, {type(side) for side in transform.shape}) == ((3, 8, 8), {float}, {int})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shape": (32, 32)}, "shape is (32, 32); expected channels, height and width"),
        ({"shape": (3, 0, 8)}, "height is 0; expected at least 1"),
        ({"shape": (3, 8, 8.5)}, "width is a float; expected a whole number"),
        ({"mean": (0.5,)}, "mean is (0.5,); expected 3 finite numbers, one for each channel"),
        ({"std": (0.5,) * 4}, "std is (0.5, 0.5, 0.5, 0.5); expected 3 finite numbers"),
        ({"mean": 0.5}, "mean is 0.5; expected 3 finite numbers"),
        ({"std": (0.1, 0.0, 0.1)}, "std is (0.1, 0.0, 0.1); expected values above 0"),
        ({"std": (0.1, float("nan"), 0.1)}, "std is (0.1, nan, 0.1); expected 3 finite numbers"),
        ({"mean": (0.1, float("nan"), 0.1)}, "mean is (0.1, nan, 0.1); expected 3 finite numbers"),
        ({"fit": "squeeze"}, "fit is 'squeeze'; expected one of crop, pad, stretch"),
    ],
)
def test_a_transform_that_cannot_be_is_refused(arguments: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"shape": (3, 8, 8), "mean": SVHN[0], "std": SVHN[1]}
    with pytest.raises(InputError, match=re.escape(message)):
        Transform(**{**good, **arguments})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.rand(3, 8, 8), "pixels have shape (3, 8, 8) and dtype torch.float32; expected torch.uint8, (3, H, W)"),
        (pixels(1, 8, 8), "pixels have shape (1, 8, 8) and dtype torch.uint8; expected torch.uint8, (3, H, W)"),
        (pixels(8, 8), "pixels have shape (8, 8) and dtype torch.uint8"),
        (pixels(1, 1, 3, 8, 8), "expected torch.uint8, (3, H, W) or (N, 3, H, W)"),
        (np.zeros((8, 8, 3), dtype=np.uint8), "image is a ndarray; expected a Pillow image or a uint8 tensor"),
        ("cat.png", "image is a str; expected a Pillow image"),
    ],
)
def test_what_is_no_picture_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        Transform((3, 8, 8), *SVHN)(given)


@pytest.mark.parametrize("variant", ["memory_wrap", "standard"])
def test_a_model_is_saved_with_its_transform_and_class_names(tmp_path: Path, variant: str) -> None:
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=2), variant)
    model.transform, model.classes = Transform((3, 8, 8), *SVHN, "pad"), ("cat", "größer")
    model.save(tmp_path)
    loaded = memwrap.load(tmp_path)
    assert loaded.transform == model.transform
    assert loaded.classes == ("cat", "größer")


def test_a_model_is_saved_without_a_transform_too(tmp_path: Path, model: memwrap.MemoryClassifier) -> None:
    model.save(tmp_path)
    loaded = memwrap.load(tmp_path)
    assert loaded.classes is None
    assert loaded.transform is None


def test_a_missing_transform_is_refused_with_code_that_sets_one(model: memwrap.MemoryClassifier) -> None:
    with pytest.raises(InputError) as caught:
        model.get_transform()
    advice = str(caught.value)[str(caught.value).index("model.transform = ") :]
    exec(advice.replace("(...)", "(0.5, 0.5, 0.5)"), {"model": model, "memwrap": memwrap})
    assert model.transform == Transform((3, 32, 32), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
