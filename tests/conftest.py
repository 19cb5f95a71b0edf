"""What all tests share: seeded random numbers, and one thread to each of the processes that run them."""

from collections.abc import Iterator

import hypothesis
import pytest
import torch

import memwrap

torch.set_num_threads(1)

# Nothing is timed: the machines that run the tests differ, and are busy.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Encodings and downloads never go to the cache of the one who runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMWRAP_DATA", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def model() -> memwrap.MemoryClassifier:
    """A small untrained model for images (B, 3, 8, 8) or larger, in evaluation mode."""
    return memwrap.wrap(memwrap.encoders.create("tiny", num_classes=4)).eval()


@pytest.fixture
def images() -> torch.Tensor:
    return torch.randn(5, 3, 8, 8)


@pytest.fixture
def memory() -> torch.Tensor:
    return torch.randn(12, 3, 8, 8)


@pytest.fixture
def labels() -> torch.Tensor:
    return torch.arange(12) % 4
