"""Reads the records: runs of `memwrap reproduce`, and what `memwrap bench` measured."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from memwrap.reproduce import records
from memwrap.reproduce.bench import record as bench
from memwrap.reproduce.bench.record import BenchRecord
from memwrap.reproduce.records import Failure, Record, Records
from summary_parts import programs

Made = TypeVar("Made", Record, Failure, BenchRecord)


def runs_in(folder: Path) -> Records:
    """All that the files of records in a folder hold."""
    found, named = records.read(sorted(folder.glob("reproduce/*.jsonl"))), programs.named_in(folder)
    return replace(
        found,
        results={task: _with_commit(record, named) for task, record in found.results.items()},
        failures=tuple(_with_commit(failure, named) for failure in found.failures),
    )


def measured_in(folder: Path) -> dict[str, BenchRecord]:
    """Each record of `memwrap bench`, by its name."""
    named = programs.named_in(folder)
    return {path.stem: _with_commit(bench.read(path), named) for path in sorted(folder.glob("bench/*.json"))}


def _with_commit(made: Made, named: Mapping[str, str]) -> Made:
    return replace(made, origin=programs.with_commit(made.origin, named))
