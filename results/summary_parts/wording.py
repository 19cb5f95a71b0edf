"""What all tables say in the same words: where things were made, an encoder's name, a span of numbers, and nothing."""

from collections.abc import Iterable, Sequence

from memwrap.reproduce.bench.record import BenchRecord
from memwrap.reproduce.records import Record
from memwrap.reproduce.rendering import plain_text
from memwrap.reproduce.rows import ENCODERS, once

NOTHING = "–"


def where(made: Sequence[Record | BenchRecord]) -> str:
    """Device, versions and date, as "NVIDIA H200, memwrap 0.1.0, torch 2.11.0, 2026-11-16", in Markdown."""
    dates = sorted(each.date[:10] for each in made)
    parts = [plain_text(" and ".join(once(each.origin.device for each in made)))]
    for package in ("memwrap", "torch", "memorywrap", "entmax"):
        if versions := once(each.origin.versions[package] for each in made if package in each.origin.versions):
            parts.append(plain_text(f"{package} {' and '.join(versions)}"))
    parts.append(plain_text(dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"))
    if changed := sum(each.origin.dirty is True for each in made):
        many = "" if changed == len(made) else f"{changed} of {len(made)} "
        parts.append(f"{many}by a program with changes that were not yet committed")
    return ", ".join(parts)


def encoder_name(encoder: str) -> str:
    """As the paper has it; that of another is its own."""
    return ENCODERS.get(encoder, plain_text(encoder)) if encoder else ""


def span(numbers: Iterable[int]) -> str:
    """As "5", or "3 to 5"."""
    found = sorted(set(numbers))
    return str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"
