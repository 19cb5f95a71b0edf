"""Recipes by name, and what a recipe leaves open settled for the data at hand."""

import dataclasses
import math
from collections.abc import Sequence

from memwrap.errors import SettingsError
from memwrap.training.settings import AUGMENTATIONS, ResolvedSettings, Settings

DEFAULT = "default"

MEMORY = 100  # images, as in the paper

# In half a batch, on average, for it to serve as the memory of the other half.
IMAGES_OF_EACH_CLASS = 3

# The paper's, as its experiments were run: two passes with a fresh random memory, the paper's schedule, nothing else.
_PAPER = Settings(
    validation=6000,
    memory="random",
    memory_size=100,
    remember=100,
    epochs=300,
    batch_size=128,
    weight_decay=5e-4,
    clip=0.0,
    schedule="steps",
    drops=(0.5, 0.75),
    warmup=0.0,
    label_smoothing=0.0,
    augment=("flip",),
    encoder="mobilenet_v2",
)

RECIPES: dict[str, Settings] = {
    DEFAULT: Settings(),
    "finetune": Settings(optimizer="adamw", lr=3e-4, weight_decay=0.05, epochs=40, warmup=0.1),
    "frozen": Settings(
        freeze=True, optimizer="adamw", lr=1e-3, weight_decay=0.01, epochs=100, augment=(), memory="random"
    ),
    "svhn": dataclasses.replace(_PAPER, epochs=40, augment=(), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    "cifar10": dataclasses.replace(_PAPER, mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010)),
    "cinic10": dataclasses.replace(
        _PAPER,
        validation=10,
        schedule="cosine",
        drops=(),
        mean=(0.47889522, 0.47227842, 0.43047404),
        std=(0.24205776, 0.23828046, 0.25874835),
    ),
}


def recipe(name: str) -> Settings:
    """The settings of that name."""
    if name not in RECIPES:
        raise SettingsError(f"there is no recipe {name!r}; there are {', '.join(RECIPES)}")
    return RECIPES[name]


def resolve_settings(
    settings: Settings, images: int, classes: Sequence[str], encoder: str = "resnet18"
) -> ResolvedSettings:
    """The settings with a value wherever they leave one to the data: `images` to train on, and the classes' names.

    encoder: taken where the settings name none.
    """
    batch_size = settings.batch_size or _batch_for(images)
    values = {
        **dataclasses.asdict(settings),
        "encoder": settings.encoder or encoder,
        "memory": settings.memory or _memory_for(settings.variant, batch_size, len(classes)),
        "memory_size": settings.memory_size or min(MEMORY, images),
        "remember": settings.remember or min(MEMORY, images),
        "epochs": settings.epochs or _epochs_for(images),
        "batch_size": batch_size,
        "augment": augmentations_for(classes) if settings.augment is None else settings.augment,
    }
    return ResolvedSettings(**values)


def encoder_for(side: int, device: str) -> str:
    """One that learns images of this size on a "cpu" or "cuda" in bearable time."""
    if device != "cpu":
        return "resnet18"
    return "tiny" if side <= 16 else "small"


def augmentations_for(classes: Sequence[str]) -> tuple[str, ...]:
    """All of them; but a mirrored letter or digit is another one, or none."""
    if all(len(name) == 1 for name in classes):
        return tuple(name for name in AUGMENTATIONS if name != "flip")
    return AUGMENTATIONS


def _memory_for(variant: str, batch_size: int, classes: int) -> str:
    """The batch adds no image to a step, but has to show most classes; and to Only Memory, many images of them."""
    enough = batch_size // 2 >= IMAGES_OF_EACH_CLASS * classes
    return "batch" if enough and variant != "only_memory" else "random"


def _epochs_for(images: int) -> int:
    """200 for 1000 images; fewer images are seen more often, but less often in all."""
    return round(min(400.0, max(30.0, 200 * math.sqrt(1000 / images))))


def _batch_for(images: int) -> int:
    """A power of two, so small that an epoch has some eight steps: 64 for 1000 images."""
    fitting = min(128, max(32, images // 8))
    return min(images, 1 << (fitting.bit_length() - 1))
