"""The images that a classifier of timm, torchvision or transformers was made for, by its library's configuration."""

import math
from typing import Any

from torch import nn

from memwrap.data import Transform
from memwrap.encoders import create_arguments, has_pretrained, pretrained_config
from memwrap.errors import MemwrapError

_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and standard deviation
_HALF = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
_LARGE = 100_000_000  # parameters; only one EfficientNet of torchvision has more: efficientnet_v2_l


def known_transform(encoder: nn.Module, shape: tuple[int, int, int]) -> Transform | None:
    """The transform for images (channels, height, width) of this shape; None if the classifier does not say it."""
    package = type(encoder).__module__.split(".")[0]
    arguments = create_arguments(encoder)
    if arguments is not None:
        return _of_config(pretrained_config(arguments["name"]), shape) if has_pretrained(arguments["name"]) else None
    if package == "timm":
        return _of_config(getattr(encoder, "pretrained_cfg", {}), shape)
    if package == "torchvision":
        return _build(shape, *_of_torchvision(encoder))
    return _of_processor(encoder, shape) if package == "transformers" else None


def _of_config(config: Any, shape: tuple[int, int, int]) -> Transform | None:
    if not isinstance(config, dict) or not {"mean", "std"} <= config.keys():
        return None
    return _build(shape, config["mean"], config["std"])


def _of_torchvision(encoder: nn.Module) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The colours of all weights for ImageNet that torchvision publishes, but for one network."""
    is_other = type(encoder).__name__ == "EfficientNet" and sum(each.numel() for each in encoder.parameters()) > _LARGE
    return _HALF if is_other else _IMAGENET


def _of_processor(encoder: nn.Module, shape: tuple[int, int, int]) -> Transform | None:
    """By the image processor that lies with the model's weights; nothing is downloaded.

    The defaults of the processor's class would be wrong for many models, and nobody would notice.
    """
    place = getattr(getattr(encoder, "config", None), "_name_or_path", "")
    if not place:
        return None
    from transformers import AutoImageProcessor

    try:
        processor: Any = AutoImageProcessor.from_pretrained(place, local_files_only=True)
        if not (processor.do_normalize and processor.do_rescale and math.isclose(processor.rescale_factor, 1 / 255)):
            return None  # its images are not those that a transform makes
        return _build(shape, processor.image_mean, processor.image_std)
    except Exception:  # none is there, or it needs another library
        return None


def _build(shape: tuple[int, int, int], mean: Any, std: Any) -> Transform | None:
    """None for values that do not fit the shape, as of grey images."""
    try:
        return Transform(shape, tuple(mean), tuple(std))
    except (TypeError, MemwrapError):
        return None
