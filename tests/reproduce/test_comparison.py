"""Verdicts: by hand, against scipy's tests on samples of the same moments, by simulation, and against a slow Holm."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from memwrap.errors import InputError, SettingsError
from memwrap.reproduce.comparison import POWER, SCATTERED, Comparison, Verdict, compare, decide, holm
from memwrap.reproduce.published import Published

NUMBER = Published(mean=66.93, spread=3.15, runs=15)
P_VALUES = st.lists(st.floats(0, 1), max_size=30)


def sample(mean: float, spread: float, runs: int, seed: int = 0) -> list[float]:
    """Values with exactly this mean and deviation (ddof = 0)."""
    values = np.random.default_rng(seed).normal(size=runs)
    return list(mean + spread * (values - values.mean()) / values.std())


def with_p(p: float) -> Comparison:
    return replace(compare(sample(60.0, 1.0, 15), NUMBER), p=p)  # enough runs for any cell to be testable


def slow_holm(p_values: Sequence[float], level: float) -> set[int]:
    """Which differ, in Holm's steps: the smallest left is compared with the level over the number of those left."""
    left = set(range(len(p_values)))
    while left:
        smallest = min(left, key=lambda place: p_values[place])
        if p_values[smallest] > level / len(left):
            break
        left.remove(smallest)
    return set(range(len(p_values))) - left


def test_worked_by_hand() -> None:
    # Ours 1, 2, 3: mean 2, variance 1. The paper's 10 runs, mean 4, spread 3 with ddof 0: variance 9 * 10/9 = 10.
    found = compare([1.0, 2.0, 3.0], Published(4.0, 3.0, 10))
    assert (found.runs, found.mean, found.median, found.difference) == (3, 2.0, 2.0, -2.0)
    assert found.deviation == pytest.approx(1.0)
    assert found.published_deviation == pytest.approx(math.sqrt(10))
    assert found.standard_error == pytest.approx(math.sqrt(1 / 3 + 1))
    assert found.t == pytest.approx(-2 / math.sqrt(4 / 3))
    # (4/3)^2 / ((1/3)^2 / 2 + 1^2 / 9) = (16/9) / (1/18 + 2/18) = 32/3
    assert found.degrees_of_freedom == pytest.approx(32 / 3)
    assert not found.equal


@pytest.mark.parametrize("runs", [2, 5, 15])
@pytest.mark.parametrize(("mean", "spread"), [(66.0, 3.0), (70.8, 2.5), (20.0, 0.1)])
def test_agrees_with_scipy_on_samples_of_these_moments(mean: float, spread: float, runs: int) -> None:
    ours = sample(mean, spread, runs, seed=1)
    assert NUMBER.spread is not None
    expected = stats.ttest_ind(ours, sample(NUMBER.mean, NUMBER.spread, NUMBER.runs), equal_var=False)
    found = compare(ours, NUMBER)
    assert found.t == pytest.approx(expected.statistic)
    assert found.degrees_of_freedom == pytest.approx(expected.df)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-6)
    interval = expected.confidence_interval(0.99)
    assert found.allowed(0.01) == pytest.approx((interval.high - interval.low) / 2)


def test_the_median_is_not_moved_by_a_seed_that_failed() -> None:
    assert compare([18.0, 60.0, 62.0, 61.0, 63.0], NUMBER).median == 61.0


def test_a_difference_at_the_edge_of_what_is_allowed_has_the_level_for_its_p() -> None:
    found = compare(sample(66.0, 2.0, 5), NUMBER)
    edge = compare(sample(NUMBER.mean + (found.allowed(0.05) or 0), 2.0, 5), NUMBER)
    assert edge.p == pytest.approx(0.05)


@pytest.mark.parametrize("runs", [2, 3, 5, 15])
def test_what_is_noticeable_is_found_that_often(runs: int) -> None:
    # Draws of both sides, of equal spread; the degrees of freedom are then near to those that the moments give.
    generator, level, power = np.random.default_rng(0), 0.05, POWER
    wanted = compare(sample(50.0, 2 * math.sqrt((runs - 1) / runs), runs), Published(50.0, 2 * math.sqrt(14 / 15), 15))
    shift = wanted.noticeable(level)
    assert shift is not None
    ours = generator.normal(50 + shift, 2, size=(40_000, runs))
    if runs == 15:  # the usual power of a t-test with equal sizes
        paper = generator.normal(50, 2, size=(40_000, 15))
        found = stats.ttest_ind(ours, paper, axis=1, equal_var=False).pvalue <= level
        assert found.mean() == pytest.approx(power, abs=0.015)
    degrees, error = wanted.degrees_of_freedom, wanted.standard_error
    assert degrees is not None
    assert error is not None
    # The test's own model: a standard error whose square is chi squared with these degrees of freedom.
    t = (generator.normal(size=200_000) + shift / error) / np.sqrt(generator.chisquare(degrees, 200_000) / degrees)
    assert np.mean(t > stats.t.isf(level / 2, degrees)) == pytest.approx(power, abs=0.005)


