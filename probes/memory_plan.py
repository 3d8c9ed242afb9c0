"""The cases of the memory probe for a machine and a budget: pure, from the inventory alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs

from k3gate.probes import file_plan, latency_plan, residency_plan, stores_plan
from k3gate.probes import working_sets as sets
from k3gate.probes.layout import (
    READ_RATE,
    READ_RATE_MOST,
    TOUCH_RATE,
    TOUCH_RATE_MOST,
    WORKER_SECONDS,
    Layout,
    Spec,
    sizes,
)
from k3gate.probing.contract import Planned
from k3gate.records import Case, Inventory, LeftOut, NumaNode, Profile
from k3gate.topology import nodes_of_packages

SHARE = 0.6
"""Of a profile's seconds, for what is timed here; products take some of the rest."""
OF_OWN_MEMORY = (
    "read.core",
    "read.4k",
    "experts",
    "sweep",
    *stores_plan.KERNELS,
    "latency.4k",
    "staircase",
    "loaded",
)
"""How the cases begin that speak of CPUs and memory of one node."""


def plan(probe: str, inventory: Inventory, profile: Profile, isa: str | None) -> Planned:
    """Cases, most important first, and what is left out. Raises `UsageError` (see `check_request`)."""
    return _Planner(probe, inventory, profile, isa).planned()


