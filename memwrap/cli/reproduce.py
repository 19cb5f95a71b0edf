"""memwrap reproduce."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

import torch
import typer

from memwrap.cli.callbacks import STEP_SECONDS
from memwrap.cli.failures import INTERRUPTED
from memwrap.cli.reading import Reading
from memwrap.cli.signals import stop_on_signals
from memwrap.cli.terminal import aligned, at_home, device_named, errors, is_there, plain_console, warn
from memwrap.data import CLASS_NAMES, PUBLISHED, DataSet
from memwrap.errors import DataError, RunError, SettingsError, TrainingError
from memwrap.models.inference import encode_all
from memwrap.nn import gpu
from memwrap.report.durations import duration
from memwrap.reproduce.costs import Estimate, estimate
from memwrap.reproduce.grid import TRAINED_WITH, Task, cells_of, check_is_of_runs, tasks_for
from memwrap.reproduce.keeping import Keeper
from memwrap.reproduce.published import Cell
from memwrap.reproduce.records import Failure, Record, Records, adding_to, check_writable, read, score
from memwrap.reproduce.rows import Block, Row, blocks
from memwrap.reproduce.running import Loop, Outcome, RunConfig, Standing, check_same_images, run_missing
from memwrap.reproduce.tables import CLASSES, FILES, caption_of, check_folder, rows_of, title_of, write
from memwrap.reproduce.words import source_words, tally, words
from memwrap.runs.data import data_for
from memwrap.runs.training import device_name
from memwrap.training.recipes import recipe

FOLDER = Path("reproduced")  # where tables are put if nothing is said
RECORDS = "records.jsonl"  # beside the tables' folders, as tables share runs
SEEDS = range(5)
MOST_SIDE_BY_SIDE = 15  # runs that share a GPU: as many as the paper has seeds
GIB_OF_A_RUN = 4  # of a GPU's memory, with room to spare: a run of MobileNetV2 needs 2
ENCODED_AT_ONCE = 2000  # images, on a GPU
MOST_SEEDS = 10_000
MOST_PROBLEMS = 10  # that are told of damaged records, one by one


@dataclass(frozen=True)
class Asked:
    """A table, or a part of it. seeds: as the flag has them; None for the first five, and all that records have."""

    table: str
    seeds: str | None
    data: Sequence[str]
    encoders: Sequence[str]
    samples: Sequence[int]
    variants: Sequence[str]
    memory: str

    def cells(self) -> list[Cell]:
        check_is_of_runs(self.table)
        if self.memory not in TRAINED_WITH:
            raise SettingsError(f"memory is {self.memory!r}; expected {' or '.join(TRAINED_WITH)}")
        return cells_of(self.table, self.encoders, self.samples, self.variants, self.data)

    def narrowed(self) -> list[str]:
        """What makes it less than the paper's table, or another one."""
        given = {"data": self.data, "encoder": self.encoders, "samples": self.samples, "variant": self.variants}
        # In the table's order, each once: what is asked for in other words is the same.
        chosen = [dict.fromkeys(getattr(cell, name) for cell in self.cells()) for name in given if given[name]]
        other = [self.memory] if self.memory != TRAINED_WITH[0] else []
        return [str(each) for each in (*chain(*chosen), *other)]

    def whole(self) -> "Asked":
        """The table that this is a part of."""
        return replace(self, data=(), encoders=(), samples=(), variants=())

    def tasks(self) -> list[Task]:
        return tasks_for(self.cells(), SEEDS if self.seeds is None else seeds_named(self.seeds), self.memory)

    def of_table(self, tasks: Iterable[Task]) -> set[Task]:
        """Those runs that the table is made of."""
        groups = {task.group for task in tasks_for(self.cells(), [0], self.memory)}
        seeds = None if self.seeds is None else seeds_named(self.seeds)
        return {task for task in tasks if task.group in groups and (seeds is None or task.seed in seeds)}


@dataclass(frozen=True)
class Places:
    """Files. records: those to read, the first of which is added to. out: where the table is put."""

    records: list[Path]
    out: Path


