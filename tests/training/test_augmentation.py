"""Random changes of images: against slow loops and by hand, and each by numbers of its own."""

import math
from collections.abc import Sequence
from itertools import combinations, permutations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from memwrap.data import Transform
from memwrap.training.augmentation import ERASED, NUMBERS, SHIFT, draw, prepare
from memwrap.training.settings import AUGMENTATIONS

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
GEOMETRIC = ("flip", "shift", "affine")


def pixels(*shape: int) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8)


def changed(images: Tensor, numbers: Tensor, *changes: str) -> Tensor:
    channels = images.shape[1]
    return prepare(images, numbers, changes, MEAN[:channels], STD[:channels])


def as_levels(images: Tensor, numbers: Tensor, *changes: str) -> Tensor:
    """The changed images with levels from 0 to 255, instead of normalised."""
    channels = images.shape[1]
    return prepare(images, numbers, changes, (0.0,) * channels, (1 / 255,) * channels)


def numbers_with(count: int = 1, **values: float | Sequence[float]) -> Tensor:
    """0.5 everywhere, which changes nothing, but for the numbers n0, n1, ..."""
    numbers = torch.full((count, NUMBERS), 0.5)
    for name, value in values.items():
        numbers[:, int(name[1:])] = torch.as_tensor(value)
    return numbers


def test_numbers_come_from_the_generator_alone() -> None:
    before = torch.get_rng_state()
    first = draw(50, torch.Generator().manual_seed(3))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(draw(50, torch.Generator().manual_seed(3)), first)
    assert first.shape == (50, NUMBERS)
    assert 0 <= first.min() < first.max() < 1
    assert first.unique().numel() == first.numel()


@pytest.mark.parametrize("channels", [1, 3])
def test_no_change_is_the_transform_alone(channels: int) -> None:
    images = pixels(4, channels, 9, 9)
    transform = Transform((channels, 9, 9), MEAN[:channels], STD[:channels])
    assert torch.equal(changed(images, draw(4, torch.default_generator)), transform(images))


def slowly_moved(images: Tensor, numbers: Tensor, changes: Sequence[str]) -> Tensor:
    count, channels, height, width = images.shape
    moved = torch.zeros_like(images)
    for n in range(count):
        down = int(numbers[n, 1] * (2 * round(height / 8) + 1)) - round(height / 8) if "shift" in changes else 0
        right = int(numbers[n, 2] * (2 * round(width / 8) + 1)) - round(width / 8) if "shift" in changes else 0
        for channel in range(channels):
            for y in range(height):
                for x in range(width):
                    row, column = y + down, x + right
                    if 0 <= row < height and 0 <= column < width:
                        if "flip" in changes and numbers[n, 0] < 0.5:
                            column = width - 1 - column
                        moved[n, channel, y, x] = images[n, channel, row, column]
    return moved


@pytest.mark.parametrize("changes", [("flip",), ("shift",), ("flip", "shift")])
@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 8, 12), (2, 3, 3)])
def test_flips_and_shifts_equal_a_slow_loop(shape: tuple[int, ...], changes: tuple[str, ...]) -> None:
    images, numbers = pixels(12, *shape), draw(12, torch.default_generator)
    normal = prepare(images, numbers, (), [0.4] * shape[0], [0.3] * shape[0])
    found = prepare(images, numbers, changes, [0.4] * shape[0], [0.3] * shape[0])
    assert torch.equal(found, slowly_moved(normal, numbers, changes))


def test_shifts_go_equally_often_to_every_place_up_to_an_eighth() -> None:
    # One bright pixel in the middle of 16x16 can come to 5x5 places; of 4000 images each place gets 160 and, with the
    # binomial's standard deviation of 12.4, hardly ever 62 more or less.
    images = torch.zeros(4000, 1, 16, 16, dtype=torch.uint8)
    images[:, :, 8, 8] = 255
    found = (as_levels(images, draw(4000, torch.Generator().manual_seed(0)), "shift") > 0).sum((0, 1))
    assert SHIFT == 1 / 8
    assert found.sum() == found[6:11, 6:11].sum() == 4000
    assert (found[6:11, 6:11] - 160).abs().max() < 62


