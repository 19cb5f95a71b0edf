"""The tables under results/reproduce and results/bench, and the README's section of results, from the records there.

python results/summary.py           # write them, and remove tables that no record gives any more
python results/summary.py --check   # say whether they are what the records give
"""

import argparse
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memwrap.bench import inference, memory, training
from memwrap.bench import record as bench
from memwrap.bench.record import BenchRecord
from memwrap.cli.bench import HEADS, ROOM_HEADS, TITLES, bytes_shown, columns_of, room_of, seconds_shown
from memwrap.paper import records, tables
from memwrap.paper.grid import BATCH, MEASURED, RANDOM, STANDARD, Task, cells_of
from memwrap.paper.published import published
from memwrap.paper.published import tables as known_tables
from memwrap.paper.records import Record
from memwrap.paper.rendering import as_markdown
from memwrap.paper.rows import DATA, ENCODERS, VARIANTS, Block, Row, blocks, once
from memwrap.paper.words import NO_RUNS, words

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
BEGIN, END = "<!-- made by results/summary.py -->", "<!-- end of what it makes -->"
MADE = ("reproduce", "bench")  # folders whose *.md are all made here
SHOWN = "svhn-reduced"  # the table that the README shows whole
SIDES = "reproduce/batch-as-memory.md"
NOTHING = "–"
FAR = 2  # standard errors, beyond which a difference is marked
LARGE_MEMORIES = (50_000, 1_000_000)  # encodings, whose cost the README tells


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--check", action="store_true", help="write nothing")
    wanted = files(HERE, README.read_text(encoding="utf-8"))
    too_many = leftover(HERE, wanted)
    if options.parse_args().check:
        stale = [path for path, content in wanted.items() if not path.exists() or path.read_text("utf-8") != content]
        for path in [*stale, *too_many]:
            print(f"{path.relative_to(HERE.parent)}: is not what the records give; run python results/summary.py")
        return bool(stale or too_many)
    for path, content in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    for path in too_many:
        path.unlink()
        print(f"{path.relative_to(HERE.parent)}: removed, as no record gives it")
    return 0


def files(folder: Path, readme: str) -> dict[Path, str]:
    """What the records in a folder give: the text of each file, the README's among them."""
    read = records.read(sorted(folder.glob("reproduce/*.jsonl")))
    for problem in read.problems:
        print(problem, file=sys.stderr)
    known = list(read.results.values())
    measured = {path.stem: bench.read(path) for path in sorted(folder.glob("bench/*.json"))}
    found = {(table, way): rows for table in known_tables() for way, rows in rows_by_memory(table, known)}
    sides = sides_of(known)
    made = {
        folder / "reproduce" / f"{file_of(table, way)}.md": tables_text(table, way, rows, known)
        for (table, way), rows in found.items()
    }
    made |= {folder / SIDES: sides_text(sides)} if sides else {}
    made |= {folder / "bench" / f"{name}.md": bench_text(name, record) for name, record in measured.items()}
    section = [*shown_table(found, known), *all_tables(found, known), *sides_line(sides), *costs(measured)]
    return {**made, README: with_section(readme, section)}


