"""memwrap drop: its flags and help."""

from typing import Annotated

import typer

from memwrap.cli.options import AsJson, Device, HoldMegabytes, ModelFolder, RunData, Workers


def drop(
    run: ModelFolder,
    images: Annotated[
        list[str],
        typer.Argument(metavar="IMAGE", help="Names of memory images, as explain shows them, or their numbers: '#12'."),
    ],
    run_data: RunData = None,
    hold_mb: HoldMegabytes = 1024,
    workers: Workers = 2,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Take images out of the memory of a run, without training.

    [b]memwrap drop runs/photos ants/blurred.jpg '#12'[/b]

    Accuracy on the run's test images is printed before and after.
    """
    from memwrap.cli.data_options import DataOptions
    from memwrap.cli.edit import drop as run_command

    run_command(run, images, run_data, DataOptions(None, hold_mb, workers), device, as_json)
