"""memwrap explain."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer

from memwrap.cli import show
from memwrap.cli.callbacks import reading_bars
from memwrap.cli.data_options import DataOptions
from memwrap.cli.evaluate import EVALUATIONS, other_images, own_data
from memwrap.cli.failures import CODES
from memwrap.cli.terminal import errors, plain_console, print_json
from memwrap.data import LabelledImages, UnreadableFile, generator, list_image_files, read_image_files
from memwrap.errors import DataError, SaveError, SettingsError
from memwrap.explain.attribution.baselines import check_baseline
from memwrap.explain.attribution.methods import check_method
from memwrap.report.create import Inputs, Source, create_report, explain_inputs
from memwrap.report.page import check_inputs_fit, page_content
from memwrap.report.record import HeatmapOptions, ReportRecord
from memwrap.runs.devices import device_named
from memwrap.runs.reporting import source_of
from memwrap.runs.run import Run, SavedModel, open_model
from memwrap.storage.files import write_file
from memwrap.visible import visible_name

MOST_EXPLAINED = 50  # labelled images, if nothing else is asked for
SUFFIXES = {"--html": (".html", ".htm"), "--figure": (".png", ".svg", ".pdf")}


@dataclass(frozen=True)
class ImageSelection:
    """Which images to explain: files, or up to `limit` labelled ones of `data` or of a split of the run's own data."""

    files: list[Path]
    data: str | None
    run_data: str | None  # where the run's own data is now
    split: str | None
    limit: int | None


@dataclass(frozen=True)
class OutputOptions:
    """What to make of the explanations."""

    shown: int
    heatmaps: HeatmapOptions | None
    html: Path | None
    figure: Path | None
    as_json: bool


def heatmap_options(
    wanted: bool, method: str | None, baseline: str | None, max_steps: int | None
) -> HeatmapOptions | None:
    """Options from flags; None for flags not given, and as a result if no heatmaps are output."""
    flags = {"method": method, "baseline": baseline, "max_steps": max_steps}
    given: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    if given and not wanted:
        raise SettingsError(f"--{next(iter(given)).replace('_', '-')} needs --heatmaps")
    return HeatmapOptions(**given) if wanted else None


def explain(path: Path, selection: ImageSelection, output: OutputOptions, reading: DataOptions, device: str) -> None:
    """See `memwrap explain --help`."""
    _check_flags(selection, output)
    folder = open_model(path)
    source = source_of(folder, device_named(device))
    if selection.files:
        inputs, unreadable = _read_inputs(source, _files(selection, output))
    else:
        inputs, unreadable = _labelled_inputs(folder, source, selection, _limit(selection, output), reading), []
    for each in unreadable:
        errors.print(visible_name(f"{each.path}: cannot be read, {each.reason}"))
    if not len(inputs):
        if output.as_json:
            print_json(unreadable)
        raise DataError("there are no images to explain; expected image files, or folders that hold some")
    if output.html is not None:
        check_inputs_fit(len(inputs), tuple(inputs.pixels.shape[1:]))
    if output.html is None and output.figure is None:
        explanations, _ = explain_inputs(source, inputs, output.shown, None, reading_bars(errors))
        if not output.as_json:
            plain_console().print(f"predictions are {show.DECIDED_BY[explanations[0].decided_by]}\n")
            for record in explanations:
                show.explanation(plain_console(), record, output.shown)
    else:
        report = create_report(
            source, inputs, shown=output.shown, heatmaps=output.heatmaps, progress=reading_bars(errors)
        )
        explanations = list(report.explanations)
        _write_report(report, output)
    if output.as_json:
        print_json([*explanations, *unreadable])
    if unreadable:
        raise typer.Exit(CODES[DataError])


