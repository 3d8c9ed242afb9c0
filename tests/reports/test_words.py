"""Numbers and words of a page."""

from __future__ import annotations

import pytest

from k3gate.records import Bound
from k3gate.reports import charts, words


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (235.4e9, "B/s", "235 GB/s"),
        (1.2288e12, "B/s", "1,230 GB/s"),
        (1560860324864, "B", "1,560.9 GB"),
        (0.96, "1", "0.960"),
        (113e-9, "s", "113 ns"),
        (None, "B/s", "unknown"),
    ],
)
def test_values_carry_their_unit(value: float | None, unit: str, text: str) -> None:
    assert words.value(value, unit).replace("\u00a0", " ") == text


def test_bounds_and_intervals_and_dates() -> None:
    assert words.bound(Bound(min=0.7), "1") == "≥\u00a00.700"
    assert words.bound(Bound(), None) == "as claimed"
    assert words.interval((234e9, 237e9), "B/s") == "234–237\u00a0GB/s"
    assert words.date("2026-12-09T10:04:12+00:00") == "9\u00a0December\u00a02026"
    assert words.date("yesterday") == "yesterday"
    assert words.span("2026-12-09T23:50:00+00:00", "2026-12-10T00:10:00+00:00").endswith(
        "23:50 to 10\u00a0December\u00a02026, 00:10 (UTC)"
    )
    assert words.tied("at 6,400 MT/s, 5 of 8 minutes") == "at 6,400\u00a0MT/s, 5 of 8 minutes"


def test_a_scale_holds_values_at_its_edges_and_knows_logarithms() -> None:
    place = charts.scale(0, 200)
    assert (place(-5), place(50), place(500)) == (0.0, 25.0, 100.0)
    assert charts.scale(0.5, 2.0, log=True)(1.0) == pytest.approx(50.0)


def test_ticks_are_round_and_reach_the_top() -> None:
    assert charts.ticks(36.2) == [0, 10, 20, 30, 40]
    assert charts.ticks(0.9)[-1] >= 0.9
    assert charts.ticks(0) == [0.0, 1.0]


def test_labels_of_a_chart_are_text() -> None:
    assert "&lt;b&gt;" in charts.text(10, 10, "<b>")
