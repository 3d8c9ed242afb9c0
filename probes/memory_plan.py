"""The cases of the memory probe for a machine and a budget: pure, from the inventory alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from k3gate.probes import working_sets as sets
from k3gate.probing.contract import Planned
from k3gate.records import Case, HugePagePool, Inventory, LeftOut, NumaNode, Profile, Scalar
from k3gate.units import cpu_list, exact_bytes, quantity

# What is taken for planning, per thread and for a whole machine, in B/s. Ours, on the low side: a guest whose
# memory appears lazily touched 0.6 GB/s a thread at first and 3.5 later, and read 6 to 13 with one thread.
TOUCH_RATE = 1.0e9
TOUCH_RATE_MOST = 40e9
READ_RATE = 5e9
READ_RATE_MOST = 100e9
WORKER_SECONDS = 0.3
LEAST_ROUNDS = 3
"""Of the small pool; the whole image is held once, which takes as long as loading the model."""
SMALL_POOL_BYTES = 10**9
SMALL_POOL_SHARE = 0.05
IMAGE_KINDS = ("dram", "hbm")
"""Memory without CPUs that an image may lie in; what is not known to be of these may be a GPU's, CXL or PMem."""

_Spec = dict[str, Any]


def plan(probe: str, inventory: Inventory, profile: Profile, isa: str | None) -> Planned:
    """Cases, most important first, and what is left out. Raises `UsageError` (see `check_request`)."""
    return _Planner(probe, inventory, profile, isa).planned()


