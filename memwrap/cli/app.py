"""The program `memwrap`."""

import os
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from memwrap.cli.commands import (
    add,
    attach,
    bench,
    check,
    demo,
    drop,
    evaluate,
    explain,
    predict,
    reproduce,
    train,
    verify,
)
from memwrap.cli.failures import INTERRUPTED, report
from memwrap.cli.signals import interrupt_on_signals
from memwrap.cli.streams import flush_output, prepare_streams
from memwrap.errors import MemwrapWarning
from memwrap.version import __version__
from memwrap.visible import visible


class Commands(TyperGroup):
    """The commands; Ctrl-C ends any of them with a message."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("memwrap: stopped", err=True)
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=Commands,
    name="memwrap",
    help="Image classifiers with a memory: every prediction comes with the training images that made it.\n\n"
    "[b]memwrap demo[/b] shows it on embedded digits; [b]memwrap train photos/ --out runs/photos[/b] is for your own "
    "images. Each command has a --help.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Exit codes: 0 done, 1 unexpected, 2 wrong usage or settings, 3 data that cannot be used, 4 a run that is "
    "missing, damaged, taken or unfinished, 5 training that failed or could not be saved, 6 a report that its run does "
    "not confirm, 130 stopped by Ctrl-C or a kill.",
)


@app.callback(invoke_without_command=True)
def main_options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


for _command in (
    train.train,
    evaluate.evaluate,
    predict.predict,
    explain.explain,
    attach.attach,
    add.add,
    drop.drop,
    verify.verify,
    check.check,
    reproduce.reproduce,
    bench.bench,
    demo.demo,
):
    app.command()(_command)


def main() -> None:
    """Run a command and exit with its code."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments or bool(os.environ.get("MEMWRAP_DEBUG"))
    # Before torch is imported: by default its threads wait in a busy loop, and on a busy machine training takes ten
    # times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    prepare_streams()
    interrupt_on_signals()
    if not debug and not sys.warnoptions:
        warnings.simplefilter("ignore")  # of libraries, about their own lines
        warnings.simplefilter("default", MemwrapWarning)
        warnings.showwarning = _show_warning  # type: ignore[assignment]
    try:
        sys.exit(_run([each for each in arguments if each != "--debug"]))
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # a panic of safetensors, which is in Rust, is no Exception
        sys.exit(report(error, debug))


def _run(arguments: list[str]) -> int:
    """Run a command to its last output; returns its exit code."""
    try:
        app(arguments, prog_name="memwrap")
    except SystemExit as ending:
        return int(ending.code or 0) or flush_output()
    return flush_output()


def _show_warning(message: Warning | str, *where: Any) -> None:
    print(f"warning: {visible(str(message))}", file=sys.stderr)
