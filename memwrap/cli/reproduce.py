"""memwrap reproduce."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import typer

from memwrap.cli.callbacks import STEP_SECONDS
from memwrap.cli.data_options import DataOptions
from memwrap.cli.failures import INTERRUPTED
from memwrap.cli.signals import stop_on_signals
from memwrap.cli.terminal import aligned, at_home, errors, is_there, plain_console, warn
from memwrap.data import CLASS_NAMES, PUBLISHED, DataSet
from memwrap.errors import DataError, RunError, SettingsError, TrainingError
from memwrap.report.durations import duration
from memwrap.reproduce.estimates import Estimate, estimate_duration
from memwrap.reproduce.layout import Block, arrange
from memwrap.reproduce.record_files import RecordWriter, check_writable, claim
from memwrap.reproduce.records import Failure, Records, RunRecord, read_records, score
from memwrap.reproduce.rendering import (
    FILES,
    SOURCE_TITLES,
    check_folder,
    format_cell,
    make_caption,
    make_title,
    summarise,
    write_table,
)
from memwrap.reproduce.runner import Outcome, RunConfig, Status, check_known_images, run_missing
from memwrap.reproduce.tables import CLASSES, rows_from_records
from memwrap.reproduce.tasks import Selection, Task
from memwrap.runs.data import data_for
from memwrap.runs.devices import device_named
from memwrap.runs.training import device_name
from memwrap.training.recipes import recipe

FOLDER = Path("reproduced")
RECORDS = "records.jsonl"  # next to the tables' folders, as tables share runs
SEEDS = range(5)
MAX_SEEDS = 10_000
MAX_PROBLEMS = 10  # skipped lines that are listed one by one


@dataclass(frozen=True)
class Places:
    """Files. records: those to read; new ones go to the first. out: the table's folder."""

    records: list[Path]
    out: Path


def find_places(selection: Selection, records: Sequence[Path], out: Path | None) -> Places:
    """The given places or the default ones: a part of a table does not replace the whole."""
    folder = at_home(out or FOLDER / selection.name)
    paths = [at_home(path) for path in records] or [folder.parent / RECORDS]
    for path in paths:
        if path.name in FILES and path.parent.resolve() == folder.resolve():
            raise SettingsError(f"records is {str(path)!r}, which is a file of the table; name another one")
    return Places(paths, folder)


def reproduce(
    selection: Selection,
    seeds: str | None,
    places: Places,
    images: Sequence[str],
    reading: DataOptions,
    device: str,
    loop: bool,
    dry_run: bool,
    from_records: bool,
) -> None:
    """See `memwrap reproduce --help`. seeds: None trains the first five, and shows all that have records."""
    if dry_run and from_records:
        raise SettingsError("--dry-run and --from-records exclude each other; give one of them")
    if from_records and images:
        raise SettingsError("--from-records reads no images; leave out --images or --from-records")
    wanted_seeds = None if seeds is None else parse_seeds(seeds)
    tasks, replacements = selection.tasks(wanted_seeds or SEEDS), parse_images(images, selection)
    for path in places.records[0 if from_records and tasks else 1 :]:
        if not is_there(path):
            raise RunError(f"{path}: there is no such file of records; check the path, or train some runs first")
    known = read_records(places.records)
    _warn_of(known.problems)
    if dry_run:
        _show_plan(selection.table, tasks, known, RunConfig.for_device(device_named(device), loop))
        return
    check_folder(places.out)
    failed: Sequence[Failure] = ()
    if tasks and not from_records:
        config = RunConfig.for_device(device_named(device), loop)
        missing = dict.fromkeys(task.data for task in tasks if task not in known.results)
        with stop_on_signals(b"stopping; once more stops at once\n") as stop:
            data = {name: _open(name, replacements, reading) for name in {**missing, **replacements}}
            # Also for data whose runs are all known: with other images the table would not be of them.
            check_known_images(known.results.values(), data)
            with claim(places.records[0]) if missing else nullcontext(True) as is_only:
                if not is_only:
                    warn(
                        f"{places.records[0]}: another memwrap reproduce is adding runs to this file. A run that both "
                        "make counts once; give the two different --seeds"
                    )
                # Read again, as another process may have added runs while images were read.
                failed = _train(tasks, read_records(places.records), config, places, data, stop).failures
    # A pipe can be read only once, so what was read before is used where nothing was added.
    _show_table(selection, wanted_seeds, places, known if from_records else read_records(places.records))
    if failed:
        raise TrainingError(
            f"{len(failed)} of {len(tasks)} runs failed, and the table lacks them: {failed[0].task.name}: "
            f"{failed[0].reason}. The same command tries them again"
        )


