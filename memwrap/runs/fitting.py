"""Training of a frozen encoder's last layer: each image is encoded once, and the layer is fitted to the encodings."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from memwrap.data import DataSet, generator
from memwrap.data import Progress as Bars
from memwrap.errors import RunError
from memwrap.models.caching import CachedEncoder, Interrupted
from memwrap.models.classifier import MemoryClassifier
from memwrap.models.inference import remember_encoded
from memwrap.nn.calibration import fit_temperature, fit_vote_calibration
from memwrap.nn.probabilities import Calibration, TemperatureCalibration
from memwrap.nn.vote_layer import VoteLayer
from memwrap.runs.base import RunTraining, remembered_indices
from memwrap.runs.record import FitSummary
from memwrap.runs.splits import split
from memwrap.training.building import new_model
from memwrap.training.fitting import FEWEST_COMPARED, FittedLayer, choose_layer
from memwrap.training.recipes import resolve_settings
from memwrap.training.settings import ResolvedSettings, Settings, is_fitted
from memwrap.training.trainer import Progress

FITS = ("crop", "stretch")  # that are compared
SHAPES_COMPARED = 1000  # training images that choose between them


@dataclass(kw_only=True)
class FittedTraining(RunTraining):
    """Encodes the training images, fits the last layer, and remembers the images. bars: show progress."""

    bars: Bars | None = None
    _progress: Progress = field(default_factory=Progress)

    @property
    def progress(self) -> Progress:
        return self._progress

    @property
    def steps(self) -> int:
        return 1

    def _train(self, stop: Callable[[], bool]) -> bool:
        started, before = time.monotonic(), self.seconds
        model, settings, images = self.model, self.run.settings, self._training_images()
        if not isinstance(model, MemoryClassifier):
            raise RunError(f"{self.run.path}: the run is damaged: its model has no memory")
        try:
            encodings = CachedEncoder(model, progress=self.bars, stop=stop).encode(images.images)
        except Interrupted:
            return False  # what was encoded is in the cache
        chosen = remembered_indices(images.labels, settings)
        fitted = _fit(encodings, images.labels, len(self.run.classes), settings, chosen)
        _set_layer(model, fitted)
        remember_encoded(model, images.at(chosen), encodings[chosen.to(encodings.device)])
        model.calibration = _calibration(fitted)
        self._progress.step = 1
        self.seconds = before + time.monotonic() - started
        self._write_finished(chosen, fitted=summary_of(fitted))
        return True


def choose_fit(
    settings: Settings,
    open_with: Callable[[Settings], DataSet],
    device: torch.device | str = "cpu",
    bars: Bars | None = None,
) -> tuple[Settings, DataSet]:
    """Whether images of another shape are cropped or squashed to a square, by what predicts training images better.

    open_with: opens the data as some settings say. Returns the settings with the choice, and the data opened so.
    """
    if settings.fit is not None or not is_fitted(settings):
        return settings, open_with(settings)
    found: dict[str, tuple[float, DataSet]] = {}
    for fit in FITS:
        data = open_with(settings.replace(fit=fit))
        if fit == FITS[0] and "cropped" not in data.record.get("adjusted", {}):
            return settings.replace(fit=fit), data  # all images are square
        found[fit] = _held_out_accuracy(data, settings.replace(fit=fit), device, bars), data
    best = max(FITS, key=lambda fit: found[fit][0])  # of equal ones the first, as where too few could be held out
    return settings.replace(fit=best), found[best][1]


def _held_out_accuracy(data: DataSet, settings: Settings, device: torch.device | str, bars: Bars | None) -> float:
    """The mean accuracy of head and vote on training images that each was not fitted to; 0 if these are too few."""
    splits = split(data, settings)
    final = resolve_settings(settings, len(splits.train), data.classes)
    images = splits.of(data, "train")
    if len(images) > SHAPES_COMPARED:
        draw = torch.randperm(len(images), generator=generator(settings.seed, "compared"))[:SHAPES_COMPARED]
        images = images.at(draw.sort().values)
    model = new_model(final, data.classes, images.images).to(device)
    encodings = CachedEncoder(model, progress=bars).encode(images.images)
    final = final.replace(remember=min(final.remember, len(images)))
    memory = remembered_indices(images.labels, final)
    fitted = _fit(encodings, images.labels, len(data.classes), final, memory)
    if len(fitted.held_out_labels) < FEWEST_COMPARED:
        return 0.0
    return ((fitted.scores.head_accuracy or 0.0) + (fitted.scores.vote_accuracy or 0.0)) / 2


def _fit(encodings: Tensor, labels: Tensor, classes: int, settings: ResolvedSettings, memory: Tensor) -> FittedLayer:
    """memory (M,): indices of the images that the model remembers"""
    draws = generator(settings.seed, "folds")
    labels = labels.to(encodings.device)
    return choose_layer(encodings, labels, classes, draws, scale=settings.scale, memory=memory)


def _set_layer(model: MemoryClassifier, fitted: FittedLayer) -> None:
    """Replace the model's layer by the fitted one."""
    projection = fitted.projection
    layer = VoteLayer(
        model.in_features,
        model.layer.num_classes,
        project=None if projection is None else len(projection.bias),
        scale=fitted.scale,
        decide=fitted.decide,
    ).to(model.reference)
    with torch.no_grad():
        head: torch.nn.Linear = layer.head  # type: ignore[assignment]
        head.weight.copy_(fitted.head.weight)
        head.bias.copy_(fitted.head.bias)
        if projection is not None and layer.projection is not None:
            layer.projection.weight.copy_(projection.weight)
            layer.projection.bias.copy_(projection.bias)
    model.layer = layer.eval()


def _calibration(fitted: FittedLayer) -> Calibration:
    """By images that the layer which predicted them was not fitted to."""
    labels = fitted.held_out_labels
    if fitted.decide != "vote":
        return TemperatureCalibration(fit_temperature(fitted.held_out_head_logits, labels))
    return fit_vote_calibration(fitted.held_out_votes, fitted.held_out_head_logits, fitted.held_out_similarity, labels)


def summary_of(fitted: FittedLayer) -> FitSummary:
    """What was chosen, and how well it predicts held-out training images."""
    scores = fitted.scores
    return FitSummary(
        held_out=len(fitted.held_out_labels),
        head_accuracy=scores.head_accuracy,
        vote_accuracy=scores.vote_accuracy,
        plain_vote_accuracy=scores.plain_vote_accuracy,
        images_used=scores.used_images,
        shrinkage=fitted.shrinkage,
        scale=fitted.scale,
        penalty=fitted.penalty,
    )