class _Planner(Layout):
    def planned(self) -> Planned:
        reads = self._thinned(self._reads())
        latencies = self._thinned(latency_plan.cases(self))
        residency = residency_plan.cases(self)
        stores = stores_plan.cases(self)
        ordered = self._ordered(reads, latencies)
        rest = self._one_node_first([*ordered[1:], *stores])
        # What was asked for by name comes before what explains, and after the rate of the machine.
        cases = self._timed([*ordered[:1], *file_plan.cases(self), *rest], residency)
        self._name_what_needs_both()
        return Planned(tuple(cases), tuple(self.left_out))

    def _name_what_needs_both(self) -> None:
        """Where no node has memory and CPUs, the cells alone are measured: the rest is of cores on their own memory."""
        if not self.targets or any(self.cpus_of[node.id] for node in self.targets):
            return
        said = {one.case for one in self.left_out}
        reason = "no node has both memory and CPUs that may be used: every core reads memory of another node"
        self.left_out += [
            LeftOut(self.probe, f"{one}.node*", reason) for one in OF_OWN_MEMORY if f"{one}.*" not in said
        ]

    # --- read bandwidth ---

    def _reads(self) -> list[Case]:
        """The machine, local cells, one core, remote cells, base pages, then how threads and experts change
        the rate: in this order of importance."""
        local, core, remote, base, more = [], [], [], [], []
        for target in self.targets:
            own = self.cpus_of[target.id]
            sources = [one for one in self.inventory.numa.nodes if self.cpus_of[one.id]]
            cpu = self.inventory.cpu
            size = max(
                (sets.working_set(cpu, self.cpus_of[one.id], self.requested) for one in sources), default=0
            )
            if not size:
                continue
            spec = self.spec(target, size, own or self.cpus)
            group = f"node{target.id}"
            if own:
                name = f"read.node{target.id}.node{target.id}"
                local.append(self.cell(name, group, target.id, target.id, own, spec))
                name = f"read.core.node{target.id}"
                core.append(self.cell(name, group, target.id, target.id, own[:1], spec, scope="core"))
                base += self._base_pages(target, own, spec)
                more += self._sweep(target, spec)
                if len(self.targets) > 1:
                    name = f"experts.node{target.id}"
                    more.append(self.cell(name, group, target.id, target.id, own, spec, layout="experts"))
            for source in sources:
                if source.id != target.id:
                    name = f"read.node{source.id}.node{target.id}"
                    remote.append(self.cell(name, group, source.id, target.id, self.cpus_of[source.id], spec))
        return self.fitting([*self._machine(), *self._sockets(), *local, *core, *remote, *base, *more])

    def _machine(self) -> list[Case]:
        """All cores at once, every thread over a part of the same size in the memory nearest to it."""
        specs, groups = self.spread(self.inventory.numa.nodes)
        if not specs:
            return []
        everyone = [cpu for cpus in groups for cpu in cpus]
        # With one node the machine's pool is the node's: built once for both.
        shared = f"node{specs[0]['node']}" if len(specs) == 1 else "machine"

        def machine(name: str, scope: str, layout: str) -> Case:
            return self.cell(
                name, shared, None, None, everyone, *specs, readers=groups, scope=scope, layout=layout
            )

        found = [machine("read.machine", "machine", "own"), machine("experts.machine", "machine", "experts")]
        if len(specs) > 1:
            found.append(machine("read.interleaved", "interleaved", "interleaved"))
        return found

    def _sockets(self) -> list[Case]:
        """All cores of a socket of several nodes, each reading its own node; one socket alone is the machine."""
        packages = nodes_of_packages(self.inventory.cpu, self.inventory.numa)
        if len({node for ids in packages.values() for node in ids}) < sum(map(len, packages.values())):
            return []  # a node of two sockets: the topology contradicts itself, and is no finding of this probe
        found = []
        for socket, ids in packages.items() if len(packages) > 1 else ():
            own = [node for node in self.inventory.numa.nodes if node.id in ids]
            specs, groups = self.spread(own)
            if len(specs) > 1:
                everyone = [cpu for cpus in groups for cpu in cpus]
                name = f"read.socket{socket}"
                found.append(
                    self.cell(
                        name,
                        f"socket{socket}",
                        None,
                        None,
                        everyone,
                        *specs,
                        readers=groups,
                        scope="socket",
                        socket=socket,
                    )
                )
        return found

    def _sweep(self, node: NumaNode, spec: Spec) -> list[Case]:
        """More and more threads of a node on its own memory: one per core first, then SMT siblings.

        One thread and one per core are cases of their own; short profiles take few points of the first node.
        """
        own = self.cpus_of[node.id]
        usable = set(sets.usable_cpus(self.inventory))
        siblings = [cpu for cpu in node.cpus if cpu in usable and cpu not in own]
        first = next(one.id for one in self.targets if self.cpus_of[one.id])
        if self.profile.seconds < 600 and node.id != first:
            reason = "a short profile sweeps threads on one node; --profile standard sweeps every node"
            self.left_out.append(LeftOut(self.probe, f"sweep.node{node.id}.*", reason))
            return []
        cores = len(own)
        wanted = {cores // 4, cores // 2, 3 * cores // 4, cores + len(siblings)}
        if self.profile.seconds >= 600:
            wanted |= {2**power for power in range(1, cores.bit_length())} | {cores + len(siblings) // 2}
        everyone = (*own, *siblings)
        return [
            self.cell(
                f"sweep.node{node.id}.t{threads}",
                f"node{node.id}",
                node.id,
                node.id,
                everyone[:threads],
                spec,
                scope="sweep",
            )
            for threads in sorted(wanted - {0, 1, cores})
        ]

    def _base_pages(self, node: NumaNode, cpus: Sequence[int], huge: Spec) -> list[Case]:
        name = f"read.4k.node{node.id}"
        if huge["pages"] == "small":
            reason = f"read.node{node.id}.node{node.id} has base pages already: there are no huge pages here"
        elif self.profile.seconds < 60:
            reason = "the shortest profile measures one page size; --profile quick measures both"
        else:
            spec = self.spec(node, huge["bytes"], cpus, "small")
            return [self.cell(name, f"4k.node{node.id}", node.id, node.id, cpus, spec)]
        self.left_out.append(LeftOut(self.probe, name, reason))
        return []

    def _ordered(self, reads: list[Case], latencies: list[Case]) -> list[Case]:
        """What the gate asks first: rates of the machine and of nodes, then latency, then all that explains."""
        whole = [case for case in reads if case.name == "read.machine"]
        asked = [case for case in reads if case.name.startswith("read.node")]
        asked += [
            case for case in reads if case.name.startswith(("read.core", "experts.machine", "read.socket"))
        ]
        cells = [case for case in latencies if case.labels["scope"] == "node" and "4k" not in case.name]
        local = [case for case in cells if case.labels["placement"] == "local"]
        ordered = {case.name: case for case in (*whole, *asked, *local, *reads, *cells, *latencies)}
        return list(ordered.values())

    def _thinned(self, cases: list[Case]) -> list[Case]:
        """For short profiles the cells of each node's own memory, of the nearest and of the farthest other: all of a
        large matrix would leave no time for what explains a single node."""
        if self.profile.seconds >= 600:
            return cases
        cells = {
            (int(str(case.labels["cpu_node"])), int(str(case.labels["memory_node"])))
            for case in cases
            if _is_remote_cell(case)
        }
        wanted = nearest_and_farthest(cells, self.inventory.numa.nodes)
        reason = (
            "a short profile takes a node's nearest and farthest memory; --profile standard takes every cell"
        )
        kept = []
        for case in cases:
            if _is_remote_cell(case) and (case.labels["cpu_node"], case.labels["memory_node"]) not in wanted:
                self.left_out.append(LeftOut(self.probe, case.name, reason))
            else:
                kept.append(case)
        return kept

    def _one_node_first(self, cases: list[Case]) -> list[Case]:
        """For a short profile that has time for more than reads: all figures of the machine, its sockets and one node
        come first, then the other nodes."""
        first = next((node.id for node in self.targets if self.cpus_of[node.id]), None)
        if not 60 <= self.profile.seconds < 600 or first is None:
            return cases

        def speaks_of_others(case: Case) -> bool:
            nodes = {case.labels["cpu_node"], case.labels["memory_node"]}
            return not nodes <= {first, None}

        return sorted(cases, key=speaks_of_others)

    # --- time ---

    def _timed(self, reads: list[Case], residency: list[Case]) -> list[Case]:
        """Share the profile's seconds out. A group's set-up stands in its first case, which builds it."""
        rounds = _rounds(self.profile.seconds)
        first: set[str] = set()
        setups = []
        for case in reads:
            builds = case.group not in first
            first.add(case.group)
            if "file" in case.parameters:
                setups.append(case.setup_seconds)
                continue
            if case.parameters["kernel"] == "chase":
                setups.append(latency_plan.setup_seconds(case, builds=builds))
                continue
            if case.parameters["kernel"] != "read":
                setups.append(stores_plan.setup_seconds(case, builds=builds))
                continue
            threads = sum(len(spec["touch"]) for spec in case.parameters["pools"])
            size, _ = sizes(case.parameters["pools"])
            setup = size / min(int(case.labels["threads"] or 1) * READ_RATE, READ_RATE_MOST)
            if builds:
                setup += size / min(threads * TOUCH_RATE, TOUCH_RATE_MOST)
            setups.append(setup)
        fixed = rounds * (sum(setups) + WORKER_SECONDS * len(first)) + sum(
            one.seconds * one.rounds for one in residency
        )
        share = (SHARE * self.profile.seconds - fixed) / max(1, rounds * len(reads))
        most = min(10.0, max(1.0, self.profile.seconds / 45))
        seconds = min(most, max(0.4, share))
        timed = [
            attrs.evolve(
                case,
                rounds=rounds,
                seconds=max(seconds, _least_seconds(case)) + setup,
                setup_seconds=setup,
                time_limit_s=_time_limit(case, max(seconds, _least_seconds(case)) + setup),
            )
            for case, setup in zip(reads, setups, strict=True)
        ]
        # A plan that is cut keeps its beginning: what decides residency and the ladder stands there.
        head = sum(case.name == "read.machine" for case in timed)
        return [*timed[:head], *residency, *timed[head:]]


def _is_remote_cell(case: Case) -> bool:
    return case.labels["scope"] == "node" and case.labels["placement"] == "remote"


def nearest_and_farthest(
    cells: Collection[tuple[int, int]], nodes: Sequence[NumaNode]
) -> set[tuple[int, int]]:
    """Of these (CPU node, memory node): for each CPU node, and each memory node without CPUs, the cells over the least
    and the greatest distance; the first and the last where distances are unknown or equal."""
    distances = {node.id: node.distances for node in nodes}
    rows: dict[tuple[str, int], list[tuple[int, int]]] = {}
    without_cpus = {node.id for node in nodes if not node.cpus}
    for cpu_node, memory_node in sorted(cells):
        rows.setdefault(("cpu", cpu_node), []).append((cpu_node, memory_node))
        if memory_node in without_cpus:
            rows.setdefault(("memory", memory_node), []).append((cpu_node, memory_node))

    def distance(cell: tuple[int, int]) -> tuple[int, tuple[int, int]]:
        return distances.get(cell[0], {}).get(cell[1], 0), cell

    return {end(row, key=distance) for row in rows.values() for end in (min, max)}


def _least_seconds(case: Case) -> float:
    """What three samples of each point of a case take: a staircase has one for each size."""
    points = max(len(case.parameters.get("sizes", ())), len(case.parameters.get("delays", ())), 2)
    return 0.2 * points


def _rounds(seconds: float) -> int:
    """Rounds, each in a fresh process: placement differs more between processes than samples within one."""
    return 3 if seconds < 60 else 5 if seconds < 600 else 9 if seconds < 1500 else 15


def _time_limit(case: Case, seconds: float) -> float:
    return file_plan.time_limit(case, seconds) if "file" in case.parameters else max(60.0, 10 * seconds)