def test_half_of_the_images_are_mirrored() -> None:
    images = torch.tensor([0, 255], dtype=torch.uint8).expand(4000, 1, 1, 2)
    mirrored = (as_levels(images, draw(4000, torch.Generator().manual_seed(0)), "flip")[:, 0, 0, 0] > 0).sum()
    assert abs(int(mirrored) - 2000) < 5 * math.sqrt(1000)  # five standard deviations


@pytest.mark.parametrize("changes", [(name,) for name in AUGMENTATIONS] + [AUGMENTATIONS])
@pytest.mark.parametrize("channels", [1, 3])
def test_numbers_in_the_middle_change_nothing(channels: int, changes: tuple[str, ...]) -> None:
    images, numbers = pixels(3, channels, 16, 16), numbers_with(3)
    assert_close(changed(images, numbers, *changes), changed(images, numbers), atol=1e-4, rtol=0)


def centre_of_mass(numbers: Tensor, x: int, y: int, *changes: str) -> tuple[float, float]:
    """Where a bright square comes to, that lay x pixels right of the centre of an image, and y below it."""
    images = torch.zeros(1, 1, 65, 65, dtype=torch.uint8)
    images[:, :, 31 + y : 34 + y, 31 + x : 34 + x] = 255
    found = as_levels(images, numbers, *changes)[0, 0]
    places = torch.arange(65.0) - 32
    return float((found.sum(0) * places).sum() / found.sum()), float((found.sum(1) * places).sum() / found.sum())


def test_a_rotation_by_hand_counter_clockwise() -> None:
    cosine, sine = math.cos(math.radians(12)), math.sin(math.radians(12))
    turned = numbers_with(n3=1.0)
    assert centre_of_mass(turned, 20, 0, "affine") == pytest.approx((20 * cosine, -20 * sine), abs=0.05)
    assert centre_of_mass(turned, 0, 20, "affine") == pytest.approx((20 * sine, 20 * cosine), abs=0.05)
    assert centre_of_mass(numbers_with(n3=0.0), 20, 0, "affine") == pytest.approx((20 * cosine, 20 * sine), abs=0.05)


@pytest.mark.parametrize(("number", "zoom"), [(1.0, 1.15), (0.75, 1.075), (0.0, 0.85)])
def test_a_scale_by_hand(number: float, zoom: float) -> None:
    assert centre_of_mass(numbers_with(n4=number), 20, -16, "affine") == pytest.approx(
        (20 * zoom, -16 * zoom), abs=0.05
    )


def test_a_shear_by_hand_moves_rows_against_each_other() -> None:
    sheared = numbers_with(n5=1.0)
    assert centre_of_mass(sheared, 0, 20, "affine") == pytest.approx((-3, 20), abs=0.05)
    assert centre_of_mass(sheared, 0, -20, "affine") == pytest.approx((3, -20), abs=0.05)
    assert centre_of_mass(sheared, 20, 0, "affine") == pytest.approx((20, 0), abs=0.05)


def test_what_comes_in_from_outside_is_the_mean_colour() -> None:
    white = torch.full((1, 3, 32, 32), 255, dtype=torch.uint8)
    found = changed(white, numbers_with(n4=0.0), "affine")  # made smaller, to 0.85 of the side
    assert found[0, :, 16, 16].tolist() == pytest.approx(
        [(1 - m) / s for m, s in zip(MEAN, STD, strict=True)], abs=1e-5
    )
    assert not found[0, :, 0].any()
    assert not found[0, :, :, -1].any()


