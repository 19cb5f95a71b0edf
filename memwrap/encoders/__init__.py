"""Encoders by name: the paper's six for 32x32 images, `small` and `tiny` for CPUs, and `timm:NAME` for all of timm's.

To add one, write a file with a builder `name(num_classes, channels) -> Classifier`, and add a line to `registry.py`.
"""

from memwrap.encoders.blocks import Classifier
from memwrap.encoders.registry import create, create_arguments, names
from memwrap.encoders.timm_models import TIMM, timm_config

__all__ = ["TIMM", "Classifier", "create", "create_arguments", "names", "timm_config"]