def with_section(readme: str, section: Sequence[str]) -> str:
    """The README with these paragraphs in the place of those that were between the marks."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"README.md: has no place for results; expected the lines {BEGIN} and {END}")
    return before + "\n\n".join([BEGIN, *section, END]) + after


def leftover(folder: Path, wanted: Iterable[Path]) -> list[Path]:
    """Tables that lie in a folder of made ones, and that no record gives."""
    return sorted({path for name in MADE for path in folder.glob(f"{name}/*.md")} - set(wanted))


# The paper's tables


def rows_by_memory(table: str, known: Sequence[Record]) -> Iterator[tuple[str, list[Row]]]:
    """The rows of a table for each way of training that there are runs of; `parameters` needs none."""
    if table == "cost":
        return
    for way in (RANDOM, BATCH):
        # Standard has no memory: its runs are in the tables of both ways, and alone make none of the second.
        if way == BATCH and not any(run.task.memory == BATCH for run in runs_of(table, BATCH, known)):
            continue
        rows = tables.rows_of(table, cells_of(table), known, way)
        if any(row.comparison is not None for row in rows):
            yield way, rows


def file_of(table: str, way: str) -> str:
    return f"{table}{'-batch' * (way == BATCH)}"


def tables_text(table: str, way: str, rows: Sequence[Row], known: Sequence[Record]) -> str:
    return as_markdown(rows, tables.title_of(table, way), tables.caption_of(runs_of(table, way, known)))


def runs_of(table: str, way: str, known: Sequence[Record]) -> list[Record]:
    return [run for runs in tables.by_cell(published(table), known, way).values() for run in runs]


def shown_table(found: Mapping[tuple[str, str], Sequence[Row]], known: Sequence[Record]) -> list[str]:
    """The table that is shown whole."""
    if not (rows := found.get((SHOWN, RANDOM))):
        return []
    return [
        f"**{tables.title_of(SHOWN)}**, ours and the paper's in brackets; **bold** where they differ by more than "
        "chance explains (Welch's test with Holm's correction). All of this section is made by "
        "`python results/summary.py` from the records in [results](results/README.md).",
        compact(blocks(rows)[0]),
        tables.caption_of(runs_of(SHOWN, RANDOM, known)),
    ]


def compact(block: Block) -> str:
    """A cell as "67.50 ± 2.94 (66.93), n = 5"."""
    lines = [[line.first, line.second, *map(compact_cell, line.rows)] for line in block.lines]
    return markdown_table([*block.heads, *block.columns], lines)


def compact_cell(row: Row | None) -> str:
    if row is None or row.comparison is None:
        return "" if row is None else NO_RUNS
    said = words(row)
    text = f"{said.ours} ({said.paper.split(' ')[0]}), n = {row.comparison.runs}"
    return f"**{text}**" if said.kind == "differs" else text


def all_tables(found: Mapping[tuple[str, str], Sequence[Row]], known: Sequence[Record]) -> list[str]:
    """A line for each table, and in it what each way of training comes to."""
    if not found:
        return []
    runs = list({run.task: run for table, way in found for run in runs_of(table, way, known)}.values())
    about = "**All tables**: how many cells agree with the paper by that test, out of those that can be judged."
    if runs:
        about += (
            f" {len(runs)} runs on {where(runs)}; n: runs in a cell. Standard, without a memory, is in both columns."
        )
    lines = []
    for table in once(table for table, _ in found):
        told = [outcome(table, way, found[table, way]) if (table, way) in found else "" for way in (RANDOM, BATCH)]
        lines.append([table, *told])
    return [about, markdown_table(["table", "trained as in the paper", "trained with the batch as memory"], lines)]


def outcome(table: str, way: str, rows: Sequence[Row]) -> str:
    """As "[26 of 27 agree](...), n = 5", with a link to the table."""
    said = [words(row).kind for row in rows if row.comparison is not None and row.verdict is not None]
    agreeing, differing, open_ = (said.count(kind) for kind in ("agrees", "differs", "open"))
    name = file_of(table, way)
    parts = [f"[{agreeing} of {agreeing + differing} agree](results/reproduce/{name}.md)"]
    if open_:
        parts.append(f"{open_} cannot be judged")
    measured = [row.comparison.runs for row in rows if row.comparison is not None and row.cell.metric in MEASURED]
    if measured:
        parts.append(f"n = {span(measured)}")
    return ", ".join(parts)


# The batch as memory against two passes


@dataclass(frozen=True)
class Sides:
    """Runs of Memory Wrap that differ only in where training took its memory from, and in their seeds."""

    batch: tuple[Record, ...]
    two_passes: tuple[Record, ...]

    @property
    def task(self) -> Task:
        return self.batch[0].task

    @property
    def name(self) -> str:
        task = self.task
        return f"{DATA[task.data]}, {encoder_name(task.encoder)}, {samples_name(task)}, memory of {task.memory_size}"


@dataclass(frozen=True)
class Difference:
    """Of two means, the first less the second. None: there is no spread to hold it against."""

    points: float
    standard_error: float | None  # Welch's: the two may scatter differently

    @property
    def in_errors(self) -> float | None:
        return self.points / self.standard_error if self.standard_error else None

    @property
    def is_far(self) -> bool:
        return self.in_errors is not None and abs(self.in_errors) > FAR


def difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    points = statistics.fmean(first) - statistics.fmean(second)
    if min(len(first), len(second)) < 2:
        return Difference(points, None)
    return Difference(points, math.sqrt(sum(statistics.variance(each) / len(each) for each in (first, second))))


def sides_of(known: Iterable[Record]) -> list[Sides]:
    """For each data set, encoder, number of samples and size of the memory, if there are runs of both kinds."""
    found: dict[tuple[Any, ...], dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in sorted(known, key=lambda record: record.task):
        task = record.task
        if task.variant == "memory_wrap":
            key = task.data, task.encoder, task.samples or math.inf, task.memory_size
            found[key][task.memory].append(record)
    sides = [Sides(tuple(ways[BATCH]), tuple(ways[RANDOM])) for _, ways in sorted(found.items()) if len(ways) == 2]
    tables.check_one_data_set([run for each in sides for run in (*each.batch, *each.two_passes)])
    return sides


def accuracies(runs: Iterable[Record]) -> list[float]:
    """In per cent."""
    found = [records.score(run.metrics, "accuracy") for run in runs]
    return [100 * each for each in found if each is not None]


def sides_text(sides: Sequence[Sides]) -> str:
    heads = ["Data set", "Encoder", "Samples", "Memory", "batch as memory", "median", "two passes", "median",
             "difference", "its standard error", "in standard errors"]  # fmt: skip
    parts = [
        "### Memory Wrap trained with the batch as memory, against two passes: accuracy, %",
        markdown_table(heads, map(sides_cells, sides), right_from=4),
        "Mean ± standard deviation with n − 1 (n runs). Difference: batch as memory less two passes; its standard "
        f"error is √(s₁²/n₁ + s₂²/n₂). **Bold**: beyond {FAR} standard errors. With five runs of either kind and equal "
        "true means, chance alone puts about one cell in twelve there.",
        tables.caption_of([run for each in sides for run in (*each.batch, *each.two_passes)]),
    ]
    return "\n\n".join(parts) + "\n"


def sides_cells(sides: Sides) -> list[str]:
    task, both = sides.task, [accuracies(runs) for runs in (sides.batch, sides.two_passes)]
    found = difference(*both)
    told = [text for values in both for text in (mean_with_spread(values), f"{statistics.median(values):.2f}")]
    error = NOTHING if found.standard_error is None else f"{found.standard_error:.2f}"
    in_errors = NOTHING if found.in_errors is None else signed(found.in_errors, 1)
    return [
        DATA[task.data],
        encoder_name(task.encoder),
        samples_name(task),
        str(task.memory_size),
        *told,
        signed(found.points, 2),
        error,
        f"**{in_errors}**" if found.is_far else in_errors,
    ]


def sides_line(sides: Sequence[Sides]) -> list[str]:
    """How many differ by little, and which do not."""
    found = [(each, difference(accuracies(each.batch), accuracies(each.two_passes))) for each in sides]
    judged = [(each, gap) for each, gap in found if gap.in_errors is not None]
    if not judged:
        return []
    far = [f"{each.name} ({signed(gap.points, 2)} points, {signed(gap.in_errors or 0, 1)} standard errors)"
           for each, gap in judged if gap.is_far]  # fmt: skip
    runs = [run for each, _ in judged for run in (*each.batch, *each.two_passes)]
    sizes = [len(kind) for each, _ in judged for kind in (each.batch, each.two_passes)]
    return [
        f"**The batch as memory** instead of the paper's second pass: in {len(judged) - len(far)} of {len(judged)} "
        f"[cells](results/{SIDES}) the accuracy of Memory Wrap differs by at most {FAR} standard errors"
        + (f", and by more for {'; '.join(far)}" if far else "")
        + f". n = {span(sizes)} of either kind, {where(runs)}."
    ]


# What `memwrap bench` measured


def bench_text(name: str, record: BenchRecord) -> str:
    """All rows of a record, and the conditions under which they were measured."""
    origin = record.origin
    commit = f"commit {origin.commit[:10]}{' with changes' * bool(origin.dirty)}, " if origin.commit else ""
    cuda = f"CUDA {origin.versions['cuda']}, " if "cuda" in origin.versions else ""
    parts = [
        f"### memwrap bench: {name}",
        f"{where([record])}; {commit}{cuda}{record.threads} CPU threads. Images: {record.images}.",
        "Ratio: time / time of what stands beside it, in each round; the median, and quartiles. Below 1 is faster. "
        "All times are medians, too.",
    ]
    if not record.complete:
        parts.append("It was stopped before its end.")
    for part in once(row.part for row in record.rows):
        rows = [row for row in record.rows if row.part == part]
        units = " or ".join(once(row.unit for row in rows))
        parts += [f"**{TITLES.get(part, part)}**, for each {units}", bench_table(rows), "\n".join(conditions(rows))]
    if record.left_out:
        parts += ["**Left out**", "\n".join(f"- {each.subject} ({each.reason})" for each in record.left_out)]
    return "\n\n".join(filter(None, parts)) + "\n"


def bench_table(rows: Sequence[bench.Row]) -> str:
    """As `memwrap bench` prints it, with the rounds, and without the columns of room where none was measured."""
    room = any(row.peak is not None or row.base_peak is not None for row in rows)
    lines = [
        [encoder_name(row.encoder or ""), *columns_of(row)[1:], str(row.rounds), *room_of(row) * room] for row in rows
    ]
    return markdown_table([*HEADS, "rounds", *ROOM_HEADS * room], lines)


def conditions(rows: Iterable[bench.Row]) -> list[str]:
    """What was set for all that was measured, and then what else for each; all values, if a name had several."""
    found: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        for name, facts in ((row.base, row.base_facts), (row.name, row.facts)):
            for fact, value in facts.items():
                values = found.setdefault(name, {}).setdefault(fact.replace("_", " "), [])
                if condition(value) not in values:
                    values.append(condition(value))
    first = next(iter(found.values()), {})
    shared = {
        fact: values for fact, values in first.items() if all(each.get(fact) == values for each in found.values())
    }
    own = {name: {fact: facts[fact] for fact in facts if fact not in shared} for name, facts in found.items()}
    return [f"- {name}: {facts_said(facts)}" for name, facts in {"All": shared, **own}.items() if facts]


def facts_said(facts: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{fact} {' or '.join(values)}" for fact, values in facts.items())


def condition(value: Any) -> str:
    """A JSON value in words."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return f"{value:,}" if isinstance(value, int) else str(value)


