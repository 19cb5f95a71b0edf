"""Images that are in two places, compared pixel for pixel."""

import torch

from memwrap.data.dataset import InMemoryImages, find_shared


def test_each_image_that_is_among_the_others_is_found() -> None:
    pixels = torch.randint(256, (600, 3, 4, 4), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    ours = InMemoryImages(torch.cat([pixels[:5], pixels[:1], pixels[500:503]]))
    assert find_shared(ours, InMemoryImages(pixels[4:501])) == [4, 6]
    assert find_shared(ours, InMemoryImages(pixels)) == list(range(9))
    assert find_shared(InMemoryImages(pixels[:10]), InMemoryImages(pixels[10:])) == []


def test_one_other_pixel_makes_another_image() -> None:
    pixels = torch.zeros(1, 1, 2, 2, dtype=torch.uint8)
    changed = pixels.clone()
    changed[0, 0, 1, 1] = 1
    assert find_shared(InMemoryImages(changed), InMemoryImages(pixels)) == []
