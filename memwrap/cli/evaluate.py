"""memwrap evaluate."""

from pathlib import Path
from typing import Any

import torch

from memwrap.cli import show
from memwrap.cli.callbacks import reading_bars
from memwrap.cli.data_options import DataOptions
from memwrap.cli.terminal import errors, plain_console, print_json, warn
from memwrap.data import DataSet, Images, InMemoryImages, LabelledImages, find_shared, open_data
from memwrap.errors import DataError, SaveError, SettingsError
from memwrap.models.classifier import MemoryClassifier
from memwrap.models.loading import Model
from memwrap.runs.data import data_of
from memwrap.runs.devices import device_named
from memwrap.runs.evaluation import encoder_for, evaluate_run, labelled_like
from memwrap.runs.run import Run, SavedModel, open_model

EVALUATIONS = {"test": "evaluation.json", "validation": "evaluation-validation.json"}  # by split


def evaluate(
    path: Path,
    *,
    data: str | None,
    skip_bad: bool,
    run_data: str | None,
    split: str,
    reading: DataOptions,
    device: str,
    as_json: bool,
) -> None:
    """See `memwrap evaluate --help`."""
    if split not in EVALUATIONS:
        raise SettingsError(f"split is {split!r}; expected {' or '.join(EVALUATIONS)}")
    if data is not None and split != "test":
        raise SettingsError("--split names images of the run's data, --data names others; give one of them")
    run = open_model(path)
    if not isinstance(run, Run) and data is None:
        raise SettingsError(f"{path}: is a model without a run, which has no test images; give some with --data")
    model = run.model(device_named(device))
    own = own_data(run, run_data, reading)
    images = None if data is None else other_images(run, model, data, skip_bad, reading)
    _warn_of_known_images(run, model, own, images, split if data is None else data)
    record = evaluate_run(
        run, model, own, images, split if data is None else data, encoder_for(run, model, reading_bars(errors))
    )
    if isinstance(run, Run) and data is None and "images" in record:
        keep_evaluation(run, record)
    show_evaluation(record, as_json)
    if "images" not in record:
        raise DataError(record["left_out"]["accuracy"])


def show_evaluation(record: dict[str, Any], as_json: bool) -> None:
    """Print a table, or JSON for scripts."""
    if as_json:
        print_json(record)
    else:
        show.evaluation(plain_console(), record)


def keep_evaluation(run: Run, record: dict[str, Any]) -> None:
    """Store the result in the run's folder, before it is shown: nobody may read that. Only warn if it cannot be."""
    try:
        run.write_json(EVALUATIONS[record["split"]], record)
    except SaveError as error:
        warn(str(error))


def remove_evaluations(run: Run) -> None:
    """Remove stored results, which a change of the run's memory has made untrue."""
    for name in EVALUATIONS.values():
        (run.path / name).unlink(missing_ok=True)


def own_data(run: SavedModel, moved_to: str | None, reading: DataOptions) -> DataSet | str:
    """The run's data, or the reason why it is not available."""
    if not isinstance(run, Run):
        return "it is a model without a run"
    try:
        return data_of(run, moved_to, **reading.options())
    except DataError as error:
        return str(error) if moved_to else f"{error}; if they have moved, give --run-data"


def _warn_of_known_images(
    run: SavedModel, model: Model, own: DataSet | str, images: LabelledImages | None, where: str
) -> None:
    """Warn of images to evaluate on, None for those of a split, that the run was trained on or has in its memory."""
    if isinstance(own, str) or not isinstance(run, Run):
        return
    known: dict[str, Images] = {}
    if images is not None:
        known["training images of the run"] = run.splits.of(own, "train").images
    memory = model.remembered if isinstance(model, MemoryClassifier) else None
    if memory is not None and run.state is not None and run.state.edited and memory.images.dtype == torch.uint8:
        known["in its memory"] = InMemoryImages(memory.images)
    tested = run.splits.of(own, where) if images is None else images
    for what, others in known.items():
        if shared := find_shared(tested.images, others):
            warn(f"{len(shared)} of the {len(tested)} images of {where} are {what}: the scores are too good")


def other_images(
    run: SavedModel | None, model: Model, data: str, skip_bad: bool, reading: DataOptions
) -> LabelledImages:
    """Labelled images of a folder or zip, with the model's labels. run: the run of the model, if there is one."""
    if not model.classes:
        raise SettingsError(
            "--data has images by class name, but the model has no class names; set model.classes = [...] and save it "
            "again"
        )
    (channels, size, _), fit = model.get_transform().shape, model.get_transform().fit
    given = open_data(
        data, size=size, fit=fit, channels=channels, skip_bad=skip_bad, least_classes=1, **reading.options()
    )
    if isinstance(run, Run) and given.fingerprint == run.record.data.fingerprint and given.test is None:
        raise SettingsError(
            f"--data {data} is the data of the run, training images included; leave --data out to evaluate on its "
            "test images, or give --run-data if the data has moved there"
        )
    warn(*given.warnings)
    return labelled_like(model.classes, given, data)
