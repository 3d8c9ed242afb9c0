from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from k3gate.metrics import MEMORY_READ, RESIDENCY_BYTES
from k3gate.probing.statistics import summarise
from k3gate.records import Sample, State


def samples(*rounds: list[float]) -> list[Sample]:
    return [Sample(value, number, 1, 0.0) for number, values in enumerate(rounds) for value in values]


def test_the_interval_is_students_over_the_round_medians() -> None:
    # Medians 98, 100, 102: mean 100, standard deviation 2; t(2, 97.5 %) = 4.302653 (any table).
    summary = summarise(samples([97, 98, 99], [100, 100, 100], [101, 102, 103]), MEMORY_READ)
    assert summary.median == 100
    half = 4.302653 * 2 / math.sqrt(3)
    assert summary.interval == pytest.approx((100 - half, 100 + half), rel=1e-6)
    assert (summary.state, summary.reason) == (State.OK, None)


def test_many_samples_of_a_round_do_not_narrow_the_interval() -> None:
    few = summarise(samples([98], [100], [102]), MEMORY_READ)
    many = summarise(samples([98] * 50, [100] * 50, [102] * 50), MEMORY_READ)
    assert few.interval == many.interval


@pytest.mark.parametrize(
    ("rounds", "figure"),
    [
        (([80, 120], [80, 120], [80, 120]), "standard deviation is 21.9 % of the mean"),
        (([100] * 9, [100] * 9, [100] * 8 + [40]), "the least sample is 59.1 % off the mean"),
        (([100] * 9, [100] * 9, [100] * 8 + [170]), "the greatest sample is 65.7 % off the mean"),
        (([100], [100]), "2 of the 3 rounds that are needed"),
        (([95], [100], [105]), "interval over rounds is +-12.4 % wide"),
        (([-1], [1], [0]), "a multiple of the mean"),
    ],
)
def test_an_unstable_metric_names_the_figure(rounds, figure: str) -> None:
    summary = summarise(samples(*rounds), MEMORY_READ)
    assert summary.state is State.UNSTABLE
    assert figure in summary.reason


def test_a_rate_has_no_interval_below_zero() -> None:
    summary = summarise(samples([1.0], [100.0], [200.0]), MEMORY_READ)
    assert summary.interval is not None and summary.interval[0] == 0.0
    assert summarise(samples([-1.0], [100.0], [200.0]), MEMORY_READ).interval[0] < 0


def test_a_share_just_over_its_limit_is_not_printed_as_the_limit() -> None:
    half = 10.00004 / (4.302653 / math.sqrt(3))
    summary = summarise(samples([100 - half], [100], [100 + half]), MEMORY_READ)
    assert "+-10.00003" in summary.reason and "+-10 % wide" not in summary.reason


def test_a_share_of_many_times_has_no_exponent() -> None:
    summary = summarise(samples([1], [1], [40]), MEMORY_READ)
    assert "the 95 % interval over rounds is +-6,893 % wide" in summary.reason


def test_outliers_are_named_and_never_dropped() -> None:
    values = samples([99, 100, 101] * 3, [99, 100, 101] * 3, [99, 100, 101] * 3 + [130])
    summary = summarise(values, MEMORY_READ)
    assert summary.state is State.OK
    assert summary.reason == "outliers: 130 B/s in round 3 (modified z 20)"


def test_an_exact_metric_has_the_range_of_its_samples() -> None:
    summary = summarise(samples([5], [9]), RESIDENCY_BYTES)
    assert (summary.interval, summary.state, summary.reason) == ((5, 9), State.OK, None)


def test_one_sample_has_no_interval_and_none_has_no_median() -> None:
    one = summarise(samples([5.0]), MEMORY_READ)
    assert (one.median, one.interval, one.state) == (5.0, None, State.UNSTABLE)
    none = summarise([], MEMORY_READ)
    assert (none.median, none.interval, none.state) == (None, None, State.NOT_RUN)


def test_equal_zeros_are_stable() -> None:
    summary = summarise(samples([0.0], [0.0], [0.0]), MEMORY_READ)
    assert (summary.interval, summary.state) == ((0.0, 0.0), State.OK)


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.lists(finite, min_size=1, max_size=5), min_size=1, max_size=6), st.booleans())
@example([[0.0, 1.0, 1564238247850523.0], [1.0]], False)
@example([[1.7976931348623157e308], [1.7976931348623157e308]], False)
def test_any_finite_samples_give_a_finite_interval_that_holds_the_median(rounds, exact: bool) -> None:
    drawn = samples(*rounds)
    summary = summarise(drawn, RESIDENCY_BYTES if exact else MEMORY_READ)
    values = [sample.value for sample in drawn]
    assert min(values) <= summary.median <= max(values)
    if abs(summary.median) < 1e300:
        assert summary.median == statistics.median(values)
    if len(rounds) < 2 and not exact:
        assert summary.interval is None and summary.state is State.UNSTABLE
    else:
        low, high = summary.interval
        assert math.isfinite(low) and math.isfinite(high) and low <= summary.median <= high
    assert (summary.state is State.UNSTABLE) <= (summary.reason is not None)


@given(st.lists(st.lists(st.floats(1, 2), min_size=1, max_size=5), min_size=2, max_size=6))
def test_a_change_of_unit_changes_no_judgement(rounds) -> None:
    small = summarise(samples(*rounds), MEMORY_READ)
    large = summarise(samples(*[[value * 2**40 for value in values] for values in rounds]), MEMORY_READ)
    assert large.state is small.state
    assert large.interval == pytest.approx([end * 2**40 for end in small.interval])
