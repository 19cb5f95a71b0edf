"""memwrap add and memwrap drop."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from memwrap.cli.callbacks import reading_bars
from memwrap.cli.data_options import DataOptions
from memwrap.cli.evaluate import keep_evaluation, own_data, remove_evaluations
from memwrap.cli.show import DECIDED_BY, percent
from memwrap.cli.terminal import errors, plain_console, print_json, warn
from memwrap.data import DataSet, open_data
from memwrap.models.classifier import MemoryClassifier
from memwrap.runs.devices import device_named
from memwrap.runs.editing import add_images, check_unseen, drop_images, editable_model, write_edited
from memwrap.runs.evaluation import encoder_for, evaluate_run
from memwrap.runs.run import Run, SavedModel, open_model
from memwrap.visible import visible_name


def add(
    path: Path, images: str, run_data: str | None, skip_bad: bool, reading: DataOptions, device: str, as_json: bool
) -> None:
    """See `memwrap add --help`."""
    folder = open_model(path)
    model = editable_model(folder, device_named(device))
    transform = model.get_transform()
    given = open_data(
        images,
        size=transform.shape[1],
        fit=transform.fit,
        channels=transform.shape[0],
        skip_bad=skip_bad,
        least_classes=1,
        **reading.options(),
    )
    warn(*given.warnings)
    known = model.classes or ()

    def change(data: DataSet | str) -> dict[str, Any]:
        if isinstance(folder, Run) and isinstance(data, DataSet):
            check_unseen(folder, data, given.train)
        added = add_images(model, given)
        counts = added.counts
        for name, count in counts.items():
            new = "" if name in known else ", a new class"
            errors.print(visible_name(f"{count} {'image' if count == 1 else 'images'} of {name} added{new}"))
        if added.repeated:
            warn(f"{added.repeated} of them were in the memory before, and count twice now")
        new_classes = [name for name in counts if name not in known]
        return {"added": counts, "repeated": added.repeated, "new_classes": new_classes}

    _edit(folder, model, change, run_data, reading, as_json)


def drop(path: Path, images: list[str], run_data: str | None, reading: DataOptions, device: str, as_json: bool) -> None:
    """See `memwrap drop --help`."""
    folder = open_model(path)
    model = editable_model(folder, device_named(device))

    def change(_: DataSet | str) -> dict[str, Any]:
        rows = drop_images(model, images)
        errors.print(f"{len(rows)} {'image' if len(rows) == 1 else 'images'} dropped")
        return {"dropped": rows}

    _edit(folder, model, change, run_data, reading, as_json)


def _edit(
    folder: SavedModel,
    model: MemoryClassifier,
    change: Callable[[DataSet | str], dict[str, Any]],
    run_data: str | None,
    reading: DataOptions,
    as_json: bool,
) -> None:
    """Change the memory, store it, and print the accuracy on the run's test images before and after.

    change: is given the run's data, or the reason why they are not there.
    """
    data = own_data(folder, run_data, reading)
    before = _accuracy(_evaluation(folder, model, data))
    facts = change(data)
    write_edited(folder, model)
    if isinstance(folder, Run):
        remove_evaluations(folder)  # those of the memory before
    evaluation = _evaluation(folder, model, data)
    if isinstance(folder, Run) and evaluation is not None:
        keep_evaluation(folder, evaluation)
    after = _accuracy(evaluation)
    memory = model.remembered
    assert memory is not None
    if as_json:
        facts = {"run": str(folder.path), **facts, "memory": len(memory), "decided_by": model.decided_by}
        print_json({**facts, "before": before, "after": after})
        return
    console = plain_console()
    console.print(f"the memory has {len(memory)} images now; predictions are {DECIDED_BY[model.decided_by]}")
    if before is None or after is None:
        console.print(f"accuracy is not known: {data if isinstance(data, str) else 'the run has no test images'}")
    else:
        console.print(f"accuracy on the run's test images: {percent(before)} before, {percent(after)} after")


def _evaluation(folder: SavedModel, model: MemoryClassifier, data: DataSet | str) -> dict[str, Any] | None:
    if not isinstance(folder, Run) or isinstance(data, str) or not len(folder.splits.test):
        return None
    return evaluate_run(folder, model, data, None, "test", encoder_for(folder, model, reading_bars(errors)))


def _accuracy(evaluation: dict[str, Any] | None) -> float | None:
    return None if evaluation is None else evaluation["remembered"]["accuracy"]
