"""Create a classifier by name: one of ours, or one of timm's by the prefix `timm:`."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import nn

from memwrap.encoders.blocks import Classifier
from memwrap.encoders.lite import PUBLISHED, lite_config, timm_name
from memwrap.encoders.timm_models import TIMM, WEIGHT_SOURCES, check_stored_timm, create_timm, timm_config
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
    **dict.fromkeys(PUBLISHED, "lite"),
}

# The attribute of a classifier that holds the arguments of `create`, outside its modules and its state_dict.
ARGUMENTS_ATTRIBUTE = "memwrap_arguments"


def names() -> list[str]:
    """The names that `create` takes, besides `timm:NAME`.

    >>> "resnet18" in names()
    True
    """
    return list(_FILES)


def has_pretrained(name: str) -> bool:
    """Whether `create` takes `pretrained=True` with this name; a model of timm may still have no weights.

    >>> [has_pretrained(name) for name in ("lite0", "timm:resnet18", "resnet18")]
    [True, True, False]
    """
    return name in PUBLISHED or name.startswith(TIMM)


def pretrained_config(name: str) -> dict[str, Any]:
    """What an encoder's pretrained weights were trained with: input_size (C, H, W), mean, std, fixed_input_size.

    >>> pretrained_config("lite1")["input_size"]
    (3, 240, 240)
    """
    if not has_pretrained(name):
        raise InputError(f"encoder {name!r} has no pretrained weights; expected {', '.join(PUBLISHED)}, or timm:NAME")
    facts = lite_config(name) if name in PUBLISHED else {"fixed_input_size": False, **timm_config(name)}
    return {key: facts[key] for key in ("input_size", "mean", "std", "fixed_input_size")}


def create(name: str, num_classes: int, channels: int = 3, **arguments: Any) -> nn.Module:
    """A new classifier: images (B, channels, H, W) -> logits (B, num_classes).

    name: one of `names()`, which are made for small images, about 32x32, except for `lite0`, `lite1` and `lite2`: made
    for photographs, and given ImageNet weights by `pretrained=True`. Or `timm:NAME` for a model of timm, whose
    `create_model` gets the other arguments (`pretrained=True`, `img_size=64`, ...).

    >>> create("tiny", num_classes=4)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 4])
    """
    check_sizes(num_classes=num_classes, channels=channels)
    if name.startswith(TIMM):
        classifier = create_timm(name.removeprefix(TIMM), num_classes, channels, arguments)
    elif name not in _FILES:
        raise InputError(f"encoder {name!r} is not known; known are {', '.join(_FILES)}, and timm:NAME")
    elif unknown := [key for key in arguments if key != "pretrained" or not has_pretrained(name)]:
        known = "num_classes, channels and pretrained" if has_pretrained(name) else "num_classes and channels"
        raise InputError(f"encoder {name!r} takes {known}; given too: {', '.join(unknown)}")
    else:
        builder: Callable[..., Classifier] = getattr(import_module(f"memwrap.encoders.{_FILES[name]}"), name)
        classifier = builder(num_classes, channels, **arguments)
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
    elif name in PUBLISHED:
        check_stored_timm(timm_name(name), {})  # imports timm, which two threads may not do at once
