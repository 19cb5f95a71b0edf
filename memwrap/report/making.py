"""From a run and some pictures to a report; and from what a report carries to the same one again."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor

from memwrap.data import Progress, generator, track_progress
from memwrap.errors import InputError
from memwrap.explain.attribution import Attribution, Deletion, deletion, heatmaps
from memwrap.explain.explanation import Explanation
from memwrap.models.classifier import MemoryClassifier
from memwrap.nn.precision import exact_convolutions, exact_products
from memwrap.report.content import Content, Pictures, content_of, explain_each, shown_samples
from memwrap.report.page import HeatmapOptions, Manifest, page, title_of
from memwrap.storage.fingerprint import fingerprint
from memwrap.version import __version__

DELETION_SEED = 0
RANDOM_ORDERS = 4  # to compare the deletion of highlighted pixels with; more of them mostly take time


@dataclass(frozen=True)
class Source:
    """The run that a report is about: where it lies, its model, and what its memory images were called."""

    path: str
    model: MemoryClassifier
    memory_names: Sequence[str] | None
    seed: int


@dataclass(frozen=True)
class NewReport:
    """What was made of some pictures: as values, and as a page if one asks for it, which takes its time."""

    source: Source
    manifest: Manifest
    content: Content
    progress: Progress | None = None

    def page(self) -> str:
        return page_for(self.manifest, self.content, self.source, self.progress)


def report_of(
    source: Source,
    pictures: Pictures,
    title: str,
    shown: int,
    options: HeatmapOptions | None,
    progress: Progress | None = None,
) -> NewReport:
    """A report of these pictures, with `shown` memory images for each, and with heatmaps if there are options."""
    manifest = new_manifest(source, pictures, title, shown, options)
    return NewReport(source, manifest, content_for(manifest, source, pictures.pixels, progress), progress)


def report_on(
    model: MemoryClassifier,
    pixels: Tensor,
    names: Sequence[str],
    labels: Tensor | Sequence[int] | None = None,
    *,
    saved_at: str | Path,
    shown: int = 8,
    heatmaps: HeatmapOptions | None = None,
) -> NewReport:
    """A report from Python, of a model at hand and some pictures, uint8 (N, C, H, W) of the model's size.

    saved_at: the folder that `model.save` wrote, or will write; `memwrap verify` looks for the model there.
    """
    _check_pictures(model, pixels, names, labels)
    place = str(Path(saved_at).absolute())
    known = None if labels is None else torch.as_tensor(labels)
    source, pictures = Source(place, model, None, seed=0), Pictures(pixels.cpu(), tuple(names), known)
    return report_of(source, pictures, title_of(place), shown, heatmaps)


def _check_pictures(
    model: MemoryClassifier, pixels: Tensor, names: Sequence[str], labels: Tensor | Sequence[int] | None
) -> None:
    shape = tuple(model.get_transform().shape)
    if pixels.dtype != torch.uint8 or tuple(pixels.shape[1:]) != shape or not len(pixels):
        raise InputError(
            f"pixels is of {pixels.dtype} and shape {tuple(pixels.shape)}; expected torch.uint8 and "
            f"{('N', *shape)}, as model.get_transform() takes them"
        )
    for name, given in (("names", names), ("labels", labels)):
        if given is not None and len(given) != len(pixels):
            raise InputError(f"{name} has {len(given)} entries; expected one for each of the {len(pixels)} pictures")


def new_manifest(
    source: Source, pictures: Pictures, title: str, shown: int, options: HeatmapOptions | None
) -> Manifest:
    """What a report of these pictures is to carry."""
    return Manifest(
        memwrap_version=__version__,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        run=source.path,
        title=title,
        hashes=hashes(source.model, pictures),
        seeds={"run": source.seed, "deletion": DELETION_SEED},
        names=pictures.names,
        labels=None if pictures.labels is None else tuple(pictures.labels.tolist()),
        shown=shown,
        heatmaps=options,
    )


def pictures_of(manifest: Manifest, pixels: Tensor) -> Pictures:
    """What a report is about, from what it carries: its manifest, and the pixels uint8 (N, C, H, W)."""
    return Pictures(pixels, manifest.names, None if manifest.labels is None else torch.tensor(manifest.labels))


def hashes(model: MemoryClassifier, pictures: Pictures) -> dict[str, str]:
    """Of all that a report depends on."""
    memory, transform = model.remembered, model.get_transform()
    settings = [model.layer_settings(), model.classes, transform.shape, transform.mean, transform.std]
    labels = None if pictures.labels is None else pictures.labels.tolist()
    return {
        "model": fingerprint(model.state_dict(), settings),
        "memory": fingerprint({} if memory is None else memory.tensors()),
        "inputs": fingerprint({"pixels": pictures.pixels}, [pictures.names, labels]),
    }


def content_for(manifest: Manifest, source: Source, pixels: Tensor, progress: Progress | None = None) -> Content:
    """What a report says, for a manifest and the pixels uint8 (N, C, H, W) of its pictures."""
    reference, maps = source.model.reference, None
    # In full precision: whoever verifies it may have another device.
    with exact_products(reference), exact_convolutions(reference):
        explanations = explain_each(source.model, pixels)
        if manifest.heatmaps is not None:
            maps = _heatmaps(source.model, pixels, explanations, manifest, manifest.heatmaps, progress)
    return content_of(source.model, pictures_of(manifest, pixels), explanations, manifest.shown, maps)


def page_for(manifest: Manifest, content: Content, source: Source, progress: Progress | None = None) -> str:
    """The same as a page."""
    with track_progress(progress, "looking for what would change predictions") as report:
        for card in content.cards:
            _ = card.flip  # which takes its time, and is kept
            if report is not None:
                report(card.number, len(content.cards))
    return page(manifest, content, source.model, source.memory_names)


def _heatmaps(
    model: MemoryClassifier,
    pixels: Tensor,
    explanations: Sequence[Explanation],
    manifest: Manifest,
    options: HeatmapOptions,
    progress: Progress | None,
) -> list[tuple[Attribution, Deletion]]:
    images = model.get_transform()(pixels.to(model.reference.device))
    moved = [[each.index for each in shown_samples(explanation, manifest.shown)] for explanation in explanations]
    with track_progress(progress, "heatmaps") as report:
        maps = heatmaps(
            model,
            images,
            moved,
            method=options.method,
            baseline=options.baseline,
            tolerance=options.tolerance,
            max_steps=options.max_steps,
            progress=report,
        )
    deletions = []
    with track_progress(progress, "deleting pixels") as report:
        for row, (each, image) in enumerate(zip(maps, images, strict=True)):
            draws = generator(manifest.seeds["deletion"], "deletion", row)
            deletions.append(deletion(model, image, each.input, draws, options.baseline, RANDOM_ORDERS))
            if report is not None:
                report(len(deletions), len(maps))
    return list(zip(maps, deletions, strict=True))