def parse_seeds(text: str) -> range:
    """ "5" for 0 to 4, "5-9" for these."""
    first, dash, last = text.strip().partition("-")
    numbers = [first, last] if dash else [first]
    if all(number.isdecimal() and len(number) <= len(str(MAX_SEEDS)) for number in numbers):
        seeds = range(int(first), int(last) + 1) if dash else range(int(first))
        if seeds and seeds.stop <= MAX_SEEDS:
            return seeds
    shown = text if len(text) < 40 else f"{text[:40]}..."
    raise SettingsError(f"seeds is {shown!r}; expected a number of seeds, as 5, or a range, as 5-9, below {MAX_SEEDS}")


def parse_images(images: Sequence[str], selection: Selection) -> dict[str, str]:
    """The folder or zip that replaces each data set, from flags such as "svhn=svhn.zip"."""
    needed = {cell.data for cell in selection.cells() if cell.data}
    found: dict[str, str] = {}
    for text in images:
        name, _, path = text.partition("=")
        if not path or name not in needed:
            known = " or ".join(sorted(needed)) or "no data set, as this table needs no training"
            raise SettingsError(f"images is {text!r}; expected NAME=PATH, as svhn=svhn.zip, where NAME is {known}")
        if name in found:
            raise SettingsError(f"images names {name} twice: {found[name]} and {path}; give one of them")
        if path not in PUBLISHED and not is_there(at_home(Path(path))):
            raise DataError(f"{path}: there is no such folder or zip to read {name} from; check the path")
        found[name] = path
    return found


def _warn_of(problems: Sequence[str]) -> None:
    warn(*problems[:MAX_PROBLEMS])
    if len(problems) > MAX_PROBLEMS:
        warn(f"{len(problems) - MAX_PROBLEMS} more lines of the records are skipped")


def _open(name: str, replacements: Mapping[str, str], reading: DataOptions) -> DataSet:
    source = replacements.get(name)
    data = data_for(source or name, recipe(name), **reading.options())
    warn(*data.warnings)
    if source is None:
        return data
    if data.test is None:
        raise DataError(f"{source}: has no test images, which a table of {name} needs; expected train and test in it")
    same_classes = [other for other, classes in CLASS_NAMES.items() if classes == data.classes]
    if same_classes and name not in same_classes:
        raise DataError(
            f"{source}: has the classes of {' and '.join(same_classes)} ({', '.join(data.classes)}); expected images "
            f"of {name}, with classes such as {', '.join(CLASS_NAMES[name])}"
        )
    note = "" if len(data.classes) == CLASSES else f"; it has {len(data.classes)} classes instead of {CLASSES}"
    sizes = f"{len(data.train):,} training and {len(data.test):,} test images"
    warn(f"{source}, {sizes}, replaces the published {name}{note}")
    return data


def _show_plan(table: str, tasks: Sequence[Task], known: Records, config: RunConfig) -> None:
    """Print what there is to do, without doing it."""
    console = plain_console()
    if not tasks:
        console.print(f"{table}: needs no runs")
        return
    left = [task for task in tasks if task not in known.results]
    failed = sum(failure.task in left for failure in known.failures)
    console.print(f"{table}: {len(tasks)} runs; done: {len(tasks) - len(left)}, missing: {len(left)}")
    if failed:
        console.print(f"{failed} of the missing runs failed before; they are tried again")
    if left:
        device = device_name(config.device)
        expected = estimate_duration(left, known.results.values(), device, config.name)
        console.print(f"estimated time on {device}: {duration(expected.seconds)} ({_basis(expected)})")


def _basis(expected: Estimate) -> str:
    if expected.guessed == 0:
        return "from records of such runs on this device"
    return "a guess" if expected.guessed == expected.runs else f"a guess for {expected.guessed} of {expected.runs} runs"


