"""Heat, power and traffic over the time of a run, with the phases below."""

from __future__ import annotations

import math
import re
from typing import Any

import attrs
import pytest

from k3gate.records import Phase, Series
from k3gate.reports import timelines

PHASES = tuple(
    Phase("memory", f"read.{place % 3}", place // 3, 10.0 * place, 10.0 * place + 8) for place in range(9)
)


def heat(name: str, peak: float) -> Series:
    times = tuple(0.5 * place for place in range(180))
    values = tuple(
        None if 60 <= place < 70 else 40 + (peak - 40) * (1 - math.exp(-place / 40)) for place in range(180)
    )
    return Series(
        "temperature", "degC", {"sensor": name, "role": "cpu", "of": "0", "limit": 90.0}, times, values
    )


WATCHED = (
    heat("k10temp 0000:00:18.3 Tctl", 84.0),
    heat("<b>nvme</b>", 61.0),
    Series("power", "W", {"sensor": "rapl package-0"}, (0.0, 30.0, 89.0), (90.0, 312.5, 312.5)),
    Series("disk.read", "B/s", {"drive": "nvme0n1"}, (0.0, 5.0, 89.0), (0.0, 6.8e9, 0.0)),
    Series("events", "1", {"counter": "edac mc0 corrected", "kind": "corrected"}, (0.0,), (0.0,)),
    Series("clock", "Hz", {"cpu": 0}, (0.0,), (None,)),
)


@pytest.fixture
def sheet(bare_metal: Any) -> Any:
    return bare_metal()


def test_each_kind_of_what_was_watched_has_a_figure(sheet: Any) -> None:
    record = attrs.evolve(sheet.record, series=WATCHED, phases=PHASES)
    found = timelines.figures(record, 7)
    assert [(one.anchor, one.number) for one in found] == [
        ("fig-heat", 7),
        ("fig-power", 8),
        ("fig-traffic", 9),
    ]
    first = found[0]
    assert first.title.startswith("Temperatures: at most 83") and "k10temp" in first.title
    assert [row.title for row in first.bars] == ["k10temp 0000:00:18.3 Tctl", "<b>nvme</b>"]
    # A gap parts the line in two: two sensors, two pieces each.
    assert str(first.plot).count("<polyline") == 4
    assert len(re.findall(r'<rect class="f-(?:grey|data2)"', str(first.plot))) == len(PHASES)
    assert "6.80\xa0GB/s" in found[2].bars[0].figures


def test_the_page_shows_them_and_escapes_what_a_stranger_wrote(sheet: Any) -> None:
    page = attrs.evolve(sheet, record=attrs.evolve(sheet.record, series=WATCHED, phases=PHASES)).page()
    assert 'id="fig-heat"' in page and "Temperatures: at most" in page
    assert "<b>nvme</b>" not in page and "&lt;b&gt;nvme&lt;/b&gt;" in page


def test_a_run_that_watched_nothing_has_no_timeline(sheet: Any) -> None:
    assert timelines.figures(sheet.record, 1) == []


@pytest.mark.parametrize("values", [(0.0,), (-40.0, -40.0), (1e300, 0.0), (0.0, None, 0.0)])
def test_odd_values_are_drawn_all_the_same(sheet: Any, values: tuple[float | None, ...]) -> None:
    series = Series("temperature", "degC", {}, tuple(float(at) for at in range(len(values))), values)
    (figure,) = timelines.figures(attrs.evolve(sheet.record, series=(series,), phases=()), 1)
    assert "nan" not in str(figure.plot) and "inf" not in str(figure.plot)


def test_a_long_series_is_thinned_for_the_page(sheet: Any) -> None:
    times = tuple(0.5 * place for place in range(20_000))
    values = tuple(60.0 + (place % 2) * 0.125 for place in range(20_000))
    series = Series("temperature", "degC", {"sensor": "x"}, times, values)
    (figure,) = timelines.figures(attrs.evolve(sheet.record, series=(series,), phases=()), 1)
    assert len(str(figure.plot)) < 40_000
