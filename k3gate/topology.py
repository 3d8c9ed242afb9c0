"""Nodes and sockets of an inventory, and what their memory could give on paper. Pure, and light: workers ask it."""

from __future__ import annotations

import math

from k3gate.records import Cpu, Inventory, Labels, Memory, Numa, NumaNode


def nodes_of_packages(cpu: Cpu, numa: Numa) -> dict[int, tuple[int, ...]]:
    """Which nodes hold CPUs of each package; more than one each is NPS, SNC or several dies."""
    found: dict[int, set[int]] = {}
    for node in numa.nodes:
        for one in node.cpus:
            if one in cpu.package_of:
                found.setdefault(cpu.package_of[one], set()).add(node.id)
    return {package: tuple(sorted(nodes)) for package, nodes in sorted(found.items())}


def uneven(numa: Numa) -> tuple[NumaNode, ...]:
    """Nodes with CPUs and memory that have less than the largest such node, by more than what kernel and firmware
    keep: one module of sixteen makes 6 %."""
    equipped = [node for node in numa.nodes if node.cpus and node.memory_bytes]
    if len(equipped) < 2:
        return ()
    largest = max(node.memory_bytes or 0 for node in equipped)
    kept = max(0.045 * largest, 2 * 2**30)
    return tuple(node for node in equipped if largest - (node.memory_bytes or 0) > kept)


def main_nodes(inventory: Inventory) -> tuple[NumaNode, ...]:
    """Nodes with CPUs and ordinary memory of their own: what "local", "remote" and the paper rate speak of.

    A node without CPUs may be CXL, persistent, HBM or GPU memory: slower or smaller by nature, it is measured
    and shown, and never stands for the machine's DRAM.
    """
    return tuple(
        n for n in inventory.numa.nodes if n.cpus and n.memory_bytes != 0 and n.kind in ("dram", "unknown")
    )


def paper_share(inventory: Inventory, labels: Labels) -> tuple[float | None, str]:
    """The paper rate in B/s of the memory that a figure with these labels speaks of, and its name in words.

    That of the machine, or the even share of a node or of a socket's nodes; None with the reason.
    """
    whole = inventory.memory.theoretical_bytes_per_s
    if whole is None or not math.isfinite(whole) or whole <= 0:
        told = inventory.provenance.get("memory.theoretical_bytes_per_s")
        reason = told.reason if told is not None else None
        return (
            None,
            f"the paper rate of the memory is not known ({reason or 'the DIMM tables were not read'})",
        )
    scope = labels.get("scope")
    if scope in ("machine", "interleaved", "image"):
        return whole, "the paper rate"
    nodes = [node.id for node in main_nodes(inventory)]
    if scope == "socket":
        packages = nodes_of_packages(inventory.cpu, inventory.numa)
        own = [node for node in packages.get(_number(labels.get("socket")), ()) if node in nodes]
        if own:
            return whole * len(own) / len(nodes), "a socket's even share of the paper rate"
    elif labels.get("memory_node") in nodes:
        return whole / len(nodes), "a node's even share of the paper rate"
    return None, "the paper rate of that memory is not known"


def paper_limit(inventory: Inventory, labels: Labels) -> float | None:
    """B/s that no reading with these labels can exceed; None where that is not known.

    The even share of a part is a limit only where memory is even: else the machine's own rate is.
    """
    rate, _ = paper_share(inventory, labels)
    if rate is None or not (uneven(inventory.numa) or _unlike_sockets(inventory.memory)):
        return rate
    return inventory.memory.theoretical_bytes_per_s


def _unlike_sockets(memory: Memory) -> bool:
    """Whether sockets have DRAM on unlike numbers of channels, though perhaps the same amount."""
    channels: dict[int | None, set[tuple[int | None, str | None]]] = {}
    for dimm in memory.dimms or ():
        if dimm.kind == "dram":
            channels.setdefault(dimm.socket, set()).add((dimm.controller, dimm.channel))
    return len({len(one) for one in channels.values()}) > 1


def _number(value: object) -> int:
    return value if isinstance(value, int) else -1
