"""What was measured, as a file from which tables can be made later."""

import json
import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from memwrap.errors import RunError, SaveError, brief
from memwrap.reproduce.bench.timing import Compared, Spread
from memwrap.reproduce.records import Origin
from memwrap.storage.checkpoint import write_file
from memwrap.storage.parsing import built
from memwrap.version import __version__

FORMAT = "memwrap bench"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Row:
    """One thing beside another. ratio: its time over the other's, below one is faster; all times in seconds a unit.

    facts, base_facts: JSON values, the conditions under which the two were run. Peaks in bytes; None: not measured.
    """

    part: str
    subject: str
    encoder: str | None
    unit: str
    name: str
    base: str
    seconds: Spread
    base_seconds: Spread
    ratio: Spread
    rounds: int
    facts: dict[str, Any] = field(default_factory=dict)
    base_facts: dict[str, Any] = field(default_factory=dict)
    peak: int | None = None
    base_peak: int | None = None


@dataclass(frozen=True)
class LeftOut:
    """What was not measured, and why."""

    part: str
    subject: str
    reason: str


Finding = Row | LeftOut


@dataclass(frozen=True)
class BenchRecord:
    """All that a run of `memwrap bench` found. complete: False while it is still at work, or if it was stopped."""

    date: str
    complete: bool
    origin: Origin
    threads: int  # of the CPU
    asked: dict[str, Any]  # parts, encoders, ...
    amounts: dict[str, Any]
    images: str  # what was judged and trained on, in words
    rows: tuple[Row, ...]
    left_out: tuple[LeftOut, ...]


def row_of(
    part: str, subject: str, encoder: str | None, unit: str, compared: Compared, peaks: tuple[int | None, ...] = ()
) -> Row:
    """What came of a comparison. peaks: of the one and of the base, if measured."""
    peak, base_peak = peaks or (None, None)
    return Row(
        part=part,
        subject=subject,
        encoder=encoder,
        unit=unit,
        name=compared.one.name,
        base=compared.base.name,
        seconds=compared.seconds,
        base_seconds=compared.base_seconds,
        ratio=compared.ratio,
        rounds=compared.rounds,
        facts=compared.one.conditions(),
        base_facts=compared.base.conditions(),
        peak=peak,
        base_peak=base_peak,
    )


def as_json(record: BenchRecord) -> dict[str, Any]:
    """What `from_json` takes."""
    return {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(record)}


def from_json(stored: Any) -> BenchRecord:
    """The record that `as_json` gave; a ValueError, KeyError or TypeError says what is wrong with it."""
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        raise ValueError("it is no record of memwrap bench")
    if stored.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"it has format version {stored.get('format_version')!r}; memwrap {__version__} reads {FORMAT_VERSION}"
        )
    record = built(BenchRecord, {each.name: stored[each.name] for each in fields(BenchRecord)}, "record")
    json.dumps(stored, ensure_ascii=False).encode()  # escapes may hold what is no text, and could be in no table
    for place, row in enumerate(record.rows):
        numbers = [value for spread in (row.seconds, row.base_seconds, row.ratio) for value in asdict(spread).values()]
        if not all(0 < value < math.inf for value in numbers) or row.rounds < 1:
            raise ValueError(f"row {place} has a time, a ratio or a number of rounds that is not above zero")
    return record


def write(path: Path, record: BenchRecord) -> None:
    """Put the record into a file, in one step."""
    content = json.dumps(as_json(record), indent=2, allow_nan=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content.encode())
    except OSError as error:
        raise SaveError(f"{path}: the record cannot be written ({error})") from error


def read(path: Path) -> BenchRecord:
    """A record that `write` has written."""
    try:
        return from_json(json.loads(path.read_bytes()))
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error}); name a file that memwrap bench --out wrote") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"{path}: the record is damaged or something else ({brief(error)})") from error