def places(asked: Asked, records: Sequence[Path], out: Path | None) -> Places:
    """Where things are, if it was said, or where they are by default: a part of a table replaces no whole one."""
    folder = at_home(out or FOLDER / "-".join([asked.table, *asked.narrowed()]))
    found = [at_home(path) for path in records] or [folder.parent / RECORDS]
    for path in found:
        if path.name in FILES and path.parent.resolve() == folder.resolve():
            raise SettingsError(f"records is {str(path)!r}, which is a file of the table; name another one")
    return Places(found, folder)


def reproduce(
    asked: Asked, at: Places, images: Sequence[str], reading: Reading, device: str, dry_run: bool, from_records: bool
) -> None:
    """See `memwrap reproduce --help`."""
    if dry_run and from_records:
        raise SettingsError("--dry-run foretells what --from-records leaves out; give one of them")
    if from_records and images:
        raise SettingsError("--from-records looks at no images; leave --images out, or --from-records")
    tasks, stand_ins = asked.tasks(), stand_ins_named(images, asked)
    _refuse_missing(at.records[0 if from_records and tasks else 1 :])
    known = read(at.records)
    _warn_of(known.problems)
    failed: Sequence[Failure] = ()
    if dry_run:
        _foretell(asked.table, tasks, known, means_for(device_named(device)))
        return
    check_folder(at.out)
    if tasks and not from_records:
        means, opener = means_for(device_named(device)), _opener(stand_ins, reading)
        missing = dict.fromkeys(task.data for task in tasks if task not in known.results)
        with stop_on_signals(b"stopping; once more stops at once\n") as stop:
            data = {name: opener(name) for name in {**missing, **stand_ins}}
            # Also of images whose runs are all there: if these are others, the table would not be of them.
            check_same_images(known.results.values(), data)
            with adding_to(at.records[0]) if missing else nullcontext(True) as only_one:
                if not only_one:
                    warn(
                        f"{at.records[0]}: another memwrap reproduce is adding its runs to this file, too; runs that "
                        "both are to make are made twice, and count once: give the two other --seeds"
                    )
                # Once more, as another may have added to them while images were read.
                failed = _train(tasks, read(at.records), means, at, data, stop).failures
    # What was read before will do where nothing was added: a pipe can be read but once.
    _show(asked, at, known if from_records else read(at.records))
    if failed:
        raise TrainingError(
            f"{len(failed)} of {len(tasks)} runs failed, and the table is without them: {failed[0].task.name}: "
            f"{failed[0].reason}. The same command tries them again"
        )


def means_for(device: torch.device) -> RunConfig:
    """How runs are made on a device."""
    if not gpu.kernels_run_on(device):
        return RunConfig(Loop(), "loop", device)
    from memwrap.fused import FusedEngine

    encode = partial(encode_all, at_once=ENCODED_AT_ONCE)
    room = torch.cuda.get_device_properties(device).total_memory // (GIB_OF_A_RUN << 30)
    return RunConfig(FusedEngine(), "graph", device, max(1, min(MOST_SIDE_BY_SIDE, room)), encode)


def step_teller() -> Callable[[int, int], None]:
    """Tells of a step now and then, which matters where a run takes hours."""
    last = time.monotonic()

    def tell(done: int, steps: int) -> None:
        nonlocal last
        if time.monotonic() - last >= STEP_SECONDS:
            last = time.monotonic()
            errors.print(f"  step {done} of {steps}")

    return tell


def seeds_named(text: str) -> range:
    """ "5" for 0 to 4, "5-9" for just these."""
    first, dash, last = text.strip().partition("-")
    if all(
        number.isdecimal() and len(number) <= len(str(MOST_SEEDS)) for number in ([first, last] if dash else [first])
    ):
        found = range(int(first), int(last) + 1) if dash else range(int(first))
        if found and found.stop <= MOST_SEEDS:
            return found
    raise SettingsError(
        f"seeds is {text if len(text) < 40 else f'{text[:40]}...'!r}; expected how many, as 5, or from which to which, "
        f"as 5-9, none of them beyond {MOST_SEEDS - 1}"
    )


