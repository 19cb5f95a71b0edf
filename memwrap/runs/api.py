"""What the commands do, from Python: `memwrap.train`, `memwrap.evaluate`, and a run with its model and its report."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from memwrap.data import DataSet, Progress, generator, list_image_files, read_image_files
from memwrap.errors import DataError, InputError, MemwrapWarning, SaveError, SettingsError
from memwrap.models.classifier import CHUNK_SIZE, MemoryClassifier
from memwrap.models.evaluation import Encoded, remembered_scores, standard_scores
from memwrap.models.evidence import evidence_scores
from memwrap.models.loading import Model
from memwrap.models.samples import ImageSource, read_batches
from memwrap.nn.modes import evaluation_mode
from memwrap.nn.vote_layer import VOTE
from memwrap.report.create import Inputs, create_report
from memwrap.report.page import page_content
from memwrap.report.record import HeatmapOptions, ReportRecord
from memwrap.runs.calibrating import calibrate as fit_calibration
from memwrap.runs.calibrating import choose_scale
from memwrap.runs.choosing import check_early, choose_settings
from memwrap.runs.data import data_for, data_of
from memwrap.runs.devices import AUTO, device_named
from memwrap.runs.evaluation import encoder_for, evaluate_run
from memwrap.runs.reporting import source_of
from memwrap.runs.run import Run, open_run, refuse_if_taken
from memwrap.runs.training import open_and_begin
from memwrap.runs.training import resume as resume_run
from memwrap.storage.files import write_file
from memwrap.training.settings import without_effect

MOST_EXPLAINED = 50  # images in a report, if none are named


class TrainedRun:
    """A finished run: its folder, its model, and what can be asked of both."""

    def __init__(self, run: Run, device: torch.device | str = "cpu", data: DataSet | None = None) -> None:
        self.run, self.device, self._data = run, device, data

    @property
    def path(self) -> Path:
        return self.run.path

    @cached_property
    def model(self) -> Model:
        """The model in evaluation mode, with its memory."""
        return self.run.model(self.device)

    @cached_property
    def data(self) -> DataSet:
        """The data that the run was made with; a DataError if it is gone or has changed."""
        return data_of(self.run) if self._data is None else self._data

    def evaluate(self, split: str = "test") -> dict[str, Any]:
        """All scores on the run's test or validation images, as `memwrap evaluate --json` prints them."""
        return evaluate_run(self.run, self.model, self.data, None, split, encoder_for(self.run, self.model))

    def report(
        self,
        path: str | os.PathLike[str],
        images: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        *,
        shown: int = 8,
        heatmaps: bool = False,
    ) -> ReportRecord:
        """Write an HTML file that explains predictions. images: files or folders of them; None for some test images.

        shown: memory images for each. heatmaps: whether to show which pixels mattered, which is slow.
        """
        inputs = self._test_images() if images is None else self._read(images)
        options = HeatmapOptions() if heatmaps else None
        record = create_report(source_of(self.run, self.device), inputs, shown=shown, heatmaps=options)
        try:
            write_file(Path(path).resolve(), page_content(record))
        except OSError as error:
            raise SaveError(f"{path}: cannot be written ({error})") from error
        return record

    def _test_images(self) -> Inputs:
        test = self.run.splits.of(self.data, "test")
        if not len(test):
            raise DataError("the run has no test images; name images to explain")
        draws = generator(self.run.seed, "explained")
        some = test.at(torch.randperm(len(test), generator=draws)[:MOST_EXPLAINED].sort().values)
        (pixels,) = some.images.batches([torch.arange(len(some))])
        return Inputs(pixels, some.names, some.labels)

    def _read(self, images: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Inputs:
        named = [images] if isinstance(images, str | os.PathLike) else list(images)
        transform = self.model.get_transform()
        read, unreadable = read_image_files(list_image_files(map(Path, named)), transform.shape, transform.fit)
        if unreadable:
            raise DataError(f"{unreadable[0].path}: cannot be read, {unreadable[0].reason}")
        if not read:
            raise DataError("there are no images to explain; expected image files, or folders that hold some")
        return Inputs(torch.stack(list(read.values())), tuple(map(str, read)))


def train(
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    recipe: str | None = None,
    resume: bool = False,
    device: str = AUTO,
    workers: int = 0,
    progress: Progress | None = None,
    **settings: Any,
) -> TrainedRun:
    """Train on images as `memwrap train` does, into the folder `out`; settings by the names of its flags.

    data: a folder of class folders, a zip of one, or the name of a published data set. resume: continue the run that is
    in `out`. device: "auto" is a GPU if there is one. progress: called with a title when something long begins, see
    `memwrap.data.Progress`.
    """
    path, source, place = Path(out), os.fspath(data), device_named(device)
    if resume:
        if settings or recipe is not None:
            raise SettingsError("resume=True continues with the settings of the run; leave other settings out")
        run = open_run(path)
        opened = data_of(run, source, workers=workers, progress=progress)
        training = resume_run(run, opened, place)
    else:
        refuse_if_taken(path)
        chosen = choose_settings(source, settings, recipe)
        for warning in without_effect(chosen.settings, settings):
            warnings.warn(warning, MemwrapWarning, stacklevel=2)
        check_early(chosen.settings)
        training = open_and_begin(
            path,
            lambda tried: data_for(source, tried, workers=workers, progress=progress),
            chosen.settings,
            chosen.recipe,
            place,
            progress,
        )
    training.train()
    return TrainedRun(open_run(path), place, training.data)


def evaluate(model: Model, images: ImageSource, labels: Tensor | Sequence[int] | None = None) -> dict[str, Any]:
    """Scores of a model on labelled images, with its remembered memory: accuracy, calibration, explanation metrics.

    images, labels: as `model.remember` takes them, such as a DataLoader. Shares go from 0 to 1.
    """
    test = _encode(model, images, labels)
    with evaluation_mode(model):
        if isinstance(model, MemoryClassifier):
            memory = model.fresh_memory()
            scores = remembered_scores(model.layer, test, memory, model.calibration)
            scores["evidence"] = asdict(evidence_scores(model.layer, test.encodings, memory))
        else:
            scores = standard_scores(model.layer, test, model.calibration)
    return {"decided_by": model.decided_by, **scores}


def calibrate(model: Model, images: ImageSource, labels: Tensor | Sequence[int] | None = None) -> None:
    """Choose the scale of a vote, and calibrate probabilities, on images that the model was not trained on.

    images, labels: as `model.remember` takes them. Predictions stay as they are, except those of a vote, whose scale
    may change. Fewer than 30 images calibrate nothing.
    """
    held_out = _encode(model, images, labels)
    if isinstance(model, MemoryClassifier):
        model.fresh_memory()  # or an error
        if model.layer.variant == VOTE:
            choose_scale(model, held_out)
    fit_calibration(model, held_out)


def _encode(model: Model, images: ImageSource, labels: Tensor | Sequence[int] | None) -> Encoded:
    encodings, numbers = [], []
    with evaluation_mode(model):
        for batch, classes in read_batches(images, labels, model.transform, CHUNK_SIZE):
            inputs = model.get_transform()(batch) if batch.dtype == torch.uint8 else batch
            encodings.append(model.encode(inputs.to(model.reference)))
            numbers.append(classes.to(model.reference.device))
    if not encodings:
        raise InputError("there are no images; give at least one")
    return Encoded(torch.cat(encodings), torch.cat(numbers))
