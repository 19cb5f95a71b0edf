"""Names to classifiers: ours from a dictionary of builders, timm's behind the prefix `timm:`."""

import difflib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from torch import nn

from memwrap.encoders.densenet import densenet
from memwrap.encoders.efficientnet import efficientnet_b0
from memwrap.encoders.googlenet import googlenet
from memwrap.encoders.mobilenet import mobilenet_v2
from memwrap.encoders.resnet import resnet18
from memwrap.encoders.shufflenet import shufflenet_v2
from memwrap.encoders.small import small
from memwrap.encoders.tiny import tiny
from memwrap.errors import InputError, brief
from memwrap.nn.checks import check_sizes

TIMM = "timm:"

HUB_SECONDS = 5.0  # in which the hub of pretrained weights answers, or is not asked

_BUILDERS: dict[str, Callable[[int, int], nn.Module]] = {
    "efficientnet_b0": efficientnet_b0,
    "mobilenet_v2": mobilenet_v2,
    "resnet18": resnet18,
    "googlenet": googlenet,
    "densenet": densenet,
    "shufflenet_v2": shufflenet_v2,
    "small": small,
    "tiny": tiny,
}

# The attribute of a classifier that tells how it was made; beside its modules, where state_dict does not show it.
_RECIPE = "memwrap_recipe"

# What tells timm where weights come from, not what the network is; arguments read from a file may not say it.
_WEIGHT_SOURCES = ("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir")


def names() -> list[str]:
    """The names that `create` knows, besides `timm:NAME`."""
    return list(_BUILDERS)


def create(name: str, num_classes: int, channels: int = 3, **arguments: Any) -> nn.Module:
    """A new classifier for images (B, channels, H, W), giving logits (B, num_classes).

    name: one of `names()`, all made for small images, 32x32 or so; or `timm:NAME` for any model of timm, to whose
    `create_model` the other arguments go (`pretrained=True`, `img_size=64`, ...).
    """
    check_sizes(num_classes=num_classes, channels=channels)
    if name.startswith(TIMM):
        classifier = _create_timm(name.removeprefix(TIMM), num_classes, channels, arguments)
    elif name not in _BUILDERS:
        raise InputError(f"encoder {name!r} is not known; known are {', '.join(_BUILDERS)}, and timm:NAME")
    elif arguments:
        raise InputError(f"encoder {name!r} takes num_classes and channels; given too: {', '.join(arguments)}")
    else:
        classifier = _BUILDERS[name](num_classes, channels)
    structure = {key: value for key, value in arguments.items() if key not in _WEIGHT_SOURCES}
    recipe = {"name": name, "num_classes": num_classes, "channels": channels, **structure}
    classifier.__dict__[_RECIPE] = recipe
    return classifier


def recipe_of(classifier: nn.Module) -> dict[str, Any] | None:
    """The arguments by which `create` made this classifier, less where weights came from; None if it did not."""
    return classifier.__dict__.get(_RECIPE)


def create_untrained(name: str, **arguments: Any) -> nn.Module:
    """What `create` gives, with new weights: nothing is downloaded or read, and to ask for it is refused."""
    if forbidden := sorted(set(arguments) & set(_WEIGHT_SOURCES)):
        raise InputError(f"the arguments of {name!r} name a source of weights ({', '.join(forbidden)})")
    return create(name, **arguments)


def timm_facts(name: str) -> dict[str, Any]:
    """What timm knows of `timm:NAME` without building it: input_size (C, H, W), mean, std, and more."""
    bare = name.removeprefix(TIMM)
    return dict(_timm_with(bare).get_pretrained_cfg(bare).to_dict())


def _create_timm(name: str, num_classes: int, channels: int, arguments: dict[str, Any]) -> nn.Module:
    timm = _timm_with(name)
    try:
        with _quick_to_fail(arguments):
            classifier: nn.Module = timm.create_model(name, num_classes=num_classes, in_chans=channels, **arguments)
    except Exception as error:
        if not arguments.get("pretrained"):
            raise
        without = {key: value for key, value in arguments.items() if not key.startswith("pretrained")}
        timm.create_model(name, num_classes=num_classes, in_chans=channels, **without)  # fails if not for the weights
        raise InputError(
            f"the pretrained weights of 'timm:{name}' cannot be had ({brief(error)}); check the network, or give them "
            "as a file (--weights), or start without them"
        ) from error
    return classifier


@contextmanager
def _quick_to_fail(arguments: dict[str, Any]) -> Iterator[None]:
    """Within this the hub's client uses what it has stored if the hub does not answer: it would try for a minute."""
    if not arguments.get("pretrained") or "pretrained_cfg_overlay" in arguments:
        yield
        return
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not _answers(constants.ENDPOINT)
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _answers(url: str) -> bool:
    try:
        urlopen(Request(url, method="HEAD"), timeout=HUB_SECONDS).close()
    except HTTPError:
        return True
    except (OSError, HTTPException):
        return False
    return True


def _timm_with(name: str) -> Any:
    """The library, which has a model of that name."""
    try:
        import timm  # a heavy import
    except ImportError as error:
        raise InputError(
            f"encoder 'timm:{name}' needs timm, which is not installed: pip install 'memwrap[timm]'"
        ) from error
    # Names of timm's hub schemes would be fetched from the network even without weights.
    if not timm.is_model(name):
        close = difflib.get_close_matches(name, timm.list_models(), n=8)
        raise InputError(
            f"timm has no model {name!r}; it has {', '.join(close) if close else 'none of a similar name'}"
        )
    return timm
