"""memwrap check: its flags and help."""

from typing import Annotated

import typer

from memwrap.cli.options import AsJson, Device, HoldMegabytes, ModelFolder, Root, RunData, Workers


def check(
    run: ModelFolder,
    expect: Annotated[
        str | None,
        typer.Option(
            metavar="HASH", help="The root hash that it must have, obtained by another route.", show_default=False
        ),
    ] = None,
    run_data: RunData = None,
    data_root: Root = None,
    hold_mb: HoldMegabytes = 1024,
    workers: Workers = 2,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Check a run or a model: that no file was changed, and that model and data give the same again.

    [b]memwrap check runs/photos[/b]

    All hashes are compared, and every memory image is encoded again. Where
    the run's data is at hand, so are its splits, and images and labels of the
    memory. The root hash stands for all of it: compare it with one that you
    obtained by another route, as who can write the folder can write its
    hashes.
    """
    from memwrap.cli.check import check as run_command
    from memwrap.cli.data_options import DataOptions

    reading = DataOptions(data_root, hold_mb, workers)
    run_command(run, expect=expect, run_data=run_data, reading=reading, device=device, as_json=as_json)
