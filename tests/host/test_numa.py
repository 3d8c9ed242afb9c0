"""NUMA nodes by real ids, memory kinds, contradictions."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from k3gate import host
from k3gate.host import text
from k3gate.records import State
from k3gate.topology import nodes_of_packages

MakeRoot = Any
NODE = "sys/devices/system/node"
CPU = "sys/devices/system/cpu"


@pytest.mark.case("TOP-01")
def test_top_01_gaps_and_dies_without_memory(make_root: MakeRoot) -> None:
    """TOP-01: four nodes by their real ids, 1 and 3 without memory."""
    siblings = [[n, n + 24] for n in range(24)]
    layout = {
        0: ("0-5,24-29", 63),
        1: ("6-11,30-35", 0),
        2: ("12-17,36-41", 63),
        3: ("18-23,42-47", 0),
    }
    inventory = host.read(
        make_root(make_root.processors(siblings), make_root.nodes(layout), make_root.meminfo(126), bare=True)
    )
    assert [node.id for node in inventory.numa.nodes] == [0, 1, 2, 3]
    assert [node.memory_bytes for node in inventory.numa.nodes] == [63 * 2**30, 0, 63 * 2**30, 0]
    finding = next(f for f in inventory.findings if f.code == "nodes_without_memory")
    assert finding.severity == "high"
    assert finding.title.startswith("Nodes 1,3 ")
    page = text.page(inventory)
    assert "node 1: no memory, 12 CPUs 6-11,30-35" in page
    assert "node 1: 0" not in page


@pytest.mark.case("TOP-01")
def test_top_01_node_numbers_with_gaps(make_root: MakeRoot) -> None:
    """TOP-01: nodes 0, 8 and 250 keep their numbers, also in the distances."""
    layout = {0: ("0-1,4-5", 32), 8: ("2-3,6-7", 32), 250: ("", 16)}
    rows = {0: [10, 40, 80], 8: [40, 10, 80], 250: [80, 80, 10]}
    root = make_root(
        make_root.processors([[0, 4], [1, 5], [2, 6], [3, 7]]), make_root.nodes(layout, rows), bare=True
    )
    nodes = host.read(root).numa.nodes
    assert [node.id for node in nodes] == [0, 8, 250]
    assert dict(nodes[1].distances) == {0: 40, 8: 10, 250: 80}


@pytest.mark.case("TOP-03")
def test_top_03_nodes_without_cpus_are_of_unknown_kind_and_not_summed(make_root: MakeRoot) -> None:
    """TOP-03: nodes 8-15 have memory and no CPUs; their kind is not guessed and not added to DRAM."""
    layout = {n: (str(n), 31) for n in range(8)} | dict.fromkeys(range(8, 16), ("", 16))
    rows = {n: [10 if m == n else 13 if m == n + 8 else 24 for m in range(16)] for n in range(16)}
    root = make_root(make_root.processors([[n] for n in range(8)]), make_root.nodes(layout, rows), bare=True)
    inventory = host.read(root)
    assert [node.kind for node in inventory.numa.nodes] == ["dram"] * 8 + ["unknown"] * 8
    assert inventory.provenance["numa.nodes.8.kind"].state is State.NOT_PRESENT
    remote = {m: d for m, d in inventory.numa.nodes[0].distances.items() if m != 0}
    assert min(remote, key=lambda m: remote[m]) == 8
    finding = next(f for f in inventory.findings if f.code == "nodes_without_cpus")
    assert "8-15" in finding.title
    assert "376" not in text.page(inventory)
    assert "376" not in finding.observed


@pytest.mark.case("TOP-03")
def test_top_03_the_nearest_cpu_node_is_taken_from_the_distances(make_root: MakeRoot) -> None:
    """TOP-03: beside nodes 8-15 stand nodes 0-7; a node with CPUs has no such neighbour."""
    layout = {n: (str(n), 31) for n in range(8)} | dict.fromkeys(range(8, 16), ("", 16))
    rows = {n: [10 if m == n else 13 if abs(m - n) == 8 else 24 for m in range(16)] for n in range(16)}
    root = make_root(make_root.processors([[n] for n in range(8)]), make_root.nodes(layout, rows), bare=True)
    inventory = host.read(root)
    assert [node.nearest for node in inventory.numa.nodes] == [None] * 8 + list(range(8))
    assert inventory.provenance["numa.nodes.8.nearest"].source == f"{NODE}/node8/distance"


@pytest.mark.case("TOP-11")
def test_top_11_contradictory_masks_are_named(make_root: MakeRoot) -> None:
    """TOP-11: node lists interleave with packages; node lists are kept, sockets unreliable, a VM."""
    files = make_root.processors([[n, n + 64] for n in range(64)], lambda cpu: cpu // 64, described=False)
    files["proc/cpuinfo"] = make_root.cpuinfo(range(128), "lm avx2 hypervisor")
    layout = {0: ("0-31,64-95", 64), 1: ("32-63,96-127", 64)}
    inventory = host.read(make_root(files, make_root.nodes(layout), make_root.meminfo(128), bare=True))
    assert inventory.machine.virtual is True
    assert len(inventory.numa.contradictions) == 1
    assert "node 0 spans packages 0-1" in inventory.numa.contradictions[0]
    assert inventory.numa.nodes[0].cpus == (*range(32), *range(64, 96))
    codes = [f.code for f in inventory.findings if f.severity == "high"]
    assert codes == ["virtual_machine", "topology_contradiction"]
    assert "2 (unreliable: the topology contradicts itself)" in text.page(inventory)


@pytest.mark.case("TOP-11")
def test_top_11_nodes_that_share_cpus(make_root: MakeRoot) -> None:
    """TOP-11: two nodes that claim one CPU, and a CPU of no node, are named."""
    inventory = host.read(make_root(make_root.nodes({0: ("0-3", 32), 1: ("3-6", 32)})))
    assert "nodes 0-1 all claim CPUs 3" in inventory.numa.contradictions
    assert "online CPUs belong to no node: 7" in inventory.numa.contradictions


def test_one_node_over_two_sockets_is_no_contradiction(make_root: MakeRoot) -> None:
    """NUMA switched off in firmware, or NPS0."""
    files = make_root.processors([[n] for n in range(8)], lambda cpu: cpu // 4)
    root = make_root(files, make_root.nodes({0: ("0-7", 64)}), make_root.meminfo(64), bare=True)
    assert host.read(root).numa.contradictions == ()


def test_distances_that_are_all_ten_are_not_believed(make_root: MakeRoot) -> None:
    layout = {0: ("0-1,4-5", 32), 1: ("2-3,6-7", 32)}
    inventory = host.read(make_root(make_root.nodes(layout, {0: [10, 10], 1: [10, 10]})))
    assert any("all distances are 10" in sentence for sentence in inventory.numa.contradictions)


@pytest.mark.parametrize("row", ["10", "10 20 30", "10 -5", "ten twenty"])
def test_an_impossible_distance_row_is_unknown(make_root: MakeRoot, row: str) -> None:
    inventory = host.read(make_root({f"{NODE}/node0/distance": row + "\n"}))
    assert dict(inventory.numa.nodes[0].distances) == {}
    assert inventory.provenance["numa.nodes.0.distances"].state is State.FAILED


@pytest.mark.parametrize("kilobytes", ["-5", "99999999999999999999"])
def test_impossible_node_memory_is_unknown_not_zero(make_root: MakeRoot, kilobytes: str) -> None:
    inventory = host.read(make_root({f"{NODE}/node0/meminfo": f"Node 0 MemTotal: {kilobytes} kB\n"}))
    assert inventory.numa.nodes[0].memory_bytes is None
    assert "implausible" in (inventory.provenance["numa.nodes.0.memory_bytes"].reason or "")


@pytest.mark.case("TOP-12")
def test_top_12_nodes_per_socket_can_be_derived(make_root: MakeRoot) -> None:
    """TOP-12: one package, nodes 0-3; the hint names the firmware setting. In NPS1 there is no hint."""
    files = make_root.processors([[n] for n in range(96)], described=False)
    layout = {n: (f"{n * 24}-{n * 24 + 23}", 96) for n in range(4)}
    rows = {n: [10 if m == n else 12 for m in range(4)] for n in range(4)}
    root = make_root(files, make_root.nodes(layout, rows), make_root.meminfo(384), bare=True)
    inventory = host.read(root)
    assert nodes_of_packages(inventory.cpu, inventory.numa) == {0: (0, 1, 2, 3)}
    finding = next(f for f in inventory.findings if f.code == "several_nodes_per_socket")
    assert finding.title == "4 NUMA nodes per socket"
    assert "firmware setting" in finding.remedy


@pytest.mark.case("TOP-12")
def test_top_12_the_same_machine_in_one_node(make_root: MakeRoot) -> None:
    """TOP-12: in NPS1 there is one node, no hint, and another fingerprint, so that no run is taken for the other."""
    files = make_root.processors([[n] for n in range(96)], described=False)
    layout = {n: (f"{n * 24}-{n * 24 + 23}", 96) for n in range(4)}
    rows = {n: [10 if m == n else 12 for m in range(4)] for n in range(4)}
    first = make_root(files, make_root.nodes(layout, rows), make_root.meminfo(384), bare=True)
    four = host.read(first)
    shutil.rmtree(first / NODE)
    one = host.read(make_root(make_root.nodes({0: ("0-95", 384)}), bare=True))
    assert nodes_of_packages(one.cpu, one.numa) == {0: (0,)}
    assert "several_nodes_per_socket" not in {f.code for f in one.findings}
    assert one.machine.fingerprint != four.machine.fingerprint


@pytest.mark.case("TOP-14")
def test_top_14_what_a_copy_for_each_node_would_have_to_fit_in(make_root: MakeRoot) -> None:
    """TOP-14: four nodes of 256 GiB are read one by one and are not the sum four times."""
    files = make_root.processors([[n] for n in range(8)], described=False)
    layout = {n: (f"{n * 2}-{n * 2 + 1}", 256) for n in range(4)}
    inventory = host.read(make_root(files, make_root.nodes(layout), make_root.meminfo(1024), bare=True))
    assert [node.memory_bytes for node in inventory.numa.nodes] == [256 * 2**30] * 4
    assert sum(node.memory_bytes or 0 for node in inventory.numa.nodes) == inventory.memory.total_bytes
    assert "node_memory_differs" not in {f.code for f in inventory.findings}


@pytest.mark.case("TOP-16")
def test_top_16_a_container_is_told_with_what_it_may_refuse(make_root: MakeRoot) -> None:
    """TOP-16: before anything is measured the page says that placement may be refused and what permits it."""
    inventory = host.read(make_root({"proc/1/cgroup": "0::/system.slice/docker-1.scope\n"}))
    finding = next(f for f in inventory.findings if f.code == "container")
    assert "may refuse memory placement" in finding.why
    assert "SYS_NICE" in finding.remedy


@pytest.mark.case("TOP-18")
def test_top_18_no_node_directory(make_root: MakeRoot) -> None:
    """TOP-18: one stand-in node with all memory, flagged; it says so in the text."""
    files = make_root.processors([[n] for n in range(4)])
    inventory = host.read(make_root(files, make_root.meminfo(64), bare=True))
    assert inventory.numa.available is False
    assert [(n.id, n.cpus, n.memory_bytes) for n in inventory.numa.nodes] == [(0, (0, 1, 2, 3), 64 * 2**30)]
    assert "NUMA information unavailable" in (inventory.provenance["numa.nodes"].reason or "")
    assert "numa_unavailable" in {f.code for f in inventory.findings}
    assert "NUMA information unavailable" in text.page(inventory)


def test_uneven_nodes_are_a_finding(make_root: MakeRoot) -> None:
    root = make_root(make_root.nodes({0: ("0-1,4-5", 32), 1: ("2-3,6-7", 16)}), make_root.meminfo(48))
    finding = next(f for f in host.read(root).findings if f.code == "uneven_nodes")
    assert "node 0 32.0 GiB, node 1 16.0 GiB" in finding.observed


def test_nodes_that_hold_less_than_the_machine_are_a_low_note(make_root: MakeRoot) -> None:
    """Memory that is plugged in late: nothing of weight is made of it."""
    inventory = host.read(make_root(make_root.meminfo(200)))
    finding = next(f for f in inventory.findings if f.code == "node_memory_differs")
    assert finding.severity == "low"
    assert inventory.numa.contradictions == ()


def test_huge_page_pools_of_a_node(make_root: MakeRoot) -> None:
    pool = f"{NODE}/node1/hugepages/hugepages-2048kB"
    inventory = host.read(make_root({f"{pool}/nr_hugepages": "512\n", f"{pool}/free_hugepages": "500\n"}))
    (found,) = inventory.numa.nodes[1].huge_pages
    assert (found.page_bytes, found.total, found.free) == (2**21, 512, 500)
    assert "512 x 2.00 MiB (500 free)" in text.page(inventory)


@pytest.mark.parametrize("error", ["EACCES", "EIO"])
def test_a_node_that_may_not_be_read_contradicts_nothing(error: str, make_root: MakeRoot) -> None:
    """Its CPUs are unknown, with the reason; that they belong to no node is not said."""
    hidden = [f"{NODE}/node1/{name}" for name in ("cpulist", "cpumap", "meminfo", "distance")]
    told = {"kind": "k3gate capture", "version": 1, "refused": dict.fromkeys(hidden, error)}
    inventory = host.read(make_root({"capture.json": json.dumps(told)}))
    assert inventory.numa.contradictions == ()
    assert "topology_contradiction" not in {finding.code for finding in inventory.findings}
    note = inventory.provenance["numa.nodes.1.cpus"]
    assert note.state is (State.NOT_PERMITTED if error == "EACCES" else State.FAILED)
    assert note.reason
