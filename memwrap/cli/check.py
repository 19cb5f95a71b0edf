"""memwrap check."""

from pathlib import Path

import typer

from memwrap.cli.data_options import DataOptions
from memwrap.cli.failures import CODES
from memwrap.cli.terminal import aligned, plain_console, print_json
from memwrap.data import DataSet
from memwrap.errors import DataError, RunError
from memwrap.runs.checking import CheckResult, Finding, check_folder
from memwrap.runs.data import OtherDataError, data_of
from memwrap.runs.devices import device_named
from memwrap.runs.run import Run, SavedModel, open_model


def check(
    path: Path, *, expect: str | None, run_data: str | None, reading: DataOptions, device: str, as_json: bool
) -> None:
    """See `memwrap check --help`."""
    folder = open_model(path)
    result = check_folder(folder, _data(folder, run_data, reading), expect, device_named(device))
    if as_json:
        print_json(result)
    else:
        _show(result)
    if not result.right:
        raise typer.Exit(CODES[RunError])


def _data(folder: SavedModel, moved_to: str | None, reading: DataOptions) -> DataSet | Finding:
    if not isinstance(folder, Run):
        return Finding(what="data", state="not checked", detail="the model is here without a run")
    try:
        return data_of(folder, moved_to, **reading.options())
    except DataError as error:
        # Only where nobody says that they are there: data that has changed is no proof of anything.
        absent = moved_to is None and not isinstance(error, OtherDataError)
        hint = "; if they have moved, give --run-data" if absent else ""
        return Finding(what="data", state="not checked" if absent else "wrong", detail=f"{error}{hint}")


def _show(result: CheckResult) -> None:
    console = plain_console()
    rows = [(each.what, each.state, each.detail) for each in result.findings]
    for line in aligned([("checked", "result", ""), *rows]):
        console.print(line)
    if left := [each.what for each in result.findings if each.state == "not checked"]:
        console.print(f"not checked: {', '.join(left)}; nothing is known about it")
    for name, value in (("root hash", result.root), ("model", result.model), ("memory", result.memory)):
        if value is not None:
            console.print(f"{name}: {value}")
