"""Images in the forms that people have them in: all give the memory that tensors give, or are refused with words."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.testing import assert_close
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from memwrap import InputError, MemoryClassifier, Transform

COUNT, SIDE = 12, 8
TRANSFORM = Transform((3, SIDE, SIDE), mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
LABELS = [number % 4 for number in range(COUNT)]


@pytest.fixture
def pixels() -> Tensor:
    return torch.randint(256, (COUNT, 3, SIDE, SIDE), dtype=torch.uint8)


@pytest.fixture
def model(model: MemoryClassifier) -> MemoryClassifier:
    model.transform = TRANSFORM
    return model


class Listed(Dataset[Any]):
    """Of images of any kind. Some data sets give more than an image and a label."""

    def __init__(self, images: Any, more: tuple[Any, ...] = ()) -> None:
        self.images, self.more = images, more

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, place: int) -> tuple[Any, ...]:
        return self.images[place], LABELS[place], *self.more


class Indexed:
    """By place and length alone, and never beyond it."""

    def __init__(self, images: Any) -> None:
        self.images = images

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, place: int) -> tuple[Any, int]:
        assert place < COUNT
        return self.images[place], LABELS[place]


class Streamed(IterableDataset[Any]):
    def __init__(self, images: Any) -> None:
        self.images = images

    def __iter__(self) -> Iterator[Any]:
        return iter(zip(self.images, LABELS, strict=True))


def pillow(pixels: Tensor) -> list[Image.Image]:
    return [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in pixels]


def batches(images: Tensor, size: int = 5) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(torch.split(images, size), torch.split(torch.tensor(LABELS), size), strict=True)


def as_lists(items: list[tuple[Any, int]]) -> tuple[list[Any], list[int]]:
    images, labels = zip(*items, strict=True)
    return list(images), list(labels)


def as_tuples(items: list[tuple[Any, int]]) -> tuple[Any, ...]:
    """As torchvision's detection does."""
    return tuple(zip(*items, strict=True))


SOURCES: dict[str, Callable[[Tensor], tuple[Any, ...]]] = {
    "an array": lambda images: (images.numpy(), LABELS),
    "an array with labels in an array": lambda images: (images.numpy(), np.array(LABELS)),
    "a tensor with labels in one": lambda images: (images, torch.tensor(LABELS, dtype=torch.int16)),
    "a data set": lambda images: (Listed(images),),
    "a data set of arrays": lambda images: (Listed(images.numpy()),),
    "a data set of more": lambda images: (Listed(images, more=("name", 3.5)),),
    "a TensorDataset": lambda images: (TensorDataset(images, torch.tensor(LABELS)),),
    "an object like a data set": lambda images: (Indexed(images),),
    "an IterableDataset": lambda images: (Streamed(images),),
    "a loader": lambda images: (DataLoader(Listed(images), batch_size=5),),
    "a loader of one at a time": lambda images: (DataLoader(Listed(images), batch_size=1),),
    "a loader of a TensorDataset": lambda images: (DataLoader(TensorDataset(images, torch.tensor(LABELS)), 7),),
    "a loader of an IterableDataset": lambda images: (DataLoader(Streamed(images), batch_size=5),),
    "a list of pairs": lambda images: (list(zip(images, LABELS, strict=True)),),
    "a generator of pairs": lambda images: ((pair for pair in zip(images, LABELS, strict=True)),),
    "a generator of batches": lambda images: (batches(images),),
    "a list of batches": lambda images: (list(batches(images)),),
    "batches of arrays": lambda images: ([(each.numpy(), labels.numpy()) for each, labels in batches(images)],),
    "batches of lists": lambda images: ([(list(each), labels.tolist()) for each, labels in batches(images)],),
    "a loader of tuples": lambda images: (DataLoader(Listed(images), 5, collate_fn=as_tuples),),
}
PICTURES: dict[str, Callable[[Tensor], tuple[Any, ...]]] = {
    "a data set": lambda pixels: (Listed(pillow(pixels)),),
    "a list of pairs": lambda pixels: (list(zip(pillow(pixels), LABELS, strict=True)),),
    "a loader that leaves them": lambda pixels: (DataLoader(Listed(pillow(pixels)), 5, collate_fn=as_lists),),
}


def remembered(model: MemoryClassifier, *source: Any, **options: Any) -> dict[str, Tensor]:
    model.remember(*source, **options)
    return model.remembered.tensors()


def assert_same_memory(found: dict[str, Tensor], expected: dict[str, Tensor], exact: bool = False) -> None:
    for name in ("images", "labels"):
        assert_close(found[name], expected[name], atol=0, rtol=0)
    close = {"atol": 0, "rtol": 0} if exact else {}
    assert_close(found["encodings"], expected["encodings"], **close)


