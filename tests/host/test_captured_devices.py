"""Sensors, drives, energy counters and links of the captured machines, against their expected.json.

The folder of sensors was put together from several machines: not all of it can be reached as the kernel links it,
so each part is read where it lies.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from k3gate import host
from k3gate.host import counters, drives, pcie, power, sensors
from k3gate.host.files import Root, open_root
from k3gate.host.notes import Notes
from k3gate.records import Cpu

MACHINES = Path(__file__).resolve().parents[3] / "shared" / "machines"
FOLDER = MACHINES / "sensors-node-exporter-fixture"

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="the captured machines are not beside the checkout"
)


@pytest.fixture(scope="module")
def root() -> Root:
    return open_root(FOLDER / "sysroot.tar.bz2")


@pytest.fixture(scope="module")
def wanted() -> dict[str, Any]:
    told: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text())
    return told


def test_every_temperature(root: Root, wanted: dict[str, Any]) -> None:
    left = {name: int(text) / 1000 for name, text in wanted["hwmon_temperatures_millidegree"].items()}
    for folder in sorted({name.rpartition("/")[0] for name in left}):
        for one in sensors._chip(root, folder):
            if one.quantity == "temperature":
                assert one.value == pytest.approx(left.pop(str(one.source)))
    assert not left


def test_the_temperatures_that_the_kernel_links(root: Root) -> None:
    found = host.read(root).sensors
    assert found is not None
    by_id = {one.id: one for one in found.readings}
    package = by_id["coretemp coretemp.0 Physical id 0"]
    assert (package.value, package.maximum, package.critical, package.role) == (55.0, 84.0, 100.0, "cpu")
    assert by_id["nct6779 nct6775.656 fan2"].value == 1098.0


def test_the_energy_counters(root: Root, wanted: dict[str, Any]) -> None:
    told = {name.removeprefix("sys/class/powercap/"): text for name, text in wanted["rapl"].items()}
    found = {one.id: one for one in power.read(root, Notes())}
    package, core = found["rapl package-0"], found["rapl package-0 core"]
    assert (package.domain, core.domain) == (told["intel-rapl:0/name"], told["intel-rapl:0:0/name"])
    assert package.range_j == pytest.approx(int(told["intel-rapl:0/max_energy_range_uj"]) * 1e-6)
    limit = int(told["intel-rapl:0/constraint_0_power_limit_uw"]) * 1e-6
    assert package.limits == {"long_term": pytest.approx(limit), "short_term": pytest.approx(limit)}
    assert core.limits == {} and core.package == package.package == 0
    for zone, name in ((package, "intel-rapl:0"), (core, "intel-rapl:0:0")):
        assert root.line(str(zone.source)) == told[f"{name}/energy_uj"]


def test_the_links(root: Root, wanted: dict[str, Any]) -> None:
    told = wanted["pci_links"]
    for device in sorted({name.rpartition("/")[0] for name in told}):
        link = pcie.link(root, device)
        assert link is not None
        assert link.gt_per_s == float(told[f"{device}/current_link_speed"].split()[0])
        assert link.width == int(told[f"{device}/current_link_width"])
    drive = pcie.link(root, "sys/devices/pci0000:00/0000:00:02.1/0000:01:00.0/nvme/nvme0")
    # The drive could do 16 GT/s, the port above it 8 GT/s on more lanes: nothing is below its best.
    assert drive is not None and (drive.best_gt_per_s, drive.best_width) == (8.0, 4)
    assert drive.bytes_per_s == drive.best_bytes_per_s == pytest.approx(8e9 * 4 / 8 * 128 / 130)


def test_the_link_errors(root: Root, wanted: dict[str, Any]) -> None:
    found = {one.id: one.value for one in counters.links(root)}
    for name, text in wanted["aer"].items():
        address, file = name.split("/")[-2:]
        total = re.search(r"TOTAL_ERR_\w+ (\d+)", text)
        assert total is not None
        assert found[f"aer {address} {file.removeprefix('aer_dev_')}"] == int(total[1])


def test_the_drives(root: Root, wanted: dict[str, Any]) -> None:
    told = {name.removeprefix("sys/class/nvme/nvme0/"): text for name, text in wanted["nvme"].items()}
    (drive,) = drives.read(root, Notes()) or ()
    assert (drive.model, drive.firmware, drive.state) == (told["model"], told["firmware_rev"], told["state"])
    assert (drive.kind, drive.controller, drive.logical_block_bytes) == ("nvme", "nvme0", 4096)


def test_throttling_of_the_folder(root: Root) -> None:
    cpu = Cpu(online=(0, 1, 2, 3), package_of={0: 0, 1: 0, 2: 1, 3: 1}, siblings=((0,), (1,), (2,), (3,)))
    found = {one.id: one.value for one in counters.throttling(root, cpu)}
    base = "sys/devices/system/cpu/cpu{}/thermal_throttle/{}_throttle_count"
    values = {cpu: int(root.line(base.format(cpu, "core")) or 0) for cpu in range(4)}
    assert found["throttle cores 0"] == values[0] + values[1]
    assert found["throttle package 1"] == int(root.line(base.format(2, "package")) or 0)


def test_drives_and_persistent_memory_of_a_server() -> None:
    found = host.read(MACHINES / "hwloc-2s-xeon-e5-nvme-dimms-dax" / "sysroot.tar.bz2").storage
    assert found is not None
    by_name = {drive.name: drive for drive in found.drives}
    nvme, disk = by_name["nvme0n1"], by_name["sda"]
    assert (nvme.kind, nvme.bytes, nvme.rotational) == ("nvme", 400_088_457_216, False)
    # The firmware tells -1 for the node of 0000:00:02.0, and 0 for that of the disk's adapter.
    assert (nvme.node, disk.node) == (None, 0)
    assert (disk.kind, disk.model, disk.rotational) == ("sata", "ST9250610NS", True)
    assert {name for name, drive in by_name.items() if drive.kind == "pmem" and drive.node == 1} == {
        "pmem1",
        "pmem1.1s",
        "pmem1.2",
    }
