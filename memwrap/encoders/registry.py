"""Create a classifier by name: one of ours, or one of timm's by the prefix `timm:`."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import nn

from memwrap.encoders.blocks import Classifier
from memwrap.encoders.timm_models import TIMM, WEIGHT_SOURCES, check_stored_timm, create_timm
from memwrap.errors import InputError
from memwrap.nn.checks import check_sizes

# The file of each encoder, which has a builder of the encoder's name.
_FILES = {
    "efficientnet_b0": "efficientnet",
    "mobilenet_v2": "mobilenet",
    "resnet18": "resnet",
    "googlenet": "googlenet",
    "densenet": "densenet",
    "shufflenet_v2": "shufflenet",
    "small": "small",
    "tiny": "tiny",
}

# The attribute of a classifier that holds the arguments of `create`, outside its modules and its state_dict.
ARGUMENTS_ATTRIBUTE = "memwrap_arguments"


def names() -> list[str]:
    """The names that `create` takes, besides `timm:NAME`.

    >>> "resnet18" in names()
    True
    """
    return list(_FILES)


def create(name: str, num_classes: int, channels: int = 3, **arguments: Any) -> nn.Module:
    """A new classifier: images (B, channels, H, W) -> logits (B, num_classes).

    name: one of `names()`, which are made for small images, about 32x32; or `timm:NAME` for a model of timm, whose
    `create_model` gets the other arguments (`pretrained=True`, `img_size=64`, ...).

    >>> create("tiny", num_classes=4)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 4])
    """
    check_sizes(num_classes=num_classes, channels=channels)
    if name.startswith(TIMM):
        classifier = create_timm(name.removeprefix(TIMM), num_classes, channels, arguments)
    elif name not in _FILES:
        raise InputError(f"encoder {name!r} is not known; known are {', '.join(_FILES)}, and timm:NAME")
    elif arguments:
        raise InputError(f"encoder {name!r} takes num_classes and channels; given too: {', '.join(arguments)}")
    else:
        builder: Callable[[int, int], Classifier] = getattr(import_module(f"memwrap.encoders.{_FILES[name]}"), name)
        classifier = builder(num_classes, channels)
    structure = {key: value for key, value in arguments.items() if key not in WEIGHT_SOURCES}
    created_with = {"name": name, "num_classes": num_classes, "channels": channels, **structure}
    classifier.__dict__[ARGUMENTS_ATTRIBUTE] = created_with
    return classifier


def create_arguments(classifier: nn.Module) -> dict[str, Any] | None:
    """The arguments that `create` built this classifier with, except sources of weights; None if it did not."""
    return classifier.__dict__.get(ARGUMENTS_ATTRIBUTE)


def check_stored(name: str, arguments: dict[str, Any]) -> None:
    """An InputError for arguments of `create` that a file may not give: sources of weights, and what is not plain."""
    if forbidden := sorted(set(arguments) & set(WEIGHT_SOURCES)):
        raise InputError(f"the arguments of {name!r} name a source of weights ({', '.join(forbidden)})")
    if name.startswith(TIMM):
        others = {key: value for key, value in arguments.items() if key not in ("num_classes", "channels")}
        check_stored_timm(name.removeprefix(TIMM), others)
