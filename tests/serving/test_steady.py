"""The steady part of an answer."""

from __future__ import annotations

import pytest

from k3gate.serving import steady


def times(gaps: list[float]) -> list[float]:
    at, found = 10.0, [10.0]
    for gap in gaps:
        at += gap
        found.append(at)
    return found


def test_an_even_answer_is_steady_from_its_first_chunk_on() -> None:
    found = steady.find(times([0.05] * 48))
    assert found is not None
    assert (found.settled, found.ok) == (0, True)
    assert found.chunks_per_s == pytest.approx(20.0)


def test_a_slow_beginning_is_left_out_and_told() -> None:
    found = steady.find(times([0.10] * 8 + [0.05] * 88))
    assert found is not None
    assert found.settled == 8
    assert found.chunks_per_s == pytest.approx(20.0)
    assert found.ok
    assert "the first 8 chunks are left out" in found.detail


def test_an_answer_that_slows_down_all_the_time_is_not_steady() -> None:
    found = steady.find(times([0.01 * 1.05**step for step in range(60)]))
    assert found is not None
    assert found.ok is None


def test_few_chunks_have_a_rate_and_no_steadiness() -> None:
    found = steady.find(times([0.5, 0.5]))
    assert found is not None
    assert found.chunks_per_s == pytest.approx(2.0)
    assert found.ok is None
    assert steady.find([1.0]) is None
    assert steady.find([1.0, 1.0]) is None