# What the README tells of it


@dataclass(frozen=True)
class Headline:
    """Which rows it is made of, and what it says of one of them."""

    holds: Callable[[bench.Row], bool]
    said: Callable[[bench.Row, BenchRecord], str]


@dataclass(frozen=True)
class Told:
    """A headline for one encoder."""

    label: str
    encoder: str
    record: str  # its name
    rounds: int
    text: str


def is_side_by_side(row: bench.Row) -> bool:
    return row.part == training.STEPS and row.base == training.PUBLISHED and "side_by_side" in row.facts


def is_step_with(way: str) -> Callable[[bench.Row], bool]:
    """Training that takes its memory that way, beside training without one."""
    return lambda row: beside_standard(row, training.STEPS) and row.facts.get("memory") == way


def is_read(row: bench.Row) -> bool:
    """Ours beside no memory, where the class of each image is waited for; the published layer has rows of its own."""
    ours = beside_standard(row, inference.PART) and row.name.startswith(VARIANTS["memory_wrap"])
    return ours and row.facts.get("classes_read") is True


def is_memory_of(size: int) -> Callable[[bench.Row], bool]:
    return lambda row: beside_standard(row, memory.PART) and row.facts.get("memory") == size


def beside_standard(row: bench.Row, part: str) -> bool:
    return row.part == part and row.base == VARIANTS[STANDARD]


