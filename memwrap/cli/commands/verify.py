"""memwrap verify: its flags and help."""

from pathlib import Path
from typing import Annotated

import typer

from memwrap.cli.options import AsJson, Device


def verify(
    report: Annotated[Path, typer.Argument(metavar="REPORT", help="A file written by explain --html.")],
    run: Annotated[Path | None, typer.Option(help="The run's folder, if it has moved.", show_default=False)] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Check a report: that its page shows its data, and that its run gives the same data again.

    [b]memwrap verify why.html[/b]

    The images, their names and labels, and the date are taken from the report.
    The run's folder has to have the name that the report shows.
    """
    from memwrap.cli.verify import verify_report

    verify_report(report, run, device, as_json)
