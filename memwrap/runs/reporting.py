"""A finished run as reports need it."""

import torch

from memwrap.errors import SettingsError
from memwrap.model import MemoryClassifier
from memwrap.report.making import Source
from memwrap.runs.evaluation import finished_model
from memwrap.runs.folder import Run, read_model, training_state


def source_of(run: Run, device: torch.device | str = "cpu") -> Source:
    """The run's model with its memory; a SettingsError for one without."""
    model = finished_model(run, device)
    if not isinstance(model, MemoryClassifier) or model.remembered is None:
        raise SettingsError(
            f"{run.path}: is a run of the variant {run.settings.variant}, which has no memory to explain by; "
            "train with --variant memory_wrap or only_memory"
        )
    state = training_state(run.path, read_model(run.path)[0]) or {}
    names = state.get("remembered_names")
    if not isinstance(names, list) or len(names) != len(model.remembered):
        names = None  # of a model that was not made by training
    return Source(str(run.path.absolute()), model, names, run.settings.seed)