def times_as_fast(row: bench.Row, record: BenchRecord) -> str:
    times = f"{seconds_shown(row.seconds.median)}, {seconds_shown(row.base_seconds.median)}"
    return f"{1 / row.ratio.median:.1f} times as fast ({times})"


def ratio(row: bench.Row, record: BenchRecord) -> str:
    return f"{row.ratio.median:.2f}"


def ratio_read_and_not(row: bench.Row, record: BenchRecord) -> str:
    unread = [
        f"; {ratio(other, record)} if no class is read"
        for other in record.rows
        if (other.part, other.encoder, other.name, other.base) == (row.part, row.encoder, row.name, row.base)
        and other.facts == row.facts | {"classes_read": False}
    ]
    return "".join([ratio(row, record), *unread])


def ratio_and_room(row: bench.Row, record: BenchRecord) -> str:
    if row.peak is None or row.base_peak is None:
        return ratio(row, record)
    return f"{ratio(row, record)}; peak {bytes_shown(row.peak)}, {row.base}'s {bytes_shown(row.base_peak)}"


HEADLINES = (
    Headline(is_side_by_side, times_as_fast),
    Headline(is_step_with(RANDOM), ratio),
    Headline(is_step_with(BATCH), ratio),
    Headline(is_read, ratio_read_and_not),
    *(Headline(is_memory_of(size), ratio_and_room) for size in LARGE_MEMORIES),
)


