"""Builds a new model from settings."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from memwrap import encoders
from memwrap.data import Images, Transform, channel_statistics, derive_seed
from memwrap.encoders import Classifier, has_pretrained, pretrained_config
from memwrap.models.loading import Model
from memwrap.models.wrapping import wrap, wrap_own
from memwrap.nn.layer import VARIANTS as LAYER_VARIANTS
from memwrap.training.settings import ResolvedSettings, Settings


def size_for(settings: Settings) -> int | None:
    """The input size of the encoder; None leaves it to the images."""
    if settings.size is None and settings.encoder is not None and has_pretrained(settings.encoder):
        return int(pretrained_config(settings.encoder)["input_size"][-1])
    return settings.size


def new_model(settings: ResolvedSettings, classes: Sequence[str], images: Images) -> Model:
    """A new model for these classes and training images, with pretrained weights if the settings ask for them.

    images: give the shape, and the mean and deviation of the colours if the settings have none.
    """
    shape = images.shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(settings.seed, "weights"))
        classifier = new_classifier(settings, len(classes), shape)
        options: dict[str, Any] = {}
        if settings.variant != "standard":
            options = {"project": settings.project}
            if settings.scale is not None:
                options["scale"] = settings.scale
        if settings.variant in LAYER_VARIANTS:
            options["head"] = settings.head
        if isinstance(classifier, Classifier):
            model = wrap_own(classifier, settings.variant, shape, **options)
        else:
            model = wrap(classifier, settings.variant, example=torch.zeros(2, *shape), **options)
    model.classes = tuple(classes)
    model.transform = transform_for(settings, images)
    return model


def new_classifier(settings: ResolvedSettings, num_classes: int, shape: tuple[int, int, int]) -> nn.Module:
    """The network of the settings, for images of this shape, with pretrained weights if they ask for them."""
    channels, height, _ = shape
    arguments: dict[str, Any] = {}
    if has_pretrained(settings.encoder):
        if settings.pretrained or settings.weights:
            arguments["pretrained"] = True
        if settings.weights:
            arguments["pretrained_cfg_overlay"] = {"file": settings.weights}
        facts = pretrained_config(settings.encoder)
        if facts["fixed_input_size"] and height != facts["input_size"][-1]:
            arguments["img_size"] = height  # transformers: their position embeddings have one size
    return encoders.create(settings.encoder, num_classes, channels, **arguments)


def transform_for(settings: ResolvedSettings, images: Images) -> Transform:
    """The settings' colours, else those of pretrained weights, else those of the images."""
    if settings.mean is not None and settings.std is not None:
        mean, std = settings.mean, settings.std
    elif settings.pretrained or settings.weights:
        facts = pretrained_config(settings.encoder)
        mean, std = (_by_channel(facts[name], images.shape[0]) for name in ("mean", "std"))
    else:
        mean, std = channel_statistics(images)
    return Transform(images.shape, mean, std, settings.fit)


def _by_channel(values: Sequence[float], channels: int) -> tuple[float, ...]:
    """A value for each channel; their mean if the numbers differ, as for grey images."""
    return tuple(values) if len(values) == channels else (sum(values) / len(values),) * channels
