"""memwrap attach: its flags and help."""

from pathlib import Path
from typing import Annotated, Any

import typer

from memwrap.cli.options import AsJson, Device, HoldMegabytes, Workers


def attach(
    classifier: Annotated[
        str, typer.Argument(metavar="CLASSIFIER", help="timm:NAME, or lite0, lite1, lite2.", show_default=False)
    ],
    data: Annotated[str, typer.Option(help="A folder of class folders, or a zip of one.", show_default=False)],
    out: Annotated[Path, typer.Option(help="The run's folder, new or empty.", show_default=False)],
    weights: Annotated[
        Path | None, typer.Option(help="A file with the classifier's weights, .safetensors.", show_default=False)
    ] = None,
    decide: Annotated[
        str | None,
        typer.Option(
            help="head for the classifier's own predictions, vote for those of the memory images.",
            show_default="head with --weights, else vote",
        ),
    ] = None,
    test: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="<float>",
            help="Images to hold out for testing, if there is no test/: only of DATA that the classifier was not "
            "trained on.",
            show_default="none with --weights, else 0.2",
        ),
    ] = None,
    validation: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="<float>",
            help="Images to hold out for scale and calibration: only of DATA that the classifier was not trained on.",
        ),
    ] = 0.0,
    remember: Annotated[
        int | None,
        typer.Option(min=1, metavar="<int>", help="Training images in the memory.", show_default="up to 4096"),
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(metavar="<float>", help="Factor on the similarities.", show_default="chosen for few images"),
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, metavar="<int>", help="Height and width of images.", show_default="its own")
    ] = None,
    fit: Annotated[str, typer.Option(help="How images of other shapes are made square: crop, pad, stretch.")] = "crop",
    seed: Annotated[int, typer.Option(min=0, metavar="<int>", help="Decides which images are held out.")] = 0,
    hold_mb: HoldMegabytes = 1024,
    workers: Workers = 2,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Give a trained classifier a memory, without training anything.

    [b]memwrap attach timm:resnet18 --weights mine.safetensors --data photos/ --out runs/mine[/b]
    [b]memwrap attach lite0 --data photos/ --out runs/lite0[/b]

    The classifier stays as it is. The images become the memory next to it, and
    each prediction comes with the most similar of them; with --decide vote,
    these decide. To be tested, the classifier needs images that it was not
    trained on: DATA/test/, or --test.
    """
    from memwrap.cli.attach import attach as run_command
    from memwrap.cli.data_options import DataOptions

    given: dict[str, Any] = {
        "weights": None if weights is None else str(weights),
        "test": test,
        "validation": validation,
        "remember": remember,
        "scale": scale,
        "size": size,
        "fit": fit,
        "seed": seed,
    }
    run_command(classifier, data, out, decide, given, DataOptions(None, hold_mb, workers), device, as_json)