def headlines(measured: Mapping[str, BenchRecord]) -> list[Told]:
    """Each comparison once for a device and an encoder: the newest."""
    newest: dict[tuple[str, str, str], Told] = {}
    for headline in HEADLINES:
        for name, record in sorted(measured.items(), key=lambda item: item[1].date):
            for row in record.rows:
                if row.encoder is not None and headline.holds(row):
                    told = Told(label_of(row), row.encoder, name, row.rounds, headline.said(row, record))
                    newest[record.origin.device, told.label, told.encoder] = told
    return list(newest.values())


def label_of(row: bench.Row) -> str:
    """What is compared; a memory's size is in the name already."""
    what = f"predicting {row.facts.get('batch')} images" if row.part == memory.PART else row.subject
    return f"{what}: {row.name}, against {row.base}"


def costs(measured: Mapping[str, BenchRecord]) -> list[str]:
    """Where it was measured, and the headlines."""
    by_place: dict[str, list[str]] = {}
    for name, record in measured.items():
        by_place.setdefault(where([record]), []).append(f"[{name}](results/bench/{name}.md)")
    full = "; ".join(f"{' and '.join(links)} on {place}" for place, links in by_place.items())
    about = (
        "**Speed**, by `memwrap bench`: the time of one thing over that of another, the median of n rounds in which "
        f"both were timed; of runs side by side, one run's share. Full tables: {full}."
    )
    told = headlines(measured)
    return [about, *([headlines_table(told)] if told else [])] if measured else []


def headlines_table(told: Sequence[Told]) -> str:
    """A line for each comparison in a record, and a column for each encoder."""
    encoders = sorted(once(each.encoder for each in told), key=paper_order)
    lines = []
    for label, record in once((each.label, each.record) for each in told):
        own = {each.encoder: each for each in told if (each.label, each.record) == (label, record)}
        texts = [own[encoder].text if encoder in own else NOTHING for encoder in encoders]
        lines.append([label, *texts, f"{record}, n = {span(each.rounds for each in own.values())}"])
    return markdown_table(["", *map(encoder_name, encoders), "from"], lines)


# Words and tables


def where(made: Sequence[Record | BenchRecord]) -> str:
    """Device, versions and date, as "NVIDIA H200, memwrap 0.1.0, torch 2.11.0, 2026-11-16"."""
    dates = sorted(each.date[:10] for each in made)
    parts = [" and ".join(once(each.origin.device for each in made))]
    for package in ("memwrap", "torch", "memorywrap", "entmax"):
        if versions := once(each.origin.versions[package] for each in made if package in each.origin.versions):
            parts.append(f"{package} {' and '.join(versions)}")
    return ", ".join([*parts, dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"])


def paper_order(encoder: str) -> tuple[int, str]:
    """The paper's encoders first, in its order."""
    known = list(ENCODERS)
    return (known.index(encoder) if encoder in known else len(known)), encoder


def encoder_name(encoder: str) -> str:
    return ENCODERS.get(encoder, encoder) if encoder else ""


def samples_name(task: Task) -> str:
    return "all samples" if task.samples is None else f"{task.samples} samples"


def mean_with_spread(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread} ({len(values)})"


def signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def span(numbers: Iterable[int]) -> str:
    """As "5", or "3 to 5"."""
    found = sorted(set(numbers))
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"


def markdown_table(heads: Sequence[str], lines: Iterable[Sequence[str]], right_from: int | None = None) -> str:
    """right_from: the first column whose cells stand at the right."""
    rules = ["---" if right_from is None or place < right_from else "---:" for place in range(len(heads))]
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, rules, *lines])


if __name__ == "__main__":
    sys.exit(main())
