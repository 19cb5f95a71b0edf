"""Encodings that are kept on disk: those of the model, found again by pixels, and never those of another encoder."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

import memwrap
from memwrap.data import InMemoryImages, Transform
from memwrap.errors import MemwrapWarning
from memwrap.models import caching
from memwrap.models.caching import CachedEncoder, Interrupted
from memwrap.models.inference import encode_all

COUNT, AT_ONCE = 10, 4


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Three batches, of 4, 4 and 2 images; each of the first two is stored when it is encoded."""
    monkeypatch.setenv("MEMWRAP_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(caching, "encoded_at_once", lambda _: AT_ONCE)
    monkeypatch.setattr(caching, "SAVED_AT_ONCE", AT_ONCE)


@pytest.fixture
def model() -> memwrap.MemoryClassifier:
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=4), "vote").eval()
    model.transform = Transform((3, 8, 8), mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    return model


@pytest.fixture
def pixels() -> Tensor:
    return torch.randint(256, (COUNT, 3, 8, 8), dtype=torch.uint8)


@contextmanager
def counted(model: memwrap.MemoryClassifier) -> Iterator[list[int]]:
    """The sizes of the batches that the model encodes."""
    sizes: list[int] = []
    hook = model.encoder.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    yield sizes
    hook.remove()


def encoded(model: memwrap.MemoryClassifier, pixels: Tensor, folder: Path | None = None) -> tuple[Tensor, list[int]]:
    """Encodings, and the sizes of the batches that had to be encoded for them."""
    with counted(model) as sizes:
        return CachedEncoder(model, folder).encode(InMemoryImages(pixels)), sizes


def after(batches: int) -> Callable[[], bool]:
    """Says to stop when it has been asked so often."""
    asked = iter([False] * batches)
    return lambda: next(asked, True)


def test_encodings_are_the_model_s_and_kept(model: memwrap.MemoryClassifier, pixels: Tensor) -> None:
    expected = encode_all(model, InMemoryImages(pixels), AT_ONCE)
    first, sizes = encoded(model, pixels)
    assert torch.equal(first, expected)
    assert sizes == [4, 4, 2]
    again, sizes = encoded(model, pixels)
    assert torch.equal(again, expected)
    assert sizes == []


def test_images_are_found_in_another_order(model: memwrap.MemoryClassifier, pixels: Tensor) -> None:
    first, _ = encoded(model, pixels)
    order = torch.randperm(COUNT)
    again, sizes = encoded(model, pixels[order])
    assert torch.equal(again, first[order])
    assert sizes == []


def test_of_an_image_that_has_changed_only_that_one_is_encoded(model: memwrap.MemoryClassifier, pixels: Tensor) -> None:
    first, _ = encoded(model, pixels)
    changed = pixels.clone()
    changed[5, 2, 7, 7] ^= 1
    again, sizes = encoded(model, changed)
    assert sizes == [1]
    others = torch.arange(COUNT) != 5
    assert torch.equal(again[others], first[others])
    torch.testing.assert_close(again[5:6], encode_all(model, InMemoryImages(changed[5:6])))
    assert not torch.equal(again[5], first[5])


def test_equal_images_are_encoded_once(model: memwrap.MemoryClassifier, pixels: Tensor) -> None:
    rows = torch.tensor([0, 1, 0, 2, 1, 1, 3, 4, 0, 4])
    found, sizes = encoded(model, pixels[rows])
    assert sum(sizes) == 5
    assert torch.equal(found, found[[0, 1, 3, 6, 7]][rows])
    torch.testing.assert_close(found, encode_all(model, InMemoryImages(pixels[rows])))


def test_nothing_is_encoded_of_nothing(model: memwrap.MemoryClassifier, pixels: Tensor) -> None:
    found, sizes = encoded(model, pixels[:0])
    assert (tuple(found.shape), sizes) == ((0, model.in_features), [])


def test_the_mode_of_the_model_neither_matters_nor_changes(model: memwrap.MemoryClassifier, pixels: Tensor) -> None:
    expected = encode_all(model, InMemoryImages(pixels), AT_ONCE)
    statistics = copy.deepcopy(model.encoder.state_dict())
    model.train()
    found, _ = encoded(model, pixels)
    assert torch.equal(found, expected)
    assert model.training
    assert all(torch.equal(tensor, statistics[name]) for name, tensor in model.encoder.state_dict().items())
    assert not found.requires_grad


# Which file


def change_a_weight(model: memwrap.MemoryClassifier) -> None:
    with torch.no_grad():
        next(model.encoder.parameters()).flatten()[0] += 1e-6


def change_statistics(model: memwrap.MemoryClassifier) -> None:
    buffer = next(each for name, each in model.encoder.named_buffers() if name.endswith("running_mean"))
    buffer[0] += 1e-3


def change_colours(model: memwrap.MemoryClassifier) -> None:
    model.transform = Transform((3, 8, 8), mean=(0.4, 0.5, 0.61), std=(0.2, 0.25, 0.3))


def change_deviation(model: memwrap.MemoryClassifier) -> None:
    model.transform = Transform((3, 8, 8), mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.31))


def change_epsilon(model: memwrap.MemoryClassifier) -> None:
    norm = next(each for each in model.encoder.modules() if isinstance(each, torch.nn.BatchNorm2d))
    norm.eps = 1e-2


CHANGES = [change_a_weight, change_statistics, change_epsilon, change_colours, change_deviation]


