"""memwrap explain."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import typer

from memwrap.attribution.baselines import check_baseline
from memwrap.attribution.methods import check_method
from memwrap.cli import show
from memwrap.cli.evaluate import EVALUATIONS, other_images, own_data
from memwrap.cli.failures import CODES
from memwrap.cli.reading import Reading
from memwrap.cli.terminal import device_named, errors, plain_console, print_json
from memwrap.cli.watch import reading_bars
from memwrap.data.files import Unreadable, image_files, read_files
from memwrap.data.labelled import LabelledImages
from memwrap.errors import DataError, SaveError, SettingsError
from memwrap.report.content import Content, Pictures
from memwrap.report.making import Source, content_for, new_manifest, page_for
from memwrap.report.page import HeatmapOptions
from memwrap.report.records import as_record
from memwrap.runs.evaluation import run_at
from memwrap.runs.folder import Run
from memwrap.runs.reporting import source_at
from memwrap.seeds import generator
from memwrap.store import write_file

SUFFIXES = {"--html": (".html", ".htm"), "--figure": (".png", ".svg", ".pdf")}


@dataclass(frozen=True)
class Asked:
    """Which images: files, or labelled ones of `data`, or of a split of the run's own; of these up to `limit`."""

    files: list[Path]
    data: str | None
    run_data: str | None  # where the run's own are now
    split: str
    limit: int


@dataclass(frozen=True)
class Wanted:
    """What is to be made of the explanations."""

    shown: int
    heatmaps: HeatmapOptions | None
    html: Path | None
    figure: Path | None
    as_json: bool


def heatmap_options(
    wanted: bool, method: str | None, baseline: str | None, max_steps: int | None
) -> HeatmapOptions | None:
    """How heatmaps are to be made, if they are wanted; None for what is as usual."""
    flags = {"method": method, "baseline": baseline, "max_steps": max_steps}
    given: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    if given and not wanted:
        raise SettingsError(f"--{next(iter(given)).replace('_', '-')} says how heatmaps are made; give --heatmaps, too")
    return HeatmapOptions(**given) if wanted else None


def explain(path: Path, asked: Asked, wanted: Wanted, reading: Reading, device: str) -> None:
    """See `memwrap explain --help`."""
    _refuse_early(asked, wanted)
    source = source_at(path, device_named(device))
    pictures, unreadable = _pictures(path, source, asked, reading)
    for each in unreadable:
        errors.print(f"{each.path}: cannot be explained, {each.reason}")
    if not len(pictures):
        raise DataError("there are no images to explain; expected image files, or folders that hold some")
    manifest = new_manifest(source, pictures, path.resolve().name, wanted.shown, wanted.heatmaps)
    progress = reading_bars(errors)
    content = content_for(manifest, source, pictures.pixels, progress)
    _show(content, source, wanted, unreadable)
    if wanted.html is not None:
        _write(wanted.html, page_for(manifest, content, source, progress).encode())
    if wanted.figure is not None:
        _draw(wanted.figure, content, source)
    if unreadable:
        raise typer.Exit(CODES[DataError])


def _refuse_early(asked: Asked, wanted: Wanted) -> None:
    """What would fail anyway, but only when all images have been explained."""
    if asked.files and asked.data is not None:
        raise SettingsError("IMAGE and --data were both given; expected image files, or labelled images with --data")
    if asked.split not in EVALUATIONS:
        raise SettingsError(f"split is {asked.split!r}; expected {' or '.join(EVALUATIONS)}")
    if wanted.heatmaps is not None:
        if wanted.html is None and wanted.figure is None:
            raise SettingsError("--heatmaps are pictures; say where to put them with --html FILE or --figure FILE")
        check_method(wanted.heatmaps.method)
        check_baseline(wanted.heatmaps.baseline)
    for flag, path in (("--html", wanted.html), ("--figure", wanted.figure)):
        if path is not None:
            _refuse_place(flag, path)


def _refuse_place(flag: str, path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES[flag]:
        *others, last = SUFFIXES[flag]
        raise SettingsError(f"{flag} is {path}; expected a name that ends in {', '.join(others)} or {last}")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise SettingsError(f"{flag} is {path}; expected a file in a folder that exists")


def _pictures(path: Path, source: Source, asked: Asked, reading: Reading) -> tuple[Pictures, list[Unreadable]]:
    """What is to be explained, and which files cannot be."""
    transform = source.model.transform
    if asked.files:
        read, unreadable = read_files(image_files(asked.files), transform.shape, transform.fit)
        stacked = torch.stack(list(read.values())) if read else torch.empty(0, *transform.shape)
        return Pictures(stacked, tuple(map(str, read)), None), unreadable
    run = run_at(path)
    if asked.data is not None:
        images = other_images(run, source.model, asked.data, False, reading)
    elif run is None:
        raise SettingsError(f"{path}: is a model without a run, which has no images of its own; name some to explain")
    else:
        images = _own_images(run, asked, reading)
    chosen = torch.randperm(len(images), generator=generator(source.seed, "explained"))[: asked.limit].sort().values
    some = images.at(chosen)
    (pixels,) = some.images.batches([torch.arange(len(some))])
    return Pictures(pixels, some.names, some.labels), []


def _own_images(run: Run, asked: Asked, reading: Reading) -> LabelledImages:
    if not len(getattr(run.splits, asked.split)):
        raise DataError(
            f"the run has no {asked.split} images; train with --{asked.split} to set some apart, or name images"
        )
    data = own_data(run, asked.run_data, reading)
    if isinstance(data, str):
        raise DataError(f"the run's own images cannot be had: {data}, or name images to explain")
    return run.splits.of(data, asked.split)


def _show(content: Content, source: Source, wanted: Wanted, unreadable: list[Unreadable]) -> None:
    if wanted.as_json:
        explained = [as_record(card, source.memory_names) for card in content.cards]
        print_json([*explained, *map(asdict, unreadable)])
    elif wanted.html is None and wanted.figure is None:
        for card in content.cards:
            show.explanation(plain_console(), card, source.memory_names)
    else:
        unsure = len(content.uncertain)
        plain_console().print(f"{len(content.cards)} images explained, {unsure} of them unsure")


def _draw(path: Path, content: Content, source: Source) -> None:
    from memwrap.report.figures import MOST_INPUTS, figure  # a heavy import

    if len(content.cards) > MOST_INPUTS:
        errors.print(f"the figure shows the first {MOST_INPUTS} of {len(content.cards)} images")
    _write(path, figure(content, source.model, path.suffix))


def _write(path: Path, content: bytes) -> None:
    try:
        write_file(path, content)
    except OSError as error:
        raise SaveError(f"{path}: cannot be written ({error})") from error
    errors.print(f"written: {path}")
