"""What tables and pictures say: each number beside ours in the paper's digits, and what a whole table comes to."""

from collections.abc import Sequence
from dataclasses import dataclass

from memwrap.reproduce.rows import PUBLISHED_SHARE, SUBSET, WHOLE_SET, Row
from memwrap.reproduce.verdict import ENOUGH_RUNS, POWER, Verdict

SOURCES = {
    PUBLISHED_SHARE: "Memory drawn so that as few of its images were trained on as in the paper",
    WHOLE_SET: "Memory drawn from the whole training set",
    SUBSET: "Memory drawn from the training subset",
}
# From so many points of deviation on, a median tells more than a mean: a few seeds that failed move that.
LARGE_DEVIATION = 3.0
NO_RUNS = "no runs"
NOT_JUDGED = "not judged"


@dataclass(frozen=True)
class Words:
    """A row in words; empty where there is nothing to say."""

    ours: str
    runs: str
    median: str
    paper: str
    difference: str
    noticeable: str
    verdict: str
    kind: str  # agrees, differs, open (no verdict) or missing (no runs): what the eye is to see first


def words(row: Row) -> Words:
    """What there is to say of a row, in as many digits as the paper gives."""
    paper, found = _with_spread(row, row.published.mean, row.published.spread), row.comparison
    if found is None:
        return Words(NO_RUNS, "", "", paper, "", "", "", "missing")
    noticeable = noticed(row)
    return Words(
        ours=_with_spread(row, found.mean, None if row.published.exact else found.deviation),
        runs="" if row.published.exact else f"({found.runs})",
        median="" if row.published.exact or found.runs == 1 else _number(row, found.median),
        paper=paper,
        difference="" if row.published.exact and found.equal else _signed(row, found.difference),
        noticeable="" if noticeable is None else _number(row, noticeable),
        verdict=_verdict(row),
        kind="open" if row.verdict is None or row.verdict.word == "too few runs" else row.verdict.word,
    )


def noticed(row: Row) -> float | None:
    """The true difference that this row's verdict would have found most of the time; None where it is not tested."""
    if row.comparison is None or row.verdict is None or row.verdict.cell_level is None:
        return None
    return row.comparison.noticeable(row.verdict.cell_level)


def scatters(row: Row) -> bool:
    """Whether our runs are so far from each other that their median should stand beside the mean."""
    deviation = None if row.comparison is None else row.comparison.deviation
    return not row.published.exact and deviation is not None and deviation >= LARGE_DEVIATION


def without_runs(rows: Sequence[Row]) -> int:
    """How many cells have no runs of ours, whatever the source."""
    return len({row.cell for row in rows} - {row.cell for row in rows if row.comparison is not None})


def source_words(source: str) -> str:
    """A source as a heading."""
    return SOURCES.get(source, source)


def numbered_notes(rows: Sequence[Row]) -> dict[str, int]:
    """Each note of a row once, with the number that marks its cells."""
    return {note: place for place, note in enumerate(dict.fromkeys(row.note for row in rows if row.note), 1)}


def tally(rows: Sequence[Row]) -> str:
    """How many cells agree, by which test at which level, and what would have been noticed; in a few sentences."""
    if all(row.comparison is None for row in rows):
        return "No runs of ours."
    found = [row.verdict for row in rows if row.verdict is not None]
    sizes = {
        row: size
        for row in rows
        if (size := noticed(row)) is not None and row.verdict is not None and row.verdict.word != "too few runs"
    }
    sentences = [_counts(rows, found), *_otherwise(rows)]
    if sizes:
        of_table = f"all {found[0].cells} cells of the table that have runs, together (Holm's correction)"
        together = of_table if found[0].cells > 1 else "one cell"
        sentences.append(f"Welch's t-test at a level of {100 * found[0].level:g} % for {together}.")
        low, high = f"{min(sizes.values()):.1f} points", f"{max(sizes.values()):.1f}"
        span = low if len(sizes) == 1 else f"{low} in the steadiest cell and {high} in the most scattered"
        sentences.append(f"A true difference of {span} would have been noticed {100 * POWER:.0f} % of the time.")
    if any(row.comparison is not None and row.comparison.runs < ENOUGH_RUNS for row in sizes):
        sentences.append(f"Cells of fewer than {ENOUGH_RUNS} runs differ by chance more often than that level says.")
    return " ".join(sentences)


