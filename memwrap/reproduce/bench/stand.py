"""What all measurements are given: a device, how much to do, a stopwatch, images, and models to be timed."""

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
from memwrap.reproduce.bench.amounts import CLASSES, Amounts
from memwrap.reproduce.bench.timing import Stopwatch
from memwrap.reproduce.records import source_name
from memwrap.training.building import new_model
from memwrap.training.recipes import recipe, resolve_settings
from memwrap.training.settings import ResolvedSettings, with_changes
from memwrap.training.trainer import precision_on

SIDE = 32
BRIGHTER = 60
NAMES = tuple(map(str, range(CLASSES)))


def images_for(count: int) -> LabelledImages:
    """So many that a network can learn to tell apart: timing must not end with a loss that is no number."""
    generator = torch.Generator().manual_seed(count)
    pixels = torch.randint(256 - BRIGHTER, (count, 3, SIDE, SIDE), dtype=torch.uint8, generator=generator)
    labels = torch.arange(count) % CLASSES
    rows = torch.arange(SIDE) * CLASSES // SIDE
    pixels += (BRIGHTER * (rows == labels[:, None])).to(torch.uint8)[:, None, :, None]
    return LabelledImages(InMemoryImages(pixels), labels, tuple(map(str, range(count))))


@dataclass(frozen=True)
class Supply:
    """Where images come from: so many as are asked for; and what they are, in words."""

    take: Callable[[int], LabelledImages]
    words: str


MADE_UP = Supply(images_for, "random pixels, uint8 3x32x32, ten classes told apart by a brighter band; held in memory")


def supply_from(data: DataSet, amounts: Amounts) -> Supply:
    """The training images of a data set, from its first to its last at even distances; a DataError if they will not do.

    They have to be such as the paper's, as all that is measured is.
    """
    images, needed = data.train.images, max(amounts.images, amounts.inference_batch, amounts.memory)
    if not isinstance(images, InMemoryImages) or images.shape != (3, SIDE, SIDE) or len(data.classes) != CLASSES:
        raise DataError(
            f"{data.name}: has images of shape {images.shape} and {len(data.classes)} classes; expected "
            f"{(3, SIDE, SIDE)}, held in memory, and {CLASSES} classes, as svhn and cifar10 have them"
        )
    if len(images) < needed:
        raise DataError(f"{data.name}: has {len(images)} training images; expected at least {needed}")

    def take(count: int) -> LabelledImages:
        return data.train.at(torch.arange(count) * len(images) // count)

    name = source_name(data)
    return Supply(take, f"{name}, of {len(images):,} training images, uint8 3x32x32, {CLASSES} classes; held in memory")


@dataclass(frozen=True)
class BenchContext:
    """A device, and how much is measured on it. side_by_side: runs that are trained at the same time on a GPU."""

    device: torch.device
    amounts: Amounts
    stopwatch: Stopwatch
    side_by_side: int = 5
    supply: Supply = MADE_UP

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def has_kernels(self) -> bool:
        """Whether runs can be trained side by side."""
        return gpu.kernels_run_on(self.device)

    def settings(self, encoder: str, changes: Mapping[str, Any]) -> ResolvedSettings:
        """The paper's recipe for SVHN, in our sizes."""
        amounts = self.amounts
        own = {"encoder": encoder, "batch_size": amounts.batch, "memory_size": amounts.memory, "validation": 0}
        settings = with_changes(recipe("svhn"), {**own, **changes}, "bench")
        final = resolve_settings(settings, amounts.images, NAMES)
        return final.replace(precision=precision_on(self.device, final.precision))

    def model(self, settings: ResolvedSettings) -> Model:
        """A new one, on the device."""
        return new_model(settings, NAMES, self.supply.take(1).images).to(self.device)

    def epochs_of(self, steps: int) -> int:
        """So many as make up at least so many steps."""
        return math.ceil(steps / (self.amounts.images // self.amounts.batch))

    def normalised(self, model: Model, count: int) -> Tensor:
        """Images as the model takes them, on the device."""
        pixels = torch.cat(list(self.supply.take(count).images.batches([torch.arange(count)])))
        return model.get_transform()(pixels.to(self.device))


def clear(device: torch.device) -> None:
    """Give back what the last measurement has left."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
