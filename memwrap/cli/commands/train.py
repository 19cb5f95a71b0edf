"""memwrap train: its flags and help."""

from pathlib import Path
from typing import Annotated, Any

import typer

from memwrap.cli.flags import completing, repeat_flags, with_settings
from memwrap.cli.options import AsJson, Device, HoldMegabytes, Root, Workers
from memwrap.training.recipes import RECIPES

# Flags that do not change what is trained: a stopped run is resumed with them.
REPEATED = (
    "data_root",
    "hold_mb",
    "workers",
    "device",
    "tensorboard",
    "skip_evaluation",
    "as_json",
    "checkpoint_seconds",
)


@with_settings
def train(
    context: typer.Context,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="A folder of class folders (with or without train/ and test/), a zip of one, or "
            "digits, svhn, cifar10, cinic10.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder, new or empty.", show_default=False)] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="The settings to start from: photographs (chosen for images of 64 pixels and more), default (for "
            "smaller ones), finetune (with --pretrained), frozen (with --freeze), or the paper's svhn, cifar10, "
            "cinic10, which are the defaults for these data sets.",
            show_default=False,
            autocompletion=completing(RECIPES),
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A YAML file of settings; overrides the recipe, and flags override it.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out from where it was saved.")
    ] = False,
    data_root: Root = None,
    hold_mb: HoldMegabytes = 1024,
    workers: Workers = 2,
    device: Device = "auto",
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write curves for TensorBoard.")] = False,
    skip_evaluation: Annotated[bool, typer.Option("--no-evaluate", help="Do not evaluate the finished run.")] = False,
    as_json: AsJson = False,
    checkpoint_seconds: Annotated[
        float, typer.Option(min=0, metavar="<float>", help="Seconds between two checkpoints.")
    ] = 60.0,
    *,
    settings: dict[str, Any],
) -> None:
    """Train a classifier with a memory on your images.

    [b]memwrap train photos/ --out runs/photos[/b]
    [b]memwrap train photos/ --out runs/tuned --encoder timm:resnet18 --pretrained[/b]
    [b]memwrap train --resume --out runs/photos[/b]

    photos/ holds a folder of images for each class. A fifth of them is held
    out for testing, unless there are train/ and test/. Ctrl-C stops, and
    --resume continues.
    """
    from memwrap.cli.data_options import DataOptions
    from memwrap.cli.train import TrainOptions
    from memwrap.cli.train import train as run_command

    reading = DataOptions(data_root, hold_mb, workers)
    options = TrainOptions(reading, device, tensorboard, not skip_evaluation, as_json, checkpoint_seconds)
    run_command(data, out, recipe, config, settings, resume, options, repeat_flags(context, REPEATED))