@pytest.mark.parametrize("change", CHANGES)
def test_another_encoder_or_transform_has_another_file(
    change: Callable[[memwrap.MemoryClassifier], None], model: memwrap.MemoryClassifier, pixels: Tensor
) -> None:
    first, _ = encoded(model, pixels)
    path = CachedEncoder(model).cache.path
    change(model)
    assert CachedEncoder(model).cache.path != path
    found, sizes = encoded(model, pixels)
    assert sizes == [4, 4, 2]
    assert torch.equal(found, encode_all(model, InMemoryImages(pixels), AT_ONCE))
    assert not torch.equal(found, first)


def test_the_last_layer_and_the_memory_make_no_difference(model: memwrap.MemoryClassifier, pixels: Tensor) -> None:
    first, _ = encoded(model, pixels)
    model.remember(pixels, [0, 1] * 5)
    torch.nn.init.ones_(model.layer.head.weight)
    assert encoded(model, pixels)[1] == []
    other = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=7), "memory_wrap").eval()
    other.encoder.load_state_dict(model.encoder.state_dict())
    other.transform = model.transform
    found, sizes = encoded(other, pixels)
    assert torch.equal(found, first)
    assert sizes == []


def test_the_cache_is_in_the_folder_of_downloads_or_where_one_likes(
    model: memwrap.MemoryClassifier, pixels: Tensor, tmp_path: Path
) -> None:
    encoded(model, pixels)
    assert [path.suffix for path in (tmp_path / "data" / "encodings").iterdir()] == [".sqlite"]
    assert encoded(model, pixels, tmp_path / "other")[1] == [4, 4, 2]
    assert encoded(model, pixels, tmp_path / "other")[1] == []


def test_a_cache_that_cannot_be_used_only_takes_time(
    model: memwrap.MemoryClassifier, pixels: Tensor, tmp_path: Path
) -> None:
    expected = encode_all(model, InMemoryImages(pixels), AT_ONCE)
    CachedEncoder(model, tmp_path).cache.path.write_text("no database")
    for _ in range(2):
        with pytest.warns(MemwrapWarning, match="the cache of encodings cannot be used"):
            found, sizes = encoded(model, pixels, tmp_path)
        assert torch.equal(found, expected)
        assert sizes == [4, 4, 2]


def test_a_folder_of_an_impossible_name_only_takes_time(
    model: memwrap.MemoryClassifier, pixels: Tensor, tmp_path: Path
) -> None:
    with pytest.warns(MemwrapWarning, match="the cache of encodings cannot be used"):
        found, _ = encoded(model, pixels, tmp_path / ("long" * 99))
    assert torch.equal(found, encode_all(model, InMemoryImages(pixels), AT_ONCE))


# Stopped


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_what_was_encoded_before_a_stop_is_not_encoded_again(
    batches: int, model: memwrap.MemoryClassifier, pixels: Tensor
) -> None:
    with counted(model) as sizes, pytest.raises(Interrupted):
        CachedEncoder(model, stop=after(batches)).encode(InMemoryImages(pixels))
    assert sizes == [4, 4, 2][:batches]
    found, sizes = encoded(model, pixels)
    assert sizes == [4, 4, 2][batches:]
    assert torch.equal(found, encode_all(model, InMemoryImages(pixels), AT_ONCE))


def test_a_stop_is_not_asked_for_if_nothing_has_to_be_encoded(model: memwrap.MemoryClassifier, pixels: Tensor) -> None:
    first, _ = encoded(model, pixels)
    assert torch.equal(CachedEncoder(model, stop=lambda: True).encode(InMemoryImages(pixels)), first)


def test_what_was_encoded_before_an_error_is_kept(
    model: memwrap.MemoryClassifier, pixels: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what is fewer than are stored at once."""
    monkeypatch.setattr(caching, "SAVED_AT_ONCE", 1000)
    seen = []

    def fail(_: object, inputs: tuple[Tensor, ...]) -> None:
        seen.append(len(inputs[0]))
        if len(seen) == 3:
            raise KeyboardInterrupt

    hook = model.encoder.register_forward_pre_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        CachedEncoder(model).encode(InMemoryImages(pixels))
    hook.remove()
    assert encoded(model, pixels)[1] == [2]


def test_encodings_are_stored_while_others_are_encoded(
    model: memwrap.MemoryClassifier, pixels: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a process that is killed."""
    stored: list[int] = []
    cached = CachedEncoder(model)
    add = cached.cache.add
    monkeypatch.setattr(cached.cache, "add", lambda found: (stored.append(len(found)), add(found)))
    with counted(model) as sizes:
        model.encoder.register_forward_pre_hook(lambda *_: stored.append(-1))
        cached.encode(InMemoryImages(pixels))
    assert sizes == [4, 4, 2]
    assert stored == [-1, 4, -1, 4, -1, 2]


def test_progress_counts_what_has_to_be_encoded(model: memwrap.MemoryClassifier, pixels: Tensor) -> None:
    encoded(model, pixels[:3])
    told: list[tuple[object, ...]] = []

    @contextmanager
    def bars(title: str) -> Iterator[Callable[[int, int], None]]:
        told.append((title,))
        yield lambda done, total: told.append((done, total))

    CachedEncoder(model, progress=bars).encode(InMemoryImages(pixels))
    assert told == [("encoding images",), (4, 7), (7, 7)]
    CachedEncoder(model, progress=bars).encode(InMemoryImages(pixels))
    assert len(told) == 3