def legend(rows: Sequence[Row]) -> str:
    """How a cell is read."""
    if all(row.published.exact for row in rows):
        return "Counted, not measured: equal or not."
    runs = sorted({row.published.runs for row in rows if row.published.spread is not None})
    if not runs:
        return "Ours: mean ± standard deviation with n − 1 (n runs). The paper gives no deviations."
    return (
        "Ours: mean ± standard deviation with n − 1 (n runs). "
        f"Paper: as printed, {' or '.join(map(str, runs))} runs, deviation with n. Difference: ours less the paper's."
    )


def _counts(rows: Sequence[Row], found: Sequence[Verdict]) -> str:
    judged = [verdict for verdict in found if verdict.word != "too few runs"]
    agreeing = sum(verdict.word == "agrees" for verdict in judged)
    parts = [f"{agreeing} of {_cells(len(judged))} {_verb(agreeing, 'agrees', 'agree')} with the paper"]
    if differing := len(judged) - agreeing:
        above, below = (sum(verdict.direction == side for verdict in judged) for side in ("above", "below"))
        parts.append(f"{differing} {_verb(differing, 'differs', 'differ')} ({above} above, {below} below)")
    if few := len(found) - len(judged):
        parts.append(f"{few if judged else _cells(few)} cannot be judged")
    if others := sum(row.comparison is not None and row.verdict is None for row in rows):
        parts.append(f"{others} of another memory source {_verb(others, 'is', 'are')} not judged")
    if missing := without_runs(rows):
        parts.append(f"{missing} {_verb(missing, 'has', 'have')} no runs of ours")
    return f"{'; '.join(parts if judged else parts[1:])}."


def agreeing_otherwise(rows: Sequence[Row]) -> tuple[int, int] | None:
    """How many cells would agree by the whole training set, of those that are judged by what is nearer to the paper's.

    None if there are none of these.
    """
    found = [row.otherwise.word for row in rows if row.otherwise is not None and row.otherwise.word != "too few runs"]
    return (found.count("agrees"), len(found)) if found else None


def _otherwise(rows: Sequence[Row]) -> list[str]:
    if (found := agreeing_otherwise(rows)) is None:
        return []
    return [
        "By memories from the whole training set, of which more images were trained on here than in the paper, "
        f"{found[0]} of {_cells(found[1])} would agree."
    ]


def _cells(count: int) -> str:
    return f"{count} {_verb(count, 'cell', 'cells')}"


def _verb(count: int, one: str, several: str) -> str:
    return one if count == 1 else several


def _verdict(row: Row) -> str:
    if row.verdict is None:
        return NOT_JUDGED + (", would differ" if row.otherwise is not None and row.otherwise.word == "differs" else "")
    if row.verdict.word == "agrees":
        return "equal" if row.published.exact else "agrees"
    if row.verdict.word == "differs":
        return f"differs, {row.verdict.direction}" if row.verdict.direction else "differs"
    # Where the paper has no spread, more runs of ours would not help.
    return row.verdict.word if row.published.spread is not None else f"{NOT_JUDGED}: {row.verdict.reason}"


def _with_spread(row: Row, mean: float, spread: float | None) -> str:
    return _number(row, mean) + ("" if spread is None else f" ± {_number(row, spread)}")


def _number(row: Row, value: float) -> str:
    """Two digits after the point, as in the paper; counts and the text's rough numbers have none there."""
    whole = row.published.spread is None and value.is_integer()
    return f"{value:,.0f}" if whole else f"{value:.2f}"


def _signed(row: Row, value: float) -> str:
    text = _number(row, abs(value))
    if not text.strip("0."):
        return text
    return f"{'+' if value > 0 else '−'}{text}"
