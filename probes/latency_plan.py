"""The latency cases of the memory probe: pure, from the inventory alone."""

from __future__ import annotations

from collections.abc import Sequence

from k3gate.probes import working_sets as sets
from k3gate.probes.layout import READ_RATE, TOUCH_RATE, Layout, Spec, sizes
from k3gate.records import Case, LeftOut, NumaNode, Scalar

BLOCK_BYTES = 256
"""One pointer in each block: next-line and pair prefetchers help below that."""
BUILD_SECONDS_PER_BLOCK = 150e-9
"""Taken for planning, on the slow side: linking a block into the cycle."""
SMALLEST_BYTES = 16 << 10
LEAST_LAST_STEP = 1.25
"""The last size of a staircase, the pool, is at least so many times the one before."""
DELAYS = (1 << 20, 1 << 18, 1 << 16, 1 << 14, 1 << 12, 0)
"""Turns of an empty loop after each block that a loader reads: from hardly any load to all there is."""
SHORT_DELAYS = (1 << 18, 1 << 14, 0)


def cases(layout: Layout) -> list[Case]:
    """Each CPU node against each memory node, base pages, the cache staircase, latency under load.

    Short profiles take the matrix and the figures of the first node; the rest is left to longer ones.
    """
    if layout.profile.seconds < 60:
        reason = "the shortest profile measures bandwidth alone; --profile quick measures latency too"
        layout.left_out.append(LeftOut(layout.probe, "latency.*", reason))
        return []
    found: list[Case] = []
    extras: list[Case] = []
    first = True
    for target in layout.targets:
        sources = [one for one in layout.inventory.numa.nodes if layout.cpus_of[one.id]]
        spec = _pool(layout, target, sources)
        if spec is None:
            continue
        sources.sort(key=lambda one: one.id != target.id)
        found += [_cell(layout, source, target, spec) for source in sources]
        if not layout.cpus_of[target.id] or not (first or layout.profile.seconds >= 600):
            continue
        first = False
        extras.append(_staircase(layout, target, spec))
        if spec["pages"] != "small":
            base = layout.spec(target, spec["bytes"], spec["touch"], "small")
            extras.append(_cell(layout, target, target, base, name=f"latency.4k.node{target.id}"))
        if len(layout.cpus_of[target.id]) > 1:
            extras.append(_loaded(layout, target, spec))
    return layout.fitting([*found, *extras])


def _pool(layout: Layout, target: NumaNode, sources: Sequence[NumaNode]) -> Spec | None:
    """Beyond the caches of whichever single core chases in it; the caches of its whole chip count."""
    cpus = [layout.cpus_of[one.id][0] for one in sources]
    size = max((sets.working_set(layout.inventory.cpu, [cpu], layout.requested) for cpu in cpus), default=0)
    if not size:
        return None
    own = layout.cpus_of[target.id] or layout.cpus
    return layout.spec(target, size, own[:1])


def _case(
    layout: Layout,
    name: str,
    title: str,
    group: str,
    cpu: int,
    spec: Spec,
    labels: dict[str, Scalar],
    **more: object,
) -> Case:
    pools = [spec, *([more["load"]] if isinstance(more.get("load"), dict) else [])]
    total, reserved = sizes([one for one in pools if isinstance(one, dict)])
    caches = sets.cache_bytes(layout.inventory.cpu, [cpu])
    labels = {
        **labels,
        "threads": 1,
        "pool_bytes": spec["bytes"],
        "cache_bytes": caches,
        "kernel": "chase",
        "block_bytes": BLOCK_BYTES,
    }
    parameters = {
        "kernel": "chase",
        "isa": layout.isa,
        "cpu": cpu,
        "pools": pools,
        "reserved_bytes": reserved,
        "level_2_bytes": sets.level_2_bytes(layout.inventory.cpu, [cpu]),
        **more,
    }
    return Case(layout.probe, name, title, group, parameters, 0.0, total - reserved, labels=labels)


def _cell(layout: Layout, source: NumaNode, target: NumaNode, spec: Spec, name: str | None = None) -> Case:
    placement = "local" if source.id == target.id else "remote"
    cpu = layout.cpus_of[source.id][0]
    pages = " in base pages" if spec["pages"] == "small" else ""
    labels: dict[str, Scalar] = {
        "cpu_node": source.id,
        "memory_node": target.id,
        "scope": "node",
        "placement": placement,
    }
    return _case(
        layout,
        name or f"latency.node{source.id}.node{target.id}",
        f"Latency: CPU {cpu} follows a random chain through {sets.megabytes(spec['bytes'])} of node {target.id} "
        f"({placement}){pages}",
        f"latency.{'4k.' if name else ''}node{target.id}",
        cpu,
        spec,
        labels,
    )


def _staircase(layout: Layout, node: NumaNode, spec: Spec) -> Case:
    """The chain through more and more of the pool, and at last through all of it: each cache is a step."""
    cpu = layout.cpus_of[node.id][0]
    factor = 2 if layout.profile.seconds >= 600 else 4
    steps = [SMALLEST_BYTES]
    while steps[-1] * factor * LEAST_LAST_STEP <= spec["bytes"]:
        steps.append(steps[-1] * factor)
    steps.append(spec["bytes"])
    labels: dict[str, Scalar] = {
        "cpu_node": node.id,
        "memory_node": node.id,
        "scope": "staircase",
        "placement": "local",
    }
    title = f"Latency by size: CPU {cpu}, {len(steps)} sizes from 16 KiB to {sets.megabytes(spec['bytes'])} "
    title += f"on node {node.id}"
    return _case(
        layout,
        f"staircase.node{node.id}",
        title,
        f"staircase.node{node.id}",
        cpu,
        spec,
        labels,
        sizes=steps,
    )


def _loaded(layout: Layout, node: NumaNode, spec: Spec) -> Case:
    """One core chases, the others read as hard as an injected delay lets them."""
    chaser, *others = layout.cpus_of[node.id]
    size = sets.working_set(layout.inventory.cpu, layout.cpus_of[node.id], layout.requested)
    load = layout.spec(node, size, others)
    labels: dict[str, Scalar] = {
        "cpu_node": node.id,
        "memory_node": node.id,
        "scope": "loaded",
        "placement": "local",
        "load_threads": len(others),
    }
    delays = DELAYS if layout.profile.seconds >= 600 else SHORT_DELAYS
    return _case(
        layout,
        f"loaded.node{node.id}",
        f"Latency under load: CPU {chaser} follows a chain, {len(others)} threads read, on node {node.id}",
        f"latency.node{node.id}",  # after the idle walks, on their chain
        chaser,
        spec,
        labels,
        load=load,
        loaders=others,
        delays=list(delays),
    )


def setup_seconds(case: Case, *, builds: bool) -> float:
    """Seconds before the first timed walk of a round; `builds`: it is the case that builds the group's chain."""
    size = case.parameters["pools"][0]["bytes"]
    linked = sum(case.parameters.get("sizes", (size,)))  # a staircase links a chain of each size
    seconds: float = 0.1
    if "sizes" in case.parameters or (builds and "load" in case.parameters):
        seconds += size / BLOCK_BYTES * BUILD_SECONDS_PER_BLOCK  # a turn to its end, for the proof
    if builds:
        seconds += linked / BLOCK_BYTES * BUILD_SECONDS_PER_BLOCK + size / TOUCH_RATE
    if "load" in case.parameters:
        load = case.parameters["load"]
        seconds += load["bytes"] / (len(load["touch"]) * TOUCH_RATE) + load["bytes"] / READ_RATE
    return seconds
