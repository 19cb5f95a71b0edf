"""memwrap bench."""

from pathlib import Path

import torch

from memwrap.cli.terminal import aligned, at_home, errors, is_there, plain_console, print_json
from memwrap.data import open_data
from memwrap.errors import RunError, SettingsError
from memwrap.reproduce.bench.context import BenchContext
from memwrap.reproduce.bench.formatting import (
    HEADS,
    PEAK_HEADS,
    QUICK,
    RATIO,
    TITLES,
    describe_origin,
    format_measurement,
    format_peaks,
)
from memwrap.reproduce.bench.record import BenchRecord, Finding, Skipped, read_bench, to_json, write_bench
from memwrap.reproduce.bench.suite import BenchOptions, make_context, make_record, measure
from memwrap.runs.devices import device_named


def bench(options: BenchOptions, images: str | None, device: str, as_json: bool, out: Path | None) -> None:
    """See `memwrap bench --help`."""
    where = device_named(device)
    options = options.resolve(where)
    out = None if out is None else at_home(out)
    partial = None if out is None else _partial_file(out, options)
    if where.type == "cuda" and where.index is not None:
        torch.cuda.set_device(where)
    context = make_context(options, where, None if images is None else open_data(images))
    record = make_record(options, context, _measure(options, context, partial), complete=True)
    if out is not None:
        write_bench(out, record)
    if partial is not None and partial != out:
        partial.unlink(missing_ok=True)
    if as_json:
        print_json(to_json(record))
    else:
        _show(record)
    if out is not None:
        errors.print(f"written: {out}")


def _partial_file(out: Path, options: BenchOptions) -> Path:
    """Where findings are written until all are there: an earlier record is replaced only by a complete one.

    Files that are not records are never replaced, nor are measurements that would not be repeated.
    """
    if out.is_dir():
        raise SettingsError(f"out is {str(out)!r}, which is a folder; name a file, as {out / 'bench.json'}")
    partial = out.with_name(f"{out.name}.part")
    earlier = {path: record for path in (out, partial) if (record := _read_earlier(path)) is not None}
    for path, record in earlier.items():
        if lost := _not_repeated(record, options):
            raise SettingsError(
                f"{path} holds measurements that would not be repeated: {', '.join(lost)}; name another "
                "file for --out, or remove this one"
            )
    return partial if out in earlier else out


def _read_earlier(path: Path) -> BenchRecord | None:
    """The record that a new one may replace; None if there is no file."""
    if not is_there(path):
        return None
    if not path.is_file():  # a pipe would wait for its other end
        raise SettingsError(f"out is {str(path)!r}, which is not a file; name one, or use --json")
    try:
        return read_bench(path)
    except RunError as error:
        raise SettingsError(f"{path} exists and is not a record ({error}); name another file") from error


def _not_repeated(earlier: BenchRecord, options: BenchOptions) -> list[str]:
    measured = dict.fromkeys((row.part, row.encoder) for row in earlier.rows)
    return [
        f"{part}{f' of {encoder}' if encoder else ''}"
        for part, encoder in measured
        if part not in options.parts or (encoder is not None and encoder not in options.encoders)
    ]


def _measure(options: BenchOptions, context: BenchContext, out: Path | None) -> list[Finding]:
    """All findings, each printed and written at once, as the rest may take minutes or fail."""
    found: list[Finding] = []
    if out is not None:
        write_bench(out, make_record(options, context, found, complete=False))  # fails now if it cannot be written
    try:
        for finding in measure(options, context, lambda part: errors.print(f"measuring {part} ...")):
            found.append(finding)
            errors.print(f"  {_summarise(finding)}")
            if out is not None:
                write_bench(out, make_record(options, context, found, complete=False))
    except BaseException:
        if out is not None:
            errors.print(f"Finished measurements are in {out}")
        raise
    return found


def _summarise(finding: Finding) -> str:
    if isinstance(finding, Skipped):
        return f"skipped: {finding.subject} ({finding.reason})"
    return f"{finding.subject}: {finding.name} / {finding.base} = {finding.ratio.median:.3f}"


def _show(record: BenchRecord) -> None:
    console = plain_console()
    console.print(describe_origin(record))
    if record.asked["quick"]:
        console.print(QUICK)
    console.print(f"Images: {record.images}")
    console.print(RATIO)
    for part, title in TITLES.items():
        if rows := [row for row in record.rows if row.part == part]:
            console.print(f"\n{title}, per {' or '.join(dict.fromkeys(row.unit for row in rows))}")
            for line in aligned([(*HEADS, *PEAK_HEADS), *((*format_measurement(r), *format_peaks(r)) for r in rows)]):
                console.print(line)
    if record.left_out:
        console.print()
    for each in record.left_out:
        console.print(f"skipped: {each.subject} ({each.reason})")
