"""memwrap bench."""

from pathlib import Path

import torch

from memwrap.cli.terminal import aligned, at_home, device_named, errors, is_there, plain_console, print_json
from memwrap.data import open_data
from memwrap.errors import RunError, SettingsError
from memwrap.reproduce.bench.record import BenchRecord, Finding, LeftOut, as_json, read, write
from memwrap.reproduce.bench.running import PARTS, Asked, findings, record_of, resolve_settings, stand_for
from memwrap.reproduce.bench.stand import BenchContext
from memwrap.reproduce.bench.words import HEADS, QUICK, ROOM_HEADS, TITLES, columns_of, room_of


def bench(asked: Asked, images: str | None, device: str, as_json_wanted: bool, out: Path | None) -> None:
    """See `memwrap bench --help`."""
    where = device_named(device)
    asked = resolve_settings(asked, where)
    out = None if out is None else at_home(out)
    meanwhile = None if out is None else _kept_meanwhile(out, asked)
    if where.type == "cuda" and where.index is not None:
        torch.cuda.set_device(where)
    stand = stand_for(asked, where, None if images is None else open_data(images))
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


def _kept_meanwhile(out: Path, asked: Asked) -> Path:
    """Where findings are kept until all are there: a record of before stays as long.

    What is no record stays for good, and so does what was measured once and would not be again.
    """
    if out.is_dir():
        raise SettingsError(f"out is {str(out)!r}, which is a folder; name a file, as {out / 'bench.json'}")
    meanwhile = out.with_name(f"{out.name}.part")
    earlier = {place: record for place in (out, meanwhile) if (record := _record_at(place)) is not None}
    for place, record in earlier.items():
        if lost := _not_measured_again(record, asked):
            raise SettingsError(
                f"{place} has what would not be measured again: {', '.join(lost)}; name another file for --out, or "
                "remove this one"
            )
    return meanwhile if out in earlier else out


def _record_at(place: Path) -> BenchRecord | None:
    """The record that a new one may replace; None if nothing is there."""
    if not is_there(place):
        return None
    if not place.is_file():  # a pipe would wait for its other end
        raise SettingsError(f"out is {str(place)!r}, which is no file; name one, or take --json")
    try:
        return read(place)
    except RunError as error:
        raise SettingsError(
            f"{place} is there, and is no record that this could replace ({error}); name another file"
        ) from error


def _not_measured_again(earlier: BenchRecord, asked: Asked) -> list[str]:
    """What an earlier record has rows of, and a new one would not."""
    found = dict.fromkeys((row.part, row.encoder) for row in earlier.rows)
    return [
        f"{part}{f' of {encoder}' if encoder else ''}"
        for part, encoder in found
        if part not in asked.parts or (encoder is not None and encoder not in asked.encoders)
    ]


def _measured(asked: Asked, stand: BenchContext, out: Path | None) -> list[Finding]:
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
    if record.asked["quick"]:
        console.print(QUICK)
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
