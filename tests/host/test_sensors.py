"""Temperatures, fans and limits, and values that cannot be true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from k3gate import host
from k3gate.host import sensors
from k3gate.records import Inventory, SensorReading, State

MakeRoot = Any


def chip(number: int, name: str, device: str, **files: str) -> dict[str, str]:
    """A chip of hwmon on a device; `files` such as temp1_input="45000"."""
    base = f"sys/devices/{device}/hwmon/hwmon{number}"
    return {f"{base}/name": f"{name}\n", **{f"{base}/{key}": f"{value}\n" for key, value in files.items()}}


def draw(make_root: MakeRoot, *chips: dict[str, str]) -> Path:
    folder: Path = make_root(*chips)
    for files in chips:
        base = next(iter(files)).rpartition("/")[0]
        name = base.rpartition("/")[2]
        link = folder / "sys/class/hwmon" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../{base.removeprefix('sys/')}")
        (folder / base / "device").symlink_to("../..")
    return folder


def read(make_root: MakeRoot, *chips: dict[str, str]) -> tuple[Inventory, dict[str, SensorReading]]:
    found = host.read(draw(make_root, *chips))
    assert found.sensors is not None
    return found, {one.id: one for one in found.sensors.readings}


@pytest.mark.case("THM-07")
def test_impossible_temperatures_count_for_nothing_and_are_listed(make_root: MakeRoot) -> None:
    raw = ("127000", "4294948300", "511000", "-650788984", "-128000", "0", "45000")
    board = {f"temp{place}_input": value for place, value in enumerate(raw, 1)}
    package = {"temp1_input": "62000", "temp1_label": "Package id 0"}
    _, by_id = read(
        make_root,
        chip(0, "nct6798", "platform/nct6775.656", **board),
        chip(1, "coretemp", "platform/coretemp.0", **package),
    )
    good = {one.value for one in by_id.values() if one.state is State.OK}
    assert good == {45.0, 62.0}
    bad = [one for one in by_id.values() if one.state is State.FAILED]
    assert len(bad) == 6 and all(one.value is None and one.reason for one in bad)
    assert "suspicious" in (by_id["nct6798 nct6775.656 temp6"].reason or "")
    # A processor may be at 127 degrees only on paper, but its driver knows no such sentinel.
    assert sensors.plausible(127.0, "temperature", board=False) == 127.0


@pytest.mark.case("THM-08")
def test_numbers_that_change_at_boot_change_no_sensor(make_root: MakeRoot, tmp_path: Path) -> None:
    cpu = ("k10temp", "pci0000:00/0000:00:18.3", {"temp1_input": "45250", "temp1_label": "Tctl"})
    disk = (
        "nvme",
        "pci0000:40/0000:41:00.0/nvme/nvme0",
        {"temp1_input": "40850", "temp1_label": "Composite"},
    )
    first = host.read(draw(make_root, chip(2, *cpu[:2], **cpu[2]), chip(5, *disk[:2], **disk[2])))
    other = type(make_root)(tmp_path / "again")
    second = host.read(draw(other, chip(2, *disk[:2], **disk[2]), chip(5, *cpu[:2], **cpu[2])))
    assert first.sensors is not None and second.sensors is not None
    ids = {"k10temp 0000:00:18.3 Tctl", "nvme 0000:41:00.0 Composite"}
    assert {one.id for one in first.sensors.readings} == {one.id for one in second.sensors.readings} == ids
    by_id = {one.id: one for one in second.sensors.readings}
    assert by_id["nvme 0000:41:00.0 Composite"].of == "nvme0"
    assert host.stable(first)["sensors"] == host.stable(second)["sensors"]


TCCD = {f"temp{number + 2}_input": "41000" for number in range(1, 9)} | {
    f"temp{number + 2}_label": f"Tccd{number}" for number in range(1, 9)
}


@pytest.mark.case("THM-09")
@pytest.mark.parametrize(
    ("chips", "label", "offset"),
    [
        ([("k10temp", {"temp1_input": "52000", "temp1_label": "Tctl", **TCCD})], "Tctl", True),
        (
            [
                (
                    "zenpower",
                    {
                        "temp1_input": "47000",
                        "temp1_label": "Tdie",
                        "temp2_input": "57000",
                        "temp2_label": "Tctl",
                    },
                )
            ],
            "Tdie",
            False,
        ),
        ([("k10temp", {"temp1_input": "52000", "temp1_crit": "70000"})], "temp1", True),
    ],
)
def test_the_temperature_of_amd_sockets(
    make_root: MakeRoot, chips: list[tuple[str, dict[str, str]]], label: str, offset: bool
) -> None:
    """Both sockets of the machine have the same chip, at 00:18.3 and 00:19.3."""
    drawn = [
        chip(number, name, f"pci0000:00/0000:00:{0x18 + number:x}.3", **files)
        for number in (0, 1)
        for name, files in chips
    ]
    found, _ = read(make_root, *drawn)
    assert found.sensors is not None
    temperatures = sensors.cpu_temperatures(found.sensors.readings)
    assert {package: one.label for package, one in temperatures.items()} == {"0": label, "1": label}
    assert all(one.offset is offset for one in temperatures.values())
    if label == "temp1":
        assert [sensors.headroom(one) for one in temperatures.values()] == [18.0, 18.0]


@pytest.mark.case("THM-09")
def test_the_temperature_of_intel_sockets(make_root: MakeRoot) -> None:
    drawn = [
        chip(
            number,
            "coretemp",
            f"platform/coretemp.{number}",
            temp1_input="61000",
            temp1_label=f"Package id {number}",
            temp1_max="82000",
            temp1_crit="92000",
            temp2_input="70000",
            temp2_label="Core 0",
        )
        for number in (1, 0)
    ]
    found, _ = read(make_root, *drawn)
    assert found.sensors is not None
    temperatures = sensors.cpu_temperatures(found.sensors.readings)
    assert {package: (one.value, sensors.headroom(one)) for package, one in temperatures.items()} == {
        "0": (61.0, 21.0),
        "1": (61.0, 21.0),
    }


@pytest.mark.case("THM-10")
def test_both_drivers_of_memory_modules(make_root: MakeRoot) -> None:
    ddr5 = {"temp1_input": "33500", "temp1_max": "55000", "temp1_crit": "85000"}
    found, by_id = read(
        make_root,
        chip(0, "spd5118", "pci0000:00/0000:00:1f.4/i2c-3/3-0051", **ddr5),
        chip(1, "spd5118", "pci0000:00/0000:00:1f.4/i2c-3/3-0053", **ddr5),
        chip(2, "jc42", "pci0000:00/0000:00:1f.4/i2c-0/0-0018", temp1_input="36000"),
    )
    assert {one.role for one in by_id.values()} == {"module"} and len(by_id) == 3
    first = by_id["spd5118 3-0051 temp1"]
    assert (first.value, first.maximum, first.critical) == (33.5, 55.0, 85.0)
    # Without the firmware's table the number of modules is not known, so that none is missed.
    assert "modules_without_sensor" not in {finding.code for finding in found.findings}


@pytest.mark.case("THM-10")
def test_modules_without_a_sensor_are_counted(make_inventory: Any) -> None:
    from k3gate.host import findings
    from k3gate.records import Sensors

    one = SensorReading(
        "spd5118 3-0051 temp1", "spd5118", "temp1", "temperature", "degC", "module", value=33.5
    )
    bare = make_inventory("bare_metal", sensors=Sensors(readings=(one,)))
    (finding,) = [one for one in findings.find(bare) if one.code == "modules_without_sensor"]
    assert finding.observed == "1 of 16"


def test_fans_power_and_faults(make_root: MakeRoot) -> None:
    _, by_id = read(
        make_root,
        chip(
            0,
            "nct6798",
            "platform/nct6775.656",
            fan1_input="1098",
            fan2_input="0",
            temp1_input="30000",
            temp1_fault="1",
            in0_input="792",
            power1_average="187000000",
        ),
    )
    fan = by_id["nct6798 nct6775.656 fan1"]
    assert (fan.value, fan.unit, fan.quantity) == (1098.0, "rpm", "fan")
    assert by_id["nct6798 nct6775.656 fan2"].value == 0.0
    assert by_id["nct6798 nct6775.656 temp1"].state is State.FAILED
    assert by_id["nct6798 nct6775.656 in0"].value == pytest.approx(0.792)
    assert by_id["nct6798 nct6775.656 power1"].value == pytest.approx(187.0)


def test_a_sensor_at_its_limit_is_a_finding(make_root: MakeRoot) -> None:
    found, _ = read(
        make_root,
        chip(
            0,
            "coretemp",
            "platform/coretemp.0",
            temp1_input="95000",
            temp1_max="90000",
            temp1_label="Package id 0",
        ),
    )
    (finding,) = [one for one in found.findings if one.code == "hot"]
    assert finding.observed == "coretemp coretemp.0 Package id 0: 95 of 90 degC"


def test_a_machine_without_sensors_says_how_to_get_them(make_root: MakeRoot) -> None:
    found = host.read(make_root())
    note = found.provenance["sensors.readings"]
    assert note.state is State.NOT_PRESENT and "k10temp or coretemp" in (note.reason or "")
