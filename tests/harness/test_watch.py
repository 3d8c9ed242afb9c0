"""What a run keeps of what was watched: outcomes by pure arithmetic, notices, and series in the store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest

from k3gate import metrics, series
from k3gate.harness import watch
from k3gate.probing import bystanders
from k3gate.probing.monitor import Account
from k3gate.records import Phase, Provenance, Series, State

NOBODY = bystanders.Others((), None)
LOAD = [Phase("memory", "read", 0, 10.0, 20.0), Phase("memory", "read", 1, 30.0, 40.0)]


def events(counter: str, kind: str, *values: float | None, domain: str = "a domain") -> Series:
    labels = {"counter": counter, "kind": kind, "domain": domain}
    return Series("events", "1", labels, tuple(float(at) for at in range(len(values))), values)


def look(
    inventory: Any, *series: Series, accounts: Sequence[Account] = (), others: Any = NOBODY
) -> dict[str, Any]:
    """{(outcome, metric, labels...): value}, and the reasons of the outcomes without figures."""
    found = watch.told(series, LOAD, inventory, accounts, others, 50.0)
    flat: dict[str, Any] = {}
    for name, (state, reason, figures) in found.items():
        for declaration, labels, value in figures:
            words = ", ".join(f"{value}" for value in labels.values() if value is not None)
            flat[f"{name}: {declaration.name} [{words}]"] = value
        if not figures:
            flat[name] = (state, reason)
    return flat


def test_counters_rise_or_stay_and_a_controller_holds_its_modules(make_inventory: Any) -> None:
    found = look(
        make_inventory("bare_metal"),
        events("edac mc0 corrected", "corrected", 4, 5, 6, domain="memory controller mc0"),
        events("edac mc0/dimm3 corrected", "corrected", 0, 2, domain="memory module CPU0_DIMM_C1 of mc0"),
        events("edac mc0 uncorrected", "uncorrected", 0, 0),
        events("aer 0000:41:00.0 fatal", "uncorrected", 0, 0),
        events("throttle package 0", "throttle", 7, 7),
    )
    assert found["errors: machine.errors.corrected [memory]"] == 2
    assert (
        found[
            "errors: machine.errors.corrected [edac mc0/dimm3 corrected, memory module CPU0_DIMM_C1 of mc0, memory]"
        ]
        == 2
    )
    assert found["errors: machine.errors.uncorrected [memory]"] == 0
    assert found["errors: machine.errors.uncorrected [links]"] == 0
    assert found["throttling: machine.throttle.events [processors]"] == 0


@pytest.mark.parametrize(
    ("values", "rose"),
    [((1, 1), 0), ((1, 4), 3), ((5, 0, 2), 2), ((3, None, 4), 1), ((7,), 0), ((None,), None)],
)
def test_a_counter_that_was_set_back_counts_from_nothing(
    values: tuple[float | None, ...], rose: float | None
) -> None:
    assert series.risen(events("x", "corrected", *values)) == rose


def test_power_is_the_mean_over_the_time_of_the_cases(make_inventory: Any) -> None:
    labels = {"sensor": "rapl package-0", "role": "cpu", "of": "0", "domain": "package-0"}
    power = Series(
        "power", "W", labels, (0.0, 10.0, 15.0, 20.0, 30.0, 50.0), (50.0, 200.0, 300.0, 60.0, 250.0, 250.0)
    )
    found = look(make_inventory("bare_metal"), power)
    assert found["power: machine.power.mean [rapl package-0, cpu, 0, package-0]"] == pytest.approx(
        (200 * 5 + 300 * 5 + 250 * 10) / 20
    )
    assert found["power: machine.power.highest [rapl package-0, cpu, 0, package-0]"] == 300.0
    assert series.mean_within(power, [(100.0, 110.0)]) is None
    gap = attrs.evolve(power, values=(50.0, None, 300.0, 60.0, 250.0, 250.0))
    # What was not read is not counted as nothing.
    assert series.mean_within(gap, [(10.0, 20.0)]) == 300.0


@pytest.mark.case("THM-10")
def test_heat_is_told_with_its_distance_to_the_sensors_own_limit(make_inventory: Any) -> None:
    labels = {"sensor": "spd5118 3-0051 temp1", "role": "module", "of": None, "limit": 55.0}
    warm = Series("temperature", "degC", labels, (0.0, 1.0, 2.0), (33.5, None, 51.25))
    found = look(make_inventory("bare_metal"), warm)
    assert found["heat: machine.temperature.highest [spd5118 3-0051 temp1, module]"] == 51.25
    assert found["heat: machine.temperature.room [spd5118 3-0051 temp1, module]"] == 3.75


@pytest.mark.case("THM-02")
def test_what_cannot_be_read_has_its_reason_and_no_zero(make_inventory: Any) -> None:
    inventory = make_inventory("vm")
    notes = {
        **inventory.provenance,
        "sensors.power_zones": Provenance(State.NOT_PERMITTED, "energy_uj", "not permitted; needs root"),
        "sensors.readings": Provenance(State.NOT_PRESENT, "hwmon", "no hwmon driver"),
    }
    found = look(attrs.evolve(inventory, provenance=notes))
    assert found["power"] == (State.NOT_PERMITTED, "not permitted; needs root")
    assert found["heat"] == (State.NOT_PRESENT, "no hwmon driver")
    assert found["errors"] == (State.NOT_PRESENT, "nothing here tells of it")


def test_others_are_named_and_the_monitor_tells_its_cost(make_inventory: Any) -> None:
    others = bystanders.Others((("mysqld", 20.0), ("sshd", 0.01)), 5 * 10**9, (7.5, None))
    accounts = [
        Account("heat", 0.5, 100, 2, 0, 0.013, 0.001, 0.2, 50.0),
        Account("BMC", 10, 4, 0, 3, 9, 3, 0.05, 50.0),
    ]
    found = look(make_inventory("vm"), accounts=accounts, others=others)
    assert found["others: machine.process.cpu_share [mysqld]"] == pytest.approx(20.0 / (2 * 50.0))
    assert not any("sshd" in key for key in found)
    assert found["others: machine.disk.other_rate [machine]"] == 10**8
    assert found["others: machine.load [before]"] == 7.5
    assert found["monitor: machine.monitor.cpu_share [machine]"] == pytest.approx(0.25 / 50)
    assert found["monitor: machine.monitor.lateness [heat]"] == 0.013
    assert found["monitor: machine.monitor.missed [heat]"] == 2
    assert found["monitor: machine.monitor.failed [BMC]"] == 3
    assert all(metrics.find(key.split()[1]) for key in found if ": " in key)


def test_new_errors_are_told_at_once(make_inventory: Any) -> None:
    series = [
        events("edac mc0/dimm3 corrected", "corrected", 0, 1, domain="memory module CPU0_DIMM_C1 of mc0")
    ]
    state, reason, figures = watch.told(series, LOAD, make_inventory("bare_metal"), [], NOBODY, 1.0)["errors"]
    outcome = watch._outcome(None, "errors", state, reason, figures, 1.0)
    assert list(watch.notices([outcome])) == [
        "memory module CPU0_DIMM_C1 of mc0: 1 new corrected error during the run"
    ]


def test_a_second_sitting_is_a_second_round(make_inventory: Any) -> None:
    series = [events("aer 0000:41:00.0 fatal", "uncorrected", 0, 0)]
    told = watch.told(series, LOAD, make_inventory("bare_metal"), [], NOBODY, 1.0)["errors"]
    first = watch._outcome(None, "errors", *told, 1.0)
    rose = watch.told(
        [events("aer 0000:41:00.0 fatal", "uncorrected", 0, 2)],
        LOAD,
        make_inventory("bare_metal"),
        [],
        NOBODY,
        1.0,
    )["errors"]
    second = watch._outcome(first, "errors", *rose, 9.0)
    assert [one.round for one in second.rounds] == [0, 1] and second.state is State.OK
    total = next(metric for metric in second.metrics if metric.labels == {"source": "links"})
    assert [sample.value for sample in total.samples] == [0, 2] and total.interval == (0, 2)