@pytest.mark.parametrize("as_pixels", [True, False])
@pytest.mark.parametrize("kind", SOURCES)
def test_any_source_gives_the_memory_of_tensors(
    kind: str, as_pixels: bool, model: MemoryClassifier, pixels: Tensor
) -> None:
    images = pixels if as_pixels else TRANSFORM(pixels)
    expected = remembered(model, images, LABELS)
    # Batches of another size may round differently.
    assert_same_memory(remembered(model, *SOURCES[kind](images)), expected)
    assert expected["images"].dtype == (torch.uint8 if as_pixels else torch.float32)


@pytest.mark.parametrize("chunk_size", [1, 5, COUNT, 128])
@pytest.mark.parametrize("kind", ["a data set", "an array", "a list of pairs", "a generator of pairs"])
def test_in_the_same_batches_the_memory_is_the_same_to_the_last_bit(
    kind: str, chunk_size: int, model: MemoryClassifier, pixels: Tensor
) -> None:
    seen: list[int] = []
    model.encoder.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    expected = remembered(model, pixels, LABELS, chunk_size=chunk_size)
    sizes = list(seen)
    found = remembered(model, *SOURCES[kind](pixels), chunk_size=chunk_size)
    assert_same_memory(found, expected, exact=True)
    assert seen == 2 * sizes
    assert max(sizes) <= chunk_size


@pytest.mark.parametrize("kind", PICTURES)
def test_pictures_give_the_memory_of_their_pixels(kind: str, model: MemoryClassifier, pixels: Tensor) -> None:
    expected = remembered(model, pixels, LABELS)
    found = remembered(model, *PICTURES[kind](pixels))
    assert_same_memory(found, expected)
    assert found["images"].dtype == torch.uint8


def test_pixels_are_encoded_as_the_model_s_transform_makes_them(model: MemoryClassifier, pixels: Tensor) -> None:
    by_pixels, by_inputs = remembered(model, pixels, LABELS), remembered(model, TRANSFORM(pixels), LABELS)
    assert_close(by_pixels["encodings"], by_inputs["encodings"], atol=0, rtol=0)
    model.remember(pixels, LABELS)
    rows = torch.tensor([7, 0])
    assert_close(model.remembered.inputs(rows, model.get_transform), TRANSFORM(pixels[rows]), atol=0, rtol=0)


def test_pictures_and_pixels_of_another_size_are_fitted(model: MemoryClassifier) -> None:
    large = torch.randint(256, (COUNT, 3, 20, 14), dtype=torch.uint8)
    expected = torch.stack([TRANSFORM.fit_image(image) for image in pillow(large)])
    for source in (
        (large, LABELS),
        (large.numpy(), LABELS),
        (Listed(large),),
        (DataLoader(Listed(large), 5),),
        (Listed(pillow(large)),),
    ):
        found = remembered(model, *source)
        assert_close(found["images"], expected)
    various = [image.resize((8 + number, 30 - number)) for number, image in enumerate(pillow(large))]
    expected = torch.stack([TRANSFORM.fit_image(each) for each in various])
    assert_close(remembered(model, Listed(various))["images"], expected)
    arrays = [np.array(each).transpose(2, 0, 1) for each in various]
    assert_close(remembered(model, Listed(arrays))["images"], expected)


def test_pictures_and_pixels_may_come_together(model: MemoryClassifier, pixels: Tensor) -> None:
    mixed = [*pixels[:4], *pillow(pixels[4:8]), *pixels[8:].numpy()]
    assert_close(remembered(model, Listed(mixed))["images"], pixels, atol=0, rtol=0)


def test_batches_and_single_images_keep_their_order(model: MemoryClassifier, pixels: Tensor) -> None:
    """Which their names rely on."""
    singles = list(zip(pixels, LABELS, strict=True))
    source = [*singles[:3], (pixels[3:7], LABELS[3:7]), *singles[7:]]
    found = remembered(model, source)
    assert_close(found["images"], pixels, atol=0, rtol=0)
    assert found["labels"].tolist() == LABELS


def test_pixels_of_several_sizes_are_fitted_one_by_one(model: MemoryClassifier) -> None:
    various = [torch.randint(256, (3, 8 + number, 30 - number), dtype=torch.uint8) for number in range(COUNT)]
    expected = torch.stack([TRANSFORM.fit_pixels(each) for each in various])
    for images in (various, [each.numpy() for each in various]):
        assert_close(remembered(model, Listed(images))["images"], expected)


def test_a_model_in_half_precision_takes_pixels(model: MemoryClassifier, pixels: Tensor) -> None:
    expected = remembered(model, pixels, LABELS)["encodings"]
    model.to(torch.bfloat16)
    found = remembered(model, pixels, LABELS)
    assert (found["images"].dtype, found["encodings"].dtype) == (torch.uint8, torch.bfloat16)
    assert_close(found["encodings"].float(), expected, atol=0.05, rtol=0.05)
    inputs = model.remembered.inputs(torch.arange(3), model.get_transform)
    assert inputs.dtype == torch.bfloat16
    assert_close(model.encode(inputs), found["encodings"][:3], atol=0.05, rtol=0.05)