class _Planner:
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
        self.left_out.append(LeftOut(self.probe, f"read.*.node{node.id}", reason))
        return False

    def planned(self) -> Planned:
        reads = self._reads()
        residency = self._residency()
        cases = self._timed(reads, residency)
        return Planned(tuple(cases), tuple(self.left_out))

    # --- read bandwidth ---

    def _reads(self) -> list[Case]:
        """The machine, local cells, one core, remote cells, base pages: in this order of importance."""
        local, core, remote, base = [], [], [], []
        for target in self.targets:
            own = self.cpus_of[target.id]
            sources = [one for one in self.inventory.numa.nodes if self.cpus_of[one.id]]
            cpu = self.inventory.cpu
            size = max(
                (sets.working_set(cpu, self.cpus_of[one.id], self.requested) for one in sources), default=0
            )
            if not size:
                continue
            spec = self._spec(target, size, own or self.cpus)
            group = f"node{target.id}"
            if own:
                name = f"read.node{target.id}.node{target.id}"
                local.append(self._cell(name, group, target.id, target.id, own, spec))
                name = f"read.core.node{target.id}"
                core.append(self._cell(name, group, target.id, target.id, own[:1], spec, scope="core"))
                base += self._base_pages(target, own, spec)
            for source in sources:
                if source.id != target.id:
                    name = f"read.node{source.id}.node{target.id}"
                    remote.append(
                        self._cell(name, group, source.id, target.id, self.cpus_of[source.id], spec)
                    )
        return self._fitting([*self._machine(), *local, *core, *remote, *base])

    def _spec(self, node: NumaNode, size: int, touch: Sequence[int], pages: str | None = None) -> _Spec:
        """A pool: `bind` is the node to bind to, None where the kernel knows no nodes."""
        pages = pages or sets.page_kind(self.inventory, node, size)
        size = sets.round_up(size, sets.GIANT_PAGE if pages == "reserved_1g" else sets.HUGE_PAGE)
        bind = node.id if self.inventory.numa.available else None
        return {"node": node.id, "bind": bind, "bytes": size, "pages": pages, "touch": list(touch)}

    def _cell(
        self,
        name: str,
        group: str,
        source: int | None,
        target: int | None,
        cpus: Sequence[int],
        *specs: _Spec,
        readers: Sequence[Sequence[int]] | None = None,
        scope: str = "node",
    ) -> Case:
        caches = sets.cache_bytes(self.inventory.cpu, cpus)
        total, reserved = _sizes(specs)
        placement = "spread" if source is None else "local" if source == target else "remote"
        who = f"CPU {cpus[0]}" if len(cpus) == 1 else f"{len(cpus)} cores, CPUs {cpu_list(list(cpus))}"
        what = "each its own node's memory" if source is None else f"memory of node {target} ({placement})"
        pages = " in base pages" if specs[0]["pages"] == "small" else ""
        labels: dict[str, Scalar] = {
            "cpu_node": source,
            "memory_node": target,
            "scope": scope,
            "placement": placement,
            "threads": len(cpus),
            "pool_bytes": total,
            "cache_bytes": caches,
            "kernel": "read",
        }
        parameters = {
            "kernel": "read",
            "isa": self.isa,
            "pools": list(specs),
            "readers": [list(one) for one in readers or [cpus]],
            "reserved_bytes": reserved,
            "level_2_bytes": sets.level_2_bytes(self.inventory.cpu, cpus),
        }
        title = f"Read: {who} read {what}{pages}, {sets.describe(total, caches)}"
        return Case(self.probe, name, title, group, parameters, 0.0, total - reserved, labels=labels)

    def _machine(self) -> list[Case]:
        """All cores at once, every thread over a part of the same size in the memory nearest to it."""
        readers: dict[int, list[int]] = {}
        for node in self.inventory.numa.nodes:
            nearest = self._nearest(node)
            if nearest is not None and self.cpus_of[node.id]:
                readers.setdefault(nearest, []).extend(self.cpus_of[node.id])
        if not readers:
            return []
        part = 0
        for cpus in readers.values():
            least = sets.working_set(self.inventory.cpu, cpus)
            part = max(part, sets.round_up(-(-least // len(cpus)), sets.HUGE_PAGE))
        everyone = [cpu for cpus in readers.values() for cpu in cpus]
        if self.requested:
            part = max(part, sets.round_up(-(-self.requested // len(everyone)), sets.HUGE_PAGE))
        nodes = {node.id: node for node in self.targets}
        specs = [self._spec(nodes[node], part * len(cpus), cpus) for node, cpus in readers.items()]
        groups = list(readers.values())
        return [
            self._cell(
                "read.machine", "machine", None, None, everyone, *specs, readers=groups, scope="machine"
            )
        ]

    def _nearest(self, node: NumaNode) -> int | None:
        ids = [one.id for one in self.targets]
        if node.id in ids:
            return node.id
        return min(ids, key=lambda other: (node.distances.get(other, 1 << 30), other), default=None)

    def _base_pages(self, node: NumaNode, cpus: Sequence[int], huge: _Spec) -> list[Case]:
        name = f"read.4k.node{node.id}"
        if huge["pages"] == "small":
            reason = f"read.node{node.id}.node{node.id} has base pages already: there are no huge pages here"
        elif self.profile.seconds < 60:
            reason = "the shortest profile measures one page size; --profile quick measures both"
        else:
            spec = self._spec(node, huge["bytes"], cpus, "small")
            return [self._cell(name, f"4k.node{node.id}", node.id, node.id, cpus, spec)]
        self.left_out.append(LeftOut(self.probe, name, reason))
        return []

    def _fitting(self, cases: list[Case]) -> list[Case]:
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
                    reason += f"; {least} and the level-2 caches below them are needed"
                self.left_out.append(LeftOut(self.probe, case.name, reason))
        return kept

    # --- residency ---

    def _residency(self) -> list[Case]:
        nodes = [node for node in self.targets if node.cpus or node.kind in IMAGE_KINDS]
        spared = "".join(
            f"; node {node.id} has memory of kind {node.kind} and no CPUs, and is left out"
            for node in self.targets
            if node not in nodes
        )
        wanted = self.profile.image_bytes
        total = self.room.total
        if total is None or not nodes:
            reason = (
                "how much memory may be used is unknown" if nodes else f"no node has memory for it{spared}"
            )
            self.left_out.append(LeftOut(self.probe, "residency.image", reason))
            return []
        image = wanted is not None and self.profile.seconds >= 600
        reserved = {
            node.id: pool for node in nodes if (pool := sets.reserved_pages(node, node.memory_bytes or 0))
        }
        everything = total + sum(pool.free * pool.page_bytes for pool in reserved.values())
        goal = (
            wanted
            if image and wanted is not None
            else min(SMALL_POOL_BYTES, int(everything * SMALL_POOL_SHARE))
        )
        specs = self._image_specs(nodes, goal, reserved)
        held, set_aside = _sizes(specs)
        if not held:
            reason = f"no room: {exact_bytes(total)} in all may be taken, by node {dict(self.room.nodes)}"
            self.left_out.append(LeftOut(self.probe, "residency.image", reason))
            return []
        if not image:
            note: str | None = (
                f"a small pool of {quantity(held, 'B')}, not the image: --profile standard holds the image"
            )
        elif wanted is not None and held < wanted:
            note = (
                f"{exact_bytes(held)} of the image of {exact_bytes(wanted)}: more cannot be had, as at most "
                f"{sets.USABLE_SHARE:.0%} of the memory that may be used is taken"
                + (f", and {exact_bytes(set_aside)} of reserved huge pages" if set_aside else "")
                + spared
            )
        else:
            note = None
        return [self._residency_case(specs, image, note)]

    def _image_specs(
        self, nodes: Sequence[NumaNode], goal: int, reserved: Mapping[int, HugePagePool]
    ) -> list[_Spec]:
        """Of each node a pool of its reserved pages, and one of other memory for what these do not hold."""
        set_aside, ordinary = sets.spread(goal, nodes, self.room, reserved)
        specs = []
        for node in nodes:
            touch = self.cpus_of[node.id] or self.cpus
            if node.id in set_aside:
                kind = sets.RESERVED[reserved[node.id].page_bytes]
                specs.append(self._spec(node, set_aside[node.id], touch, kind))
            if node.id in ordinary:
                kind = sets.ordinary_kind(self.inventory)
                specs.append(self._spec(node, ordinary[node.id], touch, kind))
        return specs

    def _residency_case(self, specs: Sequence[_Spec], image: bool, note: str | None) -> Case:
        held, reserved = _sizes(specs)
        threads = len(self.cpus)
        seconds = held / min(threads * TOUCH_RATE, TOUCH_RATE_MOST)
        seconds += held / min(threads * READ_RATE, READ_RATE_MOST)
        labels: dict[str, Scalar] = {
            "memory": "image" if image else "pool",
            "wanted_bytes": self.profile.image_bytes,
            "nodes": ",".join(dict.fromkeys(str(spec["node"]) for spec in specs)),
            "threads": threads,
        }
        part = image and held < (self.profile.image_bytes or 0)
        what = (
            "as much of the target's image as can be had"
            if part
            else "the target's image"
            if image
            else "a small pool in place of the image"
        )
        where = ", ".join(f"{quantity(spec['bytes'], 'B')} on node {spec['node']}" for spec in specs)
        parameters = {
            "pools": list(specs),
            "cpus": list(self.cpus),
            "note": note,
            "reserved_bytes": reserved,
        }
        return Case(
            self.probe,
            "residency.image",
            f"Residency: {what}, {where}, touched by {threads} threads and read back",
            "residency",
            parameters,
            seconds,
            held - reserved,
            rounds=1 if image else LEAST_ROUNDS,
            time_limit_s=max(60.0, 10 * seconds),
            labels=labels,
        )

    # --- time ---

    def _timed(self, reads: list[Case], residency: list[Case]) -> list[Case]:
        """Share the profile's seconds out. A group's set-up stands in its first case, which builds it."""
        rounds = _rounds(self.profile.seconds)
        first: set[str] = set()
        setups = []
        for case in reads:
            threads = sum(len(spec["touch"]) for spec in case.parameters["pools"])
            size, _ = _sizes(case.parameters["pools"])
            setup = size / min(int(case.labels["threads"] or 1) * READ_RATE, READ_RATE_MOST)
            if case.group not in first:
                first.add(case.group)
                setup += size / min(threads * TOUCH_RATE, TOUCH_RATE_MOST)
            setups.append(setup)
        fixed = rounds * (sum(setups) + WORKER_SECONDS * len(first)) + sum(
            one.seconds * one.rounds for one in residency
        )
        share = (0.8 * self.profile.seconds - fixed) / max(1, rounds * len(reads))
        most = min(10.0, max(1.0, self.profile.seconds / 45))
        seconds = min(most, max(0.4, share))
        timed = [
            attrs.evolve(
                case,
                rounds=rounds,
                seconds=seconds + setup,
                setup_seconds=setup,
                time_limit_s=max(60.0, 10 * (seconds + setup)),
            )
            for case, setup in zip(reads, setups, strict=True)
        ]
        # A plan that is cut keeps its beginning: what decides residency and the ladder stands there.
        head = sum(case.labels["scope"] == "machine" for case in timed)
        return [*timed[:head], *residency, *timed[head:]]


def _sizes(specs: Sequence[_Spec]) -> tuple[int, int]:
    """Bytes of these pools: (all, from reserved pages). `Case.bytes` is the difference, as only that is taken
    from the memory that others may use; the rest is told in the parameter `reserved_bytes`."""
    reserved = sum(spec["bytes"] for spec in specs if spec["pages"].startswith("reserved"))
    return sum(spec["bytes"] for spec in specs), reserved


def _rounds(seconds: float) -> int:
    """Rounds, each in a fresh process: placement differs more between processes than samples within one."""
    return 3 if seconds < 60 else 5 if seconds < 600 else 9 if seconds < 1500 else 15