def stand_ins_named(images: Sequence[str], asked: Asked) -> dict[str, str]:
    """Which folder or zip is read for which data set, from flags as "svhn=svhn.zip"."""
    needed = {cell.data for cell in asked.cells() if cell.data}
    found: dict[str, str] = {}
    for text in images:
        name, equals, path = text.partition("=")
        if not equals or not path or name not in needed:
            known = " or ".join(sorted(needed)) or "no data set, as nothing is trained for this table"
            raise SettingsError(f"images is {text!r}; expected NAME=PATH, as svhn=svhn.zip, where NAME is {known}")
        if name in found:
            raise SettingsError(f"images names {name} twice: {found[name]} and {path}; give one of them")
        if path not in PUBLISHED and not is_there(at_home(Path(path))):
            raise DataError(f"{path}: there is no such folder or zip to read {name} from; check the path")
        found[name] = path
    return found


def _refuse_missing(paths: Iterable[Path]) -> None:
    for path in paths:
        if not is_there(path):
            raise RunError(f"{path}: there is no such file of records; check the path, or train some runs first")


def _warn_of(problems: Sequence[str]) -> None:
    warn(*problems[:MOST_PROBLEMS])
    if len(problems) > MOST_PROBLEMS:
        warn(f"{len(problems) - MOST_PROBLEMS} more lines of the records are passed over")


def _opener(stand_ins: dict[str, str], reading: Reading) -> Callable[[str], DataSet]:
    def opened(name: str) -> DataSet:
        data = data_for(stand_ins.get(name, name), recipe(name), **reading.options())
        warn(*data.warnings)
        if name in stand_ins:
            if data.test is None:
                raise DataError(
                    f"{stand_ins[name]}: has no test images of its own, which a table of {name} is of; give a folder "
                    "or zip with train and test in it"
                )
            _refuse_another(name, stand_ins[name], data)
            test, classes = len(data.test), len(data.classes)
            other = "" if classes == CLASSES else f", which has {CLASSES} classes and not {classes}"
            warn(f"{stand_ins[name]}, {len(data.train):,} and {test:,} images, stands for the published {name}{other}")
        return data

    return opened


def _refuse_another(name: str, source: str, data: DataSet) -> None:
    """A DataError if images that are to stand for a data set are those of another, by the names of their classes."""
    of_these_classes = [other for other, classes in CLASS_NAMES.items() if classes == data.classes]
    if of_these_classes and name not in of_these_classes:
        raise DataError(
            f"{source}: has the classes {', '.join(data.classes)}, as {' and '.join(of_these_classes)} have; "
            f"for {name} expected other images, with classes such as {', '.join(CLASS_NAMES[name])}"
        )


def _foretell(table: str, tasks: Sequence[Task], known: Records, means: RunConfig) -> None:
    """What there is to do, without doing it."""
    console = plain_console()
    if not tasks:
        console.print(f"{table}: needs no runs")
        return
    left = [task for task in tasks if task not in known.results]
    about = estimate(left, known.results.values(), device_name(means.device), means.name)
    failed = sum(failure.task in left for failure in known.failures)
    console.print(
        f"{table}: {len(tasks)} {'run' if len(tasks) == 1 else 'runs'}; there: {len(tasks) - len(left)}, "
        f"missing: {len(left)}"
    )
    if failed:
        console.print(f"{failed} of the missing ones failed before; what failed is tried again")
    if left:
        console.print(f"on {device_name(means.device)} these take about {_time(about)}")
    console.print("no image has been looked at")


def _time(about: Estimate) -> str:
    if about.guessed == 0:
        return f"{duration(about.seconds)}, by records of such runs on this device"
    if about.guessed == about.runs:
        return f"{duration(about.seconds)}, which is a guess: there are no records of such runs on this device"
    return f"{duration(about.seconds)}, which for {about.guessed} of {about.runs} runs is a guess"


