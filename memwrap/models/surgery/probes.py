"""Images to try a classifier on, of a size that it can take."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from memwrap.encoders import create_arguments, has_pretrained, pretrained_config
from memwrap.errors import InputError, WrapError, brief
from memwrap.models.surgery.modules import get_logits

PROBE_SIZE = 2  # images; more than one, because batch normalisation in training needs several

# Heights to try where the classifier does not say its own, cheap and common ones first.
COMMON_SIZES = (32, 224, 64, 28, 96, 128, 256, 299, 384, 512, 16, 8)


def probe_images(classifier: nn.Module, example: Tensor | None = None) -> Tensor:
    """Random images (2, channels, H, W) that `classifier` can take in evaluation and in training.

    example: images of the right shape, where the caller knows it; None tries likely ones. The classifier is run in both
    modes, which changes its statistics: give a copy.
    """
    if example is not None:
        _check_example(example)
    shapes = [tuple(example.shape[1:])] if example is not None else list(dict.fromkeys(_likely_shapes(classifier)))
    failures = []
    for shape in shapes:
        images = _random_images(classifier, shape)
        failure = _failure(classifier, images)
        if failure is None:
            return images
        failures.append(f"\n  {shape}: {failure}")
    hint = "" if example is not None else "; give some of your images, as in wrap(classifier, example=images)"
    raise WrapError(f"the classifier takes none of the image shapes tried{hint}:{''.join(failures[:4])}")


def _check_example(example: Tensor) -> None:
    if not isinstance(example, Tensor):
        raise InputError(f"example is a {type(example).__name__}; expected a float tensor (B, channels, H, W)")
    if example.ndim != 4 or not example.is_floating_point():
        raise InputError(
            f"example has shape {tuple(example.shape)} and dtype {example.dtype}; "
            "expected floating point (B, channels, H, W)"
        )


def _failure(classifier: nn.Module, images: Tensor) -> str | None:
    for training in (False, True):
        classifier.train(training)
        try:
            with torch.no_grad():
                output = classifier(images)
        except WrapError:
            raise
        except Exception as error:
            return brief(error) + (" (in training)" if training else "")
        get_logits(output)
    return None


def _random_images(classifier: nn.Module, shape: tuple[int, ...]) -> Tensor:
    parameter = next((p for p in classifier.parameters() if p.is_floating_point()), torch.empty(0))
    images = torch.randn(PROBE_SIZE, *shape, generator=torch.Generator().manual_seed(0))
    return images.to(parameter.device, parameter.dtype)


def _likely_shapes(classifier: nn.Module) -> Iterator[tuple[int, int, int]]:
    """What the classifier says of itself first, then guesses."""
    channel_counts = list(_likely_channels(classifier))
    for height, width in _own_sizes(classifier):
        yield from ((channels, height, width) for channels in channel_counts)
    for size in COMMON_SIZES:
        yield from ((channels, size, size) for channels in channel_counts)
    # A network that begins with a linear layer on all pixels fixes their number.
    for module in classifier.modules():
        if isinstance(module, nn.Linear):
            for channels in (1, 3):
                side = math.isqrt(module.in_features // channels)
                if channels * side * side == module.in_features:
                    yield channels, side, side


def _own_sizes(classifier: nn.Module) -> Iterator[tuple[int, int]]:
    """Heights and widths that a classifier carries with it, or that all of its library are made for."""
    arguments = create_arguments(classifier)
    if arguments is not None and has_pretrained(arguments["name"]):
        _, height, width = pretrained_config(arguments["name"])["input_size"]
        yield height, width
    elif arguments is not None:
        yield 32, 32
    if type(classifier).__module__.startswith("torchvision."):
        yield 224, 224
    fixed = getattr(getattr(classifier, "patch_embed", None), "img_size", None)
    settings: Any = getattr(classifier, "pretrained_cfg", None) or {}
    said = settings.get("input_size") if isinstance(settings, dict) else None
    configured = getattr(getattr(classifier, "config", None), "image_size", None)
    for size in (fixed, said and said[-2:], configured):
        if isinstance(size, int):
            yield size, size
        elif isinstance(size, tuple | list) and len(size) == 2 and all(isinstance(side, int) for side in size):
            yield size[0], size[1]


def _likely_channels(classifier: nn.Module) -> Iterator[int]:
    # The first convolution is the one registered first or the one of the fewest channels; neither is sure.
    taken = [module.in_channels for module in classifier.modules() if isinstance(module, nn.Conv2d)]
    yield from dict.fromkeys([*taken[:1], *sorted(taken)[:1], 3, 1])
