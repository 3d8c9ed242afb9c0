"""Where the steady part of a round begins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3gate.probing.settling import LEAST_KEPT, LONGEST_SHARE, steady_from


@pytest.mark.case("BW-08")
@pytest.mark.parametrize(
    ("values", "start"),
    [
        ([100.0] * 3 + [85.0] * 27, 3),
        ([85.0] * 2 + [100.0] * 28, 2),
        ([100.0] * 30, 0),
        ([100.0] * 3 + [97.0] * 27, 0),
        ([100.0] * 15 + [85.0] * 15, 0),
        ([100.0, 80.0] * 15, 0),
        ([100.0] * 3 + [85.0] * 26 + [101.0], 0),
        ([], 0),
        ([1.0], 0),
    ],
    ids=["fall", "rise", "steady", "small", "late", "noise", "back again", "none", "one"],
)
def test_a_step_near_the_start_ends_the_settling(values: list[float], start: int) -> None:
    assert steady_from(values, [1.0] * len(values)) == start


@given(st.lists(st.tuples(st.floats(0.1, 1e12), st.floats(0.01, 10.0)), max_size=40))
def test_at_most_a_third_of_the_time_is_left_out_and_something_is_kept(
    rows: list[tuple[float, float]],
) -> None:
    values, seconds = [one for one, _ in rows], [one for _, one in rows]
    start = steady_from(values, seconds)
    assert start == 0 or len(values) - start >= LEAST_KEPT
    assert sum(seconds[:start]) <= LONGEST_SHARE * sum(seconds) + 1e-9
