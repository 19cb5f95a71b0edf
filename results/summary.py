"""Write the tables under results/ and the results sections of the two READMEs from the records under results/.

python results/summary.py           # write them
python results/summary.py --check   # report whether they are up to date, and write nothing

Exits with 1 for records that cannot be used, for commits in programs.json whose code has another hash, for tables that
belong to no record, and, with --check, for files that are out of date.
"""

import argparse
import io
import json
import math
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from memwrap.errors import DataError, MemwrapError, RunError
from memwrap.reproduce import published, rendering, tables
from memwrap.reproduce.bench import BenchRecord, formatting, read_bench
from memwrap.reproduce.layout import DATA, ENCODERS, Row, arrange
from memwrap.reproduce.provenance import hash_code
from memwrap.reproduce.records import Failure, Records, RunRecord, read_records, score
from memwrap.reproduce.rendering import escape, format_cell, make_caption, make_title, markdown_table, tally
from memwrap.reproduce.tasks import BATCH, MEASURED, RANDOM, Selection, has_runs, unique
from memwrap.storage.files import write_file

HERE = Path(__file__).parent
BEGIN, END = "<!-- made by results/summary.py -->", "<!-- end of what it makes -->"
SHOWN = "svhn-reduced"  # the table of the main README
MEMORIES = {RANDOM: "", BATCH: "-batch"}  # suffixes of file names

Rows = Mapping[tuple[str, str], Sequence[Row]]  # by table and memory in training
_Stored = TypeVar("_Stored", RunRecord, Failure, BenchRecord)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    commits = read_commits(HERE)
    runs, benches = read_results(HERE, commits)
    problems = [*runs.problems, *find_wrong_commits(commits, HERE.parent)]
    for problem in problems:
        print(problem, file=sys.stderr)
    wanted = make_files(HERE, runs, benches)
    outdated = [path for path, content in wanted.items() if not path.exists() or path.read_bytes() != content.encode()]
    for path in outdated:
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, wanted[path].encode())
        print(f"{path.relative_to(HERE.parent)}: {'out of date; run results/summary.py' if check else 'written'}")
    orphans = sorted({path for name in ("reproduce", "bench") for path in HERE.glob(f"{name}/*.md")} - wanted.keys())
    for path in orphans:
        print(f"{path.relative_to(HERE.parent)}: belongs to no record; remove it, unless records are damaged")
    if not outdated:
        print(f"{len(wanted)} files are up to date")
    return bool(problems or orphans or (check and outdated))


def make_files(folder: Path, runs: Records, benches: Mapping[str, BenchRecord]) -> dict[Path, str]:
    """The contents of each file that the records of a folder give."""
    rows = make_rows(runs)
    pairs = pair_runs(runs.results.values())
    files = {folder / f"bench/{name}.md": formatting.to_markdown(name, record) for name, record in benches.items()}
    for (table, memory), found in rows.items():
        title, caption = make_title(table, memory), describe_runs(table, memory, runs)
        files[folder / f"reproduce/{table}{MEMORIES[memory]}.md"] = rendering.to_markdown(found, title, caption)
    if pairs:
        files[folder / "reproduce/batch-as-memory.md"] = compare_memories(pairs)
    for path, section in (
        (folder / "README.md", list_tables(rows, benches)),
        (folder.parent / "README.md", summarise_results(rows, runs, benches)),
    ):
        files[path] = replace_section(path, section)
    return files


def replace_section(path: Path, section: Sequence[str]) -> str:
    """The text of a file with these paragraphs between the marks."""
    before, begin, rest = path.read_bytes().decode().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise RunError(f"{path}: expected the lines {BEGIN} and {END}")
    return before + "\n\n".join([BEGIN, *section, END]) + after


# Records


def read_results(folder: Path, commits: Mapping[str, str]) -> tuple[Records, dict[str, BenchRecord]]:
    """The runs of `memwrap reproduce`, and the records of `memwrap bench` by name."""

    def name_commit(stored: _Stored) -> _Stored:
        commit = commits.get(stored.origin.code) if stored.origin.dirty else None
        return stored if commit is None else replace(stored, origin=replace(stored.origin, commit=commit, dirty=False))

    found = read_records(sorted(folder.glob("reproduce/*.jsonl")))
    results = {task: name_commit(record) for task, record in found.results.items()}
    runs = replace(found, results=results, failures=tuple(map(name_commit, found.failures)))
    return runs, {path.stem: name_commit(read_bench(path)) for path in sorted(folder.glob("bench/*.json"))}


def read_commits(folder: Path) -> dict[str, str]:
    """The commit of each program, by the hash of its code, from programs.json.

    A record names its commit. On a machine that had the files of a later one without the history, that is an earlier
    one "with changes"; the hash of the code identifies the commit that has these files.
    """
    path = folder / "programs.json"
    if not path.exists():
        return {}
    try:
        commits = json.loads(path.read_text())
    except ValueError as error:
        raise RunError(f"{path}: is not JSON ({error})") from error
    if not isinstance(commits, dict) or not all(isinstance(commit, str) for commit in commits.values()):
        raise RunError(f"{path}: expected commits by the hash of their code")
    return commits