def test_a_memory_of_pixels_is_read_as_one_of_images(model: MemoryClassifier, pixels: Tensor, images: Tensor) -> None:
    model.remember(pixels, LABELS)
    with torch.no_grad():
        assert_close(model(images), model(images, memory=TRANSFORM(pixels)))
    found = model.explain(images)
    model.remember(TRANSFORM(pixels), LABELS)
    for ours, theirs in zip(found, model.explain(images), strict=True):
        assert_close(ours.logits, theirs.logits)
        assert [each.index for each in ours.samples] == [each.index for each in theirs.samples]


# What is refused, and leaves the memory that there was


class Broken(Listed):
    def __getitem__(self, place: int) -> tuple[Any, ...]:
        raise ZeroDivisionError


BAD: dict[str, tuple[Callable[[Tensor], tuple[Any, ...]], str]] = {
    "no labels": (lambda images: (images,), "labels are missing"),
    "labels twice": (lambda images: (Listed(images), LABELS), "labels were given with a Listed"),
    "labels with a list": (lambda images: (list(images), LABELS), "labels were given with a list"),
    "images alone": (lambda images: (list(images),), "an item is a Tensor; expected an image and its label"),
    "an item of one": (lambda images: ([(image,) for image in images],), "expected an image and its label"),
    "nothing": (lambda _: ([],), "no images to remember"),
    "an empty loader": (lambda _: (DataLoader([]),), "no images to remember"),
    "words for images": (lambda _: (DataLoader([("a.png", 0), ("b.png", 1)], 2),), "images are a str"),
    "an array of objects": (lambda _: (np.array([object()]), [0]), "cannot be read as numbers"),
    "images of two sizes": (
        lambda images: ([(images[0], 0), (images[1, :, 1:], 1)],),
        "(3, 7, 8), torch.float32 and (3, 8, 8), torch.float32",
    ),
    "batches of two sizes": (
        lambda images: ([(images[:2], [0, 1]), (images[2:4, :, 1:], [0, 1])],),
        "(3, 7, 8), torch.float32 and (3, 8, 8), torch.float32",
    ),
    "a batch of pixels after one of inputs": (
        lambda images: ([(images[:2], [0, 1]), (TRANSFORM.invert(images[2:4]), [0, 1])],),
        "torch.uint8",
    ),
    "pixels and inputs": (lambda images: ([(images[0], 0), (TRANSFORM.invert(images[1]), 1)],), "torch.uint8"),
    "another number of channels": (lambda images: (images[:, :1], LABELS), "(12, 1, 8, 8)"),
    "a label too large": (lambda images: (list(zip(images, [4] * COUNT, strict=True)),), "labels go from 4 to 4"),
    "a label in the middle": (
        lambda images: (list(zip(images, [0] * 9 + [9, 0, 0], strict=True)),),
        "labels go from 0 to 9",
    ),
    "labels that are no numbers": (
        lambda images: (list(zip(images, ["cat"] * COUNT, strict=True)),),
        "labels cannot be read as integers",
    ),
    "labels that are no integers": (
        lambda images: (DataLoader(TensorDataset(images, torch.rand(COUNT)), 5),),
        "expected integers",
    ),
    "labels that would be rounded": (lambda images: ([(image, 0.7) for image in images],), "expected integers"),
    "several types": (lambda images: ([(images[0], 0), (images[0].double(), 1)],), "torch.float64"),
    "a number": (lambda _: (torch.tensor(1.0), [0]), "images has shape ()"),
    "no source": (lambda _: (5,), "is a int"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_remembered_is_refused(case: str, model: MemoryClassifier, pixels: Tensor) -> None:
    model.remember(pixels[:3], [0, 1, 2])
    before = model.remembered
    make, words = BAD[case]
    with pytest.raises(InputError, match=re.escape(words)):
        model.remember(*make(TRANSFORM(pixels)))
    assert model.remembered is before


def test_errors_of_a_data_set_are_its_own(model: MemoryClassifier, pixels: Tensor) -> None:
    with pytest.raises(ZeroDivisionError):
        model.remember(Broken(pixels))
    assert model.remembered is None


@pytest.mark.parametrize("kind", ["pixels", "pictures"])
def test_without_a_transform_pixels_and_pictures_are_refused(
    kind: str, model: MemoryClassifier, pixels: Tensor
) -> None:
    model.transform = None
    with pytest.raises(InputError, match=re.escape("model.transform")):
        model.remember(Listed(pixels if kind == "pixels" else pillow(pixels)))


# Names


def test_names_are_kept_and_need_one_for_each_image(model: MemoryClassifier, pixels: Tensor) -> None:
    names = [f"{number}.png" for number in range(COUNT)]
    model.remember(Listed(pixels), names=names)
    assert model.remembered.names == tuple(names)
    with pytest.raises(InputError, match="names has 11 entries"):
        model.remember(Listed(pixels), names=names[1:])
    for none in (None, [""] * COUNT):
        model.remember(Listed(pixels), names=none)
        assert model.remembered.names is None
