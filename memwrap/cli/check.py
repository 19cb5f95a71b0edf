"""memwrap check."""

from pathlib import Path

import typer

from memwrap.cli.data_options import DataOptions
from memwrap.cli.evaluate import own_data
from memwrap.cli.failures import CODES
from memwrap.cli.terminal import aligned, device_named, plain_console, print_json
from memwrap.errors import RunError
from memwrap.runs.checking import CheckResult, Finding, check_folder
from memwrap.runs.run import Run, open_model


def check(
    path: Path, *, expect: str | None, run_data: str | None, reading: DataOptions, device: str, as_json: bool
) -> None:
    """See `memwrap check --help`."""
    folder = open_model(path)
    data = own_data(folder, run_data, reading) if isinstance(folder, Run) else "a model that was saved without a run"
    result = check_folder(folder, data, device_named(device))
    if expect is not None and expect != result.root:
        wrong = Finding(what="root hash", state="wrong", detail=f"expected is {expect}")
        result = result.model_copy(update={"right": False, "findings": (wrong, *result.findings)})
    if as_json:
        print_json(result)
    else:
        _show(result)
    if not result.right:
        raise typer.Exit(CODES[RunError])


def _show(result: CheckResult) -> None:
    console = plain_console()
    rows = [(each.what, each.state, each.detail) for each in result.findings]
    for line in aligned([("checked", "result", ""), *rows]):
        console.print(line)
    for name, value in (("root hash", result.root), ("model", result.model), ("memory", result.memory)):
        if value is not None:
            console.print(f"{name}: {value}")
