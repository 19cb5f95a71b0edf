"""From a run and some images to the record of a report."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from memwrap.data import Progress, generator, track_progress
from memwrap.errors import InputError, NoMemoryError
from memwrap.explain.attribution import Attribution, Deletion, deletion, heatmaps, positive_map
from memwrap.explain.record import ExplanationRecord, MemoryImageRecord, heatmap_record
from memwrap.models.classifier import MemoryClassifier
from memwrap.models.memory_state import take_tensors
from memwrap.nn.memory import RememberedMemory
from memwrap.nn.precision import exact_convolutions, exact_products
from memwrap.report.pictures import exact_uri, heat_colours, heatmap_pixels, small_uri
from memwrap.report.record import (
    Hashes,
    HeatmapOptions,
    ReportRecord,
    Seeds,
    check_options,
    unused_indices,
)
from memwrap.storage.fingerprint import fingerprint
from memwrap.version import __version__

DELETION_SEED = 0
MOST_HIDDEN = 0.25  # of the range from black to white: resizing may overshoot it, and pictures do not show that
RANDOM_ORDERS = 4  # that the deletion of highlighted pixels is compared with; more of them mostly take time


@dataclass(frozen=True)
class Source:
    """The model that a report is about, the folder it is saved in, and its memory images' file names, if known."""

    path: str | Path
    model: MemoryClassifier
    memory_names: Sequence[str] | None = None
    seed: int = 0


@dataclass(frozen=True)
class Inputs:
    """The images to explain: pixels uint8 (N, C, H, W) of the model's size, names, and labels (N,) if known."""

    pixels: Tensor
    names: Sequence[str]
    labels: Tensor | Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def label_list(self) -> list[int] | None:
        return None if self.labels is None else torch.as_tensor(self.labels).tolist()


def create_report(
    source: Source,
    inputs: Inputs,
    *,
    shown: int = 8,
    heatmaps: HeatmapOptions | None = None,
    progress: Progress | None = None,
) -> ReportRecord:
    """Explain inputs in a report, with `shown` memory images for each, and with heatmaps if there are options.

    `render` makes a page of it, `figure` a picture.
    """
    return create_with_pixels(source, inputs, shown, heatmaps, progress)[0]


def create_with_pixels(
    source: Source,
    inputs: Inputs,
    shown: int,
    heatmaps: HeatmapOptions | None,
    progress: Progress | None = None,
) -> tuple[ReportRecord, dict[str, Tensor]]:
    """A report, and the pixels uint8 (C, H, W) of its pictures before any loss."""
    check_options(shown, heatmaps, len(inputs))
    run = absolute_path(source)
    explanations, maps = explain_inputs(source, inputs, shown, heatmaps, progress)
    memory = _memory_of(source.model)
    unused = [_memory_image(source, memory, index) for index in unused_indices(explanations, len(memory))]
    fields: dict[str, Any] = {
        "memwrap_version": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "run": run,
        "hashes": hashes(source.model, inputs),
        "seeds": Seeds(run=source.seed, deletion=DELETION_SEED),
        "shown": shown,
        "heatmaps": heatmaps,
        "image_size": tuple(inputs.pixels.shape[2:]),
        "unused": unused,
        "explanations": explanations,
    }
    # The record itself knows which pictures it needs.
    names = ReportRecord.model_construct(**fields, pictures={}).picture_names
    pixels = _picture_pixels(names, inputs.pixels.cpu(), memory_pixels(source.model), maps)
    pictures = {name: (exact_uri if name.startswith("input-") else small_uri)(each) for name, each in pixels.items()}
    return ReportRecord(**fields, pictures=pictures), pixels


def absolute_path(source: Source) -> str:
    """Of the run's folder, as reports name it: without links, which may lead to another run tomorrow."""
    return os.path.realpath(source.path)


def explain_inputs(
    source: Source, inputs: Inputs, shown: int, options: HeatmapOptions | None, progress: Progress | None = None
) -> tuple[list[ExplanationRecord], list[Attribution]]:
    """The explanation of each input, and its heatmaps if there are options."""
    model, labels, records = source.model, inputs.label_list, []
    _check_inputs(model, inputs)
    images = model.get_transform()(inputs.pixels.to(model.reference.device))
    # In full precision: `verify` may run on another device.
    with exact_products(model.reference), exact_convolutions(model.reference):
        with track_progress(progress, "explaining") as report:
            # One by one, so that no image's numbers depend on the others of its report.
            for row, image in enumerate(images):
                (explanation,) = model.explain(image.unsqueeze(0))
                record = explanation.record(
                    class_names=model.classes,
                    memory_names=source.memory_names,
                    label=None if labels is None else labels[row],
                    path=inputs.names[row],
                )
                records.append(record)
                if report is not None:
                    report(len(records), len(images))
        if options is None:
            return records, []
        maps, deletions = _heatmaps(model, images, records, shown, options, progress)
    heats = map(heatmap_record, maps, deletions)
    return [each.model_copy(update={"heatmap": heat}) for each, heat in zip(records, heats, strict=True)], maps


