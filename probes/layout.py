"""What the cases of the memory probe are made of: CPUs, nodes, pools, room. Pure, from the inventory alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from k3gate.probes import working_sets as sets
from k3gate.probing.contract import Applies, Reason
from k3gate.records import Case, Inventory, LeftOut, NumaNode, Profile, Scalar, State
from k3gate.units import cpu_list, exact_bytes

# What is taken for planning, per thread and for a whole machine, in B/s. Ours, on the low side: a guest whose
# memory appears lazily touched 0.6 GB/s a thread at first and 3.5 later, and read 6 to 13 with one thread.
TOUCH_RATE = 1.0e9
TOUCH_RATE_MOST = 40e9
READ_RATE = 5e9
READ_RATE_MOST = 100e9
WORKER_SECONDS = 0.3
ARRAYS = {"read": 1, "write": 1, "copy": 2, "triad": 3}
"""How many arrays of equal size a kernel makes of a pool; each must exceed the caches by itself."""
Spec = dict[str, Any]
"""A pool: node, node to bind to (None: the kernel knows no nodes), bytes, kind of pages, CPUs that touch it."""


def applies(inventory: Inventory) -> Applies | Reason:
    """Whether there is a CPU that may be used and a node that has memory."""
    if not sets.usable_cpus(inventory):
        return Reason(State.NOT_PRESENT, "no CPU is known to be online and allowed to this process")
    if not inventory.numa.nodes:
        return Reason(State.NOT_PRESENT, "no memory node is known")
    return Applies()


class Layout:
    """A machine and a budget, seen by the cases. `left_out` collects what the machine cannot do."""

    def __init__(self, probe: str, inventory: Inventory, profile: Profile, isa: str | None) -> None:
        self.probe, self.inventory, self.profile, self.isa = probe, inventory, profile, isa
        usable = sets.usable_cpus(inventory)
        self.cpus = sets.one_per_core(usable, inventory.cpu.siblings)
        self.cpus_of = {
            node.id: tuple(cpu for cpu in self.cpus if cpu in node.cpus) for node in inventory.numa.nodes
        }
        self.room = sets.room(inventory)
        self.left_out: list[LeftOut] = []
        self.targets = [node for node in inventory.numa.nodes if self._has_memory(node)]
        self.requested = profile.working_set_bytes
        sets.check_request(self.requested, sets.cache_bytes(inventory.cpu, self.cpus))

    def _has_memory(self, node: NumaNode) -> bool:
        allowed = self.inventory.limits.cpuset_mems
        if node.memory_bytes == 0:
            reason = f"node {node.id} has no memory"
        elif allowed is not None and node.id not in allowed:
            reason = (
                f"node {node.id} is outside the memory nodes that this process may use ({cpu_list(allowed)})"
            )
        else:
            return True
        kinds = ("read", "latency") if self.profile.seconds >= 60 else ("read",)
        self.left_out += [LeftOut(self.probe, f"{kind}.*.node{node.id}", reason) for kind in kinds]
        return False

    def spec(self, node: NumaNode, size: int, touch: Sequence[int], pages: str | None = None) -> Spec:
        """A pool: `bind` is the node to bind to, None where the kernel knows no nodes."""
        pages = pages or sets.page_kind(self.inventory, node, size)
        size = sets.round_up(size, sets.GIANT_PAGE if pages == "reserved_1g" else sets.HUGE_PAGE)
        bind = node.id if self.inventory.numa.available else None
        return {"node": node.id, "bind": bind, "bytes": size, "pages": pages, "touch": list(touch)}

    def cell(
        self,
        name: str,
        group: str,
        source: int | None,
        target: int | None,
        cpus: Sequence[int],
        *specs: Spec,
        readers: Sequence[Sequence[int]] | None = None,
        scope: str = "node",
        layout: str = "own",
        kernel: str = "read",
        **more: Scalar,
    ) -> Case:
        """A case in which `cpus` run a kernel over the pools; its seconds are given out later. `more`: labels."""
        caches = sets.cache_bytes(self.inventory.cpu, cpus)
        total, reserved = sizes(specs)
        placement = "spread" if source is None else "local" if source == target else "remote"
        if layout == "interleaved":
            placement = layout
        who = f"CPU {cpus[0]}" if len(cpus) == 1 else f"{len(cpus)} threads, CPUs {cpu_list(list(cpus))}"
        what = f"memory of node {target} ({placement})"
        if source is None:
            what = self._spread_words(specs, readers or [cpus])
        if layout == "interleaved":
            what = "a part of the memory of every node each"
        if layout == "experts":
            what = f"experts in random order, {what}"
        pages = " in base pages" if specs[0]["pages"] == "small" else ""
        labels: dict[str, Scalar] = {
            "cpu_node": source,
            "memory_node": target,
            "scope": scope,
            "placement": placement,
            "threads": len(cpus),
            "pool_bytes": total,
            "cache_bytes": caches,
            "kernel": kernel,
            **more,
        }
        arrays = ARRAYS[kernel.removesuffix("_nt")]
        parameters = {
            "kernel": kernel,
            "layout": layout,
            "isa": self.isa,
            "pools": list(specs),
            "readers": [list(one) for one in readers or [cpus]],
            "arrays": arrays,
            "reserved_bytes": reserved,
            "level_2_bytes": sets.level_2_bytes(self.inventory.cpu, cpus),
        }
        title = f"{_deed(kernel, len(cpus) == 1).format(who=who, what=what + pages)}, "
        title += f"{'each array ' if arrays > 1 else ''}{sets.describe(total // arrays, caches)}"
        return Case(self.probe, name, title, group, parameters, 0.0, total - reserved, labels=labels)

    def _spread_words(self, specs: Sequence[Spec], readers: Sequence[Sequence[int]]) -> str:
        """Whose memory is read where each pool has its own readers."""
        each = "" if sum(map(len, readers)) == 1 else "each "
        pairs = list(zip(specs, readers, strict=True))
        if all(cpu in self.cpus_of[spec["node"]] for spec, group in pairs for cpu in group):
            return f"{each}its own node's memory"
        return f"{each}memory of the node nearest to it"

    def spread(self, nodes: Sequence[NumaNode]) -> tuple[list[Spec], list[list[int]]]:
        """(pools, of each the CPUs that read it): every core of these nodes has a part of the same size in the
        memory nearest to it."""
        readers: dict[int, list[int]] = {}
        for node in nodes:
            nearest = self.nearest(node)
            if nearest is not None and self.cpus_of[node.id]:
                readers.setdefault(nearest, []).extend(self.cpus_of[node.id])
        threads = sum(map(len, readers.values()))
        part = 0
        for cpus in readers.values():
            least = sets.working_set(self.inventory.cpu, cpus)
            part = max(part, sets.round_up(-(-least // len(cpus)), sets.HUGE_PAGE))
            if self.requested:
                part = max(part, sets.round_up(-(-self.requested // threads), sets.HUGE_PAGE))
        found = {node.id: node for node in self.targets}
        specs = [self.spec(found[node], part * len(cpus), cpus) for node, cpus in readers.items()]
        return specs, list(readers.values())

    def nearest(self, node: NumaNode) -> int | None:
        """The node whose memory is nearest to these CPUs: its own where it has any."""
        ids = [one.id for one in self.targets]
        if node.id in ids:
            return node.id
        return min(ids, key=lambda other: (node.distances.get(other, 1 << 30), other), default=None)

    def fitting(self, cases: list[Case]) -> list[Case]:
        """The cases for which there is room; the others are left out, with the sum."""
        kept = []
        for case in cases:
            # Reserved pages are not part of the memory that others may use, and were found to be free.
            wanted: dict[int, int] = {}
            for spec in case.parameters["pools"]:
                if not spec["pages"].startswith("reserved"):
                    wanted[spec["node"]] = wanted.get(spec["node"], 0) + spec["bytes"]
            reason = self.room.refuse(wanted)
            if reason is None:
                kept.append(case)
            else:
                caches = case.labels["cache_bytes"]
                if isinstance(caches, int):
                    least = f"{sets.CACHE_FACTOR} x {exact_bytes(caches)} of last-level caches"
                    arrays = case.parameters.get("arrays", 1)
                    each = f" for each of {arrays} arrays" if arrays > 1 else ""
                    reason += f"; {least} and the level-2 caches below them are needed{each}"
                self.left_out.append(LeftOut(self.probe, case.name, reason))
        return kept


def _deed(kernel: str, alone: bool) -> str:
    """What a kernel does, with room for who does it to what."""
    name = kernel.removesuffix("_nt")
    s = "s" if alone else ""
    if name == "read":
        return f"Read: {{who}} read{s} {{what}}"
    how = "stores past the caches" if name != kernel else "ordinary stores"
    deed = {
        "write": f"write{s} to {{what}}",
        "copy": f"{'copies' if alone else 'copy'} within {{what}}",
        "triad": f"compute{s} a = b + 3 c within {{what}}",
    }[name]
    return f"{name.capitalize()}: {{who}} {deed} with {how}"


def sizes(specs: Sequence[Spec]) -> tuple[int, int]:
    """Bytes of these pools: (all, from reserved pages). `Case.bytes` is the difference, as only that is taken
    from the memory that others may use; the rest is told in the parameter `reserved_bytes`."""
    reserved = sum(spec["bytes"] for spec in specs if spec["pages"].startswith("reserved"))
    return sum(spec["bytes"] for spec in specs), reserved
