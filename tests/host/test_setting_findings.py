"""Settings and use of a machine that cost K3 speed or room are told with what changes them."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from k3gate import host, topology
from k3gate.host import setting_findings
from k3gate.records import Amx, HugePagePool, Numa, NumaNode

GIB = 2**30


def codes(inventory: Any) -> set[str]:
    found = list(setting_findings.find(inventory))
    assert all(one.remedy and one.why and one.expected for one in found)
    return {one.code for one in found}


@pytest.mark.parametrize(
    ("part", "changes", "code"),
    [
        ("cpu", {"boost": False}, "boost_off"),
        ("cpu", {"amx": Amx(tile=True, int8=True, bf16=True, granted=False)}, "amx_refused"),
        ("kernel", {"overcommit_memory": 2}, "overcommit_strict"),
        ("memory", {"total_bytes": 100 * GIB, "available_bytes": 70 * GIB}, "memory_in_use"),
    ],
)
def test_each_is_told_alone(make_root: Any, part: str, changes: dict[str, Any], code: str) -> None:
    inventory = host.read(make_root())
    assert codes(inventory) == set()
    changed = attrs.evolve(getattr(inventory, part), **changes)
    assert codes(attrs.evolve(inventory, **{part: changed})) == {code}


def test_reserved_huge_pages_are_not_in_use(make_root: Any) -> None:
    inventory = host.read(make_root())
    memory = attrs.evolve(inventory.memory, total_bytes=100 * GIB, available_bytes=10 * GIB)
    kernel = attrs.evolve(inventory.kernel, huge_pages=(HugePagePool(GIB, 85, 85),))
    assert codes(attrs.evolve(inventory, memory=memory, kernel=kernel)) == set()


@pytest.mark.parametrize(
    ("gib", "uneven"), [((693, 756), True), ((744, 756), False), ((15, 16), False), ((720, 756), True)]
)
def test_a_node_that_lacks_one_module_of_sixteen_is_uneven(gib: tuple[int, int], uneven: bool) -> None:
    """The only sign that a user has who may not read the firmware's table."""
    nodes = tuple(NumaNode(n, (n,), size * GIB, kind="dram") for n, size in enumerate(gib))
    assert bool(topology.uneven(Numa(True, nodes))) is uneven


@pytest.mark.case("ISA-05")
@pytest.mark.parametrize(
    ("cpu", "virtual", "release", "cause"),
    [
        ({"model_number": 143, "model": "Intel(R) Xeon(R) Processor"}, True, "6.8.0", "hypervisor (kvm)"),
        ({"model_number": 143, "model": "Intel(R) Xeon(R) Processor"}, False, "5.4.0-190", "older than 5.16"),
        ({"model_number": 6, "model": "Intel(R) Xeon(R) Platinum 8480+"}, True, "6.8.0", "hypervisor (kvm)"),
        ({"model_number": 143, "model": "Intel(R) Xeon(R) Processor"}, False, "6.8.0", "firmware"),
    ],
)
def test_isa_05_amx_that_the_model_promises_and_the_flags_lack_is_hidden(
    make_inventory: Any, cpu: dict[str, Any], virtual: bool, release: str, cause: str
) -> None:
    """Such a system is no prototype for a runtime that needs AMX, and says so."""
    hidden = Amx(tile=False, int8=False, bf16=False, granted=None)
    machine = {"virtual": virtual, "hypervisor": "kvm" if virtual else None}
    inventory = make_inventory(
        "bare_metal", cpu={**cpu, "amx": hidden}, machine=machine, kernel={"release": release}
    )
    [found] = [one for one in setting_findings.find(inventory) if one.code == "amx_hidden"]
    assert found.title == "The CPU model has AMX, hidden here"
    assert cause in found.observed and "no prototype" in found.why


@pytest.mark.case("ISA-03")
@pytest.mark.parametrize(
    "cpu",
    [
        {"model_number": 106, "model": "Intel(R) Xeon(R) Platinum 8358 CPU @ 2.60GHz"},
        {"model_number": 175, "model": "Intel(R) Xeon(R) 6780E"},
        {
            "vendor": "AuthenticAMD",
            "family": 25,
            "model_number": 143,
            "model": "AMD EPYC 9654 96-Core Processor",
        },
    ],
)
def test_isa_03_a_model_without_amx_hides_none(make_inventory: Any, cpu: dict[str, Any]) -> None:
    none = Amx(tile=False, int8=False, bf16=False, granted=None)
    inventory = make_inventory("bare_metal", cpu={**cpu, "amx": none})
    assert "amx_hidden" not in {one.code for one in setting_findings.find(inventory)}
