"""The images that a classifier of timm, torchvision or transformers was made for, by its library's configuration."""

from typing import Any

from torch import nn

from memwrap.data import Transform
from memwrap.encoders import create_arguments, has_pretrained, pretrained_config
from memwrap.errors import MemwrapError

# Of all weights for ImageNet that torchvision publishes.
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def known_transform(encoder: nn.Module, shape: tuple[int, int, int]) -> Transform | None:
    """The transform for images (channels, height, width) of this shape; None if the classifier does not say it."""
    package = type(encoder).__module__.split(".")[0]
    arguments = create_arguments(encoder)
    if arguments is not None:
        return _of_config(pretrained_config(arguments["name"]), shape) if has_pretrained(arguments["name"]) else None
    if package == "timm":
        return _of_config(getattr(encoder, "pretrained_cfg", {}), shape)
    if package == "torchvision":
        return _build(shape, _IMAGENET_MEAN, _IMAGENET_STD)
    return _of_processor(encoder, shape) if package == "transformers" else None


def _of_config(config: Any, shape: tuple[int, int, int]) -> Transform | None:
    if not isinstance(config, dict) or not {"mean", "std"} <= config.keys():
        return None
    return _build(shape, config["mean"], config["std"])


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
        return _build(shape, processor.image_mean, processor.image_std)
    except Exception:  # none is there, or it needs another library
        return None


def _build(shape: tuple[int, int, int], mean: Any, std: Any) -> Transform | None:
    """None for values that do not fit the shape, as of grey images."""
    try:
        return Transform(shape, tuple(mean), tuple(std))
    except (TypeError, MemwrapError):
        return None