def hashes(model: MemoryClassifier, inputs: Inputs) -> Hashes:
    """Of all that a report depends on."""
    names = [name.encode(errors="backslashreplace").decode() for name in inputs.names]  # as records hold them
    return Hashes(
        model=model_hash(model),
        memory=memory_hash(model),
        inputs=fingerprint({"pixels": inputs.pixels}, [names, inputs.label_list]),
    )


def model_hash(model: MemoryClassifier) -> str:
    """SHA-256 of all that a prediction depends on, except the memory."""
    calibration = None if model.calibration is None else asdict(model.calibration)
    settings: list[Any] = [model.layer_settings(), model.classes, calibration]
    if (transform := model.transform) is not None:
        settings += [transform.shape, transform.mean, transform.std]
    weights = dict(model.state_dict())
    take_tensors(weights)
    return fingerprint(weights, settings)


def memory_hash(model: MemoryClassifier) -> str:
    """SHA-256 of the memory: images, labels and encodings."""
    return fingerprint({} if model.remembered is None else model.remembered.tensors())


def memory_pixels(model: MemoryClassifier) -> Tensor:
    """The memory's images as pixels, uint8 (M, C, H, W) on the CPU; an InputError if pictures do not show them."""
    transform, images = model.get_transform(), _memory_of(model).images.cpu()
    if not images.is_floating_point():
        return images
    images = images.float()
    pixels = transform.invert(images)
    std = images.new_tensor(transform.std).reshape(-1, 1, 1)
    hidden = ((images - transform(pixels)).abs() * std).amax((1, 2, 3))
    if (wrong := (~(hidden <= MOST_HIDDEN)).nonzero()).numel():
        raise InputError(
            f"memory image {int(wrong[0])} holds values far beyond black and white, so that its picture does not show "
            "what the model compares with; make it by model.transform"
        )
    return pixels


def _memory_of(model: MemoryClassifier) -> RememberedMemory:
    if model.remembered is None:
        raise NoMemoryError("the model has no memory to report on; model.remember(images, labels) gives it one")
    return model.remembered


def _memory_image(source: Source, memory: RememberedMemory, index: int) -> MemoryImageRecord:
    label = int(memory.labels[index])
    found = memory.predictions_of(memory.labels.new_tensor([index]))
    prediction = None if found is None else int(found)
    return MemoryImageRecord(
        index=index,
        file=None if source.memory_names is None else source.memory_names[index],
        label=label,
        label_name=source.model.class_name(label),
        prediction=prediction,
        prediction_name=None if prediction is None else source.model.class_name(prediction),
    )


def _heatmaps(
    model: MemoryClassifier,
    images: Tensor,
    records: Sequence[ExplanationRecord],
    shown: int,
    options: HeatmapOptions,
    progress: Progress | None,
) -> tuple[list[Attribution], list[Deletion]]:
    with track_progress(progress, "heatmaps") as report:
        samples = [[sample.index for sample in each.shown_samples(shown)] for each in records]
        maps = heatmaps(model, images, samples, **asdict(options), progress=report)
    deletions = []
    with track_progress(progress, "deleting pixels") as report:
        for row, (each, image) in enumerate(zip(maps, images, strict=True)):
            draws = generator(DELETION_SEED, "deletion", row)
            deletions.append(deletion(model, image, each.input, draws, options.baseline, RANDOM_ORDERS))
            if report is not None:
                report(len(deletions), len(maps))
    return maps, deletions


def _picture_pixels(
    names: Sequence[str], pixels: Tensor, memory: Tensor, maps: Sequence[Attribution]
) -> dict[str, Tensor]:
    """The pixels of the pictures of these names; pixels (N, C, H, W), memory (M, C, H, W)."""
    pictures = {}
    for name in names:
        kind, *numbers = name.split("-")
        first, *rest = map(int, numbers)
        if kind == "input":
            pictures[name] = pixels[first - 1]
        elif kind == "memory":
            pictures[name] = memory[first]
        else:
            found = maps[first - 1]
            shown = memory[rest[0]] if rest else pixels[first - 1]
            attributions = found.samples[found.moved.index(rest[0])] if rest else found.input
            pictures[name] = heatmap_pixels(shown, positive_map(attributions).cpu(), heat_colours())
    return pictures


def _check_inputs(model: MemoryClassifier, inputs: Inputs) -> None:
    pixels, shape = inputs.pixels, tuple(model.get_transform().shape)
    if pixels.dtype != torch.uint8 or tuple(pixels.shape[1:]) != shape or not len(pixels):
        raise InputError(
            f"pixels is of {pixels.dtype} and shape {tuple(pixels.shape)}; expected torch.uint8 and {('N', *shape)}, "
            "as model.transform takes them"
        )
    for name, given in (("names", inputs.names), ("labels", inputs.labels)):
        if given is not None and len(given) != len(pixels):
            raise InputError(f"{name} has {len(given)} entries; expected one for each of the {len(pixels)} images")
