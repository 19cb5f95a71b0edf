"""A run around a trained classifier: nothing is trained, images of its classes become the memory next to it."""

from pathlib import Path
from typing import Any

import torch

from memwrap.data import DataSet, check_size
from memwrap.data import Progress as Bars
from memwrap.encoders.weights import read_weights
from memwrap.errors import SettingsError
from memwrap.models.caching import CachedEncoder
from memwrap.models.classifier import MemoryClassifier
from memwrap.models.inference import remember_encoded
from memwrap.models.wrapping import attach
from memwrap.nn.vote_layer import SCALE, Decide, without_head
from memwrap.runs.base import remembered_indices, training_state
from memwrap.runs.calibrating import calibrate, calibrate_by_memory, choose_scale
from memwrap.runs.drawn import encoded
from memwrap.runs.record import new_record
from memwrap.runs.run import Run, create_run, refuse_if_taken
from memwrap.runs.splits import split
from memwrap.runs.training import device_name, session_on
from memwrap.training.building import new_classifier, transform_for
from memwrap.training.recipes import resolve_settings
from memwrap.training.settings import ResolvedSettings, Settings
from memwrap.training.trainer import Progress

ATTACHED = "attached"  # in place of a recipe's name


TEST = 0.2  # of the images of a classifier that was not trained on them


def attach_settings(encoder: str, given: dict[str, Any]) -> Settings:
    """The settings of a run that is attached to this classifier, with given or else its pretrained weights.

    Weights that are given may have been trained on any of the images: unless asked for, none are held out for testing.
    """
    pretrained = given.get("weights") is None
    test = given.get("test")
    fixed = {"variant": "vote", "freeze": True, "augment": (), "pretrained": pretrained, "encoder": encoder}
    return Settings(**{**given, **fixed, "test": (TEST if pretrained else 0) if test is None else test})


def attach_run(
    path: Path,
    data: DataSet,
    settings: Settings,
    decide: Decide,
    device: torch.device | str = "cpu",
    bars: Bars | None = None,
) -> Run:
    """A finished run in this folder: the classifier of the settings, unchanged, with training images as its memory.

    decide: what predicts, the classifier's own last layer ("head") or the vote of the memory.
    """
    refuse_if_taken(path)
    splits = split(data, settings)
    final = resolve_settings(settings, len(splits.train), data.classes)
    images = splits.of(data, "train")
    check_size(final.remember, len(images), "remember")
    model = _attach(final, data, decide).to(device)
    encoder = CachedEncoder(model, progress=bars)
    chosen = remembered_indices(images.labels, final)
    kept = images.at(chosen)
    remember_encoded(model, kept, encoder.encode(kept.images))
    held_out = encoded(model, splits.of(data, "validation"), lambda _, some: encoder.encode(some))
    if final.scale is None:
        choose_scale(model, held_out)
    if len(held_out) or not final.pretrained:
        calibrate(model, held_out)
    else:
        calibrate_by_memory(model)  # which the encoder was not trained on
    place = model.reference.device
    stored, parts = model.pack()
    remembered = tuple(splits.train[chosen].tolist())
    state = training_state(Progress(), (session_on(place),), 0.0, finished=True, remembered=remembered)
    record = new_record(ATTACHED, final, data, device_name(place))
    return create_run(path, record, splits, {**stored, "training": state}, parts)


def _attach(settings: ResolvedSettings, data: DataSet, decide: Decide) -> MemoryClassifier:
    """The classifier with a memory next to it, in evaluation mode."""
    shape, classes = data.train.images.shape, len(data.classes)
    classifier = new_classifier(settings, classes, shape).eval()
    model = attach(classifier, decide=decide, scale=settings.scale or SCALE, example=torch.zeros(2, *shape))
    if not _has_trained_head(model, settings):
        if decide == "head":
            raise SettingsError(
                f"the weights have no last layer for these {classes} classes ({', '.join(data.classes[:5])}), so the "
                "classifier cannot decide; give weights that were trained on them, or --decide vote"
            )
        # A last layer with random weights would only mislead.
        model = MemoryClassifier(model.encoder, without_head(model.layer), model.origin)
    model.classes = data.classes
    model.transform = transform_for(settings, data.train.images)
    return model.eval()


def _has_trained_head(model: MemoryClassifier, settings: ResolvedSettings) -> bool:
    """Whether the last layer is one that the file of weights holds; pretrained ones are for other classes."""
    if settings.weights is None:
        return False
    elements = sum(tensor.numel() for tensor in model.state_dict().values())
    stored, head = read_weights(Path(settings.weights), elements), model.layer.reference
    return any(each.shape == head.shape and torch.equal(each.to(head), head) for each in stored.values())