def test_more_runs_notice_smaller_differences() -> None:
    sizes = [compare(sample(66.0, 3.0, runs), NUMBER).noticeable() or 0 for runs in (2, 3, 5, 15, 100)]
    assert sizes == sorted(sizes, reverse=True)
    assert all(
        (compare(sample(66.0, 3.0, runs), NUMBER).allowed() or 0) < size
        for runs, size in zip((2, 3), sizes, strict=False)
    )


def test_a_corrected_level_allows_more() -> None:
    found = compare(sample(66.0, 3.0, 5), NUMBER)
    assert (found.allowed(0.05 / 27) or 0) > (found.allowed(0.05) or 0)
    assert (found.noticeable(0.05 / 27) or 0) > (found.noticeable(0.05) or 0)


def test_runs_without_spread_are_compared_by_the_paper_s_alone() -> None:
    found = compare([67.0, 67.0, 67.0], NUMBER)
    assert found.deviation == 0
    assert found.degrees_of_freedom == pytest.approx(14)
    assert found.standard_error == pytest.approx(3.15 / math.sqrt(14))


def test_a_paper_without_spread_is_compared_by_our_runs_alone() -> None:
    found = compare([1.0, 2.0, 3.0], Published(4.0, 0.0, 15))
    assert found.degrees_of_freedom == pytest.approx(2)
    assert found.p == pytest.approx(stats.ttest_1samp([1.0, 2.0, 3.0], 4.0).pvalue)


@pytest.mark.parametrize(
    ("value", "word", "direction"),
    [(50.0, "agrees", ""), (50.004, "agrees", ""), (50.01, "differs", "above"), (49.9, "differs", "below")],
)
def test_without_any_spread_numbers_agree_that_are_printed_the_same(value: float, word: str, direction: str) -> None:
    found = compare([value] * 3, Published(50.0, 0.0, 15))
    assert (found.t, found.degrees_of_freedom) == (None, None)
    assert found.allowed() == pytest.approx(0.005)
    (verdict,) = decide([found])
    assert (verdict.word, verdict.direction) == (word, direction)


@pytest.mark.parametrize(
    ("ours", "number", "reason"),
    [
        ([60.0], NUMBER, "one run has no spread"),
        ([60.0, 61.0], Published(9.0, None, 1), "the paper gives no spread"),
        ([60.0, 61.0], Published(9.0, 1.0, 1), "the paper gives no spread"),
    ],
)
def test_too_few_runs_give_no_verdict(ours: list[float], number: Published, reason: str) -> None:
    found = compare(ours, number)
    assert (found.p, found.allowed(), found.noticeable()) == (None, None, None)
    assert decide([found]) == [Verdict("too few runs", "", reason, None, 0.05, 0, None)]


def test_cells_that_cannot_be_tested_do_not_count_for_the_correction() -> None:
    tested, few = with_p(0.03), compare([60.0], NUMBER)
    counted = compare([7.0], Published(7.0, None, 1, exact=True))
    found = decide([few, tested, counted])
    assert [verdict.word for verdict in found] == ["too few runs", "differs", "agrees"]
    assert {verdict.cells for verdict in found} == {1}
    assert [verdict.word for verdict in decide([tested, with_p(0.5)])] == ["agrees", "agrees"]


@pytest.mark.parametrize(
    ("ours", "word", "direction"),
    [
        ([7.0], "agrees", ""),
        ([7.0, 7.0], "agrees", ""),
        ([8.0], "differs", "above"),
        ([6.0], "differs", "below"),
        ([6.0, 8.0], "differs", ""),
        ([7.0, 8.0], "differs", "above"),
    ],
)
def test_counted_numbers_agree_if_each_is_equal(ours: list[float], word: str, direction: str) -> None:
    (verdict,) = decide([compare(ours, Published(7.0, None, 1, exact=True))])
    assert (verdict.word, verdict.direction, verdict.adjusted_p) == (word, direction, None)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_a_number_is_refused(bad: float) -> None:
    with pytest.raises(InputError, match=r"values\[1\] is (nan|inf); expected finite numbers"):
        compare([60.0, bad], NUMBER)


def test_no_runs_are_refused() -> None:
    with pytest.raises(InputError, match="empty"):
        compare([], NUMBER)


