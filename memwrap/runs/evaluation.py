"""The evaluation of a run on its test images, or on other labelled images."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from memwrap.data import DataSet, LabelledImages, Progress
from memwrap.errors import DataError, RunError
from memwrap.models.caching import CachedEncoder
from memwrap.models.classifier import MemoryClassifier
from memwrap.models.evaluation import Encoded, remembered_scores, standard_scores
from memwrap.models.evidence import evidence_scores
from memwrap.models.inference import encode_all
from memwrap.models.loading import Model
from memwrap.nn.memory import RememberedMemory
from memwrap.nn.modes import evaluation_mode
from memwrap.runs.drawn import SUBSET, WHOLE, Encode, encoded, scores_by_source, sources_of
from memwrap.runs.run import Run, SavedModel
from memwrap.runs.scores import Evaluation


def evaluate_run(
    run: SavedModel,
    model: Model,
    data: DataSet | str,
    images: LabelledImages | None,
    split: str,
    encode: Encode = encode_all,
) -> dict[str, Any]:
    """All scores of a run, or of a model that was saved by itself, as the JSON of an `Evaluation`.

    data: the run's data, or the reason why it is not available. images: labelled images to evaluate on, instead of the
    run's split "test" or "validation". encode: how images become encodings.
    """
    left_out: dict[str, str] = {}
    record: dict[str, Any] = {
        "run": str(run.path),
        "variant": model.layer_settings()["variant"],
        "decided_by": model.decided_by,
        "classes": list(model.classes or ()),
        "split": split,
        "left_out": left_out,
    }
    if images is None and isinstance(data, str):
        left_out["accuracy"] = f"no images to evaluate on: {data}"
        return _as_json({**record, "memory": _memory_info(run, model)})
    if images is None:
        assert isinstance(data, DataSet)
        assert isinstance(run, Run)
        images = run.splits.of(data, split)
    if not len(images):
        raise DataError(f"the run has no {split} images; train with --{split} to hold some out, or give --data")
    with evaluation_mode(model):
        test = encoded(model, images, encode)
        record["images"] = len(test)
        if isinstance(model, MemoryClassifier):
            record["memory"] = _memory_info(run, model)
            record["remembered"] = _remembered(model, test)
            record["evidence"] = asdict(evidence_scores(model.layer, test.encodings, model.fresh_memory()))
            if model.trains_with_memory:
                record["drawn"] = _drawn(run, model, data, test, left_out)
        else:
            record["standard"] = standard_scores(model.layer, test, model.calibration)
    return _as_json(record)


def encoder_for(run: SavedModel, model: Model, bars: Progress | None = None) -> Encode:
    """What encodes images for an evaluation: with a cache, if the encoder is a pretrained one that stays as it is."""
    if isinstance(run, Run) and run.settings.freeze and (run.settings.pretrained or run.settings.weights):
        cached = CachedEncoder(model, progress=bars)
        return lambda _, images: cached.encode(images)
    return encode_all


def _as_json(record: dict[str, Any]) -> dict[str, Any]:
    return Evaluation.model_validate(record).model_dump(exclude_unset=True)


def _remembered(model: MemoryClassifier, test: Encoded) -> dict[str, Any]:
    memory = model.remembered
    if memory is None:
        raise RunError("the run's model has no memory; the run is damaged")
    return remembered_scores(model.layer, test, memory, model.calibration)


def _drawn(
    run: SavedModel, model: MemoryClassifier, data: DataSet | str, test: Encoded, left_out: dict[str, str]
) -> dict[str, Any]:
    """Scores with drawn memories, by where they are drawn from."""
    if isinstance(data, str) or not isinstance(run, Run):
        data = str(data)
        left_out.update({f"drawn from the {name.replace('_', ' ')}": data for name in (SUBSET, WHOLE)})
        return {}
    sources = sources_of(run.splits)
    if WHOLE not in sources:
        left_out["drawn from the whole training set"] = "the run was trained on all of it"
    return scores_by_source(model, data, run.splits, run.settings, test, sources)


def _memory_info(run: SavedModel, model: Model) -> dict[str, Any] | None:
    """The size of the remembered memory, and the share of such images that the model assigns to their class."""
    memory = model.remembered if isinstance(model, MemoryClassifier) else None
    if memory is None:
        return None
    return {"size": len(memory), "own_accuracy": _own_accuracy(run, model, memory)}


def _own_accuracy(run: SavedModel, model: Model, memory: RememberedMemory) -> float | None:
    """Of images that did not take part in predicting themselves; None where that is not known.

    A fitted layer has learnt the labels of its memory: leaving an image out of the memory is not enough.
    """
    fitted = run.state.fitted if isinstance(run, Run) and run.state is not None else None
    if fitted is not None:
        if run.state.edited:  # type: ignore[union-attr]
            return None
        return fitted.vote_accuracy if model.decided_by == "vote" else fitted.head_accuracy
    predictions = memory.predictions
    return None if predictions is None else (predictions == memory.labels).double().mean().item()


def labelled_like(classes: Sequence[str], data: DataSet, where: Path | str) -> LabelledImages:
    """The images of another data set, labelled by a model's classes; its test split, or all if it has none."""
    images = data.test if data.test is not None else data.train
    if unknown := [name for name in data.classes if name not in classes]:
        raise DataError(
            f"{where}: has classes that the model does not know ({', '.join(unknown[:5])}); "
            f"it knows {', '.join(classes[:20])}"
        )
    numbers = torch.tensor([classes.index(name) for name in data.classes])
    return LabelledImages(images.images, numbers[images.labels], images.names)
