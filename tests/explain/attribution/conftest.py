"""Models to explain: one untrained, one that has learnt some digits, and one small enough to be worked out by hand."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from memwrap import MemoryClassifier, MemoryWrap, Transform
from memwrap.data import digits
from memwrap.models.base import Origin
from memwrap.runs.training import begin
from memwrap.training.recipes import recipe
from memwrap.training.settings import with_changes


@pytest.fixture
def remembering(model: MemoryClassifier, memory: Tensor, labels: Tensor) -> MemoryClassifier:
    """Untrained, for images (B, 3, 8, 8), with a memory of twelve, nearly all of which every image uses."""
    model.transform = Transform((3, 8, 8), mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    model.remember(memory, labels)
    return model


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[MemoryClassifier, Tensor]:
    """A model of digits after some seconds of training, with a memory of 100, and 16 test images (16, 1, 8, 8)."""
    data = digits()
    settings = with_changes(recipe("default"), {"encoder": "tiny", "samples": 200, "epochs": 10, "seed": 0}, "test")
    training = begin(tmp_path_factory.mktemp("attribution") / "run", data, settings, "default")
    training.train()
    test = training.run.splits.of(data, "test")
    pixels = torch.cat(list(test.images.batches([torch.arange(16)])))
    return training.model, training.model.transform(pixels)


@pytest.fixture
def by_hand() -> MemoryClassifier:
    return toy(nn.Flatten())


def toy(encoder: nn.Module) -> MemoryClassifier:
    """For images (B, 1, 2, 2), whose encodings are their four pixels; the head is linear.

    Of its memory, an image that looks like the first sample uses that alone, with a weight of one: the others point
    elsewhere. So the logits are linear in the pixels of both.
    """
    model = MemoryClassifier(encoder, MemoryWrap(4, 2, head="linear"), Origin("fc", 2, (1, 2, 2))).eval()
    model.transform = Transform((1, 2, 2), mean=(0.5,), std=(0.25,))
    memory = torch.tensor([[2.0, 1.0, 0.5, 1.0], [-2.0, -1.0, -0.5, -1.5], [-1.0, -2.0, -1.0, -1.0]])
    model.remember(memory.reshape(3, 1, 2, 2), [0, 1, 1])
    return model


@pytest.fixture
def like_the_first() -> Tensor:
    """An image (1, 1, 2, 2) that uses the first sample of the toy's memory alone."""
    return torch.tensor([1.9, 1.1, 0.4, 1.2]).reshape(1, 1, 2, 2)


@pytest.fixture
def generator() -> Callable[[], torch.Generator]:
    return lambda: torch.Generator().manual_seed(3)
