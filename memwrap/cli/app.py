"""The commands."""

import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from memwrap.cli.failures import INTERRUPTED, report
from memwrap.cli.flags import completing, repeat_flags, with_settings
from memwrap.cli.signals import interrupt_on_signals
from memwrap.training.recipes import RECIPES
from memwrap.version import __version__


class Commands(TyperGroup):
    """The commands, which end in words where Ctrl-C stops them."""

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
    "missing, damaged, taken or unfinished, 5 training that could not go on or be saved, 6 a report that its run does "
    "not bear out, 130 stopped by Ctrl-C or a kill.",
)

Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...; auto takes a GPU if there is one.")]
Workers = Annotated[
    int, typer.Option(min=0, metavar="<int>", help="Processes that read images which do not fit into memory.")
]
HoldMegabytes = Annotated[
    int,
    typer.Option(
        min=0, metavar="<int>", help="Images that need more memory than this are read anew in each epoch, by workers."
    ),
]
Root = Annotated[
    Path | None,
    typer.Option(help="Where svhn, cifar10 and cinic10 lie, or are downloaded to.", show_default="MEMWRAP_DATA"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, for scripts.")]
# What a stopped run is gone on with: flags that do not change what is trained.
MANNER = (
    "data_root",
    "hold_mb",
    "workers",
    "device",
    "tensorboard",
    "skip_evaluation",
    "as_json",
    "checkpoint_seconds",
)
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder that train made.", show_default=False)]
RunData = Annotated[
    str | None, typer.Option(help="Where the run's own data lies now, if it has moved.", show_default=False)
]
ModelFolder = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder that train made, or model.save.", show_default=False)
]


@app.callback(invoke_without_command=True)
def main_options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


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
            help="Where settings start from: default, finetune (with --pretrained), frozen (with --freeze), or the "
            "paper's svhn, cifar10, cinic10. Those three are taken for the data sets of these names if left out.",
            show_default=False,
            autocompletion=completing(RECIPES),
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A YAML file of settings; flags go before it, it goes before the recipe.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, from where it was saved.")
    ] = False,
    data_root: Root = None,
    hold_mb: HoldMegabytes = 1024,
    workers: Workers = 2,
    device: Device = "auto",
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write curves for TensorBoard, too.")] = False,
    skip_evaluation: Annotated[bool, typer.Option("--no-evaluate", help="Do not evaluate the finished run.")] = False,
    as_json: AsJson = False,
    checkpoint_seconds: Annotated[
        float, typer.Option(min=0, metavar="<float>", help="How often the run is saved, at most.")
    ] = 60.0,
    *,
    settings: dict[str, Any],
) -> None:
    """Train a classifier with a memory on your images.

    [b]memwrap train photos/ --out runs/photos[/b]
    [b]memwrap train photos/ --out runs/tuned --encoder timm:resnet18 --pretrained[/b]
    [b]memwrap train --resume --out runs/photos[/b]

    photos/ holds a folder of images for each class. A fifth of them is set
    apart for the test, unless there are train/ and test/. Ctrl-C stops, and
    --resume goes on.
    """
    from memwrap.cli.reading import Reading
    from memwrap.cli.train import TrainOptions
    from memwrap.cli.train import train as run_command

    reading = Reading(data_root, hold_mb, workers)
    manner = TrainOptions(reading, device, tensorboard, not skip_evaluation, as_json, checkpoint_seconds)
    run_command(data, out, recipe, config, settings, resume, manner, repeat_flags(context, MANNER))


app.command("train")(train)


