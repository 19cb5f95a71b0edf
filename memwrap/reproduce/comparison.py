"""Tests whether our runs agree with the paper's: Welch's t-test for each cell, with Holm's correction for a table.

Numbers are in the paper's units, percent. The paper gives the deviation of its runs themselves (ddof = 0); the test
takes an estimate for all possible runs (ddof = 1) on both sides.

That two means agree says only that no difference was found. `Comparison.noticeable` says how large a difference had to
be to be found, which with few or scattered runs is a lot.

Welch's approximation is rough for few runs: at a level of 5 %, chance alone makes a cell differ in 4 % of tables of 27
cells with 15 runs each, but in 9 % with 5 and in 25 % with 3, where deviations are equal (10,000 simulated tables).
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from memwrap.errors import SettingsError
from memwrap.metrics import mean_and_spread
from memwrap.reproduce.published import Published

LEVEL = 0.05  # the chance that a cell of a table differs though all true means are equal
POWER = 0.8  # the chance with which a noticeable difference is found
ENOUGH_RUNS = 5  # below it, cells differ by chance far more often than the level says
LARGEST = 100.0  # percent: no two means are further apart
SCATTERED = "the runs scatter too much for any difference to be noticed"

# Two numbers without any spread agree if the paper, which rounds to two digits, would print the same.
ROUNDING = 0.005 + 1e-9


@dataclass(frozen=True)
class Comparison:
    """Our runs and a number of the paper. Fields are None where a spread is missing; ours needs two runs."""

    published: Published
    runs: int
    mean: float
    median: float
    deviation: float | None  # ours, ddof = 1
    published_deviation: float | None  # the paper's, converted to ddof = 1
    difference: float  # ours minus the paper's
    standard_error: float | None  # of the difference
    t: float | None  # also None if neither side has any spread
    degrees_of_freedom: float | None  # Welch-Satterthwaite; None as `t`
    p: float | None  # two-sided, for this cell alone
    equal: bool  # whether each of our runs gave the paper's number

    def allowed(self, level: float = LEVEL) -> float | None:
        """The largest difference that is not significant at the level."""
        return self._scale(_critical_value, level)

    def noticeable(self, level: float = LEVEL) -> float | None:
        """The difference of the true means that runs like these would find with a chance of POWER."""
        return self._scale(_noncentrality, level)

    def _scale(self, quantile: Callable[[float, float], float], level: float) -> float | None:
        if self.standard_error is None:
            return None
        if self.degrees_of_freedom is None:
            return ROUNDING
        return quantile(level, self.degrees_of_freedom) * self.standard_error


@dataclass(frozen=True)
class Verdict:
    """The outcome of a comparison as one of several."""

    word: Literal["agrees", "differs", "too few runs"]
    direction: Literal["", "above", "below"] = ""  # ours relative to the paper's, where they differ
    reason: str = ""  # why there are too few runs
    adjusted_p: float | None = None  # Holm's: differs if at most `level`; None: not tested
    level: float = LEVEL  # for all cells together
    cells: int = 0  # tested together
    cell_level: float | None = None  # for this cell alone, equivalent to `level` for all; None: not tested


def compare(ours: Sequence[float], published: Published) -> Comparison:
    """Compare the values of our runs, in the paper's units, with a number of the paper."""
    mean, spread = mean_and_spread(ours)
    runs, difference = len(ours), mean - published.mean
    deviation, published_deviation = _unbiased(spread, runs), _unbiased(published.spread, published.runs)
    error = degrees = t = p = None
    if deviation is not None and published_deviation is not None:
        error = math.hypot(deviation / math.sqrt(runs), published_deviation / math.sqrt(published.runs))
        if error > 0:
            t, p, degrees = _welch(mean, deviation, runs, published.mean, published_deviation, published.runs)
        else:
            p = 1.0 if abs(difference) <= ROUNDING else 0.0
    return Comparison(
        published=published,
        runs=runs,
        mean=mean,
        median=statistics.median(ours),
        deviation=deviation,
        published_deviation=published_deviation,
        difference=difference,
        standard_error=error,
        t=t,
        degrees_of_freedom=degrees,
        p=p,
        equal=all(value == published.mean for value in ours),
    )


def decide(comparisons: Sequence[Comparison], level: float = LEVEL) -> list[Verdict]:
    """A verdict for each comparison of a table; none differs with a chance of 1 - level if all true means are equal.

    Counted numbers agree if they are equal. They and cells with too few runs are not among the tested ones. A cell in
    which no possible difference would have been noticed does not agree either: it has too few runs.
    """
    if not 0 < level < 1:
        raise SettingsError(f"level is {level!r}; expected a number between 0 and 1, such as {LEVEL}")
    p_values = [None if each.published.exact else each.p for each in comparisons]
    adjusted = holm([p for p in p_values if p is not None])
    # Holm's steps amount to one level for all cells: the family's, divided by the number of cells that do not differ.
    cell_level = level / max(sum(p > level for p in adjusted), 1)
    rest = iter(adjusted)
    return [
        _decide(each, None if p is None else next(rest), level, cell_level, len(adjusted))
        for each, p in zip(comparisons, p_values, strict=True)
    ]


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm-adjusted p-values (Holm 1979), in the given order."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def _decide(comparison: Comparison, p: float | None, level: float, cell_level: float, cells: int) -> Verdict:
    above: Literal["above", "below"] = "above" if comparison.difference > 0 else "below"
    direction: Literal["", "above", "below"] = above if comparison.difference else ""
    if comparison.published.exact:
        if comparison.equal:
            return Verdict("agrees", level=level, cells=cells)
        return Verdict("differs", direction, level=level, cells=cells)
    if p is None:
        missing = "the paper gives no spread" if comparison.published_deviation is None else "one run has no spread"
        return Verdict("too few runs", reason=missing, level=level, cells=cells)
    if p <= level:
        return Verdict("differs", direction, "", p, level, cells, cell_level)
    if (comparison.noticeable(cell_level) or 0) > LARGEST:
        return Verdict("too few runs", "", SCATTERED, p, level, cells, cell_level)
    return Verdict("agrees", "", "", p, level, cells, cell_level)


def _unbiased(spread: float | None, runs: int) -> float | None:
    """A deviation with ddof = 0 as one with ddof = 1."""
    return None if spread is None or runs < 2 else spread * math.sqrt(runs / (runs - 1))


def _welch(
    mean: float, deviation: float, runs: int, other_mean: float, other_deviation: float, other_runs: int
) -> tuple[float, float, float]:
    """Welch's t, its two-sided p and the degrees of freedom."""
    from scipy.stats import ttest_ind_from_stats

    found = ttest_ind_from_stats(mean, deviation, runs, other_mean, other_deviation, other_runs, equal_var=False)
    variances = deviation**2 / runs, other_deviation**2 / other_runs
    # As shares of their sum, which do not underflow for tiny deviations.
    shares = [variance / sum(variances) for variance in variances]
    degrees = 1 / (shares[0] ** 2 / (runs - 1) + shares[1] ** 2 / (other_runs - 1))
    return float(found.statistic), float(found.pvalue), degrees


def _critical_value(level: float, degrees: float) -> float:
    """The |t| above which a difference is significant."""
    from scipy.special import stdtrit

    return -float(stdtrit(degrees, level / 2))


def _noncentrality(level: float, degrees: float) -> float:
    """The true difference, in standard errors, that is found in the right direction with a chance of POWER."""
    from scipy.special import nctdtrinc

    return float(nctdtrinc(degrees, 1 - POWER, _critical_value(level, degrees)))
