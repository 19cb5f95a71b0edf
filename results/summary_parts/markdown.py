"""Writes a table in Markdown."""

from collections.abc import Iterable, Sequence


def markdown_table(heads: Sequence[str], lines: Iterable[Sequence[str]], right_from: int | None = None) -> str:
    """right_from: the first column whose cells stand at the right."""
    rules = ["---" if right_from is None or place < right_from else "---:" for place in range(len(heads))]
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, rules, *lines])
