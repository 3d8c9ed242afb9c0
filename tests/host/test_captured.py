"""Captured machines of many kinds against what is known of them."""

from __future__ import annotations

import contextlib
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from k3gate import documents, host
from k3gate.host import text
from k3gate.host.cpulist import parse
from k3gate.records import Inventory

MACHINES = Path(__file__).resolve().parent.parent.parent.parent / "shared" / "machines"
NAMES = sorted(path.parent.name for path in MACHINES.glob("*/sysroot.tar.bz2"))


def facts(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((MACHINES / name / "expected.json").read_text())
    return dict(found.get("facts_read_from_the_files", {}))


TOLD_NODES = [name for name in NAMES if "numa_nodes" in facts(name)]
TOLD_CACHES = [name for name in NAMES if facts(name).get("first_cpu_caches")]

# Where the inventory rightly says something else than a count over all CPU folders.
CORES = {
    "hwloc-8s-opteron-cpuset-restricted": (15, "one CPU is offline and counts as no core"),
    "hwloc-pmem-nodes-cpu-nodes-without-memory": (8, "this kernel lists cores in core_cpus only"),
}
NOT_ONLINE = "names CPUs that are not online"


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Unpacks a captured machine once and reads it."""
    read: dict[str, Inventory] = {}

    def get(name: str) -> Inventory:
        if name not in read:
            folder = tmp_path_factory.mktemp(name)
            with tarfile.open(MACHINES / name / "sysroot.tar.bz2") as archive:
                for member in archive:
                    _extract(archive, member, folder)
            read[name] = host.read(folder)
        return read[name]

    return get


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """One member, unless it would leave `folder`. Debian 12's Python 3.11.2 has no extraction filters yet."""
    if hasattr(tarfile, "data_filter"):
        with contextlib.suppress(tarfile.FilterError):
            archive.extract(member, folder, filter="data")
        return
    link = Path(member.name).parent / member.linkname if member.issym() else Path(member.linkname)
    outside = any(os.path.normpath(path).startswith(("/", "..")) for path in (member.name, link))
    if (member.isfile() or member.isdir() or member.issym()) and not outside:
        archive.extract(member, folder)


pytestmark = pytest.mark.skipif(not NAMES, reason="the captured machines are not beside the checkout")


@pytest.mark.parametrize("name", NAMES)
def test_processors(captured: Any, name: str) -> None:
    expected, cpu = facts(name), captured(name).cpu
    for field, key in (("online", "cpu_online"), ("possible", "cpu_possible"), ("present", "cpu_present")):
        if key in expected:
            assert getattr(cpu, field) == parse(expected[key]), key
    if "package_count" in expected:
        assert cpu.sockets == expected["package_count"]
        cores = CORES.get(name, (expected["core_count_by_thread_siblings"], ""))[0]
        assert cpu.cores == cores
    if expected.get("cpuinfo_model"):
        assert cpu.model == " ".join(expected["cpuinfo_model"].split())
    if "smt_active" in expected and cpu.smt is not None and name not in CORES:
        assert cpu.smt is (expected["smt_active"] == "1")


@pytest.mark.parametrize("name", TOLD_NODES)
def test_nodes(captured: Any, name: str) -> None:
    expected, inventory = facts(name), captured(name)
    assert [node.id for node in inventory.numa.nodes] == [node["node"] for node in expected["numa_nodes"]]
    online = set(inventory.cpu.online)
    for node, told in zip(inventory.numa.nodes, expected["numa_nodes"], strict=True):
        listed = parse(told["cpus"] or "")
        assert node.cpus == tuple(cpu for cpu in listed if cpu in online)
        if set(listed) - online:
            assert any(s.startswith(f"node {node.id} {NOT_ONLINE}") for s in inventory.numa.contradictions)
        kilobytes = told.get("mem_total_kb")
        assert node.memory_bytes == (None if kilobytes is None else kilobytes * 1024)
        assert list(node.distances.values()) == (told.get("distance") or [])
    assert [n.id for n in inventory.numa.nodes if not n.cpus and n.memory_bytes] == expected[
        "cpuless_nodes_with_memory"
    ]
    assert [n.id for n in inventory.numa.nodes if n.cpus and n.memory_bytes == 0] == expected[
        "nodes_with_cpus_but_no_memory"
    ]
    if "proc_meminfo_memtotal_kb" in expected:
        assert inventory.memory.total_bytes == int(expected["proc_meminfo_memtotal_kb"]) * 1024


@pytest.mark.parametrize("name", TOLD_CACHES)
def test_caches_of_the_first_cpu(captured: Any, name: str) -> None:
    expected = facts(name)["first_cpu_caches"]
    inventory = captured(name)
    first = inventory.cpu.online[0]
    seen = set()
    for cache in inventory.cpu.caches:
        for group in cache.cpus:
            if first in group:
                seen.add((f"L{cache.level} {cache.kind.title()} {cache.bytes // 1024}K", group))
    online = set(inventory.cpu.online)
    told = set()
    for line in expected:
        what, _, cpus = line.partition(" shared by cpus ")
        told.add((what, tuple(cpu for cpu in parse(cpus) if cpu in online)))
    assert seen == told


@pytest.mark.parametrize("name", NAMES)
def test_page_and_document_can_be_made(captured: Any, name: str) -> None:
    inventory = captured(name)
    page = text.page(inventory)
    assert max(len(line) for line in page.splitlines()) <= 100
    back = documents.structure(host.document(inventory), Inventory)
    assert documents.plain(back) == host.document(inventory)


@pytest.mark.case("TOP-03")
def test_top_03_memory_of_gpus_is_not_taken_for_dram(captured: Any) -> None:
    """TOP-03: nodes 250-255 of a POWER9 are GPU memory, as its driver says, and never DRAM."""
    nodes = {node.id: node for node in captured("hwloc-power9-v100-gpu-memory-nodes").numa.nodes}
    assert {nodes[n].kind for n in range(250, 256)} == {"gpu"}
    assert nodes[0].kind == nodes[8].kind == "dram"


def test_kinds_of_memory(captured: Any) -> None:
    """Optane nodes where the kernel names the device, unknown where not; Memory Mode is not called DRAM."""
    nodes = captured("hwloc-pmem-nodes-cpu-nodes-without-memory").numa.nodes
    assert {node.id for node in nodes if node.kind == "pmem"} == {7, 10}
    assert {node.kind for node in nodes if node.id in (4, 5, 6, 8, 9)} == {"unknown"}
    assert nodes[7].performance["read_bandwidth"] == 78_644e6
    assert [node.nearest for node in nodes if node.id > 4] == [0, 2, 0, 1, 3, 1]
    unnamed = captured("nri-2s-xeon-snc2-2pmem-nodes").numa.nodes
    assert [(node.kind, node.nearest) for node in unnamed[4:]] == [("unknown", 0), ("unknown", 2)]
    codes = {f.code for f in captured("hwloc-2s-cascadelake-optane-memory-mode").findings}
    assert "memory_side_cache" in codes
    behind = captured("hwloc-2s-cascadelake-optane-memory-mode").numa.nodes
    assert {(node.kind, node.memory_side_cache_bytes) for node in behind} == {("unknown", 96 * 2**30)}


@pytest.mark.case("TOP-11")
def test_top_11_a_machine_with_false_nodes(captured: Any) -> None:
    """TOP-11: eight nodes that all list the same CPUs, all at distance 10."""
    inventory = captured("hwloc-2s-xeon-broken-numa")
    assert "nodes 0-7 all claim CPUs 0-7" in inventory.numa.contradictions
    assert "topology_contradiction" in {f.code for f in inventory.findings}


def test_a_cpuset_of_the_old_kind(captured: Any) -> None:
    limits = captured("hwloc-8s-opteron-cpuset-restricted").limits
    assert limits.cpuset_cpus == parse("0-6,12-15")
    assert limits.restricted is True


def test_uneven_nodes_of_an_opteron(captured: Any) -> None:
    codes = {f.code for f in captured("hwloc-4s-opteron-8nodes-uneven").findings}
    assert {"uneven_nodes", "several_nodes_per_socket"} <= codes
