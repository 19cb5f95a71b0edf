"""A run judged on its test images, or on any labelled ones: all scores in one record, and what had to be left out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from memwrap.data import DataSet, LabelledImages
from memwrap.errors import DataError, RunError
from memwrap.models.classifier import MemoryClassifier
from memwrap.models.evaluation import Encoded, remembered_scores, standard_scores
from memwrap.models.loading import Model
from memwrap.nn.modes import evaluation_mode
from memwrap.runs.drawn import SUBSET, WHOLE, encoded, scores_by_source, sources_of
from memwrap.runs.run import Run


def evaluate_run(
    run: Run, model: Model, data: DataSet | str, judged: LabelledImages | None, split: str
) -> dict[str, Any]:
    """All scores of the run.

    data: the run's own data, or in words why it cannot be had. judged: labelled images to judge instead of one of the
    run's own splits, "test" or "validation".
    """
    left_out: dict[str, str] = {}
    record: dict[str, Any] = {
        "run": str(run.path),
        "variant": run.settings.variant,
        "classes": list(run.classes),
        "split": split,
        "left_out": left_out,
    }
    if judged is None:
        if isinstance(data, str):
            left_out["accuracy"] = f"no images to judge: {data}"
            return {**record, "memory": _memory_facts(model)}
        judged = run.splits.of(data, split)
    if not len(judged):
        raise DataError(f"the run has no {split} images; train with --{split} to set some apart, or give --data")
    with evaluation_mode(model):
        test = encoded(model, judged)
        record["images"] = len(test)
        if not isinstance(model, MemoryClassifier):
            return {**record, "standard": standard_scores(model.layer, test)}
        return {
            **record,
            "memory": _memory_facts(model),
            "remembered": _remembered(model, test),
            "drawn": _drawn(run, model, data, test, left_out),
        }


def _remembered(model: MemoryClassifier, test: Encoded) -> dict[str, Any]:
    memory = model.remembered
    if memory is None:
        raise RunError("the run's model has no memory; the run is damaged")
    return remembered_scores(model.layer, test, Encoded(memory.encodings, memory.labels), memory.predictions)


def _drawn(
    run: Run, model: MemoryClassifier, data: DataSet | str, test: Encoded, left_out: dict[str, str]
) -> dict[str, Any]:
    """Scores with drawn memories, by where they are drawn from."""
    if isinstance(data, str):
        left_out.update({f"drawn from the {name.replace('_', ' ')}": data for name in (SUBSET, WHOLE)})
        return {}
    sources = sources_of(run.splits)
    if WHOLE not in sources:
        left_out["drawn from the whole training set"] = "the run was trained on all of it"
    return scores_by_source(model, data, run.splits, run.settings, test, sources)


def _memory_facts(model: Model) -> dict[str, Any] | None:
    """How large the remembered memory is, and how many of its samples the model itself puts into their class."""
    memory = model.remembered if isinstance(model, MemoryClassifier) else None
    if memory is None:
        return None
    agreeing = None if memory.predictions is None else (memory.predictions == memory.labels).double().mean().item()
    return {"size": len(memory), "own_accuracy": agreeing}


def labelled_like(classes: Sequence[str], data: DataSet, where: Path | str) -> LabelledImages:
    """The images of another data set with the labels of a model's classes; its test split, or all if it has none."""
    images = data.test if data.test is not None else data.train
    if unknown := [name for name in data.classes if name not in classes]:
        raise DataError(
            f"{where}: has classes that the model does not know ({', '.join(unknown[:5])}); "
            f"it knows {', '.join(classes[:20])}"
        )
    numbers = torch.tensor([classes.index(name) for name in data.classes])
    return LabelledImages(images.images, numbers[images.labels], images.names)
