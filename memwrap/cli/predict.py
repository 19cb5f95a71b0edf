"""memwrap predict."""

from pathlib import Path

import typer

from memwrap.cli.failures import CODES
from memwrap.cli.terminal import errors, plain_console, print_json
from memwrap.data import UnreadableFile
from memwrap.errors import DataError
from memwrap.models.prediction import predict_files
from memwrap.runs.devices import device_named
from memwrap.runs.run import open_model
from memwrap.visible import visible_name

# What did not decide, by what did.
OTHERS = {"vote": "the last layer", "classifier": "the vote of the memory images"}


def predict(run: Path, images: list[Path], device: str, as_json: bool) -> None:
    """See `memwrap predict --help`."""
    model = open_model(run).model(device_named(device))
    console, results = plain_console(), []
    for result in predict_files(model, images):
        results.append(result)
        if isinstance(result, UnreadableFile):
            errors.print(visible_name(f"{result.path}: cannot be read, {result.reason}"))
        elif not as_json:
            doubt = ", unsure" if result.uncertain else ""
            if result.differs:
                doubt += f": {OTHERS[result.decided_by]} predicts {result.other_prediction_name}"
            line = f"{result.path}: {result.prediction_name} ({result.probability:.1%} by {result.decided_by}{doubt})"
            console.print(visible_name(line))
    if not results:
        raise DataError(f"there are no files in {', '.join(map(str, images))}; expected images")
    if as_json:
        print_json(results)
    if any(isinstance(result, UnreadableFile) for result in results):
        raise typer.Exit(CODES[DataError])
