"""memwrap explain: its flags and help."""

from pathlib import Path
from typing import Annotated

import typer

from memwrap.cli.options import AsJson, Device, HoldMegabytes, ModelFolder, Root, RunData, Workers


def explain(
    run: ModelFolder,
    images: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="IMAGE",
            help="Image files, or folders of them; if left out, the run's own test images.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Labelled images of this folder or zip instead.", show_default=False)
    ] = None,
    run_data: RunData = None,
    split: Annotated[
        str | None, typer.Option(help="Which of the run's own images: test or validation.", show_default="test")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="<int>",
            help="At most this many labelled images, drawn by the run's seed.",
            show_default="50, or as many as a figure shows",
        ),
    ] = None,
    shown: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="<int>",
            help="Memory images to show for each, at most; one more if the strongest of another class is further down.",
        ),
    ] = 8,
    html: Annotated[
        Path | None, typer.Option(help="Write a report to this HTML file, with all pictures in it.", show_default=False)
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw a figure to this file, .png, .svg or .pdf.", show_default=False)
    ] = None,
    heatmaps: Annotated[
        bool, typer.Option("--heatmaps", help="Show which pixels mattered, in report and figure. Slow.")
    ] = False,
    method: Annotated[
        str | None,
        typer.Option(
            help="How heatmaps are made: integrated_gradients, saliency, input_x_gradient or occlusion.",
            show_default="integrated_gradients",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(help="What heatmaps compare an image with: white, black, mean or blur.", show_default="white"),
    ] = None,
    max_steps: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="<int>",
            help="Steps are doubled up to this until the error is below 1 %.",
            show_default="1024",
        ),
    ] = None,
    data_root: Root = None,
    hold_mb: HoldMegabytes = 1024,
    workers: Workers = 2,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Explain predictions: the memory images behind each, and the effect of each of these.

    [b]memwrap explain runs/photos img.jpg[/b]
    [b]memwrap explain runs/photos new/ --heatmaps --html why.html[/b]

    Classes of memory images are the model's predictions. "Without it" is the
    change in probability if a memory image is removed.
    """
    from memwrap.cli.data_options import DataOptions
    from memwrap.cli.explain import ImageSelection, OutputOptions, heatmap_options
    from memwrap.cli.explain import explain as run_command

    run_command(
        run,
        ImageSelection(images or [], data, run_data, split, limit),
        OutputOptions(shown, heatmap_options(heatmaps, method, baseline, max_steps), html, figure, as_json),
        DataOptions(data_root, hold_mb, workers),
        device,
    )
