"""Sums over a socket that has several nodes (NPS, SNC): every core on the memory of its own node."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from planning import case_of, names_of, plan_of, with_nodes

from k3gate import host, topology
from k3gate.records import Dimm, Inventory, NumaNode, Profile

STANDARD = Profile("standard", 1200.0)


def _split(inventory: Inventory, nodes: int) -> Inventory:
    """The synthetic server with its two sockets cut into `nodes` nodes in all."""
    each = 64 // nodes
    return with_nodes(
        inventory,
        *(
            NumaNode(
                node,
                tuple(cpu + add for add in (0, 64) for cpu in range(node * each, (node + 1) * each)),
                768 * 2**30 // nodes,
                760 * 2**30 // nodes,
                "dram",
                {node: 10},
            )
            for node in range(nodes)
        ),
    )


@pytest.mark.parametrize("nodes", [4, 8])
def test_a_socket_of_several_nodes_is_read_by_all_its_cores_each_on_its_own_node(
    make_inventory, nodes: int
) -> None:
    planned = plan_of(_split(make_inventory("bare_metal"), nodes), STANDARD)
    assert {name for name in names_of(planned) if "socket" in name} == {"read.socket0", "read.socket1"}
    case = case_of(planned, "read.socket1")
    assert case.labels["scope"] == "socket" and case.labels["socket"] == 1
    assert case.labels["threads"] == 32 and case.labels["cpu_node"] is None
    pools = case.parameters["pools"]
    assert [spec["node"] for spec in pools] == list(range(nodes // 2, nodes))
    assert all(spec["touch"] == cpus for spec, cpus in zip(pools, case.parameters["readers"], strict=True))
    assert sorted(cpu for cpus in case.parameters["readers"] for cpu in cpus) == list(range(32, 64))
    assert case.labels["cache_bytes"] == 60 * 2**20
    assert case.bytes >= 4 * (60 + 32 * 2) * 2**20


def test_a_socket_of_one_node_has_no_sum_of_its_own_and_one_socket_is_the_machine(make_inventory) -> None:
    inventory = make_inventory("bare_metal")
    assert not any("socket" in name for name in names_of(plan_of(inventory, STANDARD)))
    split = _split(inventory, 4)
    alone = attrs.evolve(split, cpu=attrs.evolve(split.cpu, package_of=dict.fromkeys(range(128), 0)))
    assert not any("socket" in name for name in names_of(plan_of(alone, STANDARD)))


def test_the_paper_rate_of_a_socket_is_that_of_its_nodes(make_inventory) -> None:
    inventory = _split(make_inventory("bare_metal"), 8)
    rate, words = topology.paper_share(inventory, {"scope": "socket", "socket": 1})
    assert rate == pytest.approx(8 * 5600e6 * 8)
    assert "socket" in words
    assert topology.paper_share(inventory, {"scope": "socket", "socket": 7})[0] is None


def test_a_part_of_uneven_memory_is_limited_by_the_machine_alone(make_inventory) -> None:
    inventory = make_inventory("bare_metal")
    labels = {"scope": "node", "cpu_node": 0, "memory_node": 0}
    assert topology.paper_limit(inventory, labels) == pytest.approx(8 * 5600e6 * 8)
    first, second = inventory.numa.nodes
    uneven = with_nodes(inventory, first, attrs.evolve(second, memory_bytes=first.memory_bytes // 2))
    assert topology.paper_limit(uneven, labels) == pytest.approx(16 * 5600e6 * 8)
    # The same amount on both sockets, on half as many channels of one.
    dimms = [Dimm(socket=0, channel=str(n), kind="dram", bytes=32 << 30) for n in range(8)]
    dimms += [Dimm(socket=1, channel=str(n), kind="dram", bytes=64 << 30) for n in range(4)]
    unlike = attrs.evolve(inventory, memory=attrs.evolve(inventory.memory, dimms=tuple(dimms)))
    assert topology.paper_limit(unlike, labels) == pytest.approx(16 * 5600e6 * 8)


@pytest.mark.parametrize(
    ("name", "sockets"),
    [
        ("hwloc-4s-opteron-8nodes-uneven", {0: [0, 1], 1: [2, 3], 2: [4, 5], 3: [6, 7]}),
        ("hwloc-2s-arm-kunpeng-4nodes", {36: [0, 1], 8442: [2, 3]}),
        ("utillinux-2s-epyc7451-naples", {0: [0, 1, 2, 3], 1: [4, 5, 6, 7]}),
        ("nri-2s-xeon-snc2-scattered-cores", {0: [0, 1], 1: [2, 3]}),
        ("hwloc-2s-xeon-broken-numa", {}),
    ],
)
def test_captured_machines_with_several_nodes_a_socket(
    shared_machines: Path, name: str, sockets: dict[int, list[int]]
) -> None:
    inventory = host.read(shared_machines / name / "sysroot.tar.bz2")
    known = attrs.evolve(inventory.limits, usable_memory_bytes=2**40)  # some captures have no meminfo
    planned = plan_of(attrs.evolve(inventory, limits=known), STANDARD)
    found = {
        case.labels["socket"]: [spec["node"] for spec in case.parameters["pools"]]
        for case in planned.cases
        if case.labels.get("scope") == "socket"
    }
    left_out = {one.case for one in planned.left_out if "socket" in one.case}
    assert found == sockets, left_out
