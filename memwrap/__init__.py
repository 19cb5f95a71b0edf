"""memwrap gives any image classifier a memory: predictions that come with the training images that made them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from memwrap.errors import (
    DataError,
    InputError,
    LoadError,
    MemwrapError,
    NoMemoryError,
    NonFiniteError,
    RunError,
    SaveError,
    SettingsError,
    StaleMemoryError,
    TrainingError,
    WrapError,
)
from memwrap.version import __version__

if TYPE_CHECKING:
    from memwrap import attribution, encoders
    from memwrap.data import Transform
    from memwrap.explain.explanation import Explanation, MemorySample
    from memwrap.explain.flip_set import FlipSet
    from memwrap.models.classifier import MemoryClassifier
    from memwrap.models.loading import load
    from memwrap.models.standard import StandardClassifier
    from memwrap.models.wrapping import wrap
    from memwrap.nn.attention import sparsemax
    from memwrap.nn.layer import MemoryWrap, Reading
    from memwrap.nn.memory import RememberedMemory

# Loaded when they are first asked for: torch takes seconds, and `memwrap --help` has no use for it.
_HOMES = {
    "Explanation": "memwrap.explain.explanation",
    "FlipSet": "memwrap.explain.flip_set",
    "MemoryClassifier": "memwrap.models.classifier",
    "MemorySample": "memwrap.explain.explanation",
    "MemoryWrap": "memwrap.nn.layer",
    "Reading": "memwrap.nn.layer",
    "RememberedMemory": "memwrap.nn.memory",
    "StandardClassifier": "memwrap.models.standard",
    "Transform": "memwrap.data.transform",
    "load": "memwrap.models.loading",
    "sparsemax": "memwrap.nn.attention",
    "wrap": "memwrap.models.wrapping",
}

_MODULES = ("attribution", "encoders")

__all__ = [
    "DataError",
    "Explanation",
    "FlipSet",
    "InputError",
    "LoadError",
    "MemoryClassifier",
    "MemorySample",
    "MemoryWrap",
    "MemwrapError",
    "NoMemoryError",
    "NonFiniteError",
    "Reading",
    "RememberedMemory",
    "RunError",
    "SaveError",
    "SettingsError",
    "StaleMemoryError",
    "StandardClassifier",
    "TrainingError",
    "Transform",
    "WrapError",
    "__version__",
    "attribution",
    "encoders",
    "load",
    "sparsemax",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"memwrap.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'memwrap' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
