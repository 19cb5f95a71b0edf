"""Models of timm, by the prefix `timm:`."""

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from torch import nn

from memwrap.errors import InputError, brief

TIMM = "timm:"

HUB_SECONDS = 5.0  # to wait for an answer of the hub of pretrained weights

# Arguments of timm's `create_model` that say where weights come from, not what the network is.
WEIGHT_SOURCES = ("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir")


def create_timm(name: str, num_classes: int, channels: int, arguments: dict[str, Any]) -> nn.Module:
    """`timm.create_model`, with an InputError if the name is unknown or the pretrained weights are not available."""
    timm = _import_timm(name)
    try:
        with _offline_if_unreachable(arguments):
            classifier: nn.Module = timm.create_model(name, num_classes=num_classes, in_chans=channels, **arguments)
    except Exception as error:
        if not arguments.get("pretrained"):
            raise
        # If this fails too, its error is reported: the weights were not the reason.
        without = {key: value for key, value in arguments.items() if not key.startswith("pretrained")}
        timm.create_model(name, num_classes=num_classes, in_chans=channels, **without)
        raise InputError(
            f"the pretrained weights of 'timm:{name}' are not available ({brief(error)}); check the network, or give "
            "them as a file (--weights), or start without them"
        ) from error
    return classifier


def timm_config(name: str) -> dict[str, Any]:
    """timm's configuration of `timm:NAME`, without building the model: input_size (C, H, W), mean, std, and more."""
    bare = name.removeprefix(TIMM)
    return dict(_import_timm(bare).get_pretrained_cfg(bare).to_dict())


@contextmanager
def _offline_if_unreachable(arguments: dict[str, Any]) -> Iterator[None]:
    """Let the hub's client use its cache if the hub does not answer; it would otherwise retry for a minute."""
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


def _import_timm(name: str) -> Any:
    """The timm module; an InputError if it has no model of that name."""
    try:
        import timm  # a heavy import
    except ImportError as error:
        raise InputError(
            f"encoder 'timm:{name}' needs timm, which is not installed: pip install 'memwrap[timm]'"
        ) from error
    # timm would fetch names with a hub scheme from the network, even without weights.
    if not timm.is_model(name):
        close = difflib.get_close_matches(name, timm.list_models(), n=8)
        raise InputError(
            f"timm has no model {name!r}; it has {', '.join(close) if close else 'none of a similar name'}"
        )
    return timm
