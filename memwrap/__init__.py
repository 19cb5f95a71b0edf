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
    from memwrap.attention import sparsemax
    from memwrap.explanation import Explanation, MemorySample
    from memwrap.flip_set import FlipSet
    from memwrap.layer import MemoryWrap, Reading
    from memwrap.loading import load
    from memwrap.memory import RememberedMemory
    from memwrap.model import MemoryClassifier
    from memwrap.standard import StandardClassifier
    from memwrap.transform import Transform
    from memwrap.wrapping import wrap

# Loaded when they are first asked for: torch takes seconds, and `memwrap --help` has no use for it.
_HOMES = {
    "Explanation": "memwrap.explanation",
    "FlipSet": "memwrap.flip_set",
    "MemoryClassifier": "memwrap.model",
    "MemorySample": "memwrap.explanation",
    "MemoryWrap": "memwrap.layer",
    "Reading": "memwrap.layer",
    "RememberedMemory": "memwrap.memory",
    "StandardClassifier": "memwrap.standard",
    "Transform": "memwrap.transform",
    "load": "memwrap.loading",
    "sparsemax": "memwrap.attention",
    "wrap": "memwrap.wrapping",
}

_ROOMS = ("attribution", "encoders")

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
    if name in _ROOMS:
        return import_module(f"memwrap.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'memwrap' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
