"""Heatmaps: the public name of `memwrap.explain.attribution`."""

from memwrap.explain.attribution import *  # noqa: F403
from memwrap.explain.attribution import __all__ as __all__
