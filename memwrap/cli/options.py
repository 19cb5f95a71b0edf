"""Flags and arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...; auto uses a GPU if there is one.")]
Workers = Annotated[int, typer.Option(min=0, metavar="<int>", help="Processes that read images from disk.")]
HoldMegabytes = Annotated[
    int,
    typer.Option(min=0, metavar="<int>", help="Data larger than this is read from disk in each epoch, by workers."),
]
Root = Annotated[
    Path | None,
    typer.Option(help="Where svhn, cifar10 and cinic10 are, or are downloaded to.", show_default="MEMWRAP_DATA"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, for scripts.")]
RunData = Annotated[str | None, typer.Option(help="Where the run's data is now, if it has moved.", show_default=False)]
ModelFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder that train made, or model.save.", show_default=False)
]
