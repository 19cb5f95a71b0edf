"""What all measurements are given: a device, how much to do, a stopwatch, images, and models to be timed."""

import gc
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from memwrap import kernels
from memwrap.bench.amounts import CLASSES, Amounts
from memwrap.bench.timing import Stopwatch
from memwrap.building import new_model
from memwrap.data.labelled import HeldImages, LabelledImages
from memwrap.loading import Model
from memwrap.recipes import recipe, settled
from memwrap.settings import SettledSettings, with_changes
from memwrap.training.loop import precision_on

IMAGES = "random pixels, uint8 3x32x32, ten classes told apart by a brighter band; held in memory"
SIDE = 32
BRIGHTER = 60
NAMES = tuple(map(str, range(CLASSES)))


@dataclass(frozen=True)
class Stand:
    """A device, and how much is measured on it. side_by_side: runs that are trained at the same time on a GPU."""

    device: torch.device
    amounts: Amounts
    stopwatch: Stopwatch
    side_by_side: int = 5

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def has_kernels(self) -> bool:
        """Whether runs can be trained side by side."""
        return kernels.usable_on(self.device)

    def settings(self, encoder: str, changes: Mapping[str, Any]) -> SettledSettings:
        """The paper's recipe for SVHN, in our sizes."""
        amounts = self.amounts
        own = {"encoder": encoder, "batch_size": amounts.batch, "memory_size": amounts.memory, "validation": 0}
        settings = with_changes(recipe("svhn"), {**own, **changes}, "bench")
        final = settled(settings, amounts.images, NAMES)
        return replace(final, precision=precision_on(self.device, final.precision))

    def model(self, settings: SettledSettings) -> Model:
        """A new one, on the device."""
        return new_model(settings, NAMES, images_for(1).images).to(self.device)

    def epochs_of(self, steps: int) -> int:
        """So many as make up at least so many steps."""
        return math.ceil(steps / (self.amounts.images // self.amounts.batch))

    def normalised(self, model: Model, count: int) -> Tensor:
        """Images as the model takes them, on the device."""
        pixels = torch.cat(list(images_for(count).images.batches([torch.arange(count)])))
        return model.transform(pixels.to(self.device))


def images_for(count: int) -> LabelledImages:
    """So many that a network can learn to tell apart: timing must not end with a loss that is no number."""
    generator = torch.Generator().manual_seed(count)
    pixels = torch.randint(256 - BRIGHTER, (count, 3, SIDE, SIDE), dtype=torch.uint8, generator=generator)
    labels = torch.arange(count) % CLASSES
    rows = torch.arange(SIDE) * CLASSES // SIDE
    pixels += (BRIGHTER * (rows == labels[:, None])).to(torch.uint8)[:, None, :, None]
    return LabelledImages(HeldImages(pixels), labels, tuple(map(str, range(count))))


def clear(device: torch.device) -> None:
    """Give back what the last measurement has left."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