@pytest.mark.parametrize("level", [0, 1, -0.1, 5, float("nan")])
def test_a_level_that_is_no_chance_is_refused(level: float) -> None:
    with pytest.raises(SettingsError, match=f"level is {level}; expected a number between 0 and 1"):
        decide([], level)


def test_holm_by_hand() -> None:
    # 0.01 * 4, then 0.02 * 3, then 0.03 * 2 which ties, then 0.04 * 1 which may not fall below it.
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([]) == []


@given(P_VALUES, st.sampled_from([0.01, 0.05, 0.2]))
def test_holm_equals_its_steps(p_values: list[float], level: float) -> None:
    found = decide([with_p(p) for p in p_values], level)
    assert {place for place, verdict in enumerate(found) if verdict.word == "differs"} == slow_holm(p_values, level)


@given(st.lists(st.tuples(st.floats(-20, 20), st.floats(0.1, 10), st.integers(2, 20)), min_size=1, max_size=12))
def test_cells_differ_that_lie_outside_what_is_allowed_at_the_cell_s_level(
    cells: list[tuple[float, float, int]],
) -> None:
    comparisons = [compare(sample(NUMBER.mean + shift, spread, runs), NUMBER) for shift, spread, runs in cells]
    for comparison, verdict in zip(comparisons, decide(comparisons), strict=True):
        assert verdict.cell_level is not None
        allowed = comparison.allowed(verdict.cell_level)
        assert allowed is not None
        if abs(abs(comparison.difference) - allowed) > 1e-6:
            assert (verdict.word == "differs") == (abs(comparison.difference) > allowed)


def test_the_direction_is_ours_against_the_paper_s() -> None:
    found = decide([compare(sample(mean, 1.0, 5), NUMBER) for mean in (90.0, 40.0, 66.9)])
    assert [(verdict.word, verdict.direction) for verdict in found] == [
        ("differs", "above"),
        ("differs", "below"),
        ("agrees", ""),
    ]


@pytest.mark.parametrize(("runs", "expected"), [(15, 0.05), (5, 0.09), (3, 0.25)])
def test_a_family_gives_false_alarms_as_often_as_documented(runs: int, expected: float) -> None:
    # Tables of 27 cells, ours and the paper's 15 runs from the same distribution. That few runs give more alarms than
    # the level is Welch's, not ours: scipy's ttest_ind gave 0.045, 0.095 and 0.246 in 10,000 families.
    generator, alarms, families = np.random.default_rng(0), 0, 400
    for _ in range(families):
        ours, paper = generator.normal(60, 3, size=(27, runs)), generator.normal(60, 3, size=(27, 15))
        numbers = [Published(float(values.mean()), float(values.std()), 15) for values in paper]
        found = decide([compare(values.tolist(), number) for values, number in zip(ours, numbers, strict=True)])
        alarms += any(verdict.word == "differs" for verdict in found)
    # Three standard errors of 400 families.
    assert alarms / families == pytest.approx(expected, abs=3 * math.sqrt(expected * (1 - expected) / families))


def test_without_the_conversion_of_the_paper_s_deviation_it_would_be_called_too_steady() -> None:
    assert compare([1.0, 2.0], Published(0.0, 1.0, 2)).published_deviation == pytest.approx(math.sqrt(2))


def test_the_order_of_cells_does_not_matter() -> None:
    generator = random.Random(0)
    comparisons = [compare(sample(60 + 3 * place, 2.0, 4), NUMBER) for place in range(6)]
    expected = dict(zip([c.mean for c in comparisons], decide(comparisons), strict=True))
    generator.shuffle(comparisons)
    assert dict(zip([c.mean for c in comparisons], decide(comparisons), strict=True)) == expected


def test_a_cell_that_could_not_differ_does_not_agree() -> None:
    """Two runs that scatter, among many cells: no difference that percentages can have would be noticed."""
    steady = [compare(sample(NUMBER.mean, 1.0, 15), NUMBER) for _ in range(26)]
    blind, other = compare([30.0, 60.0], NUMBER), compare([66.0, 67.0, 66.5, 66.9, 67.2], NUMBER)
    found = decide([*steady, blind, other])
    assert [verdict.word for verdict in found] == [*["agrees"] * 26, "too few runs", "agrees"]
    assert found[-2].reason == SCATTERED
    assert found[-2].cells == 28, "it was tested all the same"
    assert (blind.noticeable(found[-1].cell_level or 0) or 0) > 100
    assert decide([compare([1.0, 1.01], NUMBER)])[0].word == "differs", "what differs was noticed"
