"""Training a model on labelled images: settings, recipes, the step and the trainer."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memwrap.data import BalancedMemory, MemorySampler, RandomMemory
    from memwrap.training.trainer import Trainer

# Imported on first use: the command line reads the settings here, and torch takes seconds to import.
_HOMES = {
    "BalancedMemory": "memwrap.data.sampling",
    "MemorySampler": "memwrap.data.sampling",
    "RandomMemory": "memwrap.data.sampling",
    "Trainer": "memwrap.training.trainer",
}

__all__ = ["BalancedMemory", "MemorySampler", "RandomMemory", "Trainer"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'memwrap.training' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
