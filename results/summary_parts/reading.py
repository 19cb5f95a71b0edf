"""Reads the records: runs of `memwrap reproduce`, and what `memwrap bench` measured."""

from pathlib import Path

from memwrap.bench import record as bench
from memwrap.bench.record import BenchRecord
from memwrap.paper import records
from memwrap.paper.records import Records


def runs_in(folder: Path) -> Records:
    """All that the files of records in a folder hold."""
    return records.read(sorted(folder.glob("reproduce/*.jsonl")))


def measured_in(folder: Path) -> dict[str, BenchRecord]:
    """Each record of `memwrap bench`, by its name."""
    return {path.stem: bench.read(path) for path in sorted(folder.glob("bench/*.json"))}
