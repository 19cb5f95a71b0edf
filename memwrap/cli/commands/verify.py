"""memwrap verify: its flags and help."""

from pathlib import Path
from typing import Annotated

import typer

from memwrap.cli.options import AsJson, Device


def verify(
    report: Annotated[Path, typer.Argument(metavar="REPORT", help="A file that explain --html wrote.")],
    run: Annotated[
        Path | None, typer.Option(help="Where the run is, if not where the report says.", show_default=False)
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Compute what a report says of its images again, from the run that it names, and say what differs.

    The images, their names and labels, the run's place and the date are taken from the report itself.

    [b]memwrap verify why.html[/b]
    """
    from memwrap.cli.verify import verify_report

    verify_report(report, run, device, as_json)
