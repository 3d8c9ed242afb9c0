"""Energy counters: that they wrap, that root alone may read them, and that their files fail one by one."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from k3gate import host
from k3gate.host import power
from k3gate.host.files import Root
from k3gate.records import State

MakeRoot = Any
ZONE = "sys/class/powercap/intel-rapl:0"


def zone(number: int, package: int, **more: str) -> dict[str, str]:
    base = f"sys/class/powercap/intel-rapl:{number}"
    files = {
        "name": f"package-{package}",
        "energy_uj": "240422366267",
        "max_energy_range_uj": "262143328850",
        "enabled": "1",
        "constraint_0_name": "long_term",
        "constraint_0_power_limit_uw": "350000000",
        **more,
    }
    return {f"{base}/{name}": f"{value}\n" for name, value in files.items()}


@pytest.mark.case("THM-01")
def test_a_counter_that_wraps_counts_on() -> None:
    used = power.joules(262143.0, 1.0, 262143.32885)
    assert used == pytest.approx(1.32885)
    assert power.joules(10.0, 12.5, 262143.0) == 2.5
    # Without a range, or beyond it, nobody knows.
    assert power.joules(10.0, 2.0, None) is None
    assert power.joules(300.0, 2.0, 200.0) is None


@pytest.mark.case("THM-02")
def test_no_right_to_read_is_no_watt(make_root: MakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_root(zone(0, 0), zone(1, 1))
    original = Root.raw

    def raw(self: Root, relative: str, limit: int = 65536, *, head: bool = False) -> bytes:
        if relative.endswith("energy_uj"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return original(self, relative, limit, head=head)

    monkeypatch.setattr(Root, "raw", raw)
    found = host.read(folder)
    assert found.sensors is not None
    zones = found.sensors.power_zones
    assert {one.state for one in zones} == {State.NOT_PERMITTED}
    assert all("needs root" in (one.reason or "") for one in zones)
    assert [one.limits for one in zones] == [{"long_term": 350.0}] * 2
    assert found.provenance["sensors.power_zones"].state is State.NOT_PERMITTED
    from k3gate.host import text

    assert "needs root" in text.page(found) and "0 W" not in text.page(found)


@pytest.mark.case("THM-06")
def test_files_that_fail_leave_the_others_standing(
    make_root: MakeRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = {"constraint_1_max_power_uw": errno.ENODATA, "autosuspend_delay_ms": errno.EIO}
    folder = make_root(
        # The numbers of zones and packages are crossed, as on some machines.
        zone(0, 1),
        zone(1, 0, enabled="0", constraint_1_name="short_term", constraint_1_power_limit_uw=""),
    )
    original = Root.raw

    def raw(self: Root, relative: str, limit: int = 65536, *, head: bool = False) -> bytes:
        number = errors.get(relative.rpartition("/")[2])
        if number is not None:
            raise OSError(number, "no data")
        return original(self, relative, limit, head=head)

    monkeypatch.setattr(Root, "raw", raw)
    found = host.read(folder).sensors
    assert found is not None
    by_package = {one.package: one for one in found.power_zones}
    assert by_package[1].source == f"{ZONE}/energy_uj" and by_package[1].enabled is True
    assert by_package[0].enabled is False and by_package[0].limits == {"long_term": 350.0}
    assert {one.id for one in found.power_zones} == {"rapl package-0", "rapl package-1"}


def test_a_part_of_a_package_is_named_within_it(make_root: MakeRoot) -> None:
    part = {
        "sys/class/powercap/intel-rapl:0:0/name": "dram\n",
        "sys/class/powercap/intel-rapl:0:0/energy_uj": "5\n",
    }
    found = host.read(make_root(zone(0, 1), part)).sensors
    assert found is not None
    assert [(one.id, one.package) for one in found.power_zones] == [
        ("rapl package-1", 1),
        ("rapl package-1 dram", 1),
    ]


def test_a_counter_that_is_no_number_is_unknown(make_root: MakeRoot) -> None:
    found = host.read(make_root(zone(0, 0, energy_uj="none"))).sensors
    assert found is not None and found.power_zones[0].state is State.FAILED
