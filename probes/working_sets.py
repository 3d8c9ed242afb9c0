"""Which CPUs measure, which caches stand in the way, and how much memory may be taken. Pure.

Sizes are in bytes. CPU and node ids are the kernel's own, never positions in a list.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from attrs import frozen

from k3gate.errors import UsageError
from k3gate.records import Cpu, HugePagePool, Inventory, NumaNode
from k3gate.units import exact_bytes

CACHE_FACTOR = 4
"""A working set is at least this many times the last-level caches in play (the STREAM rule)."""
MINIMUM_BYTES = 256 << 20
"""The working set where caches are unknown or small: beyond what one core's share of a cache has been."""
USABLE_SHARE = 0.9
"""How much of the usable memory may be taken; the rest is left to the system."""
HUGE_PAGE = 2 << 20
GIANT_PAGE = 1 << 30
RESERVED = {HUGE_PAGE: "reserved_2m", GIANT_PAGE: "reserved_1g"}
"""Pages that can be reserved, as `_native.Pool` names them."""
SHORTFALL = 0.9
"""Nodes that add up to less than this of the total memory are not believed (memory that appears lazily)."""


def usable_cpus(inventory: Inventory) -> tuple[int, ...]:
    """CPUs that are online and allowed to this process, sorted."""
    cpu = inventory.cpu
    online = cpu.online
    if online is None:
        online = tuple(one for node in inventory.numa.nodes for one in node.cpus)
    allowed = set(online if cpu.allowed is None else cpu.allowed)
    return tuple(sorted(set(online) & allowed - set(cpu.offline)))


