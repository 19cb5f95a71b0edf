"""Baselines: what each shows, in the space that images are normalised to."""

import re

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from memwrap import InputError, MemoryClassifier, Transform
from memwrap.attribution import BASELINES
from memwrap.explain.attribution.baselines import make_baseline


@pytest.mark.parametrize(("name", "pixel"), [("white", 255), ("black", 0)])
def test_a_colour_is_what_the_transform_makes_of_it(
    name: str, pixel: int, remembering: MemoryClassifier, images: Tensor
) -> None:
    expected = remembering.transform(torch.full((5, 3, 8, 8), pixel, dtype=torch.uint8))
    assert_close(make_baseline(name, images, remembering), expected, atol=0, rtol=0)
    value = (pixel / 255 - 0.4) / 0.2
    assert_close(expected[:, 0], torch.full((5, 8, 8), value))


def test_the_mean_colour_is_zero(remembering: MemoryClassifier, images: Tensor) -> None:
    assert not make_baseline("mean", images, remembering).any()


def test_white_and_black_lie_opposite_each_other_around_a_mean_of_a_half(by_hand: MemoryClassifier) -> None:
    images = torch.randn(2, 1, 2, 2)
    assert_close(make_baseline("white", images, by_hand), -make_baseline("black", images, by_hand), atol=0, rtol=0)


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_has_the_form_of_its_images(name: str, remembering: MemoryClassifier) -> None:
    samples = torch.randn(1, 4, 3, 8, 8, dtype=torch.float64)
    found = make_baseline(name, samples, remembering)
    assert (found.shape, found.dtype) == (samples.shape, samples.dtype)
    assert_close(found[0, 2], make_baseline(name, samples[0, 2], remembering))


def test_blur_takes_out_detail_and_leaves_colour(remembering: MemoryClassifier) -> None:
    plain = torch.full((1, 3, 16, 16), 0.7)
    assert_close(make_baseline("blur", plain, remembering), plain)
    board = ((torch.arange(16).unsqueeze(0) + torch.arange(16).unsqueeze(1)) % 2).float().expand(1, 3, 16, 16)
    assert_close(make_baseline("blur", board, remembering), torch.full((1, 3, 16, 16), 0.5), atol=0.01, rtol=0)


def test_blur_is_a_bell_around_each_pixel_as_wide_as_the_image_asks(remembering: MemoryClassifier) -> None:
    """A deviation of an eighth of the side: 2 pixels of 16, 4 of 32."""
    for side in (16, 32):
        point = torch.zeros(1, 3, side, side)
        point[..., side // 2, side // 2] = 1
        bell = make_baseline("blur", point, remembering)[0, 0]
        ratio = float(bell[side // 2, side // 2 + side // 8] / bell[side // 2, side // 2])
        assert ratio == pytest.approx(torch.tensor(-0.5).exp().item(), rel=1e-5)
        assert_close(bell, bell.T)
        assert bell.sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (7, 40)])
def test_blur_takes_images_of_any_size(shape: tuple[int, int], remembering: MemoryClassifier) -> None:
    images = torch.rand(2, 3, *shape)
    blurred = make_baseline("blur", images, remembering)
    assert blurred.shape == images.shape
    assert blurred.min() >= 0
    assert blurred.max() <= 1


def test_an_unknown_baseline_is_refused_with_the_known_ones(remembering: MemoryClassifier, images: Tensor) -> None:
    message = "baseline is 'grey'; expected one of white, black, mean, blur"
    with pytest.raises(InputError, match=re.escape(message)):
        make_baseline("grey", images, remembering)


def test_colours_need_to_know_the_normalisation(remembering: MemoryClassifier, images: Tensor) -> None:
    remembering.transform = None
    with pytest.raises(InputError, match=re.escape("the model does not know how its images are normalised")):
        make_baseline("white", images, remembering)
    make_baseline("blur", images, remembering)
    remembering.transform = Transform((3, 8, 8), mean=(0, 0, 0), std=(1, 1, 1))
    assert (make_baseline("white", images, remembering) == 1).all()
