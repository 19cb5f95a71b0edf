"""memwrap verify."""

from dataclasses import asdict
from pathlib import Path

import typer

from memwrap.cli.callbacks import reading_bars
from memwrap.cli.failures import DIFFERENT
from memwrap.cli.terminal import device_named, errors, plain_console, print_json
from memwrap.errors import DataError, RunError
from memwrap.report.making import Source
from memwrap.report.page import TOLERANCE
from memwrap.report.reading import Report, read
from memwrap.report.verifying import Difference, verify
from memwrap.runs.reporting import source_at
from memwrap.version import __version__


def verify_report(path: Path, run: Path | None, device: str, as_json: bool) -> None:
    """See `memwrap verify --help`."""
    report = _read(path)
    place = Path(report.manifest.run) if run is None else run
    source = _source(place, device, given=run is not None)
    differences = verify(report, source, reading_bars(errors))
    if as_json:
        print_json(
            {
                "report": str(path),
                "run": str(place),
                "equal": not differences,
                "differences": [asdict(each) for each in differences],
            }
        )
    elif differences:
        _tell(differences, report)
    else:
        plain_console().print(
            f"equal: all that {path} says of its {len(report.pixels)} images was computed again from {place}; "
            f"numbers agree to {TOLERANCE}. The images, their names and labels, the run's place and the date are the "
            "report's own"
        )
    if differences:
        raise typer.Exit(DIFFERENT)


def _read(path: Path) -> Report:
    try:
        return read(path.read_bytes().decode())
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error}); expected a file that memwrap explain --html wrote"
        ) from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is no report of memwrap's, or a damaged one ({error})") from error
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _source(place: Path, device: str, given: bool) -> Source:
    try:
        return source_at(place, device_named(device))
    except RunError as error:
        hint = "" if given else "; if the run that the report names has moved, give --run"
        raise RunError(f"{error}{hint}") from error


def _tell(differences: list[Difference], report: Report) -> None:
    first, *others = differences
    console = plain_console()
    console.print(f"differs: {first.where}")
    console.print(f"  the report says: {first.reported}")
    console.print(f"  the run says:    {first.found}")
    if others:
        console.print(f"and more after it, in {len(others)} {'place' if len(others) == 1 else 'places'} at least")
    if (maker := report.manifest.memwrap_version) != __version__:
        console.print(f"the report was made by memwrap {maker}; this is {__version__}")