def _check_flags(selection: ImageSelection, output: OutputOptions) -> None:
    """Raise now what would otherwise fail after all images have been explained."""
    if selection.files and selection.data is not None:
        raise SettingsError("IMAGE and --data were both given; expected image files, or labelled images with --data")
    named = {"--run-data": selection.run_data, "--split": selection.split}
    if (selection.files or selection.data is not None) and (given := [flag for flag, value in named.items() if value]):
        other = "--data" if selection.data is not None else "IMAGE"
        raise SettingsError(f"{given[0]} selects from the run's own images, {other} names others; give one of them")
    if selection.files and selection.limit is not None:
        raise SettingsError("--limit is for labelled images; all images named by IMAGE are explained")
    if selection.split not in (None, *EVALUATIONS):
        raise SettingsError(f"split is {selection.split!r}; expected {' or '.join(EVALUATIONS)}")
    if output.heatmaps is not None:
        if output.html is None and output.figure is None:
            raise SettingsError("--heatmaps are pictures; give --html FILE or --figure FILE to write them to")
        check_method(output.heatmaps.method)
        check_baseline(output.heatmaps.baseline)
    for flag, path in (("--html", output.html), ("--figure", output.figure)):
        if path is not None:
            _check_path(flag, path)


def _check_path(flag: str, path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES[flag]:
        *others, last = SUFFIXES[flag]
        raise SettingsError(f"{flag} is {path}; expected a name that ends in {', '.join(others)} or {last}")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise SettingsError(f"{flag} is {path}; expected a file in a folder that exists")


def _limit(selection: ImageSelection, output: OutputOptions) -> int:
    """How many labelled images to explain; for a figure alone no more than it shows."""
    if selection.limit is not None:
        return selection.limit
    if output.figure is None or output.html is not None or output.as_json:
        return MOST_EXPLAINED
    from memwrap.report.figures import MOST_INPUTS  # a heavy import

    return MOST_INPUTS


def _files(selection: ImageSelection, output: OutputOptions) -> list[Path]:
    """The files to explain, each once, without an earlier report among them."""
    files = list(dict.fromkeys(list_image_files(selection.files)))
    if output.figure is not None and any(_same(output.figure, file) for file in files):
        raise SettingsError(f"--figure {output.figure} is one of the images to explain; expected another file")
    return [file for file in files if output.html is None or not _same(output.html, file)]


def _same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


def _read_inputs(source: Source, files: list[Path]) -> tuple[Inputs, list[UnreadableFile]]:
    """The images in files, and the files that could not be read."""
    transform = source.model.get_transform()
    read, unreadable = read_image_files(files, transform.shape, transform.fit)
    stacked = torch.stack(list(read.values())) if read else torch.empty(0, *transform.shape)
    return Inputs(stacked, tuple(map(str, read))), unreadable


def _labelled_inputs(
    folder: SavedModel, source: Source, selection: ImageSelection, limit: int, reading: DataOptions
) -> Inputs:
    """Some labelled images, drawn by the run's seed."""
    run = folder if isinstance(folder, Run) else None
    if selection.data is not None:
        images = other_images(run, source.model, selection.data, False, reading)
    elif run is None:
        raise SettingsError(f"{folder.path}: is a model without a run, so it has no images; name images to explain")
    else:
        images = _own_images(run, selection, reading)
    chosen = torch.randperm(len(images), generator=generator(source.seed, "explained"))[:limit].sort().values
    some = images.at(chosen)
    (pixels,) = some.images.batches([torch.arange(len(some))])
    return Inputs(pixels, some.names, some.labels)


def _own_images(run: Run, selection: ImageSelection, reading: DataOptions) -> LabelledImages:
    split = selection.split or "test"
    if not len(getattr(run.splits, split)):
        raise DataError(f"the run has no {split} images; train with --{split} to hold some out, or name images")
    data = own_data(run, selection.run_data, reading)
    if isinstance(data, str):
        raise DataError(f"the run's own images cannot be read: {data}, or name images to explain")
    return run.splits.of(data, split)


def _write_report(report: ReportRecord, output: OutputOptions) -> None:
    count, unsure = len(report.explanations), len(report.uncertain)
    if not output.as_json:
        plain_console().print(f"{count} {'image' if count == 1 else 'images'} explained, {unsure} of them unsure")
    if output.html is not None:
        _write(output.html, page_content(report))
    if output.figure is not None:
        from memwrap.report.figures import MOST_INPUTS, figure  # a heavy import

        if count > MOST_INPUTS:
            errors.print(f"the figure shows the first {MOST_INPUTS} of {count} images")
        _write(output.figure, figure(report, output.figure.suffix))


def _write(path: Path, content: bytes) -> None:
    try:
        write_file(path.resolve(), content)  # the file behind a link, not the link
    except OSError as error:
        raise SaveError(f"{path}: cannot be written ({error})") from error
    errors.print(f"written: {path}")
