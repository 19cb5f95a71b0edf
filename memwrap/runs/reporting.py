"""A finished run, or a model that was saved on its own, as reports need it."""

from pathlib import Path

import torch

from memwrap.errors import SettingsError
from memwrap.models.classifier import MemoryClassifier
from memwrap.report.create import Source
from memwrap.runs.evaluation import model_at, run_at
from memwrap.runs.folder import read_model, training_state


def source_at(path: Path, device: torch.device | str = "cpu") -> Source:
    """The model in this folder with its memory; a SettingsError for one without."""
    model, run = model_at(path, device), run_at(path)
    if not isinstance(model, MemoryClassifier):
        raise SettingsError(
            f"{path}: is a model of the variant standard, which has no memory to explain by; "
            "train with --variant memory_wrap or only_memory"
        )
    if model.remembered is None:
        raise SettingsError(
            f"{path}: the model has no memory to explain by; give it one with "
            "model.remember(images, labels), and save it again"
        )
    state = training_state(path, read_model(path)[0]) or {}
    names = state.get("remembered_names")
    if not isinstance(names, list) or len(names) != len(model.remembered):
        names = None  # of a model that was not made by training
    return Source(str(path.absolute()), model, names, 0 if run is None else run.settings.seed)
