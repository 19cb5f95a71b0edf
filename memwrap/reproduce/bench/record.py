"""The record of `memwrap bench`, a JSON file."""

import json
from dataclasses import asdict, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from memwrap.errors import RunError, SaveError, brief
from memwrap.reproduce.bench.timing import Spread, Timing
from memwrap.reproduce.provenance import STORED, Provenance
from memwrap.storage.files import make_folder, write_file
from memwrap.storage.validation import describe
from memwrap.version import __version__

FORMAT = "memwrap bench"
FORMAT_VERSION = 1


@dataclass(frozen=True, config=STORED)
class Measurement:
    """The time of a candidate against that of a base. Times in seconds per unit, peaks in bytes, None: not measured.

    ratio: the candidate's time divided by the base's, below 1 if it is faster.
    facts, base_facts: the conditions under which the two ran, as JSON values.
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
    rounds: Annotated[int, Field(ge=1)]
    facts: dict[str, Any] = field(default_factory=dict)
    base_facts: dict[str, Any] = field(default_factory=dict)
    peak: int | None = None
    base_peak: int | None = None


@dataclass(frozen=True, config=STORED)
class Skipped:
    """What was not measured, and why."""

    part: str
    subject: str
    reason: str


Finding = Measurement | Skipped


@dataclass(frozen=True, config=STORED)
class BenchRecord:
    """All findings of one command. complete: False while it runs, or if it was stopped."""

    date: str
    complete: bool
    origin: Provenance
    threads: int  # of the CPU
    asked: dict[str, Any]  # the options
    amounts: dict[str, Any]  # the sizes
    images: str  # a description
    rows: tuple[Measurement, ...]
    left_out: tuple[Skipped, ...]


_ADAPTER = TypeAdapter(BenchRecord)


def make_measurement(
    part: str, subject: str, encoder: str | None, unit: str, compared: Timing, peaks: tuple[int | None, ...] = ()
) -> Measurement:
    """The measurement of a comparison. peaks: of the candidate and of the base, if measured."""
    peak, base_peak = peaks or (None, None)
    return Measurement(
        part=part,
        subject=subject,
        encoder=encoder,
        unit=unit,
        name=compared.candidate.name,
        base=compared.base.name,
        seconds=compared.seconds,
        base_seconds=compared.base_seconds,
        ratio=compared.ratio,
        rounds=compared.rounds,
        facts=compared.candidate.conditions(),
        base_facts=compared.base.conditions(),
        peak=peak,
        base_peak=base_peak,
    )


def to_json(record: BenchRecord) -> dict[str, Any]:
    """The contents of a record's file."""
    return {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(record)}


def write_bench(path: Path, record: BenchRecord) -> None:
    """Write a record atomically."""
    content = json.dumps(to_json(record), indent=2, allow_nan=False) + "\n"
    try:
        make_folder(path.parent)
        write_file(path, content.encode())
    except OSError as error:
        raise SaveError(f"{path}: the record cannot be written ({error})") from error


def read_bench(path: Path) -> BenchRecord:
    """Read a record; a RunError if the file is missing, damaged or something else."""
    try:
        stored = json.loads(path.read_bytes())
        if not isinstance(stored, dict) or stored.pop("format", None) != FORMAT:
            raise ValueError("not a record of memwrap bench")
        if (version := stored.pop("format_version", None)) != FORMAT_VERSION:
            raise ValueError(f"format version {version!r}; memwrap {__version__} reads {FORMAT_VERSION}")
        # Encoded again, because escapes may encode lone surrogates, which cannot be written into a table.
        return _ADAPTER.validate_json(json.dumps(stored, ensure_ascii=False).encode())
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error}); name a file that memwrap bench --out wrote") from error
    except ValidationError as error:
        raise RunError(f"{path}: damaged: {describe(error)}") from error
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: damaged, or not a record ({brief(error)})") from error
