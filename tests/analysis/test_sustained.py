"""What a lasting load says: its interval, when it fell, the room to the limits, and what it drew."""

from __future__ import annotations

import math
import random
from typing import Any

import attrs
import pytest

from k3gate.analysis import sustained
from k3gate.records import Metric, Outcome, Run, RunRecord, RunStatus, Sample, Series, State

POWER = {"sensor": "rapl package-0", "role": "cpu", "of": "0", "domain": "package-0"}
BMC = {"sensor": "bmc Total", "role": "bmc", "of": None}


@pytest.fixture
def record(make_inventory: Any) -> RunRecord:
    run = Run("abcd2345", None, None, None, "soak", "0", "2026", "2026", RunStatus.COMPLETE)
    return RunRecord(run, make_inventory("bare_metal"))


def test_parts_lie_where_they_were_planned_and_the_last_one_before_the_end(
    made_soak: Any, record: Any
) -> None:
    found = sustained.soak(made_soak(record, load_s=1800.0))
    spans = found.spans
    assert (spans.start, spans.warm, spans.first_end) == (7.0, 27.0, 87.0)
    assert (spans.end, spans.seconds, spans.end - spans.last) == (1807.0, 1800.0, 180.0)
    assert [part.name for part in found.parts][:2] == ["memory of node 0", "memory of node 1"]


def test_the_interval_holds_the_ratio_that_was_made_and_is_as_narrow_as_its_noise(
    made_soak: Any, record: Any
) -> None:
    found = sustained.soak(made_soak(record, fall={"memory of node 0": 0.1}))
    first, second = found.parts[:2]
    assert first.interval[0] < 0.9 < first.interval[1] and second.interval[0] < 1.0 < second.interval[1]
    assert first.interval[1] - first.interval[0] < 0.02
    # 40 to 60 % of 180 s: below 0.95 from about half of it on.
    assert 70 < first.fell_s - found.spans.start < 100 and second.fell_s is None


def test_blocks_that_follow_each_other_count_for_less() -> None:
    chance = random.Random(3)
    loose = [1 + chance.gauss(0, 0.01) for _ in range(12)]
    drifting = sorted(loose)
    assert sustained._effective(loose) > 8
    assert sustained._effective(drifting) < 4
    (wide, _), (narrow, counted) = (
        sustained._interval(drifting, drifting),
        sustained._interval(loose, loose),
    )
    assert wide[1] - wide[0] > 2 * (narrow[1] - narrow[0])
    assert counted[0] == sustained._effective([math.log(value) for value in loose])
    assert sustained._interval([1.0] * 12, [0.5] * 12)[0] == (pytest.approx(0.5), pytest.approx(0.5))
    # A rate that fell to nothing has no logarithm.
    assert sustained._interval(loose, [0.0] * 12)[0] is None


def test_the_interval_covers_what_it_says_even_where_rates_wander() -> None:
    """95 % of the intervals of equal means hold 1: about so many, with block means that remember their neighbour."""
    chance, held = random.Random(11), 0
    for _ in range(400):
        parts = []
        for _ in range(2):
            state, values = chance.gauss(0, 1), []
            for _ in range(12):
                state = 0.4 * state + chance.gauss(0, (1 - 0.16) ** 0.5)
                values.append(math.exp(0.01 * state))
            parts.append(values)
        low, high = sustained._interval(parts[0], parts[1])[0]
        held += low <= 1 <= high
    assert 0.88 < held / 400 <= 1


def test_the_room_to_a_sensors_limit_and_what_it_drew(made_soak: Any, record: Any) -> None:
    heat = {"sensor": "k10temp 0000:00:18.3 Tctl", "role": "cpu", "of": "0", "limit": 95.0}
    power = Series("power", "W", POWER, (0.0, 100.0), (200.0, 300.0))
    other = Series("power", "W", {**POWER, "sensor": "rapl dram", "domain": "dram"}, (0.0,), (50.0,))
    made = made_soak(record, heat=[(heat, 20.0, 60.0)], more=[power, other])
    found = sustained.soak(made)
    (room,) = sustained.headroom(found)
    assert (room.domain, room.highest, room.left) == ("CPU package 0", 80.0, 15.0)
    drawn = sustained.energy(made, found)
    # Two nodes of 250 GB/s; a zone within the package is no more of it.
    assert (drawn.watts, drawn.source) == (300.0, "the CPU packages")
    assert drawn.per_byte == pytest.approx(300.0 / 500e9, rel=0.01) and drawn.per_token is None
    whole = Series("power", "W", BMC, (0.0, 190.0), (700.0, 700.0))
    supply = Series("power", "W", {**BMC, "sensor": "bmc PSU1"}, (0.0, 190.0), (360.0, 360.0))
    assert sustained.energy(attrs.evolve(made, series=(*made.series, whole, supply)), found).watts == 700.0
    assert sustained.energy(made_soak(record), found) is None


def test_the_energy_of_a_token_is_that_between_the_samples_of_the_replay(made_soak: Any, record: Any) -> None:
    samples = tuple(
        Sample(4.0, round_, 1, at) for round_, at in ((0, 300.0), (0, 310.0), (1, 400.0), (1, 420.0))
    )
    rate = Metric(
        "replay.miniature.rate", "tokens/s", "higher", {"batch": 2}, samples, 4.0, (3.9, 4.1), State.OK
    )
    replay = Outcome("replay", "base", State.OK, None, 60.0, 3, (), (rate,))
    power = Series("power", "W", POWER, (0.0, 300.0, 310.0, 400.0, 420.0), (100.0, 240.0, 90.0, 240.0, 90.0))
    made = made_soak(record, more=[power])
    made = attrs.evolve(made, outcomes=(*made.outcomes, replay))
    # Both sequences of a step are decoded with the same power.
    assert sustained.energy(made, sustained.soak(made)).per_token == pytest.approx(240.0 / (4.0 * 2))


def test_what_is_no_load_is_none(made_soak: Any, record: Any) -> None:
    assert sustained.soak(record) is None
    made = made_soak(record)
    assert sustained.soak(attrs.evolve(made, series=())) is None
    assert sustained.soak(attrs.evolve(made, phases=())) is None
