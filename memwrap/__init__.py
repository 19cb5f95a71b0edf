"""memwrap gives any image classifier a memory: predictions that come with the training images that made them."""

from memwrap import encoders
from memwrap.attention import sparsemax
from memwrap.errors import (
    InputError,
    LoadError,
    MemwrapError,
    NoMemoryError,
    NonFiniteError,
    SaveError,
    StaleMemoryError,
    WrapError,
)
from memwrap.layer import MemoryWrap, Reading
from memwrap.loading import load
from memwrap.memory import RememberedMemory
from memwrap.model import MemoryClassifier
from memwrap.version import __version__
from memwrap.wrapping import wrap

__all__ = [
    "InputError",
    "LoadError",
    "MemoryClassifier",
    "MemoryWrap",
    "MemwrapError",
    "NoMemoryError",
    "NonFiniteError",
    "Reading",
    "RememberedMemory",
    "SaveError",
    "StaleMemoryError",
    "WrapError",
    "__version__",
    "encoders",
    "load",
    "sparsemax",
    "wrap",
]