def find_wrong_commits(commits: Mapping[str, str], repository: Path) -> list[str]:
    """Commits whose code has another hash, as far as the history of the repository reaches."""
    problems = []
    for code, commit in commits.items():
        try:
            archive = subprocess.run(
                ["git", "archive", commit, "memwrap"], cwd=repository, capture_output=True, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
            actual = hash_code(Path(folder) / "memwrap")
        if actual != code:
            problems.append(f"programs.json: the code of commit {commit} has the hash {actual}, not {code}")
    return problems


# Tables of the paper


def make_rows(runs: Records) -> dict[tuple[str, str], list[Row]]:
    """The rows of each table that there are runs for, or that needs none."""
    records, found = list(runs.results.values()), {}
    for table in filter(has_runs, published.table_names()):
        for memory in MEMORIES:
            selection = Selection(table, memory=memory)
            # Standard is the same run for both, and alone gives no second table.
            if memory == BATCH and not any(task.memory == BATCH for task in selection.filter(runs.results)):
                continue
            rows = tables.rows_from_records(table, selection.cells(), records, memory)
            if any(row.comparison is not None for row in rows):
                found[table, memory] = rows
    return found


def describe_runs(table: str, memory: str, runs: Records) -> str:
    """The caption of a table."""
    selection = Selection(table, memory=memory)
    own = sorted(selection.filter(runs.results))
    failed = selection.filter(failure.task for failure in runs.failures)
    failures = [failure for failure in runs.failures if failure.task in failed]
    skipped = len(runs.problems) if selection.tasks([0]) else 0
    return make_caption([runs.results[task] for task in own], failures, skipped)


def summarise_results(rows: Rows, runs: Records, benches: Mapping[str, BenchRecord]) -> list[str]:
    """One table, the origin of its numbers, and the outcome of all tables and of the benchmarks."""
    section = []
    if shown := rows.get((SHOWN, RANDOM)):
        (block,) = arrange(shown)
        lines = [[line.first, line.second, *map(_format_short, line.rows)] for line in block.lines]
        numbers = _span(row.comparison.runs for row in shown if row.comparison is not None)
        section += [
            markdown_table([*block.heads, *block.columns], lines),
            f"{make_title(SHOWN)}, mean ± standard deviation of n = {numbers} runs; in brackets the paper's, n = 15; "
            f"bold where they differ significantly. {escape(describe_runs(SHOWN, RANDOM, runs))}",
        ]
    outcomes = [tally(found) for (_, memory), found in rows.items() if memory == RANDOM]
    agree, tested = sum(each.agree for each in outcomes), sum(each.tested for each in outcomes)
    sentences = [f"In all {len(outcomes)} tables together, {agree} of {tested} tested cells agree with the paper."]
    if speedups := find_speedups(benches):
        devices = escape(", ".join(unique(record.origin.device for record in benches.values())))
        loop, arithmetic = (f"{min(each):.0f} to {max(each):.0f}" for each in zip(*speedups, strict=True))
        sentences.append(
            f"On {devices}, a training step of one of several runs side by side is {loop} times as fast as in the "
            f"published loop, and {arithmetic} times as fast as that loop's arithmetic alone."
        )
    sentences.append("All tables, records and their history: [results](results/README.md).")
    return [*section, " ".join(sentences)]


def find_speedups(benches: Mapping[str, BenchRecord]) -> list[tuple[float, float]]:
    """How many times as fast runs side by side are as the published loop, and as its arithmetic, by encoder."""
    found: dict[tuple[str, str | None], dict[str, float]] = defaultdict(dict)
    for name, record in benches.items():
        for row in record.rows:
            if (row.part, row.base) == ("steps", "published loop") and not record.asked.get("quick"):
                kind = "ours" if "side by side" in row.name else row.name
                found[name, row.encoder][kind] = 1 / row.ratio.median
    pairs = [(each.get("ours"), each.get("published, arithmetic alone")) for each in found.values()]
    return [(ours, ours / alone) for ours, alone in pairs if ours and alone]


def _format_short(row: Row | None) -> str:
    """As "61.28 ± 19.16 (72.59 ± 4.00)"."""
    if row is None or row.comparison is None:
        return "" if row is None else rendering.NO_RUNS
    text = format_cell(row)
    return f"**{text.ours}** ({text.paper})" if rendering.differs(row) else f"{text.ours} ({text.paper})"


def list_tables(rows: Rows, benches: Mapping[str, BenchRecord]) -> list[str]:
    """An index: each table with its outcome, and each bench record with its origin."""
    lines = []
    for table in unique(table for table, _ in rows):
        outcomes = [_format_outcome(table, memory, rows.get((table, memory))) for memory in MEMORIES]
        lines.append([table, escape(make_title(table)), *outcomes])
    missing = [table for table in filter(has_runs, published.table_names()) if (table, RANDOM) not in rows]
    bench_lines = [
        [
            f"[{escape(name)}](bench/{name}.md)",
            escape(formatting.describe_origin(record)),
            "" if record.complete else "no",
        ]
        for name, record in benches.items()
    ]
    return [
        markdown_table(["Table", "Metric", "trained as in the paper", "trained with the batch as memory"], lines),
        "In brackets: with memory samples from the whole training set, of which a larger share was trained on than in "
        "the paper." + (f" Without runs: {', '.join(missing)}." if missing else ""),
        *([markdown_table(["Bench record", "Device, versions, date", "Complete"], bench_lines)] if bench_lines else []),
    ]


def _format_outcome(table: str, memory: str, rows: Sequence[Row] | None) -> str:
    """As "[26 of 27 agree](...), n = 5"."""
    if rows is None:
        return ""
    found = tally(rows)
    parts = [f"[{found.agree} of {found.tested} agree](reproduce/{table}{MEMORIES[memory]}.md)"]
    if found.alternative:
        parts[0] += f" ({found.alternative[0]} of {found.alternative[1]})"
    if found.too_few:
        parts.append(f"{found.too_few} not testable")
    if found.missing:
        parts.append(f"{found.missing} without runs")
    counts = [r.comparison.runs for r in rows if r.comparison and r.verdict and r.cell.metric in MEASURED]
    return ", ".join([*parts, *([f"n = {_span(counts)}"] if counts else [])])


# The batch as memory versus the paper's second pass


def pair_runs(records: Iterable[RunRecord]) -> list[list[tuple[RunRecord, RunRecord]]]:
    """For each data set, encoder and number of samples: runs with the batch as memory and with two passes, by seed.

    Two runs of a seed have the same training images, which much of the scatter comes from.
    """
    found: dict[tuple[Any, ...], dict[str, dict[int, RunRecord]]] = defaultdict(lambda: defaultdict(dict))
    for record in records:
        task = record.task
        if task.variant == "memory_wrap":
            key = task.data, task.encoder, task.samples or math.inf, task.memory_size
            found[key][task.memory][task.seed] = record
    groups = []
    for _, ways in sorted(found.items()):
        if seeds := sorted(ways[BATCH].keys() & ways[RANDOM].keys()):
            groups.append([(ways[BATCH][seed], ways[RANDOM][seed]) for seed in seeds])
    for one, other in (pair for group in groups for pair in group):
        if one.subset != other.subset:
            raise DataError(f"{one.task.name} and {other.task.name} were trained on different images")
    tables.check_same_images(record for group in groups for pair in group for record in pair)
    return groups


def compare_memories(groups: Sequence[Sequence[tuple[RunRecord, RunRecord]]]) -> str:
    """The table of paired differences."""
    heads = ["Data set", "Encoder", "Samples", "Memory", "n", "batch as memory", "two passes", "difference", "t"]
    parts = [
        "### Memory Wrap trained with the batch as memory versus two passes: accuracy, %",
        markdown_table(heads, map(_compare_group, groups), right_from=4),
        "Mean ± standard deviation with n − 1, median in brackets. Difference: batch as memory minus two passes, seed "
        "by seed, ± its standard error. t: paired t statistic, bold beyond 2, where chance alone puts one cell in nine "
        "with five seeds and one in fifteen with fifteen.",
        escape(make_caption([record for group in groups for pair in group for record in pair])),
    ]
    return "\n\n".join(parts) + "\n"


def _compare_group(pairs: Sequence[tuple[RunRecord, RunRecord]]) -> list[str]:
    task = pairs[0][0].task
    batch, passes = (
        [100 * (score(each.metrics, "accuracy") or 0) for each in side] for side in zip(*pairs, strict=True)
    )
    difference, error, t = paired_difference(batch, passes)
    shown = f"{difference:+.2f}" + ("" if error is None else f" ± {error:.2f}")
    return [
        DATA[task.data],
        ENCODERS.get(task.encoder, escape(task.encoder)),
        "all" if task.samples is None else str(task.samples),
        str(task.memory_size),
        str(len(pairs)),
        *(f"{_mean(values)} ({statistics.median(values):.2f})" for values in (batch, passes)),
        shown.replace("-", "−"),
        rendering.ABSENT if t is None else (f"**{t:+.1f}**" if abs(t) > 2 else f"{t:+.1f}").replace("-", "−"),
    ]


def paired_difference(first: Sequence[float], second: Sequence[float]) -> tuple[float, float | None, float | None]:
    """The mean difference, its standard error and the paired t statistic; None where there is no spread."""
    differences = [one - other for one, other in zip(first, second, strict=True)]
    mean = statistics.fmean(differences)
    error = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else None
    return mean, error, mean / error if error else None


def _mean(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.2f}" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def _span(numbers: Iterable[int]) -> str:
    """As "5", or "3 to 5"."""
    found = sorted(set(numbers))
    return " to ".join(map(str, unique([found[0], found[-1]])))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (MemwrapError, OSError, UnicodeError) as error:
        sys.exit(f"results/summary.py: {error}")
