"""Mean and standard deviation of images by channel, against numpy and by hand."""

from collections.abc import Iterable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from memwrap.data.dataset import InMemoryImages
from memwrap.data.statistics import SAMPLE_SIZE, channel_statistics


def pixels(*shape: int) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8)


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 200])
@pytest.mark.parametrize("channels", [1, 3])
def test_agrees_with_numpy(count: int, channels: int) -> None:
    images = pixels(count, channels, 5, 7)
    mean, std = channel_statistics(InMemoryImages(images))
    values = images.numpy() / 255
    assert mean == pytest.approx(values.mean((0, 2, 3)), rel=1e-12)
    assert std == pytest.approx(values.std((0, 2, 3)), rel=1e-9)


def test_worked_out_by_hand() -> None:
    images = torch.tensor([[[[0, 255]], [[51, 51]]], [[[255, 0]], [[153, 153]]]], dtype=torch.uint8)
    mean, std = channel_statistics(InMemoryImages(images))
    assert mean == pytest.approx((0.5, 0.4))
    assert std == pytest.approx((0.5, 0.2))


@pytest.mark.parametrize("level", [0, 100, 255])
def test_a_channel_of_one_level_does_not_divide_by_zero(level: int) -> None:
    mean, std = channel_statistics(InMemoryImages(torch.full((3, 1, 4, 4), level, dtype=torch.uint8)))
    assert mean == pytest.approx((level / 255,))
    assert std == (1 / 255,)


class Counted(InMemoryImages):
    """Notes which images are asked for."""

    def __init__(self, images: Tensor) -> None:
        super().__init__(images)
        self.asked: list[int] = []

    def batches(self, indices: Iterable[Tensor]) -> Iterator[Tensor]:
        rows = list(indices)
        self.asked += torch.cat(rows).tolist()
        return super().batches(rows)


@pytest.mark.parametrize("count", [SAMPLE_SIZE - 1, SAMPLE_SIZE, 3 * SAMPLE_SIZE + 7])
def test_of_many_images_that_many_are_measured_from_the_first_to_the_last(count: int) -> None:
    images = Counted(pixels(1, 1, 1, 1).expand(count, 1, 1, 1))
    channel_statistics(images)
    asked = images.asked
    assert len(asked) == len(set(asked)) == min(count, SAMPLE_SIZE)
    assert (asked[0], asked[-1]) == (0, count - 1)
    gaps = np.diff(asked)
    assert gaps.max() - gaps.min() <= 1


def test_gives_python_s_numbers() -> None:
    assert {type(value) for values in channel_statistics(InMemoryImages(pixels(3, 3, 4, 4))) for value in values} == {
        float
    }
