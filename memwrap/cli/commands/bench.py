"""memwrap bench: its flags and help."""

from pathlib import Path
from typing import Annotated

import typer

from memwrap.cli.options import AsJson, Device


def bench(
    device: Device = "auto",
    encoder: Annotated[
        list[str] | None,
        typer.Option(
            help="An encoder to measure; may be repeated.",
            show_default="mobilenet_v2 and resnet18; on a CPU tiny",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Only steps, sizes, training, inference, attention or memory; may be repeated.", show_default=False
        ),
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(
            help="A folder or zip of 32x32 training images in ten classes, as svhn.zip.",
            show_default="random ones",
        ),
    ] = None,
    side_by_side: Annotated[
        int, typer.Option(min=1, metavar="<int>", help="Runs trained at the same time on a GPU.")
    ] = 5,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, metavar="<int>", help="Timed rounds.", show_default="8; on a CPU 5"),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure very little, to check that everything works.")
    ] = False,
    as_json: AsJson = False,
    out: Annotated[Path | None, typer.Option(help="Write the record to this JSON file.", show_default=False)] = None,
) -> None:
    """Time training, prediction and memory against the published code and against no memory.

    [b]memwrap bench --out bench.json[/b]
    [b]memwrap bench --only steps --encoder resnet18[/b]

    Comparisons with memorywrap and entmax need these packages.
    """
    from memwrap.cli.bench import bench as run_command
    from memwrap.reproduce.bench import BenchOptions

    options = BenchOptions(tuple(only or ()), tuple(encoder or ()), side_by_side, rounds, quick)
    run_command(options, images, device, as_json, out)
