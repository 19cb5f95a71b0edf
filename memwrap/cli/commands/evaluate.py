"""memwrap evaluate: its flags and help."""

from typing import Annotated

import typer

from memwrap.cli.options import AsJson, Device, HoldMegabytes, ModelFolder, Root, RunData, Workers


def evaluate(
    run: ModelFolder,
    data: Annotated[
        str | None,
        typer.Option(help="Evaluate on the images of this folder or zip instead.", show_default=False),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Skip files of --data that cannot be read as images.")
    ] = False,
    run_data: RunData = None,
    split: Annotated[str, typer.Option(help="Which of the run's own images: test or validation.")] = "test",
    data_root: Root = None,
    hold_mb: HoldMegabytes = 1024,
    workers: Workers = 2,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Evaluate a run: accuracy, quality of its explanations, calibration, confusions.

    [b]memwrap evaluate runs/photos[/b]

    The result is stored as evaluation.json in the run's folder, unless
    --data is given.
    """
    from memwrap.cli.data_options import DataOptions
    from memwrap.cli.evaluate import evaluate as run_command

    reading = DataOptions(data_root, hold_mb, workers)
    run_command(
        run,
        data=data,
        skip_bad=skip_bad,
        run_data=run_data,
        split=split,
        reading=reading,
        device=device,
        as_json=as_json,
    )
