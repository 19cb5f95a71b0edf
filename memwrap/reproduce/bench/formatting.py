"""Measurements as tables, for the terminal and in Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

from memwrap.reproduce.bench.record import BenchRecord, Measurement
from memwrap.reproduce.layout import ENCODERS
from memwrap.reproduce.rendering import escape, markdown_table
from memwrap.reproduce.tasks import unique

HEADS = ("encoder", "what", "candidate", "time", "base", "base time", "ratio", "quartiles", "speedup")
PEAK_HEADS = ("peak memory", "base peak")
RATIO = "Ratio: candidate / base, median and quartiles over rounds in which both were timed. Times are medians."
QUICK = "Measured with --quick, which says little about speed."
TITLES = {
    "steps": "Training",
    "sizes": "Training with memories of several sizes",
    "training": "Whole trainings",
    "inference": "Prediction",
    "attention": "Sparsemax",
    "memory": "Prediction with large memories",
}


def format_measurement(row: Measurement) -> tuple[str, ...]:
    """The entries under HEADS."""
    return (
        row.encoder or "",
        row.subject,
        row.name,
        format_seconds(row.seconds.median),
        row.base,
        format_seconds(row.base_seconds.median),
        f"{row.ratio.median:.3f}",
        f"{row.ratio.lower:.3f} to {row.ratio.upper:.3f}",
        f"{1 / row.ratio.median:.2f}",
    )


def format_peaks(row: Measurement) -> tuple[str, ...]:
    """The entries under PEAK_HEADS."""
    return format_bytes(row.peak), format_bytes(row.base_peak)


def format_seconds(seconds: float) -> str:
    """In a fitting unit: 12.3 µs, 45.6 ms, 7.89 s."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}" if seconds < 1000 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def format_bytes(count: int | None) -> str:
    """In MiB; empty for None."""
    return "" if count is None else f"{count / 2**20:,.0f} MiB"


def describe_origin(record: BenchRecord) -> str:
    """Device, versions and date."""
    origin = record.origin
    names = ["memwrap", "torch", *(["cuda"] if origin.device != "cpu" else []), "memorywrap", "entmax"]
    parts = [origin.device, *(f"{name} {origin.versions[name]}" for name in names if name in origin.versions)]
    if origin.commit:
        parts.append(f"commit {origin.commit[:10]}" + " with changes" * bool(origin.dirty))
    return ", ".join([*parts, f"{record.threads} CPU threads", record.date[:10]])


def to_markdown(name: str, record: BenchRecord) -> str:
    """A table for each part, with the conditions under which the candidates ran."""
    stopped = "" if record.complete else "Stopped before its end."
    quick = QUICK if record.asked.get("quick") else ""
    about = f"{escape(describe_origin(record))}. Images: {escape(record.images)}."
    parts = [f"### memwrap bench: {escape(name)}", about, stopped, quick, RATIO]
    for part, title in TITLES.items():
        if rows := [row for row in record.rows if row.part == part]:
            units = " or ".join(unique(row.unit for row in rows))
            parts += [f"**{title}**, per {units}", _markdown_rows(rows), _list_conditions(rows)]
    if record.left_out:
        parts.append("\n".join(f"- skipped: {escape(f'{each.subject} ({each.reason})')}" for each in record.left_out))
    return "\n\n".join(filter(None, parts)) + "\n"


def _markdown_rows(rows: Sequence[Measurement]) -> str:
    with_peaks = any(row.peak is not None or row.base_peak is not None for row in rows)
    lines = [
        [
            ENCODERS.get(row.encoder, escape(row.encoder)) if row.encoder else "",
            *map(escape, format_measurement(row)[1:]),
            str(row.rounds),
            *format_peaks(row) * with_peaks,
        ]
        for row in rows
    ]
    return markdown_table([*HEADS, "rounds", *PEAK_HEADS * with_peaks], lines)


def _list_conditions(rows: Sequence[Measurement]) -> str:
    """The conditions that all candidates share, then those of each."""
    conditions: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        for name, facts in ((row.base, row.base_facts), (row.name, row.facts)):
            for fact, value in facts.items():
                values = conditions.setdefault(name, {}).setdefault(fact.replace("_", " "), [])
                if (text := _format_value(value)) not in values:
                    values.append(text)
    first = next(iter(conditions.values()), {})
    shared = {f: values for f, values in first.items() if all(own.get(f) == values for own in conditions.values())}
    listed = {"All": shared} if shared else {}
    listed |= {n: {f: v for f, v in own.items() if f not in shared} for n, own in conditions.items()}
    return "\n".join(f"- {escape(name)}: {escape(_join_conditions(own))}" for name, own in listed.items() if own)


def _join_conditions(facts: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{fact} {' or '.join(values)}" for fact, values in facts.items())


def _format_value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return f"{value:,}" if isinstance(value, int) else str(value)
