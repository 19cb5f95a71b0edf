"""Makes a file of each record of `memwrap bench`: all its rows, and the conditions under which they were measured."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from memwrap.reproduce.bench.record import BenchRecord, Row
from memwrap.reproduce.bench.words import HEADS, QUICK, ROOM_HEADS, TITLES, columns_of, room_of
from memwrap.reproduce.rendering import plain_text
from memwrap.reproduce.rows import once
from summary_parts.markdown import markdown_table
from summary_parts.wording import encoder_name, where


def file_of(name: str) -> str:
    """The file of a record's tables, by its name in results/."""
    return f"bench/{name}.md"


def files(measured: Mapping[str, BenchRecord]) -> dict[str, str]:
    """The text of each record's tables, by its file's name in results/."""
    return {file_of(name): _text(name, record) for name, record in measured.items()}


def conditions(rows: Iterable[Row]) -> list[str]:
    """What was set for all that was measured, and then what else for each; all values, if a name had several."""
    found: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        for name, facts in ((row.base, row.base_facts), (row.name, row.facts)):
            for fact, value in facts.items():
                values = found.setdefault(name, {}).setdefault(fact.replace("_", " "), [])
                if _condition(value) not in values:
                    values.append(_condition(value))
    first = next(iter(found.values()), {})
    shared = {
        fact: values for fact, values in first.items() if all(each.get(fact) == values for each in found.values())
    }
    own = {name: {fact: facts[fact] for fact in facts if fact not in shared} for name, facts in found.items()}
    return [
        f"- {plain_text(f'{name}: {_facts_said(facts)}')}" for name, facts in {"All": shared, **own}.items() if facts
    ]


def _text(name: str, record: BenchRecord) -> str:
    origin = record.origin
    commit = f"commit {origin.commit[:10]}, " if origin.commit else ""
    cuda = f"CUDA {origin.versions['cuda']}, " if "cuda" in origin.versions else ""
    parts = [
        f"### memwrap bench: {plain_text(name)}",
        f"{where([record])}; " + plain_text(f"{commit}{cuda}{record.threads} CPU threads. Images: {record.images}."),
        "Ratio: time / time of what stands beside it, in each round; the median, and quartiles. Below 1 is faster. "
        "All times are medians, too.",
    ]
    if record.asked.get("quick"):
        parts.append(QUICK)
    if not record.complete:
        parts.append("It was stopped before its end.")
    for part in once(row.part for row in record.rows):
        rows = [row for row in record.rows if row.part == part]
        units = " or ".join(once(row.unit for row in rows))
        parts += [
            f"**{TITLES.get(part, plain_text(part))}**, for each {plain_text(units)}",
            _table(rows),
            "\n".join(conditions(rows)),
        ]
    if record.left_out:
        parts += [
            "**Left out**",
            "\n".join(f"- {plain_text(f'{each.subject} ({each.reason})')}" for each in record.left_out),
        ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _table(rows: Sequence[Row]) -> str:
    """As `memwrap bench` prints it, with the rounds, and without the columns of room where none was measured."""
    room = any(row.peak is not None or row.base_peak is not None for row in rows)
    lines = [
        [encoder_name(row.encoder or ""), *map(plain_text, columns_of(row)[1:]), str(row.rounds), *room_of(row) * room]
        for row in rows
    ]
    return markdown_table([*HEADS, "rounds", *ROOM_HEADS * room], lines)


def _facts_said(facts: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{fact} {' or '.join(values)}" for fact, values in facts.items())


def _condition(value: Any) -> str:
    """A JSON value in words."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return f"{value:,}" if isinstance(value, int) else str(value)
