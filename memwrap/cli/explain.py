"""memwrap explain."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import typer

from memwrap.cli import show
from memwrap.cli.callbacks import reading_bars
from memwrap.cli.evaluate import EVALUATIONS, other_images, own_data
from memwrap.cli.failures import CODES
from memwrap.cli.reading import Reading
from memwrap.cli.terminal import device_named, errors, plain_console, print_json
from memwrap.data import LabelledImages, UnreadableFile, generator, list_image_files, read_image_files
from memwrap.errors import DataError, SaveError, SettingsError
from memwrap.explain.attribution.baselines import check_baseline
from memwrap.explain.attribution.methods import check_method
from memwrap.report.content import Content, Pictures
from memwrap.report.making import Source, report_of
from memwrap.report.page import HeatmapOptions, title_of
from memwrap.report.records import as_record
from memwrap.runs.evaluation import run_at
from memwrap.runs.folder import Run
from memwrap.runs.reporting import source_at
from memwrap.storage.checkpoint import write_file

MOST_EXPLAINED = 50  # labelled images, if nothing else is asked for
SUFFIXES = {"--html": (".html", ".htm"), "--figure": (".png", ".svg", ".pdf")}


@dataclass(frozen=True)
class Asked:
    """Which images: files, or labelled ones of `data`, or of a split of the run's own; of these up to `limit`."""

    files: list[Path]
    data: str | None
    run_data: str | None  # where the run's own are now
    split: str | None
    limit: int | None


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
    if asked.files:
        pictures, unreadable = _named(source, _files(asked, wanted))
    else:
        pictures, unreadable = _labelled(path, source, asked, _limit(asked, wanted), reading), []
    for each in unreadable:
        errors.print(f"{each.path}: cannot be explained, {each.reason}")
    if not len(pictures):
        if wanted.as_json:
            print_json([asdict(each) for each in unreadable])
        raise DataError("there are no images to explain; expected image files, or folders that hold some")
    report = report_of(source, pictures, title_of(source.path), wanted.shown, wanted.heatmaps, reading_bars(errors))
    _show(report.content, source, wanted, unreadable)
    if wanted.html is not None:
        _write(wanted.html, report.page().encode())
    if wanted.figure is not None:
        _draw(wanted.figure, report.content, source)
    if unreadable:
        raise typer.Exit(CODES[DataError])


def _refuse_early(asked: Asked, wanted: Wanted) -> None:
    """What would fail anyway, but only when all images have been explained."""
    if asked.files and asked.data is not None:
        raise SettingsError("IMAGE and --data were both given; expected image files, or labelled images with --data")
    named = {"--run-data": asked.run_data, "--split": asked.split}
    if (asked.files or asked.data is not None) and (given := [flag for flag, value in named.items() if value]):
        other = "--data" if asked.data is not None else "IMAGE"
        raise SettingsError(f"{given[0]} is about the run's own images, {other} names others; give one of them")
    if asked.files and asked.limit is not None:
        raise SettingsError("--limit is about labelled images; all that are named by IMAGE are explained")
    if asked.split not in (None, *EVALUATIONS):
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


def _limit(asked: Asked, wanted: Wanted) -> int:
    """How many labelled images are explained at most; for a figure alone no more than it shows."""
    if asked.limit is not None:
        return asked.limit
    if wanted.figure is None or wanted.html is not None or wanted.as_json:
        return MOST_EXPLAINED
    from memwrap.report.figures import MOST_INPUTS  # a heavy import

    return MOST_INPUTS


def _files(asked: Asked, wanted: Wanted) -> list[Path]:
    """The files to explain; not the report itself, which may lie among them since the last time."""
    files = list(dict.fromkeys(list_image_files(asked.files)))  # a page shows each once
    if wanted.figure is not None and any(_same(wanted.figure, file) for file in files):
        raise SettingsError(f"--figure {wanted.figure} is one of the images to explain; expected another place")
    return [file for file in files if wanted.html is None or not _same(wanted.html, file)]


def _same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


def _named(source: Source, files: list[Path]) -> tuple[Pictures, list[UnreadableFile]]:
    """Single images, and which files are none."""
    transform = source.model.get_transform()
    read, unreadable = read_image_files(files, transform.shape, transform.fit)
    stacked = torch.stack(list(read.values())) if read else torch.empty(0, *transform.shape)
    return Pictures(stacked, tuple(map(str, read)), None), unreadable


def _labelled(path: Path, source: Source, asked: Asked, limit: int, reading: Reading) -> Pictures:
    """Some labelled images, drawn by the run's seed."""
    run = run_at(path)
    if asked.data is not None:
        images = other_images(run, source.model, asked.data, False, reading)
    elif run is None:
        raise SettingsError(f"{path}: is a model without a run, which has no images of its own; name some to explain")
    else:
        images = _own_images(run, asked, reading)
    chosen = torch.randperm(len(images), generator=generator(source.seed, "explained"))[:limit].sort().values
    some = images.at(chosen)
    (pixels,) = some.images.batches([torch.arange(len(some))])
    return Pictures(pixels, some.names, some.labels)


def _own_images(run: Run, asked: Asked, reading: Reading) -> LabelledImages:
    split = asked.split or "test"
    if not len(getattr(run.splits, split)):
        raise DataError(f"the run has no {split} images; train with --{split} to set some apart, or name images")
    data = own_data(run, asked.run_data, reading)
    if isinstance(data, str):
        raise DataError(f"the run's own images cannot be had: {data}, or name images to explain")
    return run.splits.of(data, split)


def _show(content: Content, source: Source, wanted: Wanted, unreadable: list[UnreadableFile]) -> None:
    if wanted.as_json:
        records = [as_record(card, source.memory_names) for card in content.cards]
        print_json([*records, *map(asdict, unreadable)])
    elif wanted.html is None and wanted.figure is None:
        for card in content.cards:
            show.explanation(plain_console(), card, source.memory_names)
    else:
        count, unsure = len(content.cards), len(content.uncertain)
        plain_console().print(f"{count} {'image' if count == 1 else 'images'} explained, {unsure} of them unsure")


def _draw(path: Path, content: Content, source: Source) -> None:
    from memwrap.report.figures import MOST_INPUTS, figure  # a heavy import

    if len(content.cards) > MOST_INPUTS:
        errors.print(f"the figure shows the first {MOST_INPUTS} of {len(content.cards)} images")
    _write(path, figure(content, source.model, path.suffix))


def _write(path: Path, content: bytes) -> None:
    try:
        write_file(path.resolve(), content)  # what a link leads to, not the link
    except OSError as error:
        raise SaveError(f"{path}: cannot be written ({error})") from error
    errors.print(f"written: {path}")
