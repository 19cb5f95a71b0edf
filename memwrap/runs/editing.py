"""The memory of a finished run, changed without training: images and classes added, images dropped."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import torch

from memwrap.data import DataSet, InMemoryImages, LabelledImages, find_shared
from memwrap.errors import RunError, SettingsError
from memwrap.models.classifier import MemoryClassifier
from memwrap.models.inference import encode_all
from memwrap.nn.memory import RememberedMemory
from memwrap.runs.run import Run, SavedModel

MOST_NAMED = 5  # images in an error
MOST_DIGITS = 20  # of a memory image's number: Python does not read any length


def editable_model(folder: SavedModel, device: torch.device | str = "cpu") -> MemoryClassifier:
    """The model of a folder, whose memory is to be changed; a SettingsError if it has none."""
    model = folder.model(device)
    if not isinstance(model, MemoryClassifier) or model.remembered is None:
        raise SettingsError(f"{folder.path}: the model has no memory that could be changed")
    model.remembered.names = folder.memory_names  # which a run of memwrap 0.1 has elsewhere
    return model


@dataclass(frozen=True)
class Added:
    """counts: images that were added, by class. repeated: how many of them the memory held before."""

    counts: dict[str, int]
    repeated: int


def add_images(model: MemoryClassifier, data: DataSet) -> Added:
    """Add the training images of a data set to a model's memory.

    The data has the model's size of images. A class that the model does not know becomes one of its classes, if the
    memory's vote decides.
    """
    memory = model.remembered
    assert memory is not None
    known = _class_names(model)
    labels = {}
    for name in data.classes:
        labels[name] = known.index(name) if name in known else model.add_class(name)
    images = data.train
    numbers = torch.tensor([labels[name] for name in data.classes])[images.labels]
    folder = Path(data.name).name or Path(data.name).resolve().name  # the current one is called "."
    names = tuple(f"{folder}/{name}" for name in images.names)
    added = _encoded(model, LabelledImages(images.images, numbers, names), memory)
    repeated = find_shared(InMemoryImages(added.images), InMemoryImages(memory.images))
    model.restore(memory.joined(added))
    counts = torch.bincount(images.labels, minlength=len(data.classes)).tolist()
    return Added(dict(zip(data.classes, counts, strict=True)), len(repeated))


def check_unseen(run: Run, own: DataSet, images: LabelledImages) -> None:
    """A SettingsError if some of these images are among those that the run is evaluated on.

    A memory that holds them would look their labels up.
    """
    for split in ("test", "validation"):
        if shared := find_shared(images.images, run.splits.of(own, split).images):
            names = ", ".join(images.names[row] for row in shared[:MOST_NAMED])
            more = " and more" if len(shared) > MOST_NAMED else ""
            raise SettingsError(
                f"{len(shared)} of the images are {split} images of the run ({names}{more}), of which the memory would "
                "know the labels; leave them out"
            )


def _encoded(model: MemoryClassifier, images: LabelledImages, like: RememberedMemory) -> RememberedMemory:
    """Images as samples of a memory, whose pixels are kept as those of another memory are."""
    device = model.reference.device
    pixels = torch.cat(list(images.images.batches([torch.arange(len(images))]))).to(device)
    kept = model.get_transform()(pixels).to(like.images.dtype) if like.images.is_floating_point() else pixels
    return RememberedMemory(kept, images.labels.to(device), encode_all(model, images.images), images.names)


def drop_images(model: MemoryClassifier, wanted: Sequence[str]) -> list[int]:
    """Take images out of a model's memory, by name or by number as "#12"; their numbers before.

    Classes that were added later leave with their last image.

    A name is that of the memory, or the end of such a path, if that of no other image ends so.
    """
    memory = model.remembered
    assert memory is not None
    names = memory.names or ("",) * len(memory)
    rows = sorted({_find(each, names) for each in wanted})
    model.forget(rows)
    model.drop_empty_classes()
    return rows


def _find(wanted: str, names: Sequence[str]) -> int:
    if wanted.startswith("#") and wanted[1:].isdecimal() and len(wanted) < MOST_DIGITS:
        if int(wanted[1:]) >= len(names):
            raise SettingsError(f"there is no memory image {wanted}; the memory has #0 to #{len(names) - 1}")
        return int(wanted[1:])
    parts = PurePath(wanted).parts
    found = [row for row, name in enumerate(names) if name == wanted]
    if not found:
        found = [row for row, name in enumerate(names) if name and PurePath(name).parts[-len(parts) :] == parts]
    if len(found) != 1:
        how = "no memory image is" if not found else f"{len(found)} memory images are"
        raise SettingsError(f"{how} called {wanted!r}; give the name that memwrap explain shows, or its number as #12")
    return found[0]


def write_edited(folder: SavedModel, model: MemoryClassifier) -> None:
    """Store a model whose memory was changed, in place of the one before."""
    if not isinstance(folder, Run):
        model.save(folder.path)
        folder.forget()
        return
    state = folder.state
    if state is None or not state.finished:
        raise RunError(f"{folder.path}: the run is not finished; finish it before its memory is changed")
    changed = state.model_copy(update={"edited": True, "remembered": None, "remembered_names": None})
    settings, parts = model.pack()
    with folder.locked():
        stored: dict[str, Any] = {**settings, "training": changed.model_dump(exclude_unset=True)}
        folder.write(stored, parts)


def _class_names(model: MemoryClassifier) -> list[str]:
    if not model.classes:
        raise SettingsError(
            "images are added by class name, but the model has no class names; set model.classes = [...] and save it "
            "again"
        )
    return list(model.classes)
