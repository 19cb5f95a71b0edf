"""memwrap predict: its flags and help."""

from pathlib import Path
from typing import Annotated

import typer

from memwrap.cli.options import AsJson, Device, ModelFolder


def predict(
    run: ModelFolder,
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGE", help="Image files, or folders of them.", show_default=False)
    ],
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Classify images: the class, its probability, and whether the model is unsure.

    [b]memwrap predict runs/photos cat.jpg more/[/b]

    Unsure means that the memory image with the largest weight is predicted
    as another class.
    """
    from memwrap.cli.predict import predict as run_command

    run_command(run, images, device, as_json)
