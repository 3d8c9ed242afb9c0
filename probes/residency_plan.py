"""The case that holds the target's image, or a small pool in its place, and the one that reads experts in it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from k3gate.model import k3
from k3gate.probes import working_sets as sets
from k3gate.probes.layout import READ_RATE, READ_RATE_MOST, TOUCH_RATE, TOUCH_RATE_MOST, Layout, Spec, sizes
from k3gate.records import Case, HugePagePool, LeftOut, NumaNode, Scalar
from k3gate.units import count, exact_bytes, quantity

LEAST_ROUNDS = 3
"""Of the small pool; the whole image is held once, which takes as long as loading the model."""
SMALL_POOL_BYTES = 10**9
SMALL_POOL_SHARE = 0.05
IMAGE_KINDS = ("dram", "hbm")
"""Memory without CPUs that an image may lie in; what is not known to be of these may be a GPU's, CXL or PMem."""


def cases(layout: Layout) -> list[Case]:
    """The case, or none where there is no room; the reason is left in `layout.left_out`."""
    nodes = [node for node in layout.targets if node.cpus or node.kind in IMAGE_KINDS]
    spared = "".join(
        f"; node {node.id} has memory of kind {node.kind} and no CPUs, and is left out"
        for node in layout.targets
        if node not in nodes
    )
    wanted = layout.profile.image_bytes
    total = layout.room.total
    if total is None or not nodes:
        reason = "how much memory may be used is unknown" if nodes else f"no node has memory for it{spared}"
        layout.left_out.append(LeftOut(layout.probe, "residency.image", reason))
        return []
    image = wanted is not None and layout.profile.seconds >= 600
    reserved = {
        node.id: pool for node in nodes if (pool := sets.reserved_pages(node, node.memory_bytes or 0))
    }
    everything = total + sum(pool.free * pool.page_bytes for pool in reserved.values())
    goal = (
        wanted if image and wanted is not None else min(SMALL_POOL_BYTES, int(everything * SMALL_POOL_SHARE))
    )
    specs = _image_specs(layout, nodes, goal, reserved)
    held, set_aside = sizes(specs)
    if not held:
        reason = f"no room: {exact_bytes(total)} in all may be taken, by node {dict(layout.room.nodes)}"
        layout.left_out.append(LeftOut(layout.probe, "residency.image", reason))
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
    found = [_case(layout, specs, image, note)]
    if image and all(spec["bytes"] >= k3.EXPERT_BYTES for spec in specs):
        found.append(_experts(layout, specs))
    return found


def _image_specs(
    layout: Layout, nodes: Sequence[NumaNode], goal: int, reserved: Mapping[int, HugePagePool]
) -> list[Spec]:
    """Of each node a pool of its reserved pages, and one of other memory for what these do not hold."""
    set_aside, ordinary = sets.spread(goal, nodes, layout.room, reserved)
    specs = []
    for node in nodes:
        touch = layout.cpus_of[node.id] or layout.cpus
        if node.id in set_aside:
            kind = sets.RESERVED[reserved[node.id].page_bytes]
            specs.append(layout.spec(node, set_aside[node.id], touch, kind))
        if node.id in ordinary:
            kind = sets.ordinary_kind(layout.inventory)
            specs.append(layout.spec(node, ordinary[node.id], touch, kind))
    return specs


def _case(layout: Layout, specs: Sequence[Spec], image: bool, note: str | None) -> Case:
    held, reserved = sizes(specs)
    threads = len(layout.cpus)
    seconds = held / min(threads * TOUCH_RATE, TOUCH_RATE_MOST)
    seconds += held / min(threads * READ_RATE, READ_RATE_MOST)
    labels: dict[str, Scalar] = {
        "memory": "image" if image else "pool",
        "wanted_bytes": layout.profile.image_bytes,
        "nodes": ",".join(dict.fromkeys(str(spec["node"]) for spec in specs)),
        "threads": threads,
    }
    part = image and held < (layout.profile.image_bytes or 0)
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
        "cpus": list(layout.cpus),
        "note": note,
        "reserved_bytes": reserved,
    }
    return Case(
        layout.probe,
        "residency.image",
        f"Residency: {what}, {where}, touched by {count(threads, 'thread')} and read back",
        "residency",
        parameters,
        seconds,
        held - reserved,
        rounds=1 if image else LEAST_ROUNDS,
        time_limit_s=max(60.0, 10 * seconds),
        labels=labels,
    )


def _experts(layout: Layout, specs: Sequence[Spec]) -> Case:
    """Experts in random order all over the image that the case before has touched, where it lies: what the reach of
    the TLB costs shows against experts.machine, and a module that gives wrong words in the sums."""
    held, reserved = sizes(specs)
    threads = len(layout.cpus)
    caches = sets.cache_bytes(layout.inventory.cpu, layout.cpus)
    seconds = max(1.0, held / min(threads * READ_RATE, READ_RATE_MOST))
    labels: dict[str, Scalar] = {
        "cpu_node": None,
        "memory_node": None,
        "scope": "image",
        "placement": "spread",
        "threads": threads,
        "pool_bytes": held,
        "cache_bytes": caches,
        "kernel": "read",
        "expert_bytes": k3.EXPERT_BYTES,
    }
    parameters = {
        "kernel": "read",
        "pools": list(specs),
        "cpus": list(layout.cpus),
        "isa": layout.isa,
        "reserved_bytes": reserved,
        "level_2_bytes": sets.level_2_bytes(layout.inventory.cpu, layout.cpus),
    }
    return Case(
        layout.probe,
        "experts.image",
        f"Read: every expert once by {count(threads, 'thread')}, in {quantity(held, 'B')} held for the image, in "
        "random order",
        "residency",
        parameters,
        seconds,
        held - reserved,
        time_limit_s=max(60.0, 10 * seconds),
        rounds=1,
        labels=labels,
    )
