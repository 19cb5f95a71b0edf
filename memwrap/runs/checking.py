"""Whether everything in a folder is what was saved, and what the model and the data give again: `memwrap check`."""

from collections.abc import Iterator
from typing import Literal

import torch

from memwrap.data import DataSet
from memwrap.errors import LoadError, MemwrapError, RunError
from memwrap.models.classifier import MemoryClassifier
from memwrap.models.loading import Model
from memwrap.models.memory_check import check_memory
from memwrap.report.create import memory_hash, model_hash
from memwrap.runs.run import Run, SavedModel
from memwrap.runs.splits import NAMES, split
from memwrap.runs.training import remembered_indices
from memwrap.storage.validation import Record

State = Literal["right", "wrong", "not checked"]


class Finding(Record):
    """What was checked, and what came out."""

    what: str
    state: State
    detail: str


class CheckResult(Record):
    """The result of `check_folder`; the hashes of model and memory are those that reports name."""

    run: str
    root: str | None  # the root hash
    model: str | None
    memory: str | None
    right: bool  # whether nothing was found wrong
    findings: tuple[Finding, ...]


def check_folder(folder: SavedModel, data: DataSet | str, device: torch.device | str = "cpu") -> CheckResult:
    """Check all that a folder holds; nothing of it is taken on trust that can be computed again.

    data: the run's data, or the reason why it is not available.
    """
    findings = [_found("root hash", _check_root(folder))]
    model = None
    try:
        with folder.opened() as (_, parts):
            names = ", ".join(parts.read_all())
        findings.append(Finding(what="tensors", state="right", detail=f"{names} have the hashes that were saved"))
        model = folder.loaded.to(device).eval()
        findings.append(Finding(what="model", state="right", detail="it fits its files, and computes what it did"))
    except (LoadError, RunError) as error:
        findings.append(Finding(what="model", state="wrong", detail=str(error)))
    if model is not None:
        findings += _check_contents(folder, model, data)
    return CheckResult(
        run=str(folder.path),
        root=folder.manifest.root,
        model=model_hash(model) if isinstance(model, MemoryClassifier) else None,
        memory=memory_hash(model) if isinstance(model, MemoryClassifier) and model.remembered is not None else None,
        right=all(finding.state != "wrong" for finding in findings),
        findings=tuple(findings),
    )


def _check_contents(folder: SavedModel, model: Model, data: DataSet | str) -> Iterator[Finding]:
    memory = model.remembered if isinstance(model, MemoryClassifier) else None
    if memory is not None and isinstance(model, MemoryClassifier):
        yield _found("memory", _check_memory(model, len(memory)))
    if not isinstance(folder, Run):
        return
    if isinstance(data, str):
        yield Finding(what="data", state="not checked", detail=data)
        return
    yield _found("data", _check_classes(folder, data))
    yield _found("splits", _check_splits(folder, data))
    if memory is not None and isinstance(model, MemoryClassifier):
        yield _found("memory images", _check_memory_images(folder, model, data))


def _found(what: str, problem: tuple[State, str]) -> Finding:
    return Finding(what=what, state=problem[0], detail=problem[1])


def _check_root(folder: SavedModel) -> tuple[State, str]:
    if folder.manifest.root is None:
        return "not checked", "there is none, as an older version saved the folder"
    covered = ", ".join(["model.json", *folder.manifest.documents])
    return "right", f"{covered} are as they were saved"


def _check_memory(model: MemoryClassifier, count: int) -> tuple[State, str]:
    try:
        check_memory(model, torch.arange(count, device=model.reference.device))
    except MemwrapError as error:
        return "wrong", str(error)
    return "right", f"the model gives the stored encodings and predictions of all {count} images"


def _check_classes(run: Run, data: DataSet) -> tuple[State, str]:
    if data.classes != run.classes:
        return "wrong", f"the classes are {', '.join(data.classes[:5])} in the data, and others in the run"
    return "right", f"{run.record.data.source} has the fingerprint and the classes of the run"


def _check_splits(run: Run, data: DataSet) -> tuple[State, str]:
    drawn = split(data, run.settings)
    for name in (*NAMES, "rest"):
        if not torch.equal(getattr(drawn, name), getattr(run.splits, name)):
            return "wrong", f"the {name} images are not those that seed {run.seed} draws"
    return "right", f"seed {run.seed} draws the same images to train on and to test on"


def _check_memory_images(run: Run, model: MemoryClassifier, data: DataSet) -> tuple[State, str]:
    memory, state = model.remembered, run.state
    assert memory is not None
    if state is None or state.remembered is None:
        return "not checked", "the run does not say which training images they are"
    training = run.splits.of(data, "train")
    chosen = remembered_indices(training.labels, run.settings)
    kept = training.at(chosen)
    if list(state.remembered) != run.splits.train[chosen].tolist():
        return "wrong", f"they are not those that seed {run.seed} draws"
    if state.remembered_names is not None and list(state.remembered_names) != list(kept.names):
        return "wrong", "their file names are not those of the training images"
    if not torch.equal(memory.labels.cpu(), kept.labels):
        return "wrong", "their labels are not those of the training images"
    pixels = torch.cat(list(kept.images.batches([torch.arange(len(chosen))])))
    if not torch.equal(model.get_transform().invert(memory.images.cpu()), pixels):
        return "wrong", "their pixels are not those of the training images"
    return "right", f"all {len(memory)} are training images, with their labels"