@pytest.mark.parametrize("changes", [("shift",), ("flip",), ("flip", "shift")])
def test_mirroring_and_shifting_are_the_same_with_a_rotation_and_without(changes: tuple[str, ...]) -> None:
    # By numbers for which a shift, up to 2 of 16 pixels, is a whole one either way.
    images, places = pixels(32, 3, 16, 16), torch.tensor([0.0, 0.25, 0.5, 0.75])
    numbers = numbers_with(32)
    numbers[:, :3] = torch.cartesian_prod(torch.tensor([0.2, 0.8]), places, places)
    assert_close(changed(images, numbers, *changes, "affine"), changed(images, numbers, *changes), atol=1e-4, rtol=0)


def test_images_are_mirrored_before_they_are_turned() -> None:
    images, numbers = pixels(20, 3, 16, 16), draw(20, torch.default_generator)
    mirrored = torch.where((numbers[:, 0] < 0.5).reshape(-1, 1, 1, 1), images.flip(-1), images)
    found = changed(images, numbers, "flip", "shift", "affine")
    assert_close(found, changed(mirrored, numbers, "shift", "affine"), atol=1e-4, rtol=0)


def test_colours_by_hand() -> None:
    image = torch.tensor([60, 120, 180], dtype=torch.uint8).reshape(1, 3, 1, 1)
    # Saturation, by up to a half: each level's distance from the mean of the colours, which is 120.
    assert as_levels(image, numbers_with(n6=0.0), "colour").flatten().tolist() == pytest.approx(
        [90, 120, 150], abs=1e-3
    )
    assert as_levels(image, numbers_with(n6=1.0), "colour").flatten().tolist() == pytest.approx(
        [30, 120, 210], abs=1e-3
    )
    # Contrast, by up to two fifths: each level's distance from the mean of the image.
    grey = torch.tensor([50, 150], dtype=torch.uint8).reshape(1, 1, 1, 2)
    assert as_levels(grey, numbers_with(n7=1.0), "colour").flatten().tolist() == pytest.approx([30, 170], abs=1e-3)
    assert as_levels(grey, numbers_with(n7=0.0), "colour").flatten().tolist() == pytest.approx([70, 130], abs=1e-3)
    # Brightness, by up to three tenths of white; there is nothing beyond black and white.
    assert as_levels(grey, numbers_with(n8=0.75), "colour").flatten().tolist() == pytest.approx(
        [88.25, 188.25], abs=1e-3
    )
    assert as_levels(grey, numbers_with(n8=0.0), "colour").flatten().tolist() == pytest.approx([0, 73.5], abs=1e-3)
    assert as_levels(grey + 100, numbers_with(n8=1.0), "colour").flatten().tolist() == pytest.approx(
        [226.5, 255], abs=1e-3
    )


@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 10, 20)])
def test_erasing_equals_a_slow_loop(shape: tuple[int, int, int]) -> None:
    images, numbers = pixels(20, *shape), draw(20, torch.default_generator)
    expected, found = changed(images, numbers), changed(images, numbers, "erase")
    for n in range(20):
        row, column, extent, whether = numbers[n, 9:13].tolist()
        for y in range(shape[1]):
            for x in range(shape[2]):
                near = [abs((y + 0.5) / shape[1] - row), abs((x + 0.5) / shape[2] - column)]
                if whether < 0.5 and max(near) < ERASED * extent / 2:
                    expected[n, :, y, x] = 0
    assert torch.equal(found, expected)


def test_a_rectangle_is_erased_of_half_of_the_images() -> None:
    images, numbers = (
        torch.full((4000, 1, 32, 32), 255, dtype=torch.uint8),
        draw(4000, torch.Generator().manual_seed(0)),
    )
    hidden = changed(images, numbers, "erase")[:, 0] == 0
    touched = hidden.any(-1).any(-1)
    # Some rectangles are too thin to hide a pixel: those with an extent of less than a pixel, 1 / 32 / 0.4, at most.
    assert 2000 * (1 - 1 / 12.8) - 5 * math.sqrt(1000) < int(touched.sum()) < 2000 + 5 * math.sqrt(1000)
    rows, columns = hidden.any(2), hidden.any(1)
    assert torch.equal(hidden, rows[:, :, None] & columns[:, None, :])  # a product of rows and columns,
    for lines in (rows, columns):  # each without a gap, of at most 0.4 · 32 = 12.8 pixels
        assert ((lines[:, 1:] != lines[:, :-1]).sum(1) <= 2).all()
        assert lines.sum(1).max() in (12, 13)


