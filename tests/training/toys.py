"""A small network with all that makes training hard to repeat, and images to train it on."""

from typing import Any

import torch
from torch import nn

import memwrap
from memwrap.data import InMemoryImages, LabelledImages, Transform
from memwrap.models.loading import Model
from memwrap.training import Trainer
from memwrap.training.settings import ResolvedSettings
from memwrap.training.trainer import EpochMetrics

CLASSES = 3
IMAGES = 22


def toy_model(variant: str = "memory_wrap", seed: int = 0) -> Model:
    """With batch normalisation, whose statistics are state, and dropout, which draws random numbers."""
    torch.manual_seed(seed)
    classifier = nn.Sequential(
        nn.Conv2d(3, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(24, CLASSES),
    )
    model = memwrap.wrap(classifier, variant, example=torch.zeros(2, 3, 8, 8))
    model.transform = Transform((3, 8, 8), (0.5, 0.4, 0.3), (0.2, 0.3, 0.25))
    return model


def toy_data(count: int = IMAGES) -> LabelledImages:
    """Noise, brighter in one colour by class."""
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randint(156, (count, 3, 8, 8), dtype=torch.uint8, generator=generator)
    labels = torch.randperm(count, generator=generator) % CLASSES
    pixels[torch.arange(count), labels] += 60
    return LabelledImages(InMemoryImages(pixels), labels, tuple(f"{number}.png" for number in range(count)))


def toy_settings(**given: Any) -> ResolvedSettings:
    """Two epochs of four steps, with everything random that there is."""
    usual = {"epochs": 2, "batch_size": 5, "memory_size": 7, "warmup": 0.25, "seed": 3}
    return ResolvedSettings(**{**usual, "augment": ("flip", "shift", "affine", "colour", "erase"), **given})


def trained(trainer: Trainer, steps: int | None = None) -> list[EpochMetrics]:
    """Run so many steps, or all that are left; the epochs that ended meanwhile."""
    ended: list[EpochMetrics] = []
    if steps == 0:
        return ended
    steps_done = trainer.run()
    for count, metrics in enumerate(steps_done, start=1):
        if metrics.finished_epoch is not None:
            ended.append(metrics.finished_epoch)
        if count == steps:
            steps_done.close()
    return ended


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    """Weights and buffers, bit for bit."""
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
