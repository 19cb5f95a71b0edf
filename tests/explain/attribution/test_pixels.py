"""One number to a pixel, and its map for display."""

import pytest
import torch
from torch.testing import assert_close

from memwrap.attribution import pixel_scores, positive_map


def test_a_pixel_s_channels_are_added_up() -> None:
    attributions = torch.arange(12.0).reshape(3, 2, 2)
    assert_close(pixel_scores(attributions), torch.tensor([[12.0, 15.0], [18.0, 21.0]]))
    assert_close(pixel_scores(attributions.expand(5, 3, 2, 2)), pixel_scores(attributions).expand(5, 2, 2))


def test_a_map_shows_what_speaks_for_the_prediction() -> None:
    """Channels that cancel out show nothing; what is negative on the whole neither."""
    attributions = torch.tensor([[[3.0, 2.0], [-1.0, 0.0]], [[-3.0, 0.0], [0.5, 0.0]]])
    assert_close(positive_map(attributions), torch.tensor([[0.0, 1.0], [0.0, 0.0]]))


def test_few_outliers_do_not_darken_a_map() -> None:
    attributions = torch.linspace(0.1, 1, 1024).reshape(1, 32, 32)
    attributions[0, 0, 0] = 1e6
    found = positive_map(attributions)
    assert found.max() == 1
    assert found.median() == pytest.approx(0.55, abs=0.01)
    share = (found == 1).float().mean()
    assert 0.009 < share < 0.012


def test_a_map_of_few_pixels_is_not_empty() -> None:
    attributions = torch.full((1, 64, 64), -1.0)
    attributions[0, 3, 4] = 0.2
    found = positive_map(attributions)
    assert found[3, 4] == 1
    assert found.sum() == 1


@pytest.mark.parametrize("value", [0.0, -2.0])
def test_a_map_without_anything_positive_is_zero(value: float) -> None:
    found = positive_map(torch.full((3, 4, 4), value))
    assert found.shape == (4, 4)
    assert not found.any()
