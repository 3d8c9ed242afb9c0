"""NUMA nodes by their real ids, and what contradicts itself in them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from attrs import evolve

from k3gate.host import cpulist, node_kinds, parsing
from k3gate.host.cpu import id_list
from k3gate.host.files import Root
from k3gate.host.memory import huge_pages, in_memory_mode
from k3gate.host.notes import Notes
from k3gate.records import Cpu, Memory, Numa, NumaNode, State
from k3gate.units import cpu_list

NODES = "sys/devices/system/node"
_DIRECTORY = re.compile(r"node(\d{1,4})", re.ASCII)
_LOCAL_DISTANCE = 10
_TOLD = 8
_MEMORY_MODE = node_kinds.Verdict(
    "unknown",
    "memory.pmem_bytes",
    "the kernel has more memory than there are bytes of DRAM: persistent modules serve as main memory with the "
    "DRAM as a cache before them (Memory Mode)",
)
# Old kernels and POWER list CPUs that are off or not plugged in: odd, but nothing else is wrong by it.
NOT_ONLINE = "names CPUs that are not online"


def read(root: Root, notes: Notes, cpu: Cpu, memory: Memory) -> Numa:
    """The `Numa` record; one stand-in node with all CPUs and memory where the kernel shows no nodes."""
    ids = sorted(int(match[1]) for name in root.names(NODES) if (match := _DIRECTORY.fullmatch(name)))
    online = cpu.online or ()
    if not ids:
        notes.absent(
            "numa.nodes", NODES, "NUMA information unavailable: one stand-in node holds all CPUs and memory"
        )
        notes.seen("numa.available", NODES, "no node folders")
        return Numa(False, (NumaNode(0, online, memory.total_bytes, kind="dram", distances={}),))
    notes.seen("numa.available", NODES)
    notes.seen("numa.nodes", f"{NODES}/node*")
    known = set(online)
    named: dict[int, tuple[int, ...]] = {}
    unread = False
    for node in ids:
        listed = id_list(root, f"{NODES}/node{node}/cpulist", f"{NODES}/node{node}/cpumap")
        if listed is None:
            reading = root.read(f"{NODES}/node{node}/cpulist")
            if reading.text:
                notes.implausible(f"numa.nodes.{node}.cpus", reading.source, "not a CPU list")
            elif reading.text is None:
                unread = True
                reason = reading.reason or "unreadable"
                notes.unknown(f"numa.nodes.{node}.cpus", reading.state, reading.source, reason)
        named[node] = listed or ()
    order = _order(root, ids)
    nodes = tuple(_node(root, notes, node, named[node], known, order) for node in ids)
    nodes = _with_kinds(root, notes, nodes, cpu, memory)
    return Numa(True, nodes, contradictions(nodes, named, cpu, every=not unread))


def _order(root: Root, ids: list[int]) -> list[int]:
    """The nodes whose distances a row of the distance file holds, in its order: the online ones."""
    try:
        online = cpulist.parse(root.line(f"{NODES}/online") or "")
    except ValueError:
        return ids
    return list(online) or ids


def _node(
    root: Root, notes: Notes, node: int, named: tuple[int, ...], known: set[int], order: list[int]
) -> NumaNode:
    folder = f"{NODES}/node{node}"
    cpus = tuple(cpu for cpu in named if cpu in known) if known else named
    reading = root.read(f"{folder}/meminfo")
    table = parsing.kilobytes(reading.text or "")
    total, free = table.get("MemTotal"), table.get("MemFree")
    if total is None:
        state = reading.state if reading.text is None else State.NOT_PRESENT
        notes.unknown(
            f"numa.nodes.{node}.memory_bytes", state, reading.source, reading.reason or "no MemTotal"
        )
    elif not 0 <= total < 2**60:
        notes.implausible(
            f"numa.nodes.{node}.memory_bytes", reading.source, f"MemTotal is {total // 1024} kB"
        )
        total = None
    if free is not None and (total is None or not 0 <= free <= total):
        notes.implausible(f"numa.nodes.{node}.free_bytes", reading.source, "more is free than there is")
        free = None
    pools = huge_pages(root, f"{folder}/hugepages")
    distances = _distances(root, notes, node, order)
    cache = node_kinds.side_cache(root, node)
    if cache is not None:
        notes.seen(f"numa.nodes.{node}.memory_side_cache_bytes", f"{folder}/memory_side_cache")
    return NumaNode(
        node, cpus, total, free, distances=distances, huge_pages=pools, memory_side_cache_bytes=cache
    )


def _with_kinds(
    root: Root, notes: Notes, nodes: tuple[NumaNode, ...], cpu: Cpu, memory: Memory
) -> tuple[NumaNode, ...]:
    """The nodes with their kinds, the nearest CPUs and the firmware's figures, which need all nodes."""
    with_cpus = {node.id for node in nodes if node.cpus}
    reached = {node.id: node_kinds.accesses(root, node.id) for node in nodes}
    located = tuple(_located(notes, node, nodes, reached[node.id], with_cpus) for node in nodes)
    if not any(node.performance for node in located):
        notes.absent("numa.nodes.performance", f"{NODES}/node*/access1", "the firmware tells none (HMAT)")
    if all(node.memory_side_cache_bytes is None for node in located):
        notes.absent("numa.nodes.memory_side_cache_bytes", f"{NODES}/node*/memory_side_cache")
    told = node_kinds.signs(root, [node.id for node in nodes if not node.cpus])
    decided: list[NumaNode] = []
    for node in located:
        if node.cpus:
            verdict = node_kinds.of_cpu_node(node, told, cpu, located)
            if verdict.kind == "dram" and in_memory_mode(memory):
                verdict = _MEMORY_MODE
        else:
            verdict = node_kinds.of_bare_node(root, node, told, cpu, located, reached)
        field = f"numa.nodes.{node.id}.kind"
        if verdict.kind == "unknown":
            notes.absent(field, verdict.source, verdict.reason)
        else:
            notes.seen(field, verdict.source, verdict.reason)
        decided.append(evolve(node, kind=verdict.kind))
    return tuple(decided)


