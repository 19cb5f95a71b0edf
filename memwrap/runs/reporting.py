"""A run, or a model that was saved by itself, as the source of a report."""

import torch

from memwrap.errors import SettingsError
from memwrap.models.classifier import MemoryClassifier
from memwrap.report.create import Source
from memwrap.runs.run import SavedModel


def source_of(folder: SavedModel, device: torch.device | str = "cpu") -> Source:
    """The model in this folder with its memory; a SettingsError for one without."""
    model = folder.model(device)
    if not isinstance(model, MemoryClassifier):
        raise SettingsError(
            f"{folder.path}: is a model of the variant standard, which has no memory to explain by; "
            "train with --variant vote, memory_wrap or only_memory"
        )
    if model.remembered is None:
        raise SettingsError(
            f"{folder.path}: the model has no memory to explain by; give it one with "
            "model.remember(images, labels), and save it again"
        )
    names = folder.memory_names
    return Source(str(folder.path.absolute()), model, None if names is None else list(names), folder.seed)
