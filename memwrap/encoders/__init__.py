"""Encoders by name: the paper's six for 32x32 images, `small` and `tiny` for CPUs, and all of timm's as `timm:NAME`.

`lite0`, `lite1` and `lite2` have pretrained weights that are installed with pip, and need no network.

To add one, write a file with a builder `name(num_classes, channels) -> Classifier`, and add a line to `registry.py`.
"""

from memwrap.encoders.blocks import Classifier
from memwrap.encoders.registry import create, create_arguments, has_pretrained, names, pretrained_config
from memwrap.encoders.timm_models import TIMM, timm_config

__all__ = [
    "TIMM",
    "Classifier",
    "create",
    "create_arguments",
    "has_pretrained",
    "names",
    "pretrained_config",
    "timm_config",
]
