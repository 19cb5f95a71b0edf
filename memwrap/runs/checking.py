"""Whether everything in a folder is what was saved, and what the model and the data give again: `memwrap check`."""

from collections.abc import Iterator
from typing import Literal

import torch

from memwrap.data import DataSet
from memwrap.errors import LoadError, MemwrapError, RunError
from memwrap.models.classifier import CHUNK_SIZE, MemoryClassifier
from memwrap.models.loading import Model
from memwrap.models.memory_check import check_memory
from memwrap.report.create import memory_hash, model_hash
from memwrap.runs.base import remembered_indices
from memwrap.runs.run import Run, SavedModel
from memwrap.runs.splits import NAMES, split
from memwrap.storage.checkpoint import MANIFEST, present
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


def check_folder(
    folder: SavedModel, data: DataSet | Finding, expect: str | None = None, device: torch.device | str = "cpu"
) -> CheckResult:
    """Check all that a folder holds; nothing of it is taken on trust that can be computed again.

    data: the run's data, or why it is not there. expect: the root hash that the folder must have.
    """
    findings = [_found("root hash", _check_root(folder, expect))]
    if absent := sorted(folder.manifest.documents.keys() - present(folder.path, folder.manifest)):
        detail = f"{' and '.join(absent)} of the run are not there"
        findings.append(Finding(what="documents", state="not checked", detail=detail))
    model = None
    try:
        with folder.opened() as (_, parts):
            names = list(parts.read_all())
        listed = ", ".join(names)
        findings.append(Finding(what="tensors", state="right", detail=f"{listed} have the hashes that were saved"))
        model = folder.loaded.to(device).eval()
        computed = "and computes what it did" if "probe" in names else "whose training is not finished"
        findings.append(Finding(what="model", state="right", detail=f"it fits its files, {computed}"))
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


def _check_contents(folder: SavedModel, model: Model, data: DataSet | Finding) -> Iterator[Finding]:
    memory = model.remembered if isinstance(model, MemoryClassifier) else None
    if memory is not None and isinstance(model, MemoryClassifier):
        yield _found("memory", _check_memory(model, len(memory)))
    if isinstance(data, Finding):
        yield data
    if isinstance(data, Finding) or not isinstance(folder, Run):
        return
    yield _found("data", _check_classes(folder, data))
    yield _found("splits", _check_splits(folder, data))
    if memory is not None and isinstance(model, MemoryClassifier):
        yield _found("memory images", _check_memory_images(folder, model, data))


def _found(what: str, result: tuple[State, str]) -> Finding:
    return Finding(what=what, state=result[0], detail=result[1])


def _check_root(folder: SavedModel, expect: str | None) -> tuple[State, str]:
    root = folder.manifest.root
    if expect is not None and expect.strip().lower() != root:
        return "wrong", f"it is not {expect}"
    if root is None:
        return "not checked", "there is none, as an older version saved the folder"
    return "right", f"of {', '.join([MANIFEST, *present(folder.path, folder.manifest)])}, as they were saved"


def _check_memory(model: MemoryClassifier, count: int) -> tuple[State, str]:
    try:
        check_memory(model, torch.arange(count, device=model.reference.device), CHUNK_SIZE)
    except MemwrapError as error:
        return "wrong", str(error)
    return "right", f"the model gives the stored encodings of all {count} images"


def _check_classes(run: Run, data: DataSet) -> tuple[State, str]:
    if data.classes != run.classes:
        return "wrong", f"the classes are {', '.join(data.classes[:5])} in the data, and others in the run"
    return "right", "images and classes are those that the run was made with"


def _check_splits(run: Run, data: DataSet) -> tuple[State, str]:
    drawn = split(data, run.settings)
    for name in (*NAMES, "rest"):
        if not torch.equal(getattr(drawn, name), getattr(run.splits, name)):
            return "wrong", f"the {name} images are not those that seed {run.seed} draws"
    return "right", f"seed {run.seed} draws the same images to train on and to test on"


def _check_memory_images(run: Run, model: MemoryClassifier, data: DataSet) -> tuple[State, str]:
    memory, state = model.remembered, run.state
    assert memory is not None
    if state is not None and state.edited:
        return "not checked", "images were added or dropped after training, so the seed says nothing about them"
    if state is None or state.remembered is None:
        return "wrong", "the run does not say which training images they are"
    training = run.splits.of(data, "train")
    chosen = remembered_indices(training.labels, run.settings)
    kept = training.at(chosen)
    if list(state.remembered) != run.splits.train[chosen].tolist():
        return "wrong", f"they are not those that seed {run.seed} draws"
    names = memory.names or state.remembered_names
    if names is not None and list(names) != list(kept.names):
        return "wrong", "their file names are not those of the training images"
    if not torch.equal(memory.labels.cpu(), kept.labels):
        return "wrong", "their labels are not those of the training images"
    pixels = torch.cat(list(kept.images.batches([torch.arange(len(chosen))])))
    # Not their pictures, which show no difference where a number is beyond black or white.
    stored = memory.images.cpu()
    expected = model.get_transform()(pixels).to(stored.dtype) if stored.is_floating_point() else pixels
    if stored.shape != expected.shape or not torch.allclose(stored, expected, rtol=1e-4, atol=1e-4):
        return "wrong", "they are not the training images"
    return "right", f"all {len(memory)} are training images, with their labels"
