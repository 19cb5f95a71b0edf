"""What all measurements share: a device, sizes, a stopwatch, images, and models to time."""

import gc
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from memwrap.data import DataSet, InMemoryImages, LabelledImages
from memwrap.errors import DataError
from memwrap.models.loading import Model
from memwrap.nn import gpu
from memwrap.reproduce.bench.sizes import CLASSES, Sizes
from memwrap.reproduce.bench.timing import Stopwatch
from memwrap.reproduce.records import source_name
from memwrap.training.building import new_model
from memwrap.training.recipes import recipe, resolve_settings
from memwrap.training.settings import ResolvedSettings, with_changes
from memwrap.training.trainer import precision_on

SIDE = 32
BRIGHTER = 60
NAMES = tuple(map(str, range(CLASSES)))


@dataclass(frozen=True)
class ImageSupply:
    """take(n): n labelled images. description: for the record."""

    take: Callable[[int], LabelledImages]
    description: str


def random_images(count: int) -> LabelledImages:
    """Images that a network can learn to classify, so that a timed training does not diverge."""
    generator = torch.Generator().manual_seed(count)
    pixels = torch.randint(256 - BRIGHTER, (count, 3, SIDE, SIDE), dtype=torch.uint8, generator=generator)
    labels = torch.arange(count) % CLASSES
    rows = torch.arange(SIDE) * CLASSES // SIDE
    pixels += (BRIGHTER * (rows == labels[:, None])).to(torch.uint8)[:, None, :, None]
    return LabelledImages(InMemoryImages(pixels), labels, tuple(map(str, range(count))))


RANDOM_IMAGES = ImageSupply(
    random_images, "random pixels, uint8 3x32x32, ten classes with a brighter band each; held in memory"
)


def images_from(data: DataSet, sizes: Sizes) -> ImageSupply:
    """Training images of a data set, evenly spaced; a DataError unless they have the paper's shape and classes."""
    images, needed = data.train.images, max(sizes.images, sizes.inference_batch, sizes.memory)
    if not isinstance(images, InMemoryImages) or images.shape != (3, SIDE, SIDE) or len(data.classes) != CLASSES:
        raise DataError(
            f"{data.name}: has images of shape {images.shape} and {len(data.classes)} classes; expected "
            f"{(3, SIDE, SIDE)}, held in memory, and {CLASSES} classes, as in svhn and cifar10"
        )
    if len(images) < needed:
        raise DataError(f"{data.name}: has {len(images)} training images; expected at least {needed}")

    def take(count: int) -> LabelledImages:
        return data.train.at(torch.arange(count) * len(images) // count)

    shape = f"uint8 3x32x32, {CLASSES} classes; held in memory"
    return ImageSupply(take, f"{source_name(data)}, of {len(images):,} training images, {shape}")


@dataclass(frozen=True)
class BenchContext:
    """A device and what is measured on it. side_by_side: runs trained at the same time on a GPU."""

    device: torch.device
    sizes: Sizes
    stopwatch: Stopwatch
    side_by_side: int = 5
    images: ImageSupply = RANDOM_IMAGES

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def has_kernels(self) -> bool:
        """Whether runs can be trained side by side."""
        return gpu.kernels_run_on(self.device)

    def settings(self, encoder: str, changes: Mapping[str, Any]) -> ResolvedSettings:
        """The paper's recipe for SVHN, with this context's sizes."""
        sizes = self.sizes
        own = {"encoder": encoder, "batch_size": sizes.batch, "memory_size": sizes.memory, "validation": 0}
        settings = with_changes(recipe("svhn"), {**own, **changes}, "bench")
        resolved = resolve_settings(settings, sizes.images, NAMES)
        return resolved.replace(precision=precision_on(self.device, resolved.precision))

    def model(self, settings: ResolvedSettings) -> Model:
        """A new model on the device."""
        return new_model(settings, NAMES, self.images.take(1).images).to(self.device)

    def epochs_for(self, steps: int) -> int:
        """The number of epochs that have at least this many steps."""
        return math.ceil(steps / (self.sizes.images // self.sizes.batch))

    def normalised(self, model: Model, count: int) -> Tensor:
        """Images as the model takes them, on the device: (count, 3, H, W)."""
        pixels = torch.cat(list(self.images.take(count).images.batches([torch.arange(count)])))
        return model.get_transform()(pixels.to(self.device))


def clear(device: torch.device) -> None:
    """Free what the last measurement left."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
