"""memwrap demo: its flags and help."""

from pathlib import Path
from typing import Annotated

import typer

from memwrap.cli.options import AsJson


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the run; replaces an earlier demo.")] = Path("runs/demo"),
    seeds: Annotated[int, typer.Option(min=1, metavar="<int>", help="How often each variant is trained.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Compare classifiers with and without a memory on a few embedded digits, in about a minute, without network."""
    from memwrap.cli.demo import demo as run_command

    run_command(out, seeds, as_json)
