"""A lasting load on the page: its phases, its parts, what was watched beside it, and the rate against temperature."""

from __future__ import annotations

import re
from typing import Any

import attrs
import pytest

from k3gate.records import LeftOut, Series
from k3gate.reports import soak_figures
from k3gate.reports.evidence import Index

PACKAGE = {"sensor": "coretemp platform Package id 1", "role": "cpu", "of": "1", "limit": 95.0}
MODULE = {"sensor": "<b>spd5118</b> 3-0051 temp1", "role": "module", "of": None, "limit": 85.0}
POWER = {"sensor": "rapl package-1", "role": "cpu", "of": "1", "domain": "package-1"}


@pytest.fixture
def figures(bare_metal: Any, made_soak: Any) -> Any:
    """`figures(**of made_soak)`: the figures of such a load, with the sheet."""

    def make(**made: Any) -> Any:
        sheet = bare_metal()
        sheet = attrs.evolve(sheet, record=made_soak(sheet.record, **made))
        return soak_figures.figures(sheet.record, Index(sheet.record, sheet.gate), 7), sheet

    return make


def test_a_load_that_fell_is_told_with_its_parts_phases_and_sensors(figures: Any) -> None:
    power = Series("power", "W", POWER, (0.0, 100.0, 190.0), (250.0, 240.0, 240.0))
    clock = Series("clock", "Hz", {"cpu": 32, "of": "1"}, (0.0, 90.0, 190.0), (3.4e9, 2.8e9, 2.8e9))
    (line, scatter), _ = figures(
        fall={"memory of node 1": 0.2}, heat=[(PACKAGE, 25.0, 60.0)], more=[power, clock]
    )
    assert (line.anchor, line.number, scatter.anchor, scatter.number) == ("fig-soak", 7, "fig-soak-heat", 8)
    assert line.title.startswith("After 3 min 00 s of load the rate of memory of node 1 is 80.")
    assert "it stays below 95" in line.title and "from 1 min" in line.title
    plot = str(line.plot)
    for words in (
        "Rate, % of the first minute: memory of node 1",
        "Temperature, °C: CPU package 1",
        "Power, W: rapl package-1",
        "Clock, GHz: package 1",
        "Processors taken by others and by a hypervisor, %",
    ):
        assert words in plot
    # Four rates, a temperature, power, a clock, others; the phases 1 to 5 below.
    assert plot.count("<polyline") == 8
    assert re.findall(r'text-anchor="middle">(\d)</text>', plot) == ["1", "2", "3", "4", "5"]
    states = {row.title: (row.state, row.figures[2]) for row in line.bars}
    assert states["Memory of node 1"][0] == "falls" and states["Memory of node 0"][0] == "lasts"
    assert states["Memory of node 1"][1].startswith("0.80")
    assert "The CPU packages drew 240" in line.source and "pJ a byte read" in line.source
    assert (
        "10 degrees below 95" in line.source
        and "cooled by 25 degrees in the 16 s after the end" in line.source
    )
    assert scatter.title.startswith(
        "From 60 to 85 °C of CPU package 1 the rate of memory of node 1 goes from 100"
    )
    assert str(scatter.plot).count("<circle") > 50


def test_without_sensors_there_is_no_scatter_and_the_page_says_that_the_rates_decide(figures: Any) -> None:
    (line,), sheet = figures()
    assert "No sensor was readable: the rates alone decide." in line.source
    assert "stays below" not in line.title and "Temperature" not in str(line.plot)
    page = sheet.page()
    assert 'id="fig-soak"' in page and 'id="fig-soak-heat"' not in page


@pytest.mark.long
def test_a_load_of_hours_is_thinned_and_told_in_minutes(figures: Any) -> None:
    found, _ = figures(load_s=14400.0, heat=[(PACKAGE, 20.0, 60.0)])
    assert "75\xa0min" in str(found[0].plot) or "100\xa0min" in str(found[0].plot)
    assert all(len(str(one.plot)) < 60_000 for one in found)


def test_what_a_stranger_wrote_is_escaped(figures: Any) -> None:
    _, sheet = figures(heat=[(MODULE, 20.0, 50.0)])
    page = sheet.page()
    assert "<b>spd5118</b>" not in page and "&lt;b&gt;spd5118&lt;/b&gt;" in page


@pytest.mark.parametrize("noise", [0.0, 3.0])
def test_odd_rates_are_drawn_all_the_same(figures: Any, noise: float) -> None:
    found, _ = figures(noise=noise, seconds=4.0)
    assert not re.search(r"\b(nan|inf)\b", "".join(str(one.plot) for one in found))


def test_a_run_without_a_load_says_why(bare_metal: Any) -> None:
    sheet = bare_metal()
    assert soak_figures.figures(sheet.record, Index(sheet.record, sheet.gate), 1) == []
    left = LeftOut("thermal", "soak", "the quick profile is too short to show that a rate lasts")
    run = attrs.evolve(sheet.record.run, left_out=(left,))
    page = attrs.evolve(sheet, record=attrs.evolve(sheet.record, run=run)).page()
    assert "Rate under lasting load: not run." in page and "too short to show that a rate lasts" in page
