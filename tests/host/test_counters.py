"""What the kernel counted: throttling, link errors, machine checks, memory errors."""

from __future__ import annotations

from typing import Any

from k3gate import host
from k3gate.host import counters
from k3gate.host.files import Root
from k3gate.records import Edac, EdacController, EdacModule

MakeRoot = Any
PORT = "sys/bus/pci/devices/0000:41:00.0"


def test_throttling_is_counted_once_a_package_and_once_a_core(make_root: MakeRoot) -> None:
    files = {}
    for cpu in range(8):
        base = f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle"
        # Four cores of two threads; cores 0 and 1 are in package 0, which the CPUs of one package tell alike.
        files[f"{base}/package_throttle_count"] = f"{5 if cpu % 4 < 2 else 0}\n"
        files[f"{base}/core_throttle_count"] = f"{cpu % 4 + 1}\n"
    found = host.read(make_root(files))
    assert found.sensors is not None
    assert {one.id: one.value for one in found.sensors.counters} == {
        "throttle package 0": 5,
        "throttle cores 0": 1 + 2,
        "throttle cores 1": 3 + 4,
    }
    (finding,) = [one for one in found.findings if one.code == "events_counted"]
    assert "CPU package 0, as a whole: 5" in finding.observed


def test_link_errors_and_machine_checks(make_root: MakeRoot) -> None:
    interrupts = (
        "           CPU0       CPU1\n"
        " 24:          9          9  PCI-MSI  eth0-secret\n"
        "TRM:          1          2   Thermal event interrupts\n"
        "MCE:          0          1   Machine check exceptions\n"
    )
    folder = make_root(
        {
            f"{PORT}/aer_dev_correctable": "RxErr 3\nBadTLP 4\nTOTAL_ERR_COR 7\n",
            f"{PORT}/aer_dev_nonfatal": "Undefined 0\nTOTAL_ERR_NONFATAL 0\n",
            f"{PORT}/aer_dev_fatal": "broken\n",
            "proc/interrupts": interrupts,
        }
    )
    found = host.read(folder)
    assert found.sensors is not None
    assert {one.id: (one.kind, one.value) for one in found.sensors.counters} == {
        "aer 0000:41:00.0 correctable": ("corrected", 7),
        "interrupt TRM": ("throttle", 3),
        "interrupt MCE": ("uncorrected", 1),
    }
    assert [one.severity.value for one in found.findings if one.code == "link_errors"] == ["high", "low"]


def test_zeros_are_counters_too() -> None:
    module = EdacModule("dimm3", label="CPU0_DIMM_C1", corrected=0, uncorrected=0)
    edac = Edac(True, (EdacController("mc0", corrected=1, uncorrected=0, modules=(module,)),), 1, 0)
    found = {one.id: one for one in counters.memory(edac)}
    assert {name: one.value for name, one in found.items()} == {
        "edac mc0 corrected": 1,
        "edac mc0 uncorrected": 0,
        "edac mc0/dimm3 corrected": 0,
        "edac mc0/dimm3 uncorrected": 0,
    }
    assert found["edac mc0/dimm3 corrected"].domain == "memory module CPU0_DIMM_C1 of mc0"
    assert list(counters.memory(None)) == []


def test_a_guest_counts_nothing_and_says_so(make_root: MakeRoot) -> None:
    root = make_root()
    assert list(counters.links(Root(root))) == []
    assert "guest" in (host.read(root).provenance["sensors.counters"].reason or "")
