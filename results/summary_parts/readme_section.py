"""Puts the section of results into the README, between two marks."""

from collections.abc import Sequence

BEGIN, END = "<!-- made by results/summary.py -->", "<!-- end of what it makes -->"


def with_section(readme: str, section: Sequence[str]) -> str:
    """The README with these paragraphs in the place of those that were between the marks."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"README.md: has no place for results; expected the lines {BEGIN} and {END}")
    return before + "\n\n".join([BEGIN, *section, END]) + after
