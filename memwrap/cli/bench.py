"""memwrap bench."""

from pathlib import Path

import torch

from memwrap.bench.record import BenchRecord, Finding, LeftOut, Row, as_json, read, write
from memwrap.bench.running import PARTS, Asked, findings, record_of, settled, stand_for
from memwrap.bench.stand import Stand
from memwrap.bench.timing import Spread
from memwrap.cli.terminal import aligned, device_named, errors, plain_console, print_json
from memwrap.errors import RunError, SettingsError

HEADS = (
    "encoder",
    "what",
    "measured",
    "time",
    "beside",
    "its time",
    "ratio",
    "quartiles",
    "times as fast",
)
ROOM_HEADS = ("peak memory", "beside it")
TITLES = {
    "steps": "Training",
    "sizes": "Training with memories of several sizes",
    "training": "Whole trainings",
    "inference": "Predicting",
    "attention": "Sparsemax",
    "memory": "Predicting with large memories",
}


def bench(asked: Asked, device: str, as_json_wanted: bool, out: Path | None) -> None:
    """See `memwrap bench --help`."""
    where = device_named(device)
    asked = settled(asked, where)
    out = None if out is None else out.expanduser()
    meanwhile = None if out is None else _kept_meanwhile(out)
    if where.type == "cuda" and where.index is not None:
        torch.cuda.set_device(where)
    stand = stand_for(asked, where)
    found = _measured(asked, stand, meanwhile)
    record = record_of(asked, stand, found, complete=True)
    if out is not None:
        write(out, record)
    if meanwhile is not None and meanwhile != out:
        meanwhile.unlink(missing_ok=True)
    if as_json_wanted:
        print_json(as_json(record))
    else:
        _show(record)
    if out is not None:
        errors.print(f"written: {out}")


def _kept_meanwhile(out: Path) -> Path:
    """Where findings are kept until all are there: a record of before stays as long. What is no record stays for good,
    here and there."""
    if out.is_dir():
        raise SettingsError(f"out is {str(out)!r}, which is a folder; name a file, as {out / 'bench.json'}")
    if not out.exists():
        return out
    meanwhile = out.with_name(f"{out.name}.part")
    for place in (out, meanwhile):
        try:
            _ = read(place) if place.exists() else None
        except RunError as error:
            raise SettingsError(
                f"{place} is there, and is no record that this could replace ({error}); name another file"
            ) from error
    return meanwhile


def _measured(asked: Asked, stand: Stand, out: Path | None) -> list[Finding]:
    """All findings, each told and kept as soon as it is there: the rest may take minutes, or never come."""
    found: list[Finding] = []
    if out is not None:
        write(out, record_of(asked, stand, found, complete=False))  # a place that cannot be written shows itself now
    try:
        for finding in findings(asked, stand, lambda part: errors.print(f"measuring {part} ...")):
            found.append(finding)
            errors.print(f"  {_brief(finding)}")
            if out is not None:
                write(out, record_of(asked, stand, found, complete=False))
    except BaseException:
        if out is not None:
            errors.print(f"What was measured so far is in {out}")
        raise
    return found


def _brief(finding: Finding) -> str:
    if isinstance(finding, LeftOut):
        return f"left out: {finding.subject} ({finding.reason})"
    return f"{finding.subject}: {finding.name} / {finding.base} = {finding.ratio.median:.3f}"


def _show(record: BenchRecord) -> None:
    console = plain_console()
    versions, commit = record.origin.versions, record.origin.commit
    console.print(
        f"{record.origin.device}, torch {versions['torch']}, memwrap {versions['memwrap']}"
        f"{f' at {commit[:10]}' if commit else ''}, {record.threads} CPU threads, {record.date}"
    )
    console.print(f"images: {record.images}")
    console.print(
        "ratio: time / time of what stands beside it, in each round; the median, and quartiles. Below 1 is faster"
    )
    for part in PARTS:
        if rows := [row for row in record.rows if row.part == part]:
            console.print(f"\n{TITLES[part]}, for each {' or '.join(dict.fromkeys(row.unit for row in rows))}")
            for line in aligned([(*HEADS, *ROOM_HEADS), *((*columns_of(row), *room_of(row)) for row in rows)]):
                console.print(line)
    if record.left_out:
        console.print()
    for each in record.left_out:
        console.print(f"left out: {each.subject} ({each.reason})")


def columns_of(row: Row) -> tuple[str, ...]:
    """What stands under `HEADS`."""
    return (
        row.encoder or "",
        row.subject,
        row.name,
        seconds_shown(row.seconds.median),
        row.base,
        seconds_shown(row.base_seconds.median),
        f"{row.ratio.median:.3f}",
        _quartiles(row.ratio),
        f"{1 / row.ratio.median:.2f}",
    )


def room_of(row: Row) -> tuple[str, ...]:
    """What stands under `ROOM_HEADS`."""
    return bytes_shown(row.peak), bytes_shown(row.base_peak)


def _quartiles(spread: Spread) -> str:
    return f"{spread.lower:.3f} to {spread.upper:.3f}"


def seconds_shown(seconds: float) -> str:
    """In the unit that suits it: 12.3 µs, 45.6 ms, 7.89 s."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}" if seconds < 1000 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def bytes_shown(count: int | None) -> str:
    """In MiB; nothing if nothing was measured."""
    return "" if count is None else f"{count / 2**20:,.0f} MiB"
