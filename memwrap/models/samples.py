"""Images and labels in the forms that people have them in, to be remembered or evaluated on."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from memwrap.data import Transform
from memwrap.errors import InputError, brief

# Tensors or arrays with their labels apart; or a Dataset, DataLoader or other iterable of (image, label).
ImageSource = Tensor | np.ndarray[Any, Any] | Dataset[Any] | Iterable[Any]


def read_batches(
    source: ImageSource, labels: Tensor | Sequence[int] | None, transform: Transform | None, size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images (n, channels, H, W), as the model takes them or uint8 pixels of its size, and labels (n,) of each batch.

    source: a tensor or array of images, with labels; or a Dataset, DataLoader or iterable of images with their labels,
    batched or not. transform: of the model, which Pillow images and pixels need; None if it has none. size: of batches
    that are made here.
    """
    if isinstance(source, Tensor | np.ndarray):
        images = _as_tensor(source)
        if labels is None:
            raise InputError("labels are missing; expected one class number for each image")
        yield from _split(images, as_labels(labels), transform, size)
        return
    if labels is not None:
        raise InputError(f"labels were given with a {type(source).__name__}, which gives its own; leave them out")
    for image, label in _pairs(source, size):
        yield _pixels_or_inputs(image, transform), as_labels(label)


def check_one_kind(images: Sequence[Tensor]) -> None:
    """An InputError unless all images have one shape and dtype."""
    kinds = {(tuple(image.shape), image.dtype) for image in images}
    if len(kinds) > 1:
        found = " and ".join(f"{shape}, {dtype}" for shape, dtype in sorted(kinds, key=str)[:2])
        raise InputError(f"images are of {found}; expected one size and type: resize them, or give pixels")


def as_labels(labels: Tensor | Sequence[int]) -> Tensor:
    """Labels as a tensor; an InputError if they cannot be."""
    try:
        return torch.as_tensor(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"labels cannot be read as integers ({brief(error)}); expected one class number each"
        ) from error


def _split(images: Tensor, labels: Tensor, transform: Transform | None, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    if images.ndim != 4 or labels.ndim != 1 or len(labels) != len(images):  # the caller checks them with all others
        yield images, labels
        return
    for part, numbers in zip(torch.split(images, size), torch.split(labels, size), strict=True):
        yield _pixels_or_inputs(part, transform), numbers


def _pairs(source: Any, size: int) -> Iterator[tuple[Any, Any]]:
    """Batches of images and labels."""
    if isinstance(source, DataLoader):
        yield from map(_pair, source)
        return
    images: list[Any] = []
    labels: list[Any] = []
    for item in _items(source):
        image, label = _pair(item)
        if isinstance(image, list | tuple) or getattr(image, "ndim", 0) == 4:  # batched already
            if images:
                yield images, labels
                images, labels = [], []
            yield image, label
            continue
        images.append(image)
        labels.append(label)
        if len(images) == size:
            yield images, labels
            images, labels = [], []
    if images:
        yield images, labels


def _items(source: Any) -> Iterator[Any]:
    # All data sets of torch have `__getitem__`; those to be iterated over have no length, or one of no use.
    if hasattr(source, "__getitem__") and hasattr(source, "__len__") and not isinstance(source, IterableDataset):
        return (source[place] for place in range(len(source)))
    if not isinstance(source, Iterable):
        raise InputError(
            f"images is a {type(source).__name__}; expected a tensor, a Dataset, or pairs of image and label"
        )
    return iter(source)


def _pair(item: Any) -> tuple[Any, Any]:
    if not isinstance(item, tuple | list) or len(item) < 2:
        raise InputError(
            f"an item is a {type(item).__name__}; expected an image and its label: (image, label), as in "
            '((each["image"], each["label"]) for each in data)'
        )
    return item[0], item[1]


def _pixels_or_inputs(images: Any, transform: Transform | None) -> Tensor:
    """A batch of Pillow images, pixels or model inputs: floats as they are, the rest as uint8 of the model's size."""
    if isinstance(images, list | tuple):
        return _stack([_one(image, transform) for image in images])
    return _fitted(_as_tensor(images), transform)


def _one(image: Any, transform: Transform | None) -> Tensor:
    if isinstance(image, Image.Image):
        return _require(transform).fit_image(image)
    return _fitted(_as_tensor(image), transform)


def _fitted(images: Tensor, transform: Transform | None) -> Tensor:
    return _require(transform).fit_pixels(images) if images.dtype == torch.uint8 else images


def _as_tensor(images: Any) -> Tensor:
    try:
        if isinstance(images, Tensor | np.ndarray):
            return torch.as_tensor(images)
    except TypeError as error:  # an array of objects
        raise InputError(f"images cannot be read as numbers ({brief(error)})") from error
    raise InputError(f"images are a {type(images).__name__}; expected tensors, arrays or Pillow images")


def _stack(images: Sequence[Tensor]) -> Tensor:
    check_one_kind(images)
    return torch.stack(list(images))


def _require(transform: Transform | None) -> Transform:
    if transform is None:
        raise InputError(
            "Pillow images and uint8 pixels need model.transform, which says their size and colours; set "
            "model.transform = memwrap.Transform(shape=(3, 224, 224), mean=(...), std=(...))"
        )
    return transform
