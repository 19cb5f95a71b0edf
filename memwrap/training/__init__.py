"""Training a model on labelled images: what is drawn, what a step does, and how the steps follow each other."""

from memwrap.samplers import BalancedMemory, MemorySampler, RandomMemory
from memwrap.training.loop import Trainer

__all__ = ["BalancedMemory", "MemorySampler", "RandomMemory", "Trainer"]
