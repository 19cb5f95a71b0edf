"""memwrap gives any image classifier a memory: predictions that come with the training images that made them."""

from typing import TYPE_CHECKING

from memwrap._lazy import lazy_exports
from memwrap.errors import (
    DataError,
    InputError,
    LoadError,
    MemwrapError,
    MemwrapWarning,
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
    from memwrap.models.wrapping import attach, wrap
    from memwrap.nn.attention import sparsemax
    from memwrap.nn.layer import MemoryWrap
    from memwrap.nn.memory import RememberedMemory
    from memwrap.nn.reading import Reading
    from memwrap.nn.vote_layer import VoteLayer
    from memwrap.runs.api import TrainedRun, calibrate, evaluate, train

_HOMES = {
    "attach": "memwrap.models.wrapping",
    "attribution": "memwrap.attribution",
    "calibrate": "memwrap.runs.api",
    "encoders": "memwrap.encoders",
    "evaluate": "memwrap.runs.api",
    "Explanation": "memwrap.explain.explanation",
    "FlipSet": "memwrap.explain.flip_set",
    "MemoryClassifier": "memwrap.models.classifier",
    "MemorySample": "memwrap.explain.explanation",
    "MemoryWrap": "memwrap.nn.layer",
    "Reading": "memwrap.nn.reading",
    "RememberedMemory": "memwrap.nn.memory",
    "StandardClassifier": "memwrap.models.standard",
    "TrainedRun": "memwrap.runs.api",
    "Transform": "memwrap.data.transform",
    "VoteLayer": "memwrap.nn.vote_layer",
    "load": "memwrap.models.loading",
    "sparsemax": "memwrap.nn.attention",
    "train": "memwrap.runs.api",
    "wrap": "memwrap.models.wrapping",
}

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
    "MemwrapWarning",
    "NoMemoryError",
    "NonFiniteError",
    "Reading",
    "RememberedMemory",
    "RunError",
    "SaveError",
    "SettingsError",
    "StaleMemoryError",
    "StandardClassifier",
    "TrainedRun",
    "TrainingError",
    "Transform",
    "VoteLayer",
    "WrapError",
    "__version__",
    "attach",
    "attribution",
    "calibrate",
    "encoders",
    "evaluate",
    "load",
    "sparsemax",
    "train",
    "wrap",
]


__getattr__ = lazy_exports(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
