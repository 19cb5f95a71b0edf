"""Deleting pixels: the curve by hand, highlighted ones against random ones, and what is refused."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from memwrap import InputError, MemoryClassifier
from memwrap.attribution import deletion, heatmaps

Generators = Callable[[], torch.Generator]


def test_pixels_go_from_the_most_to_the_least_attributed(
    by_hand: MemoryClassifier, like_the_first: Tensor, generator: Generators
) -> None:
    """Four pixels: a twentieth is none of them, and each goes when half of it is passed."""
    attributions = torch.tensor([0.1, -5.0, 3.0, 0.0]).reshape(1, 2, 2)
    found = deletion(by_hand, like_the_first[0], attributions, generator(), baseline="black")
    order, image = [2, 0, 3, 1], like_the_first.flatten().clone()
    states = [image.clone()]
    for place in order:
        image[place] = -2.0  # (0 - 0.5) / 0.25
        states.append(image.clone())
    with torch.no_grad():
        logits = by_hand(torch.stack(states).reshape(5, 1, 2, 2))
        probabilities = logits.softmax(1)[:, logits[0].argmax()].tolist()
    counts = [0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4, 4]
    assert found.curve == pytest.approx([probabilities[count] for count in counts], abs=1e-6)
    assert found.score == pytest.approx(sum(found.curve) / 21)
    assert found.random_score == pytest.approx(sum(found.random_curve) / 21)
    assert found.difference == found.random_score - found.score
    ends = [(curve[0], curve[-1]) for curve in (found.curve, found.random_curve)]
    assert ends[0] == pytest.approx(ends[1])


def test_highlighted_pixels_matter(trained: tuple[MemoryClassifier, Tensor], generator: Generators) -> None:
    model, images = trained
    found = heatmaps(model, images[:10])
    scores = [deletion(model, image, each.input, generator()) for image, each in zip(images, found, strict=False)]
    turned = [deletion(model, image, -each.input, generator()) for image, each in zip(images, found, strict=False)]
    assert sum(score.difference for score in scores) / 10 > 0.05
    assert sum(score.difference for score in turned) / 10 < 0
    assert [score.random_curve for score in scores] == [score.random_curve for score in turned]


def test_channels_of_a_pixel_go_together(remembering: MemoryClassifier, images: Tensor, generator: Generators) -> None:
    attributions = torch.zeros(3, 8, 8)
    attributions[0, 2, 3], attributions[1, 2, 3], attributions[2, 5, 5] = 10, -9, 2
    one = deletion(remembering, images[0], attributions, generator())
    attributions = torch.zeros(3, 8, 8)
    attributions[1, 5, 5], attributions[1, 2, 3] = 2, 1
    assert deletion(remembering, images[0], attributions, generator()).curve == one.curve


def test_orders_are_drawn_by_the_generator_alone(
    remembering: MemoryClassifier, images: Tensor, generator: Generators
) -> None:
    one, again = (deletion(remembering, images[0], images[1], generator()) for _ in range(2))
    other = deletion(remembering, images[0], images[1], torch.Generator().manual_seed(4))
    assert one == again
    assert one.curve == other.curve
    assert one.random_curve != other.random_curve
    assert deletion(remembering, images[0], images[1], generator(), random_orders=1).random_curve != one.random_curve


def test_the_whole_memory_is_asked_and_the_model_left_as_it_was(
    remembering: MemoryClassifier, images: Tensor, generator: Generators
) -> None:
    expected = remembering(images[:1]).softmax(1).max().item()
    found = deletion(remembering.train(), images[0], images[1], generator())
    assert found.curve[0] == pytest.approx(expected, abs=1e-6)
    assert remembering.training
    white = (1 - torch.tensor([0.4, 0.5, 0.6])) / torch.tensor([0.2, 0.25, 0.3])
    logits = remembering.eval()(white.reshape(1, 3, 1, 1).expand(1, 3, 8, 8))
    target = remembering(images[:1]).argmax()
    assert found.curve[-1] == pytest.approx(logits.softmax(1)[0, target].item(), abs=1e-6)
    assert_close(torch.tensor(found.random_curve[-1]), torch.tensor(found.curve[-1]))


BAD = {
    "a batch": (lambda images: (images, images), "image has shape (5, 3, 8, 8); expected one image (C, H, W): give"),
    "an array": (lambda images: (images[0].numpy(), images[0]), "image is a ndarray; expected one image (C, H, W)"),
    "gray": (lambda images: (images[0, :1], images[0, :1]), "images has shape (1, 1, 8, 8); expected (N, 3, H, W)"),
    "a map": (
        lambda images: (images[0], images[0, 0]),
        "attributions have shape (8, 8), the image (3, 8, 8); expected the same",
    ),
    "NaN": (lambda images: (images[0], images[0] * torch.nan), "attributions hold NaN or infinity; expected finite"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_used_is_refused(
    case: str, remembering: MemoryClassifier, images: Tensor, generator: Generators
) -> None:
    make, message = BAD[case]
    with pytest.raises(InputError, match=re.escape(message)):
        deletion(remembering, *make(images), generator())


def test_unknown_baselines_and_no_orders_are_refused(
    remembering: MemoryClassifier, images: Tensor, generator: Generators
) -> None:
    with pytest.raises(InputError, match=re.escape("baseline is 'grey'; expected one of white, black, mean, blur")):
        deletion(remembering, images[0], images[0], generator(), baseline="grey")
    with pytest.raises(InputError, match=re.escape("random_orders is 0; expected at least 1")):
        deletion(remembering, images[0], images[0], generator(), random_orders=0)