def _train(
    tasks: Sequence[Task],
    known: Records,
    config: RunConfig,
    places: Places,
    data: Mapping[str, DataSet],
    stop: Callable[[], bool],
) -> Outcome:
    made: list[RunRecord] = []
    writer = RecordWriter(places.records[0])

    def describe_kept() -> str:
        return f"Finished runs are in {' and '.join(map(str, writer.files))}; the same command continues from there"

    def progress(status: Status) -> None:
        if status.next:
            check_writable(places.records[0])  # before hours of training whose result could not be kept
        made.extend(entry for entry in status.news if isinstance(entry, RunRecord))
        _print_status(status, [*known.results.values(), *made], config)

    try:
        outcome = run_missing(
            tasks,
            known.results,
            data.__getitem__,
            config,
            writer.write,
            progress,
            lambda: stop() or writer.error is not None,
            _step_printer(),
        )
    except BaseException as error:
        if writer.files:
            errors.print(describe_kept())
        if isinstance(error, KeyboardInterrupt):
            raise typer.Exit(INTERRUPTED) from None
        raise
    writer.check()
    if outcome.stopped:
        done = sum(task in known.results for task in tasks) + len(outcome.made)
        errors.print(f"stopped; {done} of {len(tasks)} runs are done. {describe_kept()}")
        raise typer.Exit(INTERRUPTED)
    return outcome


def _step_printer() -> Callable[[int, int], None]:
    """Print a step now and then, for runs that take hours."""
    last = time.monotonic()

    def print_step(done: int, steps: int) -> None:
        nonlocal last
        if time.monotonic() - last >= STEP_SECONDS:
            last = time.monotonic()
            errors.print(f"  step {done} of {steps}")

    return print_step


def _print_status(status: Status, records: Sequence[RunRecord], config: RunConfig) -> None:
    for entry in status.news:
        errors.print(f"  {entry.task.name}: {_describe_entry(entry)}")
    text = f"{status.done} of {status.needed} runs are done"
    if status.failed:
        text += f", {status.failed} failed"
    if status.next:
        expected = estimate_duration(status.left, records, device_name(config.device), config.name)
        guess = f" ({_basis(expected)})" if expected.guessed else ""
        seeds = ", ".join(str(task.seed) for task in status.next)
        text += f"; about {duration(expected.seconds)}{guess} left; now {status.next[0].group}, seed {seeds}"
    errors.print(text)


def _describe_entry(entry: RunRecord | Failure) -> str:
    if isinstance(entry, Failure):
        return f"failed: {entry.reason}"
    accuracy = score(entry.metrics, "accuracy") or 0.0
    return f"{100 * accuracy:.2f} % in {entry.seconds.training + entry.seconds.evaluation:.1f} s"


def _show_table(selection: Selection, seeds: Sequence[int] | None, places: Places, known: Records) -> None:
    """Make the table from the records, print it and write its files."""
    cells, whole = selection.cells(), selection.whole()
    shown = selection.filter([*known.results, *(each.task for each in known.failures)], seeds)
    records = [record for task, record in known.results.items() if task in shown]
    failures = [failure for failure in known.failures if failure.task in shown]
    if not records and selection.tasks(SEEDS):
        if failures:
            raise TrainingError(
                f"no run has a result; {len(failures)} failed, the first, {failures[0].task.name}, with: "
                f"{failures[0].reason}. The same command, without --from-records, tries them again"
            )
        raise RunError(f"{', '.join(map(str, places.records))}: there is no record of a run of this table")
    # Tested among all cells of the table that have runs: a selection changes no verdict.
    tested = [known.results[task] for task in whole.filter(known.results, seeds)]
    rows = rows_from_records(selection.table, cells, tested, selection.memory)
    title = make_title(selection.table, selection.memory, is_part=len(cells) < len(whole.cells()))
    caption = make_caption(records, failures, skipped=len(known.problems))
    written = write_table(places.out, rows, title, caption)
    console = plain_console()
    console.print(title)
    for block in arrange(rows):
        console.print(f"\n{SOURCE_TITLES[block.source]}" if block.source else "")
        for line in aligned(_terminal_lines(block)):
            console.print(line)
    console.print(f"\n{summarise(rows)}")
    if caption:
        console.print(caption)
    errors.print(f"written: {', '.join(map(str, written))}")


def _terminal_lines(block: Block) -> list[list[str]]:
    """A line for each cell, under headings."""
    lines = [[*block.heads, "", "ours", "n", "median", "paper", "difference", "verdict"]]
    for line in block.lines:
        for column, row in zip(block.columns, line.rows, strict=True):
            if row is not None:
                text = format_cell(row)
                entries = [text.ours, text.runs, text.median, text.paper, text.difference, text.verdict]
                lines.append([line.first, line.second, column, *entries])
    return lines