def _train(
    tasks: Sequence[Task],
    known: Records,
    means: RunConfig,
    at: Places,
    data: Mapping[str, DataSet],
    stop: Callable[[], bool],
) -> Outcome:
    made: list[Record] = []
    keeper = Keeper(at.records[0])

    def kept() -> str:
        return f"What is done is in {' and '.join(map(str, keeper.files))}; the same command goes on from there"

    def progress(standing: Standing) -> None:
        if standing.next:
            check_writable(at.records[0])  # before hours go into what could not be kept
        made.extend(entry for entry in standing.news if isinstance(entry, Record))
        _tell(standing, [*known.results.values(), *made], means)

    try:
        outcome = run_missing(
            tasks,
            known.results,
            data.__getitem__,
            means,
            keeper.keep,
            progress,
            lambda: stop() or keeper.failed is not None,
            step_teller(),
        )
    except BaseException as error:
        if keeper.files:
            errors.print(kept())
        if isinstance(error, KeyboardInterrupt):
            raise typer.Exit(INTERRUPTED) from None
        raise
    keeper.check()
    if outcome.stopped:
        done = sum(task in known.results for task in tasks) + len(outcome.made)
        errors.print(f"stopped; {done} of {len(tasks)} runs are done. {kept()}")
        raise typer.Exit(INTERRUPTED)
    return outcome


def _tell(standing: Standing, records: Sequence[Record], means: RunConfig) -> None:
    """What has come in, what stands, and what is next."""
    for entry in standing.news:
        errors.print(f"  {entry.task.name}: {_result(entry)}")
    words = f"{standing.done} of {standing.needed} runs are done"
    if standing.failed:
        words += f", {standing.failed} failed"
    if standing.next:
        about = estimate(standing.left, records, device_name(means.device), means.name)
        guess = "" if not about.guessed else " (a guess)" if about.guessed == about.runs else " (partly a guess)"
        seeds = ", ".join(str(task.seed) for task in standing.next)
        words += f"; about {duration(about.seconds)}{guess} left; now {standing.next[0].group}, seed {seeds}"
    errors.print(words)


def _result(entry: Record | Failure) -> str:
    if isinstance(entry, Failure):
        return f"failed: {entry.reason}"
    accuracy = score(entry.metrics, "accuracy")
    seconds = entry.seconds.training + entry.seconds.evaluation
    return f"{'no accuracy' if accuracy is None else f'{100 * accuracy:.2f} %'} in {seconds:.1f} s"


def _show(asked: Asked, at: Places, known: Records) -> None:
    """Make the table from what the records say now."""
    cells, wanted = asked.cells(), asked.of_table([*known.results, *(each.task for each in known.failures)])
    of_whole = asked.whole().of_table(known.results)
    records = [record for task, record in known.results.items() if task in wanted]
    failures = [failure for failure in known.failures if failure.task in wanted]
    if not records and asked.tasks():
        if failures:
            many = "the only one" if len(failures) == 1 else f"all {len(failures)}"
            raise TrainingError(
                f"there is no table, as no run has a result: {many} failed, {failures[0].task.name} as follows: "
                f"{failures[0].reason}. The same command, without --from-records, tries them again"
            )
        raise RunError(f"{', '.join(map(str, at.records))}: there is no record of a run of this table")
    # Judged among all cells of the table that have runs: what is shown of them changes no verdict.
    rows = rows_of(asked.table, cells, [known.results[task] for task in of_whole], asked.memory)
    part = "" if len(cells) == len(asked.whole().cells()) else " (a part of the table)"
    title = title_of(asked.table, asked.memory) + part
    caption = caption_of(records, failures, passed_over=len(known.problems))
    written = write(at.out, rows, title, caption)
    console = plain_console()
    console.print(title)
    for block in blocks(rows):
        console.print()
        if block.source:
            console.print(source_words(block.source))
        for line in aligned(_shown(block)):
            console.print(line)
    console.print(f"\n{tally(rows)}")
    if caption:
        console.print(caption)
    errors.print(f"written: {', '.join(map(str, written))}")


def _shown(block: Block) -> list[list[str]]:
    """A line for each cell, under heads."""
    lines = [[*block.heads, "", "ours", "n", "median", "paper", "difference", "verdict"]]
    for line in block.lines:
        for column, row in zip(block.columns, line.rows, strict=True):
            if row is not None:
                lines.append([line.first, line.second, column, *_said(row)])
    return lines


def _said(row: Row) -> list[str]:
    said = words(row)
    return [said.ours, said.runs.strip("()"), said.median, said.paper, said.difference, said.verdict]
