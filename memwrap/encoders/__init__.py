"""The encoders: the paper's six for 32x32 images, two small ones for CPUs, and all of timm's."""

from memwrap.encoders.registry import create, names

__all__ = ["create", "names"]