@app.command()
def evaluate(
    run: RunFolder,
    data: Annotated[
        str | None,
        typer.Option(help="Judge the images of this folder or zip instead of the run's own.", show_default=False),
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave files of --data out that cannot be read as images.")
    ] = False,
    run_data: RunData = None,
    split: Annotated[str, typer.Option(help="Which of the run's own images: test or validation.")] = "test",
    data_root: Root = None,
    hold_mb: HoldMegabytes = 1024,
    workers: Workers = 2,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Judge a run: accuracy, how far its explanations can be trusted, calibration, confusions.

    [b]memwrap evaluate runs/photos[/b]

    The record is kept as evaluation.json in the run's folder, unless it is
    of other --data.
    """
    from memwrap.cli.evaluate import evaluate as run_command
    from memwrap.cli.reading import Reading

    reading = Reading(data_root, hold_mb, workers)
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


@app.command()
def predict(
    run: ModelFolder,
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGE", help="Image files, or folders of them.", show_default=False)
    ],
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Classify images: the class, its probability, and whether the model is unsure.

    [b]memwrap predict runs/photos cat.jpg more/[/b]

    Unsure means that the memory image which counted most is one that the
    model itself puts into another class.
    """
    from memwrap.cli.predict import predict as run_command

    run_command(run, images, device, as_json)


@app.command()
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
            help="Of labelled images at most so many, drawn by the run's seed.",
            show_default="50, or as many as a figure shows",
        ),
    ] = None,
    shown: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="<int>",
            help="Memory images shown for each, at most; one more if the strongest of another class is further down.",
        ),
    ] = 8,
    html: Annotated[
        Path | None, typer.Option(help="Write a report to this file, which stands alone.", show_default=False)
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(help="Draw a figure to this file, .png, .svg or .pdf.", show_default=False)
    ] = None,
    heatmaps: Annotated[
        bool, typer.Option("--heatmaps", help="Show which pixels mattered, in report and figure. Takes its time.")
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
        typer.Option(help="What they are held against: white, black, mean or blur.", show_default="white"),
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
    """Tell why: the memory images behind each prediction, and what each of them did.

    [b]memwrap explain runs/photos img.jpg[/b]
    [b]memwrap explain runs/photos new/ --heatmaps --html why.html[/b]

    A memory image counts as what the model takes it for. "Without it" is the
    change in probability if it were taken out of the memory.
    """
    from memwrap.cli.explain import ImageSelection, OutputOptions, heatmap_options
    from memwrap.cli.explain import explain as run_command
    from memwrap.cli.reading import Reading

    run_command(
        run,
        ImageSelection(images or [], data, run_data, split, limit),
        OutputOptions(shown, heatmap_options(heatmaps, method, baseline, max_steps), html, figure, as_json),
        Reading(data_root, hold_mb, workers),
        device,
    )


@app.command()
def verify(
    report: Annotated[Path, typer.Argument(metavar="REPORT", help="A file that explain --html wrote.")],
    run: Annotated[
        Path | None, typer.Option(help="Where the run is, if not where the report says.", show_default=False)
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Compute what a report says of its images again, from the run that it names, and say what differs.

    The images, their names and labels, the run's place and the date are taken from the report itself.

    [b]memwrap verify why.html[/b]
    """
    from memwrap.cli.verify import verify_report

    verify_report(report, run, device, as_json)


@app.command()
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
    from memwrap.cli.reading import Reading
    from memwrap.cli.reproduce import find_places
    from memwrap.cli.reproduce import reproduce as run_command
    from memwrap.reproduce import Selection

    selection = Selection(table, data or (), encoder or (), samples or (), variant or (), memory)
    places, reading = find_places(selection, records or [], out), Reading(data_root, hold_mb, workers)
    run_command(selection, seeds, places, images or [], reading, device, dry_run, from_records)


@app.command()
def bench(
    device: Device = "auto",
    encoder: Annotated[
        list[str] | None,
        typer.Option(
            help="An encoder to measure; may be repeated.",
            show_default="mobilenet_v2 and resnet18; on a CPU tiny",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Only steps, sizes, training, inference, attention or memory; may be repeated.", show_default=False
        ),
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(
            help="A folder or zip of 32x32 training images in ten classes, as svhn.zip.",
            show_default="random ones",
        ),
    ] = None,
    side_by_side: Annotated[
        int, typer.Option(min=1, metavar="<int>", help="Runs trained at the same time on a GPU.")
    ] = 5,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, metavar="<int>", help="Timed rounds.", show_default="8; on a CPU 5"),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure very little, to check that everything works.")
    ] = False,
    as_json: AsJson = False,
    out: Annotated[Path | None, typer.Option(help="Write the record to this JSON file.", show_default=False)] = None,
) -> None:
    """Time training, prediction and memory against the published code and against no memory.

    [b]memwrap bench --out bench.json[/b]
    [b]memwrap bench --only steps --encoder resnet18[/b]

    Comparisons with memorywrap and entmax need these packages.
    """
    from memwrap.cli.bench import bench as run_command
    from memwrap.reproduce.bench import BenchOptions

    options = BenchOptions(tuple(only or ()), tuple(encoder or ()), side_by_side, rounds, quick)
    run_command(options, images, device, as_json, out)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the run is kept; an earlier demo there is replaced.")] = Path(
        "runs/demo"
    ),
    seeds: Annotated[int, typer.Option(min=1, metavar="<int>", help="How often each variant is trained.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Compare classifiers with and without a memory on a few embedded digits, in about a minute, without network."""
    from memwrap.cli.demo import demo as run_command

    run_command(out, seeds, as_json)


def main() -> None:
    """The program: runs a command and ends with its exit code."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments or bool(os.environ.get("MEMWRAP_DEBUG"))
    # Before torch is loaded. Else its threads wait for each other in a loop, and on a machine that is busy with other
    # things training takes ten times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    interrupt_on_signals()
    _show_any_name()
    if not debug and not sys.warnoptions:
        warnings.simplefilter("ignore")  # of libraries, about their own lines; ours are printed
    try:
        app([each for each in arguments if each != "--debug"], prog_name="memwrap")
    except Exception as error:
        sys.exit(report(error, debug))


def _show_any_name() -> None:
    """What a terminal or file cannot show of a name is written in another way."""
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")
