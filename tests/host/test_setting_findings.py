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
