"""memwrap reproduce: its flags and help."""

from pathlib import Path
from typing import Annotated

import typer

from memwrap.cli.options import Device, HoldMegabytes, Root, Workers


def reproduce(
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="svhn-reduced, cifar10-reduced, cinic10-reduced, svhn-more, cifar10-more, cinic10-more, full, "
            "explanations, counterfactuals, parameters or memory-size.",
            show_default=False,
        ),
    ],
    seeds: Annotated[
        str | None,
        typer.Option(help="A number of seeds, as 15, or a range, as 5-9.", show_default="5"),
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="Only svhn, cifar10 or cinic10; may be repeated.", show_default=False)
    ] = None,
    encoder: Annotated[
        list[str] | None, typer.Option(help="Only this one, as mobilenet_v2; may be repeated.", show_default=False)
    ] = None,
    samples: Annotated[
        list[int] | None,
        typer.Option(metavar="<int>", help="Only training sets of this size; may be repeated.", show_default=False),
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(help="Only standard, only_memory or memory_wrap; may be repeated.", show_default=False),
    ] = None,
    memory: Annotated[
        str,
        typer.Option(
            help="The memory in training: random, as in the paper, or batch, which takes two thirds of the time."
        ),
    ] = "random",
    records: Annotated[
        list[Path] | None,
        typer.Option(
            help="A file of records; may be repeated to merge several. New ones are added to the first.",
            show_default="records.jsonl next to --out",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The table's folder.", show_default="reproduced/TABLE")] = None,
    images: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH",
            help="Read a folder or zip instead of a published data set, as svhn=svhn.zip.",
            show_default=False,
        ),
    ] = None,
    data_root: Root = None,
    hold_mb: HoldMegabytes = 1024,
    workers: Workers = 2,
    device: Device = "auto",
    loop: Annotated[
        bool, typer.Option("--loop", help="Train one run after the other, without the fused engine for GPUs.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the number of missing runs and how long they take.")
    ] = False,
    from_records: Annotated[
        bool, typer.Option("--from-records", help="Train nothing; make the table from the records.")
    ] = False,
) -> None:
    """Reproduce a table of the paper, with a statistical comparison for each number.

    [b]memwrap reproduce svhn-reduced --dry-run[/b]
    [b]memwrap reproduce svhn-reduced --encoder resnet18 --seeds 15[/b]

    Each run leaves a record, and tables are made from records alone.
    After Ctrl-C, the same command trains what is missing.
    """
    from memwrap.cli.data_options import DataOptions
    from memwrap.cli.reproduce import find_places
    from memwrap.cli.reproduce import reproduce as run_command
    from memwrap.reproduce import Selection

    selection = Selection(table, data or (), encoder or (), samples or (), variant or (), memory)
    places, reading = find_places(selection, records or [], out), DataOptions(data_root, hold_mb, workers)
    run_command(selection, seeds, places, images or [], reading, device, loop, dry_run, from_records)
