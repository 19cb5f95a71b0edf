"""Pictures within a page: exact where that matters, small where it does not."""

import base64
import io

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate

from memwrap import DataError
from memwrap.models.record import MAX_SIDE
from memwrap.report.pictures import (
    LARGEST_HEATMAP,
    blend,
    exact_uri,
    heat_colours,
    heatmap_pixels,
    is_exact,
    pixels_in,
    small_uri,
    to_image,
)
from tests.report import noise

SIDE = 224


def smooth(height: int, width: int) -> Tensor:
    """Pixels uint8 (3, height, width) that go from dark to light."""
    down, right = torch.linspace(0, 255, height)[:, None], torch.linspace(0, 255, width)[None]
    return torch.stack([down.expand(height, width), right.expand(height, width), (down + right) / 2]).to(torch.uint8)


def photos(count: int, seed: int) -> Tensor:
    """Pixels that are about as hard to store as a photo's: large shapes, smaller ones in them, and some noise."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.full((count, 3, SIDE, SIDE), 128.0)
    for side, contrast in ((4, 60), (14, 35), (56, 18), (SIDE, 7)):
        shapes = torch.randn(count, 3, side, side, generator=generator)
        pixels += contrast * interpolate(shapes, size=(SIDE, SIDE), mode="bicubic")
    return pixels.clamp(0, 255).to(torch.uint8)


@pytest.mark.parametrize("shape", [(3, 4, 4), (1, 4, 4), (3, 5, 9), (1, 9, 5), (3, 64, 64), (3, 1, 1)])
def test_exact_pictures_come_back_as_they_were(shape: tuple[int, int, int]) -> None:
    (pixels,) = noise(1, shape)
    assert pixels_in(exact_uri(pixels)).equal(pixels)
    assert is_exact(exact_uri(pixels))


@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 64, 64), (1, 64, 64), (1, 110, 110)])
def test_small_pictures_are_exact_as_that_takes_little(shape: tuple[int, int, int]) -> None:
    (pixels,) = noise(1, shape)
    assert small_uri(pixels) == exact_uri(pixels)


def test_large_pictures_are_stored_with_little_loss() -> None:
    pixels = smooth(120, 200)
    uri = small_uri(pixels)
    assert uri.startswith("data:image/webp;base64,")
    assert not is_exact(uri)
    found = pixels_in(uri)
    assert found.shape == pixels.shape
    assert float((found.float() - pixels.float()).abs().mean()) < 3


def test_large_pictures_of_noise_take_a_fraction_of_what_exact_ones_take() -> None:
    (pixels,) = noise(1, (3, 224, 224))
    assert len(small_uri(pixels)) < len(exact_uri(pixels)) / 2


def test_the_longest_image_that_a_model_takes_can_be_stored() -> None:
    pixels = torch.zeros(3, 1, MAX_SIDE, dtype=torch.uint8)
    assert not is_exact(small_uri(pixels))
    assert pixels_in(small_uri(pixels)).shape == pixels.shape


# Heatmaps


def test_cold_is_grey_and_hot_is_the_colour() -> None:
    (pixels,) = noise(1, (3, 2, 2))
    cold, hot = blend(pixels, torch.zeros(2, 2), heat_colours()), blend(pixels, torch.ones(2, 2), heat_colours())
    assert cold[0].equal(cold[1])
    assert cold[1].equal(cold[2])
    black = torch.zeros(3, 2, 2, dtype=torch.uint8)
    assert int(blend(black, torch.zeros(2, 2), heat_colours()).min()) >= 90, "pale"
    yellow = heat_colours()[255]
    assert ((hot.float() - yellow.float()[:, None, None]).abs() <= 0.15 * 255).all()


def test_each_pixel_has_its_own_heat() -> None:
    pixels, heat = torch.full((3, 2, 3), 128, dtype=torch.uint8), torch.tensor([[0.0, 0.5, 1.0], [1.0, 0.0, 0.25]])
    whole = blend(pixels, heat, heat_colours())
    for row in range(2):
        for column in range(3):
            alone = blend(pixels[:, :1, :1], heat[row : row + 1, column : column + 1], heat_colours())
            assert whole[:, row, column].equal(alone[:, 0, 0])


def test_gray_pictures_have_heatmaps_in_colour() -> None:
    (pixels,) = noise(1, (1, 4, 4))
    assert blend(pixels, torch.rand(4, 4), heat_colours()).shape == (3, 4, 4)


def test_heat_beyond_its_bounds_is_cut() -> None:
    (pixels,) = noise(1, (3, 1, 2))
    wild, tame = torch.tensor([[-0.5, 7.0]]), torch.tensor([[0.0, 1.0]])
    assert blend(pixels, wild, heat_colours()).equal(blend(pixels, tame, heat_colours()))


def test_colours_become_brighter_from_cold_to_hot() -> None:
    colours = heat_colours()
    assert (colours.shape, colours.dtype) == ((256, 3), torch.uint8)
    brightness = colours.float() @ torch.tensor([0.299, 0.587, 0.114])
    assert (brightness[16:] > brightness[:-16]).all()


@pytest.mark.parametrize(
    ("size", "stored"),
    [
        ((8, 8), (8, 8)),
        ((112, 112), (112, 112)),
        ((224, 224), (112, 112)),
        ((300, 100), (112, 37)),
        ((1, 500), (1, 112)),
    ],
)
def test_large_heatmaps_are_made_smaller_in_their_shape(size: tuple[int, int], stored: tuple[int, int]) -> None:
    pixels = heatmap_pixels(smooth(*size), torch.rand(size), heat_colours())
    assert tuple(pixels.shape) == (3, *stored)
    assert max(stored) <= LARGEST_HEATMAP


def test_a_smaller_heatmap_shows_what_the_larger_one_does() -> None:
    heat = torch.zeros(224, 224)
    heat[:112, :112] = 1
    shown = heatmap_pixels(torch.full((3, 224, 224), 100, dtype=torch.uint8), heat, heat_colours())
    colourful = (shown.float().amax(0) - shown.float().amin(0)) > 60
    assert colourful[4:52, 4:52].all()
    assert not colourful[60:, 60:].any()


# Back from a page


def uri_of(picture: Image.Image, kind: str, **options: object) -> str:
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return f"data:image/{kind.lower()};base64," + base64.b64encode(stream.getvalue()).decode()


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "data:image/png;base64",
        "data:image/png;base64,",
        "data:image/png;base64,!!!!",
        "data:image/png;base64,AAAA",
        exact_uri(noise(1)[0]).replace("AAA", "A!AA", 1),
        "data:image/svg+xml;base64," + base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg'/>").decode(),
        exact_uri(noise(1, (3, 16, 16))[0])[:300],
    ],
    ids=["nothing", "no content", "empty", "no base64", "no picture", "some base64", "a drawing", "cut"],
)
def test_what_is_no_picture_is_refused(uri: str) -> None:
    with pytest.raises(DataError, match="a picture in the report cannot be trusted: "):
        pixels_in(uri)


def test_a_file_of_another_kind_than_it_says_is_refused() -> None:
    png, webp = exact_uri(noise(1)[0]), uri_of(to_image(noise(1)[0]), "WEBP")
    for uri, kind in ((png, "WebP"), (webp, "PNG")):
        other = uri.replace("image/png", "image/webp") if uri is png else uri.replace("image/webp", "image/png")
        with pytest.raises(DataError, match=f"it is not a {kind}"):
            pixels_in(other)
    with pytest.raises(DataError, match="it starts with 'data:image/jpeg;base64"):
        pixels_in(uri_of(to_image(noise(1)[0]), "JPEG"))


def test_pictures_that_move_are_refused_as_only_their_first_is_read() -> None:
    frames = [to_image(pixels) for pixels in noise(2, (3, 8, 8))]
    for kind, part in (("WEBP", "VP8X"), ("PNG", "acTL")):
        moving = uri_of(frames[0], kind, save_all=True, append_images=frames[1:], duration=100)
        with pytest.raises(DataError, match=f"with a part {part}, which may change how a browser shows it"):
            pixels_in(moving)


def test_a_picture_that_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = small_uri(noise(1, (3, 96, 96))[0])
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 16)
    with pytest.raises(DataError, match="cannot be read"):
        pixels_in(uri)
    monkeypatch.setattr("memwrap.report.picture_files.MOST_VALUES", 100)
    with pytest.raises(DataError, match="at most 100 values"):
        pixels_in(exact_uri(noise(1)[0].repeat(1, 4, 4)))
