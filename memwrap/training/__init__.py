"""Training a model on labelled images: settings, recipes, the step and the trainer."""

from typing import TYPE_CHECKING

from memwrap._lazy import lazy_exports

if TYPE_CHECKING:
    from memwrap.data import BalancedMemory, MemorySampler, RandomMemory
    from memwrap.training.recipes import recipe, resolve_settings
    from memwrap.training.settings import ResolvedSettings, Settings, with_changes
    from memwrap.training.trainer import Trainer

__all__ = [
    "BalancedMemory",
    "MemorySampler",
    "RandomMemory",
    "ResolvedSettings",
    "Settings",
    "Trainer",
    "recipe",
    "resolve_settings",
    "with_changes",
]

__getattr__ = lazy_exports(
    __name__,
    {
        **dict.fromkeys(("BalancedMemory", "MemorySampler", "RandomMemory"), "memwrap.data.sampling"),
        **dict.fromkeys(("recipe", "resolve_settings"), "memwrap.training.recipes"),
        **dict.fromkeys(("ResolvedSettings", "Settings", "with_changes"), "memwrap.training.settings"),
        "Trainer": "memwrap.training.trainer",
    },
)