def one_per_core(cpus: Iterable[int], siblings: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """The lowest usable CPU of each physical core; a CPU that no sibling list names is a core of its own."""
    core_of = {cpu: tuple(group) for group in siblings for cpu in group}
    taken: dict[object, int] = {}
    for cpu in sorted(set(cpus)):
        taken.setdefault(core_of.get(cpu, cpu), cpu)
    return tuple(sorted(taken.values()))


def cache_bytes(cpu: Cpu, cpus: Sequence[int]) -> int | None:
    """Summed size of the last-level caches of these CPUs; None where none is known.

    The last level is looked up for each CPU, since clusters of one chip may end at different levels. A cache
    that is shared with CPUs outside the list counts whole.
    """
    data = [one for one in cpu.caches if not one.kind.lower().startswith("instr") and one.bytes > 0]
    found: dict[tuple[int, tuple[int, ...]], int] = {}
    for number in cpus:
        best: tuple[int, tuple[int, ...], int] | None = None
        for cache in data:
            for shared in cache.cpus:
                if number in shared and (best is None or cache.level > best[0]):
                    best = (cache.level, tuple(shared), cache.bytes)
        if best is not None:
            found[best[:2]] = best[2]
    if found:
        return sum(found.values())
    last = max((one.level for one in data), default=0)
    # Which CPUs share them is not known; each CPU can have at most one.
    total = sum(one.bytes * min(one.instances, len(cpus)) for one in data if one.level == last)
    return total or None


def level_2_bytes(cpu: Cpu, cpus: Sequence[int]) -> int:
    """Summed size of the level-2 caches of these CPUs that lie below a further level; 0 where none is known.

    Today's servers keep different lines in both levels, so what they hold together is what must be exceeded.
    """
    if not any(one.level > 2 for one in cpu.caches):
        return 0
    mine = set(cpus)
    return sum(
        one.bytes
        for one in cpu.caches
        if one.level == 2 and not one.kind.lower().startswith("instr")
        for shared in one.cpus
        if mine & set(shared)
    )


def working_set(cpu: Cpu, cpus: Sequence[int], requested: int | None = None) -> int:
    """Bytes to walk over for these CPUs, a multiple of 2 MiB; `requested` has passed `check_request`."""
    caches = (cache_bytes(cpu, cpus) or 0) + level_2_bytes(cpu, cpus)
    return round_up(max(CACHE_FACTOR * caches, MINIMUM_BYTES, requested or 0), HUGE_PAGE)


def check_request(requested: int | None, caches: int | None) -> None:
    """Raise `UsageError` where a requested working set would partly sit in the caches."""
    if requested is None:
        return
    least = CACHE_FACTOR * caches if caches else MINIMUM_BYTES
    if requested < least:
        why = (
            f"{CACHE_FACTOR} x the {megabytes(caches)} of last-level caches of the CPUs in use"
            if caches
            else "the least where no cache size is known"
        )
        raise UsageError(
            f"a working set of {megabytes(requested)} is too small here: at least {megabytes(least)} "
            f"({why}); ask for more, or for none and get that"
        )


def describe(pool: int, caches: int | None) -> str:
    """The working set beside the caches, for a title: "over 4,831.8 MB (4 x 1,208.0 MB of ...)"."""
    if not caches:
        return f"over {megabytes(pool)} (cache sizes unknown: it may sit in a cache)"
    return f"over {megabytes(pool)} ({pool / caches:.1f} x {megabytes(caches)} of last-level caches)"


def megabytes(value: int | None) -> str:
    """A size with its tenth, for sums of caches: "1,208.0 MB"."""
    return "unknown" if value is None else f"{value / 1e6:,.1f} MB"


def round_up(value: int, unit: int) -> int:
    """`value` rounded up to a multiple of `unit`."""
    return -(-value // unit) * unit


@frozen
class Room:
    """How much may be taken: in all, and on each node; None: not known. A node not named: the total holds."""

    total: int | None
    nodes: Mapping[int, int]

    def refuse(self, wanted: Mapping[int, int]) -> str | None:
        """Why these bytes by node do not fit, with the arithmetic; None where they do."""
        whole = sum(wanted.values())
        if self.total is not None and whole > self.total:
            return (
                f"it wants {exact_bytes(whole)}, more than the {exact_bytes(self.total)} that are "
                f"{USABLE_SHARE:.0%} of the memory that may be used"
            )
        for node, size in wanted.items():
            if size > self.nodes.get(node, size):
                return (
                    f"it wants {exact_bytes(size)} on node {node}, over {exact_bytes(self.nodes[node])}, "
                    f"{USABLE_SHARE:.0%} of what is available there"
                )
        return None


def room(inventory: Inventory) -> Room:
    """What may be taken of this machine's memory, at most 90 %.

    A node's free memory leaves out what the kernel would give back (page cache): the part of the machine's
    available memory that is not free is shared out over the nodes by what each has in use. Where the nodes
    add up to far less than the machine, as in guests whose memory appears lazily, only the total is believed.
    """
    usable = inventory.limits.usable_memory_bytes
    available = inventory.memory.available_bytes
    if usable is None:
        usable = available
    total = None if usable is None else math.floor(usable * USABLE_SHARE)
    nodes = [one for one in inventory.numa.nodes if one.memory_bytes]
    known = sum(one.memory_bytes or 0 for one in nodes)
    whole = inventory.memory.total_bytes
    if whole is not None and known < SHORTFALL * whole:
        return Room(total, {})
    free = sum(one.free_bytes or 0 for one in nodes)
    # Pages that are reserved are never given back.
    used = {
        one.id: max(
            0,
            (one.memory_bytes or 0)
            - (one.free_bytes or 0)
            - sum(pool.total * pool.page_bytes for pool in one.huge_pages),
        )
        for one in nodes
    }
    in_use = sum(used.values())
    back = max(0, (available or 0) - free)
    rooms = {}
    for one in nodes:
        if one.free_bytes is None or one.memory_bytes is None:
            continue
        share = back * used[one.id] / in_use if in_use > 0 else 0.0
        rooms[one.id] = math.floor(USABLE_SHARE * min(one.memory_bytes, one.free_bytes + share))
    return Room(total, rooms)


def split(wanted: int, weights: Mapping[int, int], limits: Room) -> dict[int, int]:
    """`wanted` bytes over nodes in proportion to their weights, none beyond its room; multiples of 2 MiB.

    What a full node cannot take goes to the others. The sum is less than `wanted` where there is no room.
    """
    left = round_up(max(0, wanted), HUGE_PAGE)
    if limits.total is not None:
        left = min(left, limits.total // HUGE_PAGE * HUGE_PAGE)
    shares = dict.fromkeys(weights, 0)
    open_ = {node: weight for node, weight in weights.items() if weight > 0}
    while left >= HUGE_PAGE and open_:
        whole = sum(open_.values())
        before = left
        for node, weight in list(open_.items()):
            part = round_up(before * weight // whole, HUGE_PAGE)
            capacity = limits.nodes.get(node, part + shares[node]) - shares[node]
            taken = min(part, left, max(0, capacity) // HUGE_PAGE * HUGE_PAGE)
            shares[node] += taken
            left -= taken
            if taken < part:
                del open_[node]
        if left == before:
            break
    return {node: size for node, size in shares.items() if size}


def spread(
    wanted: int, nodes: Sequence[NumaNode], limits: Room, reserved: Mapping[int, HugePagePool]
) -> tuple[dict[int, int], dict[int, int]]:
    """`wanted` bytes over the nodes as (bytes from reserved pages, bytes from other memory), by node.

    Reserved pages are no part of `limits`: the kernel has set them aside. Each node's share is taken from
    them first; what a node cannot hold goes to the others. Both are whole pages, so the sum may exceed
    `wanted` by less than a page a node.
    """
    weights = {node.id: node.memory_bytes or 1 for node in nodes}
    rooms = {node: pool.free * pool.page_bytes for node, pool in reserved.items()}
    fair = split(wanted, weights, Room(None, {}))
    set_aside = {
        node: min(round_up(size, reserved[node].page_bytes), rooms[node])
        for node, size in fair.items()
        if rooms.get(node)
    }
    missing = {node: size - set_aside.get(node, 0) for node, size in fair.items()}
    ordinary = split(wanted - sum(set_aside.values()), missing, limits)
    short = wanted - sum(set_aside.values()) - sum(ordinary.values())
    if short > 0:
        spare = {node: room - set_aside.get(node, 0) for node, room in rooms.items()}
        for node, size in split(short, spare, Room(None, spare)).items():
            more = min(round_up(size, reserved[node].page_bytes), spare[node])
            set_aside[node] = set_aside.get(node, 0) + more
        rest = wanted - sum(set_aside.values())
        ordinary = split(rest, missing, limits)
        if sum(ordinary.values()) < rest:
            ordinary = split(rest, weights, limits)
    return set_aside, ordinary


def reserved_pages(node: NumaNode, size: int) -> HugePagePool | None:
    """The reserved pages to use for `size` bytes on a node: 2 MiB if they suffice, else the larger pool."""
    pools = sorted(
        (one for one in node.huge_pages if one.page_bytes in RESERVED), key=lambda one: one.page_bytes
    )
    for pool in pools:
        if pool.free * pool.page_bytes >= round_up(size, pool.page_bytes):
            return pool
    return max((one for one in pools if one.free), key=lambda one: one.free * one.page_bytes, default=None)


def page_kind(inventory: Inventory, node: NumaNode, size: int) -> str:
    """The largest pages that are there for `size` bytes on a node, as `_native.Pool` names them.

    Reserved pools are used as found, 2 MiB first, since that is also what transparent huge pages give.
    """
    pool = reserved_pages(node, size)
    if pool is not None and pool.free * pool.page_bytes >= round_up(size, pool.page_bytes):
        return RESERVED[pool.page_bytes]
    return ordinary_kind(inventory)


def ordinary_kind(inventory: Inventory) -> str:
    """The largest pages that are had without a reservation."""
    return "small" if inventory.kernel.transparent_hugepage == "never" else "transparent"