@pytest.mark.parametrize("changes", [("flip", "shift", "colour", "erase"), AUGMENTATIONS])
@pytest.mark.parametrize("channels", [1, 3])
def test_many_images_come_to_the_same_as_one_by_one(channels: int, changes: tuple[str, ...]) -> None:
    images, numbers = pixels(9, channels, 16, 16), draw(9, torch.default_generator)
    alone = [changed(images[n : n + 1], numbers[n : n + 1], *changes) for n in range(9)]
    assert_close(changed(images, numbers, *changes), torch.cat(alone), atol=1e-6, rtol=1e-6)


def users(number: int) -> set[str]:
    """The changes that make something else of images when this number is another."""
    images, numbers = pixels(40, 3, 16, 16), draw(40, torch.default_generator)
    other = numbers.clone()
    other[:, number] = (numbers[:, number] + 0.5) % 1
    return {
        name for name in AUGMENTATIONS if not torch.equal(changed(images, numbers, name), changed(images, other, name))
    }


def test_every_number_is_used_by_at_most_one_change() -> None:
    found = {number: users(number) for number in range(NUMBERS)}
    assert all(len(names) <= 1 for names in found.values())
    assert set().union(*found.values()) == set(AUGMENTATIONS)
    together = numbers_used_together()
    assert {number for number, names in found.items() if names} == together


def numbers_used_together() -> set[int]:
    images, numbers = pixels(40, 3, 16, 16), draw(40, torch.default_generator)
    used = set()
    for number in range(NUMBERS):
        other = numbers.clone()
        other[:, number] = (numbers[:, number] + 0.5) % 1
        if not torch.equal(changed(images, numbers, *AUGMENTATIONS), changed(images, other, *AUGMENTATIONS)):
            used.add(number)
    return used


@pytest.mark.parametrize(
    "others", [kinds for count in range(3) for kinds in combinations(("colour", *GEOMETRIC), count)]
)
def test_what_is_erased_does_not_depend_on_other_changes(others: tuple[str, ...]) -> None:
    images, numbers = pixels(30, 3, 16, 16), draw(30, torch.default_generator)
    hidden = changed(torch.full_like(images, 255), numbers, "erase") == 0
    found = changed(images, numbers, *others, "erase")
    assert torch.equal(found, changed(images, numbers, *others).masked_fill(hidden, 0))


@pytest.mark.parametrize("moves", [("flip", "shift"), ("affine",), GEOMETRIC])
def test_colours_are_changed_before_images_are_moved(moves: tuple[str, ...]) -> None:
    images, numbers = pixels(30, 3, 16, 16), draw(30, torch.default_generator)
    recoloured = as_levels(images, numbers, "colour").round().to(torch.uint8)
    found = as_levels(images, numbers, "colour", *moves)
    assert_close(found, as_levels(recoloured, numbers, *moves), atol=0.51, rtol=0)  # half a level, by rounding


def test_the_order_in_which_changes_are_named_is_of_no_account() -> None:
    images, numbers = pixels(5, 3, 8, 8), draw(5, torch.default_generator)
    expected = changed(images, numbers, *AUGMENTATIONS)
    assert all(torch.equal(changed(images, numbers, *order), expected) for order in permutations(AUGMENTATIONS))


def test_autocast_does_not_reach_the_changes() -> None:
    pixels = torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8)
    numbers = draw(4, torch.Generator().manual_seed(0))
    plain = prepare(pixels, numbers, AUGMENTATIONS, (0.5,) * 3, (0.2,) * 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = prepare(pixels, numbers, AUGMENTATIONS, (0.5,) * 3, (0.2,) * 3)
    assert torch.equal(rounded, plain)
