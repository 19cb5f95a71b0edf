"""memwrap verify."""

from pathlib import Path

import typer

from memwrap.cli.callbacks import reading_bars
from memwrap.cli.failures import DIFFERENT
from memwrap.cli.terminal import errors, plain_console, print_json
from memwrap.errors import DataError, RunError
from memwrap.report.create import Source
from memwrap.report.page import read_page, read_record
from memwrap.report.verification import FOLDER_NAME, MOST_LISTED, Verification, verify
from memwrap.runs.devices import device_named
from memwrap.runs.reporting import source_of
from memwrap.runs.run import open_model
from memwrap.version import __version__
from memwrap.visible import visible_name


def verify_report(path: Path, run: Path | None, device: str, as_json: bool) -> None:
    """See `memwrap verify --help`."""
    page = read_page(path)
    try:
        record = read_record(page)
        place = Path(record.run) if run is None else run
        source = _source(place, device, given=run is not None)
        if record.heatmaps is not None:
            count, steps = _images(len(record.explanations)), record.heatmaps.max_steps
            errors.print(f"explaining {count} again, with heatmaps of at most {steps} steps: this may take long")
        result = verify(page, source, reading_bars(errors))
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    if as_json:
        print_json({"report": str(path), "run": str(place), **result.model_dump()})
    else:
        for line in _lines(result, path, place):
            plain_console().print(visible_name(line))
    if not result.equal:
        raise typer.Exit(DIFFERENT)


def _source(place: Path, device: str, given: bool) -> Source:
    try:
        return source_of(open_model(place), device_named(device))
    except RunError as error:
        hint = "" if given else "; if the run has moved, name its folder with --run"
        raise RunError(f"{error}{hint}") from error


def _images(count: int) -> str:
    return f"{count} {'image' if count == 1 else 'images'}"


def _lines(result: Verification, path: Path, place: Path) -> list[str]:
    if result.equal:
        other = f". It says that memwrap {result.memwrap_version} made it; this is {__version__}"
        lines = [
            f"equal: the page shows its data, and {place} gives the same for its {_images(result.images)}. The images, "
            "their names and labels, and the date are taken from the report"
            + (other if result.memwrap_version != __version__ else "")
        ]
        if result.similar:
            lines.append(
                f"{result.similar} of its pictures are only similar to those made here: another machine made them, or "
                "someone has changed them faintly"
            )
        return lines
    lines = []
    if result.differences:
        first, *others = result.differences
        lines += [f"differs: {first.where}", f"  reported: {first.reported}", f"  found:    {first.found}"]
        if others:
            more = " or more" if len(result.differences) == MOST_LISTED else ""
            lines.append(f"and {len(others)}{more} other {'difference' if len(others) == 1 else 'differences'}")
        elif first.where == FOLDER_NAME and result.page == "equal":
            lines.append("everything else agrees; if the folder was renamed, give it the reported name again")
    if result.page == "not checked":
        data = "" if result.differences else f"the data in {path} agrees with {place}, but "
        lines.append(
            f"{data}the page was not checked: it was made by memwrap {result.memwrap_version}, and this is "
            f"{__version__}; verify it with that version"
        )
    return lines
