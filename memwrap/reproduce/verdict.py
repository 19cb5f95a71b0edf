"""Whether our runs agree with the paper's: Welch's test for two means, corrected for the number of cells (Holm).

Numbers are in the paper's units: percent, not shares. The paper gives the deviation of its runs themselves (ddof = 0);
an estimate for all possible runs (ddof = 1) is what the test takes, for both sides.

That two means agree says only that no difference was noticed. How large one had to be to be noticed stands beside it,
and with few runs, or in a lottery of seeds, that is a lot.

Welch's approximation is rough for few runs: at the level of 5 %, chance alone makes a cell differ in 4 % of tables of
27 cells with 15 runs each, but in 9 % with 5 and in 25 % with 3, where spreads are equal (10,000 simulated tables).
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from memwrap.errors import SettingsError
from memwrap.metrics import mean_and_spread
from memwrap.reproduce.published import Published

LEVEL = 0.05  # how often at least one cell of a table may differ by chance alone
ENOUGH_RUNS = 5  # below it, cells differ by chance far more often than the level says
SCALE = 100.0  # percent, which no two means can be further apart than
BLIND = "they scatter so much that no difference could be noticed"
POWER = 0.8  # how often a difference is found that counts as noticeable

# Two numbers without any spread are the same if the paper, rounding to two digits, would print the same.
ROUNDING = 0.005 + 1e-9

Word = Literal["agrees", "differs", "too few runs"]


@dataclass(frozen=True)
class Comparison:
    """Our runs beside a number of the paper. None where a spread is missing: ours has one from two runs on."""

    published: Published
    runs: int
    mean: float
    median: float
    deviation: float | None  # ours, ddof = 1
    published_deviation: float | None  # the paper's, converted to ddof = 1
    difference: float  # ours less the paper's
    standard_error: float | None  # of the difference
    t: float | None  # Welch's; None, too, if neither side has any spread
    degrees_of_freedom: float | None  # by Welch and Satterthwaite; None as `t`
    p: float | None  # two-sided, for this cell alone
    equal: bool  # whether each run of ours gave the paper's number

    def allowed(self, level: float = LEVEL) -> float | None:
        """The largest difference that two means of that spread may have; beyond it they differ at the level."""
        if self.standard_error is None:
            return None
        if self.degrees_of_freedom is None:
            return ROUNDING
        return _critical(level, self.degrees_of_freedom) * self.standard_error

    def noticeable(self, level: float = LEVEL, power: float = POWER) -> float | None:
        """How far the true means must be apart for runs like these to differ at the level that often."""
        if self.standard_error is None:
            return None
        if self.degrees_of_freedom is None:
            return ROUNDING
        return _shift(level, power, self.degrees_of_freedom) * self.standard_error


@dataclass(frozen=True)
class Verdict:
    """What a comparison comes to, as one of several."""

    word: Word
    direction: Literal["", "above", "below"]  # ours against the paper's, where they differ
    reason: str  # why there are too few runs
    adjusted_p: float | None  # by Holm: differs if not above `level`; None where nothing was tested
    level: float  # for all cells together
    cells: int  # how many were tested
    cell_level: float | None  # of each cell by itself, which comes to `level` for all; None where nothing was tested


def judge(ours: Sequence[float], published: Published) -> Comparison:
    """Compare the values of our runs, in the paper's units, with a number of the paper."""
    runs = len(ours)
    mean, spread = mean_and_spread(ours)
    deviation, published_deviation = _estimate(spread, runs), _estimate(published.spread, published.runs)
    difference = mean - published.mean
    error = degrees = t = p = None
    if deviation is not None and published_deviation is not None:
        variances = (deviation**2 / runs, published_deviation**2 / published.runs)
        error = math.sqrt(sum(variances))
        if error > 0:
            t, degrees = difference / error, _degrees(variances, (runs, published.runs))
            p = _two_sided(t, degrees)
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


