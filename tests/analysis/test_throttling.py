"""Which part throttled, and that a warm machine alone did not."""

from __future__ import annotations

import pytest

from k3gate.analysis import throttling
from k3gate.analysis.throttling import evidence
from k3gate.records import Series


def heat(role: str, of: str | None, values: list[float | None], limit: float | None = None) -> Series:
    labels = {"sensor": f"{role} sensor", "role": role, "of": of, "limit": limit}
    return Series(
        "temperature", "degC", labels, tuple(10.0 * place for place in range(len(values))), tuple(values)
    )


def counter(domain: str, values: list[float]) -> Series:
    labels = {"counter": domain, "kind": "throttle", "domain": domain}
    return Series("events", "1", labels, tuple(10.0 * place for place in range(len(values))), tuple(values))


@pytest.mark.case("NVM-07")
def test_a_counter_that_rose_is_the_surest_sign_and_names_the_domain() -> None:
    """A drive whose composite stays at 50 degrees: its counter tells, not a fixed temperature."""
    found = evidence([heat("drive", "nvme0", [50.0] * 9), counter("drive nvme0n1", [0, 0, 0, 3, 3])], 0, 80)
    assert [(one.domain, one.sign, one.at_s) for one in found] == [("drive nvme0n1", "counter", 30.0)]


def test_limit_and_heat_come_after_it() -> None:
    series = [
        heat("cpu", "1", [60.0, 70.0, 80.0, 89.5, 90.0], 90.0),
        heat("cpu", "0", [60.0, 60.0, 61.0, 61.0, 62.0], 90.0),
        counter("CPU package 1, as a whole", [4, 4, 4, 5, 9]),
    ]
    found = evidence(series, 0, 40)
    assert [(one.sign, one.domain) for one in found] == [
        ("counter", "CPU package 1, as a whole"),
        ("limit", "CPU package 1"),
        ("heat", "CPU package 1"),
    ]
    assert found[0].detail == "its counter rose by 5"
    assert found[1].detail == "90 degC, limit 90" and found[1].at_s == 30.0


def test_what_happened_outside_the_span_is_none_of_it() -> None:
    series = [heat("cpu", "0", [95.0, 60.0, 60.0, 60.0, 95.0], 90.0), counter("x", [0, 7, 7, 7, 9])]
    assert evidence(series, 15, 35) == ()


def test_gaps_and_sensors_without_a_limit_are_borne() -> None:
    series = [heat("module", None, [None, 40.0, None, 47.0]), heat("cpu", "0", [None, None])]
    found = evidence(series, 10, 30)
    assert [(one.domain, one.detail) for one in found] == [
        ("memory modules (module sensor)", "rose by 7 degrees to 47 degC")
    ]
    assert evidence([], 0, 1) == ()


def test_a_step_holds_until_the_next() -> None:
    steady = heat("cpu", "0", [70.0])
    assert throttling.within(steady, 500, 600) == [(500, 70.0)]
    assert throttling.within(steady, -5, -1) == []
