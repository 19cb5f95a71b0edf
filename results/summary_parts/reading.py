"""Reads the records: runs of `memwrap reproduce`, and what `memwrap bench` measured."""

import sys
from pathlib import Path

from memwrap.bench import record as bench
from memwrap.bench.record import BenchRecord
from memwrap.paper import records
from memwrap.paper.records import Record


def runs_in(folder: Path) -> list[Record]:
    """All that count; lines that do not are told on standard error."""
    read = records.read(sorted(folder.glob("reproduce/*.jsonl")))
    for problem in read.problems:
        print(problem, file=sys.stderr)
    return list(read.results.values())


def measured_in(folder: Path) -> dict[str, BenchRecord]:
    """Each record of `memwrap bench`, by its name."""
    return {path.stem: bench.read(path) for path in sorted(folder.glob("bench/*.json"))}