def verdicts(comparisons: Sequence[Comparison], level: float = LEVEL) -> list[Verdict]:
    """One for each, so that with a chance of 1 - level none differs if all true means are equal (Holm 1979).

    Numbers that are counted agree if they are equal; they and cells with too few runs are not among those tested. That
    a cell does not differ says nothing if no difference that there can be would have been noticed.
    """
    if not 0 < level < 1:
        raise SettingsError(f"level is {level!r}; expected a share between 0 and 1, such as {LEVEL}")
    tested = [each.p for each in comparisons if each.p is not None and not each.published.exact]
    adjusted = iter(holm(tested))
    # Holm's steps come to one level for all: cells differ whose own p is not above the level over the number of those
    # that do not differ.
    kept = sum(p > level for p in holm(tested))
    cell_level = level / max(kept, 1)
    found = []
    for each in comparisons:
        if each.published.exact:
            found.append(_verdict(each, each.equal, None, level, len(tested), None))
        elif each.p is None:
            found.append(Verdict("too few runs", "", _reason(each), None, level, len(tested), None))
        else:
            p = next(adjusted)
            if p > level and _is_blind(each, cell_level):
                found.append(Verdict("too few runs", "", BLIND, p, level, len(tested), cell_level))
            else:
                found.append(_verdict(each, p > level, p, level, len(tested), cell_level))
    return found


def holm(p_values: Sequence[float]) -> list[float]:
    """Each p-value as it counts among the others: what is at most a level differs at it for all together."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def _verdict(
    comparison: Comparison, agrees: bool, p: float | None, level: float, cells: int, cell_level: float | None
) -> Verdict:
    if agrees:
        return Verdict("agrees", "", "", p, level, cells, cell_level)
    # Runs that differ among themselves may still have the paper's number for a mean.
    direction: Literal["", "above", "below"] = "above" if comparison.difference > 0 else "below"
    return Verdict("differs", direction if comparison.difference else "", "", p, level, cells, cell_level)


def _is_blind(comparison: Comparison, level: float) -> bool:
    """Whether even the largest difference that there can be would go unnoticed."""
    error, allowed = comparison.standard_error, comparison.allowed(level)
    if error is None or allowed is None:
        return False
    # An estimated deviation is seldom twice the true one: what lies so far beyond what is allowed is noticed nearly
    # always. That spares a search for nearly all cells.
    if 2 * allowed + 3 * error <= SCALE:
        return False
    return (comparison.noticeable(level) or 0) > SCALE


def _reason(comparison: Comparison) -> str:
    if comparison.published_deviation is None:
        return "the paper gives no spread"
    return "one run has no spread"


def _estimate(spread: float | None, runs: int) -> float | None:
    """A deviation with ddof = 0 as one with ddof = 1."""
    return None if spread is None or runs < 2 else spread * math.sqrt(runs / (runs - 1))


def _degrees(variances: tuple[float, float], runs: tuple[int, int]) -> float:
    # As shares of their sum, which do not underflow where deviations are tiny.
    shares = [variance / sum(variances) for variance in variances]
    return 1 / sum(share**2 / (count - 1) for share, count in zip(shares, runs, strict=True))


def _two_sided(t: float, degrees: float) -> float:
    from scipy.special import stdtr

    return min(1.0, 2 * float(stdtr(degrees, -abs(t))))


def _critical(level: float, degrees: float) -> float:
    """What |t| must pass to differ."""
    from scipy.special import stdtrit

    return -float(stdtrit(degrees, level / 2))


def _shift(level: float, power: float, degrees: float) -> float:
    """By how many standard errors the true means must differ to be told apart that often, in the right direction."""
    import numpy as np
    from scipy.optimize import brentq
    from scipy.special import gammaincinv, ndtr

    # The chance of passing the critical value, over what the estimated standard error may be: its square is spread as
    # chi squared, here by a thousand of its quantiles.
    quantiles = 2 * gammaincinv(degrees / 2, (np.arange(1000) + 0.5) / 1000)
    bounds = _critical(level, degrees) * np.sqrt(quantiles / degrees)
    return float(brentq(lambda shift: ndtr(shift - bounds).mean() - power, 0, bounds[-1] + 10))
