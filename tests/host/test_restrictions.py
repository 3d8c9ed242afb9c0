"""CPUs and memory that the machine has and the kernel does not use, as a buyer reads of them."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from k3gate.host import findings, restrictions
from k3gate.records import Cpu, CpuSocket, Finding, Inventory, Kernel, Limits, Memory, Numa

GIB = 2**30
SOCKET = CpuSocket("CPU1", populated=True, cores=32, threads=64, status="enabled", cores_enabled=32)
TWO = (SOCKET, attrs.evolve(SOCKET, designation="CPU2"))
EMPTY = CpuSocket("CPU3", populated=False)


def found(inventory: Inventory) -> dict[str, Finding]:
    codes = {
        *("offline_cpus", "processors_disabled", "cores_disabled", "cpus_not_seen", "memory_option"),
        *("isolated_cpus", "cgroup_cpu_quota", "cgroup_memory_limit", "cpuset_mems"),
    }
    return {one.code: one for one in findings.find(inventory) if one.code in codes}


def running(cpus: int, *, smt: bool = True) -> dict[str, Any]:
    """What the kernel knows of that many CPUs."""
    ids = tuple(range(cpus))
    return {"present": ids, "online": ids, "allowed": ids, "smt": smt, "package_of": {}}


@pytest.mark.parametrize(
    ("cpu", "sockets"),
    [
        (running(128), TWO),
        (running(128), (*TWO, EMPTY)),
        (running(64, smt=False), TWO),  # SMT off in the firmware, which counts the threads nevertheless
        (running(16), ()),
        (running(16), (attrs.evolve(SOCKET, cores=None, cores_enabled=None),)),
        (running(64), (attrs.evolve(SOCKET, cores_enabled=None, status=None),)),
        (running(128), (attrs.evolve(SOCKET, cores=64, threads=128, cores_enabled=64, status="idle"),)),
    ],
)
def test_whole_machines(make_inventory: Any, cpu: dict[str, Any], sockets: Any) -> None:
    assert found(make_inventory("bare_metal", cpu={**cpu, "socket_list": sockets})) == {}


@pytest.mark.parametrize(
    ("cpus", "smt", "observed"),
    [
        (
            16,
            False,
            "16 CPUs in the kernel; the firmware tells of 2 processors with 64 cores; nr_cpus=16 at boot",
        ),
        (100, True, "100 CPUs in the kernel; the firmware tells of 2 processors with 128 threads"),
    ],
)
def test_fewer_cpus_than_the_processors_have(
    make_inventory: Any, cpus: int, smt: bool, observed: str
) -> None:
    kernel = {"command_line": "ro quiet nr_cpus=16"}
    inventory = make_inventory(
        "bare_metal", cpu={**running(cpus, smt=smt), "socket_list": TWO}, kernel=kernel
    )
    finding = found(inventory)["cpus_not_seen"]
    assert finding.observed.startswith(observed)
    assert finding.remedy.startswith("Boot without nr_cpus=16")
    plain = attrs.evolve(inventory, kernel=Kernel(command_line="ro quiet"))
    assert "kernel's log" in found(plain)["cpus_not_seen"].remedy
    guest = attrs.evolve(inventory, machine=attrs.evolve(inventory.machine, virtual=True))
    assert found(attrs.evolve(guest, kernel=Kernel())) == {}


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("nr_cpus=16", "nr_cpus=16"),
        ("nr_cpus=2 nr_cpus=16", "nr_cpus=16"),
        ("possible_cpus=8", "possible_cpus=8"),
        ("maxcpus=16", "maxcpus=16"),
        ("nosmp", "nosmp"),
        ("nr_cpus=17", None),
        ("xnr_cpus=2 nr_cpus=many", None),
        ("ro -- nr_cpus=2", None),
    ],
)
def test_an_option_may_hide_cpus_where_no_table_counts_them(
    make_inventory: Any, line: str, option: str | None
) -> None:
    inventory = make_inventory("bare_metal", cpu=running(16), kernel={"command_line": f"{line} quiet"})
    told = found(inventory).get("cpus_not_seen")
    assert (told is not None) is (option is not None)
    if told is not None:
        assert told.observed == f"16 CPUs in the kernel; {option} at boot"
        assert told.remedy == f"Boot without {option}."
    whole = attrs.evolve(SOCKET, cores=8, threads=16, cores_enabled=8)
    assert found(attrs.evolve(inventory, cpu=attrs.evolve(inventory.cpu, socket_list=(whole,)))) == {}


def test_what_the_firmware_has_switched_off(make_inventory: Any) -> None:
    off = attrs.evolve(SOCKET, designation="CPU2", status="disabled by the firmware")
    inventory = make_inventory("bare_metal", cpu={**running(64), "socket_list": (SOCKET, off)})
    seen = found(inventory)
    assert list(seen) == ["processors_disabled"]
    assert seen["processors_disabled"].title == "1 processor of 2 is disabled"
    assert seen["processors_disabled"].observed == "CPU2 (disabled by the firmware)"
    few = tuple(attrs.evolve(one, cores_enabled=8) for one in TWO)
    seen = found(make_inventory("bare_metal", cpu={**running(32), "socket_list": few}))
    assert list(seen) == ["cores_disabled"]
    assert seen["cores_disabled"].observed == "cores enabled in CPU1: 8 of 32, CPU2: 8 of 32"


def test_cpus_that_are_offline_and_siblings_that_are_off_on_purpose(make_inventory: Any) -> None:
    half = {**running(128), "online": tuple(range(64)), "offline": tuple(range(64, 128)), "smt": False}
    inventory = make_inventory("bare_metal", cpu={**half, "smt_control": "off"})
    assert found(inventory) == {}
    on = attrs.evolve(inventory, cpu=attrs.evolve(inventory.cpu, smt_control="on"))
    assert found(on)["offline_cpus"].title == "64 CPUs are offline"
    assert "maxcpus" not in found(on)["offline_cpus"].remedy
    booted = attrs.evolve(on, kernel=Kernel(command_line="maxcpus=64"))
    assert list(found(booted)) == ["offline_cpus"]
    assert "maxcpus=64 at boot" in found(booted)["offline_cpus"].observed
    fewer = attrs.evolve(inventory.cpu, online=tuple(range(63)), offline=tuple(range(63, 128)))
    assert "offline_cpus" in found(attrs.evolve(inventory, cpu=fewer))


@pytest.mark.parametrize(
    ("option", "dram", "restricts"),
    [
        ("mem=64G", None, True),
        ("mem=800G", None, True),
        ("mem=4T", None, False),
        ("mem=768G", 1536 * GIB, True),
        ("mem=2T", 1536 * GIB, False),
        ("mem=nopentium", None, False),
        ("quiet", 1536 * GIB, False),
    ],
)
def test_memory_that_the_kernel_was_told_to_leave_out(
    make_inventory: Any, option: str, dram: int | None, restricts: bool
) -> None:
    inventory = make_inventory("bare_metal", kernel={"command_line": option}, memory={"dram_bytes": dram})
    told = found(inventory).get("memory_option")
    assert (told is not None) is restricts
    if told is not None:
        assert told.observed.startswith(f"{option} at boot; it uses 768 GiB")


def test_isolated_cpus_are_named(make_inventory: Any) -> None:
    inventory = make_inventory("bare_metal", kernel={"command_line": "isolcpus=managed_irq,2-63"})
    assert found(inventory)["isolated_cpus"].observed == "isolcpus=managed_irq,2-63 at boot"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"cgroup_memory_bytes": 100 * GIB},
            "a control group gave the run 107.4 GB of memory, whose amount is not known",
        ),
        ({"cgroup_cpus": 2.0}, "a control group gave the run the time of 2.00 of an unknown number of CPUs"),
    ],
)
def test_a_limit_of_an_unknown_whole_restricts(changes: dict[str, Any], words: str) -> None:
    told = restrictions.of_process(Cpu(), Memory(), Limits(**changes), Numa(available=False))
    assert [one.sentence for one in told] == [words]
