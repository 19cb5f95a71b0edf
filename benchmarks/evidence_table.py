"""Whether the memory decides, as a table made from records of `benchmarks/recipes.py`.

    python benchmarks/evidence_table.py results/evidence/paper.jsonl results/evidence/default.jsonl

How these were made, each on one GPU (1000 and 5000 samples; the three encoders; with and without the changes):

    python benchmarks/recipes.py svhn.zip --recipe svhn --encoder mobilenet_v2 --samples 1000 --seeds 5 \
        --variants memory_wrap,only_memory --side-by-side --record results/evidence/paper.jsonl
    python benchmarks/recipes.py svhn.zip --seeds 5 --variants memory_wrap,standard --side-by-side \
        --set memory=queue --set contrast=0.5 --record results/evidence/default.jsonl
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from memwrap.metrics import mean_and_spread

# Heads of columns, and places in a record's scores.
COLUMNS = {
    "accuracy": (("remembered", "accuracy"), ("standard", "accuracy")),
    "vote": (("remembered", "vote_accuracy"),),
    "survives": (("evidence", "survives_without_examples"),),
    "follows memory": (("evidence", "follows_memory"),),
    "follows input": (("evidence", "follows_input"),),
    "specificity": (("evidence", "specificity"),),
    "deletion": (("evidence", "deletion", "area"),),
    "average of errors": (
        ("remembered", "selective", "confidence", "area"),
        ("standard", "selective", "confidence", "area"),
    ),
}


def find(scores: dict[str, Any], places: tuple[tuple[str, ...], ...]) -> float | None:
    """The first of these scores that a record has, in percent."""
    for place in places:
        found: Any = scores
        for name in place:
            found = found.get(name) if isinstance(found, dict) else None
        if found is not None:
            return 100 * float(found)
    return None


def cell(lines: list[dict[str, Any]], places: tuple[tuple[str, ...], ...]) -> str:
    known = [value for line in lines if (value := find(line["scores"], places)) is not None]
    if not known:
        return ""
    mean, spread = mean_and_spread(known)
    few = "" if len(known) == len(lines) else f" (n = {len(known)})"
    return f"{mean:.1f} ± {spread:.1f}{few}"


def kind(line: dict[str, Any]) -> tuple[str, ...]:
    """What runs of one row have in common."""
    changes = ", ".join(f"{name} {value}" for name, value in line["changes"].items())
    return line["recipe"], str(line["samples"]), line["encoder"], line["variant"], changes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path)
    rows: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for path in parser.parse_args().records:
        for line in map(json.loads, path.read_text().splitlines()):
            rows[kind(line)].append(line)
    heads = ["recipe", "images", "encoder", "variant", "changes", "n", *COLUMNS]
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for key, lines in sorted(
        rows.items(), key=lambda row: (row[0][0] == "default", row[0][2:3], int(row[0][1]), row[0])
    ):
        print(f"| {' | '.join([*key, str(len(lines)), *(cell(lines, places) for places in COLUMNS.values())])} |")


if __name__ == "__main__":
    main()