def _located(
    notes: Notes,
    node: NumaNode,
    nodes: tuple[NumaNode, ...],
    told: tuple[node_kinds.Access, ...],
    with_cpus: set[int],
) -> NumaNode:
    access = node_kinds.of_cpus(told, with_cpus)
    if access is not None:
        notes.seen(f"numa.nodes.{node.id}.performance", access.source, "as the firmware tells it (HMAT)")
    near: tuple[int, ...] = ()
    if not node.cpus:
        field, source = f"numa.nodes.{node.id}.nearest", f"{NODES}/node{node.id}/distance"
        near = node_kinds.nearest(node, nodes)
        if near:
            several = f"nodes {cpu_list(near)} are equally near; the first is named" if near[1:] else None
            notes.seen(field, source, several)
        else:
            notes.absent(field, source, "no distance to a node with CPUs")
    return evolve(node, nearest=near[0] if near else None, performance=dict(access.figures) if access else {})


def _distances(root: Root, notes: Notes, node: int, order: list[int]) -> Mapping[int, int]:
    source = f"{NODES}/node{node}/distance"
    reading = root.read(source)
    field = f"numa.nodes.{node}.distances"
    if reading.text is None:
        notes.unknown(field, reading.state, source, reading.reason or "unreadable")
        return {}
    try:
        values = [parsing.integer(word, 1, 255) for word in reading.text.split()[:4096]]
        if len(values) != len(order):
            raise ValueError(f"{len(values)} distances for {len(order)} nodes")
    except ValueError as error:
        notes.implausible(field, source, str(error))
        return {}
    return dict(zip(order, values, strict=True))


def contradictions(
    nodes: tuple[NumaNode, ...], named: Mapping[int, tuple[int, ...]], cpu: Cpu, *, every: bool = True
) -> tuple[str, ...]:
    """What cannot be true of nodes, CPUs and packages together, one sentence each.

    Not `every`: the CPUs of some node could not be read, so that CPUs without a node contradict nothing.
    """
    found: list[str] = []
    online = set(cpu.online or ())
    claims: dict[int, list[int]] = {}
    for node in nodes:
        for one in node.cpus:
            claims.setdefault(one, []).append(node.id)
    shared: dict[tuple[int, ...], list[int]] = {}
    for one, claimants in claims.items():
        if len(claimants) > 1:
            shared.setdefault(tuple(claimants), []).append(one)
    pairs = list(shared.items())
    for group, cpus in pairs[:_TOLD]:
        found.append(f"nodes {cpu_list(group)} all claim CPUs {cpu_list(cpus)}")
    if len(pairs) > _TOLD:
        found.append(f"{len(pairs) - _TOLD} more sets of nodes claim the same CPUs")
    for node_id, listed in named.items():
        absent = sorted(set(listed) - online) if online else []
        if absent:
            found.append(f"node {node_id} {NOT_ONLINE}: {cpu_list(absent)}")
    homeless = sorted(online - set(claims))
    if homeless and claims and every:
        found.append(f"online CPUs belong to no node: {cpu_list(homeless)}")
    crossing = _crossing(nodes, cpu.package_of)
    if crossing:
        found.append(crossing)
    found.extend(_odd_distances(nodes))
    return tuple(found)


def doubtful(numa: Numa) -> bool:
    """Whether the contradictions make socket and node totals unreliable."""
    return any(NOT_ONLINE not in sentence for sentence in numa.contradictions)


def _crossing(nodes: tuple[NumaNode, ...], package_of: Mapping[int, int]) -> str | None:
    """Nodes and packages may nest either way round; where each cuts through the other, one of them lies."""
    spread = {node.id: {package_of[c] for c in node.cpus if c in package_of} for node in nodes}
    members: dict[int, set[int]] = {}
    for node, packages in spread.items():
        for package in packages:
            members.setdefault(package, set()).add(node)
    for node, packages in spread.items():
        torn = sorted(package for package in packages if len(members[package]) > 1)
        if len(packages) > 1 and torn:
            return (
                f"node CPU lists and physical_package_id disagree: node {node} spans packages "
                f"{cpu_list(sorted(packages))}, and package {torn[0]} spans nodes "
                f"{cpu_list(sorted(members[torn[0]]))}; socket totals are unreliable"
            )
    return None


def _odd_distances(nodes: tuple[NumaNode, ...]) -> list[str]:
    remote = [value for node in nodes for other, value in node.distances.items() if other != node.id]
    if remote and len(nodes) > 1 and all(value == _LOCAL_DISTANCE for value in remote):
        return ["every node is as near as the own one (all distances are 10): the nodes are not real"]
    nearer = [
        node.id
        for node in nodes
        if node.id in node.distances and node.distances[node.id] > min(node.distances.values())
    ]
    if nearer:
        return [f"a node is nearer to another one than to itself: {cpu_list(nearer)}"]
    return []
