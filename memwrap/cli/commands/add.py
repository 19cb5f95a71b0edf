"""memwrap add: its flags and help."""

from typing import Annotated

import typer

from memwrap.cli.options import AsJson, Device, HoldMegabytes, ModelFolder, RunData, Workers


def add(
    run: ModelFolder,
    images: Annotated[
        str, typer.Argument(metavar="IMAGES", help="A folder of class folders, or a zip of one.", show_default=False)
    ],
    run_data: RunData = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip files that cannot be read as images.")] = False,
    hold_mb: HoldMegabytes = 1024,
    workers: Workers = 2,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Add images to the memory of a run, without training.

    [b]memwrap add runs/photos more/[/b]

    more/ holds a folder of images for each class. Where the memory images
    vote, it may have classes that the run was not trained on. Accuracy on the
    run's test images is printed before and after.
    """
    from memwrap.cli.data_options import DataOptions
    from memwrap.cli.edit import add as run_command

    run_command(run, images, run_data, skip_bad, DataOptions(None, hold_mb, workers), device, as_json)
