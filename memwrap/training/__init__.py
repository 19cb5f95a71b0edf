"""Training a model on labelled images: settings, recipes, the step and the trainer."""

from typing import TYPE_CHECKING

from memwrap._lazy import lazy_exports

if TYPE_CHECKING:
    from memwrap.data import BalancedMemory, MemorySampler, RandomMemory
    from memwrap.training.building import new_model
    from memwrap.training.plan import BatchPlan
    from memwrap.training.recipes import recipe, resolve_settings
    from memwrap.training.settings import ResolvedSettings, Settings, with_changes
    from memwrap.training.trainer import EpochMetrics, StepMetrics, Trainer

__all__ = [
    "BalancedMemory",
    "BatchPlan",
    "EpochMetrics",
    "MemorySampler",
    "RandomMemory",
    "ResolvedSettings",
    "Settings",
    "StepMetrics",
    "Trainer",
    "new_model",
    "recipe",
    "resolve_settings",
    "with_changes",
]

__getattr__ = lazy_exports(
    __name__,
    {
        **dict.fromkeys(("BalancedMemory", "MemorySampler", "RandomMemory"), "memwrap.data.sampling"),
        "BatchPlan": "memwrap.training.plan",
        "new_model": "memwrap.training.building",
        **dict.fromkeys(("recipe", "resolve_settings"), "memwrap.training.recipes"),
        **dict.fromkeys(("ResolvedSettings", "Settings", "with_changes"), "memwrap.training.settings"),
        **dict.fromkeys(("EpochMetrics", "StepMetrics", "Trainer"), "memwrap.training.trainer"),
    },
)
