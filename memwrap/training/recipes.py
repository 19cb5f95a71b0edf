"""Recipes: named settings, and values for what they leave to the data."""

import math
from collections.abc import Sequence

from memwrap.errors import SettingsError, short
from memwrap.training.settings import AUGMENTATIONS, ResolvedSettings, Settings

DEFAULT = "default"
PHOTOGRAPHS = "photographs"  # the default for them

MEMORY = 100  # images, as in the paper
QUEUE = 256  # encodings
VOTERS = 4096  # images: all of most data sets, so that the nearest are found

# On average in half a batch, for it to be the memory of the other half.
IMAGES_OF_EACH_CLASS = 3

# The settings of the paper's experiments: a random memory for each step, encoded in a second pass.
_PAPER = Settings(
    validation=6000,
    fit="crop",
    scale=1.0,
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
    PHOTOGRAPHS: Settings(
        encoder="lite0",
        pretrained=True,
        freeze=True,
        variant="vote",
        optimizer="adamw",
        lr=1e-3,
        weight_decay=0.01,
        epochs=200,
        augment=(),
        memory="random",
    ),
    "svhn": _PAPER.replace(epochs=40, augment=(), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    "cifar10": _PAPER.replace(mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010)),
    "cinic10": _PAPER.replace(
        validation=10,
        schedule="cosine",
        drops=(),
        mean=(0.47889522, 0.47227842, 0.43047404),
        std=(0.24205776, 0.23828046, 0.25874835),
    ),
}


def recipe(name: str) -> Settings:
    """The settings of this name."""
    if name not in RECIPES:
        raise SettingsError(f"there is no recipe {short(name)}; expected one of {', '.join(RECIPES)}")
    return RECIPES[name]


def resolve_settings(
    settings: Settings, images: int, classes: Sequence[str], encoder: str = "resnet18"
) -> ResolvedSettings:
    """Fill in what the settings leave to the data: the number of training images, and the names of the classes.

    encoder: used if the settings name none.
    """
    batch_size = settings.batch_size or _batch_for(images)
    memory = settings.memory or _memory_for(settings.variant, batch_size, len(classes))
    values = {
        **dict(settings),
        "encoder": settings.encoder or encoder,
        "memory": memory,
        "memory_size": settings.memory_size or min(QUEUE if memory == "queue" else MEMORY, images),
        "remember": settings.remember or min(VOTERS if settings.variant == "vote" else MEMORY, images),
        "fit": settings.fit or "crop",
        "scale": settings.scale or (None if settings.variant == "vote" else 1.0),
        "epochs": settings.epochs or _epochs_for(images),
        "batch_size": batch_size,
        "augment": augmentations_for(classes) if settings.augment is None else settings.augment,
    }
    return ResolvedSettings(**values)


def encoder_for(side: int, device: str) -> str:
    """An encoder that trains on images of this size in bearable time, on a "cpu" or "cuda"."""
    if device != "cpu":
        return "resnet18"
    return "tiny" if side <= 16 else "small"


def augmentations_for(classes: Sequence[str]) -> tuple[str, ...]:
    """All augmentations, except mirroring for classes that are letters or digits."""
    if all(len(name) == 1 for name in classes):
        return tuple(name for name in AUGMENTATIONS if name != "flip")
    return AUGMENTATIONS


def _memory_for(variant: str, batch_size: int, classes: int) -> str:
    """The batch costs no further images, but must hold most classes; Only Memory needs many images of each."""
    enough = batch_size // 2 >= IMAGES_OF_EACH_CLASS * classes
    return "batch" if enough and variant != "only_memory" else "random"


def _epochs_for(images: int) -> int:
    """200 for 1000 images: more epochs for fewer images, though fewer steps in total."""
    return round(min(400.0, max(30.0, 200 * math.sqrt(1000 / images))))


def _batch_for(images: int) -> int:
    """A power of two with which an epoch has about eight steps: 64 for 1000 images."""
    fitting = min(128, max(32, images // 8))
    return min(images, 1 << (fitting.bit_length() - 1))
