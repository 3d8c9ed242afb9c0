"""The cases of the kernels that store: pure, from the inventory alone."""

from __future__ import annotations

from k3gate.probes import working_sets as sets
from k3gate.probes.layout import ARRAYS, READ_RATE, READ_RATE_MOST, TOUCH_RATE, TOUCH_RATE_MOST, Layout
from k3gate.records import Case, LeftOut

KERNELS = ("copy", "copy_nt", "write", "write_nt", "triad", "triad_nt")
"""Most important first, each with ordinary stores and with stores past the caches."""
SHORT = ("copy", "copy_nt")
"""What a short profile runs: the two show what it costs that a cached store first reads its line."""
_FILLS = 4
"""Passes over the pool beside the timed ones, for planning: filling, spoiling, warming up and reading back."""


def cases(layout: Layout) -> list[Case]:
    """Each kernel by one thread per physical core of a node on its own memory, in a worker of their own: they
    overwrite what a read kernel would check, and each fills its arrays anew.

    Short profiles copy on the first node alone, the shortest leaves all of it out.
    """
    nodes = [node for node in layout.targets if layout.cpus_of[node.id]]
    seconds = layout.profile.seconds
    chosen = KERNELS if seconds >= 600 else SHORT if seconds >= 60 else ()
    reason = "the shortest profile measures reads alone; --profile quick copies too"
    if chosen:
        reason = "a short profile copies, on one node; --profile standard runs every kernel on every node"
    layout.left_out += [LeftOut(layout.probe, f"{one}.*", reason) for one in KERNELS if one not in chosen]
    if not chosen:
        return []
    most = max(ARRAYS[kernel.removesuffix("_nt")] for kernel in chosen)
    found = []
    for place, node in enumerate(nodes):
        if place and seconds < 600:
            layout.left_out.append(LeftOut(layout.probe, f"copy*.node{node.id}", reason))
            continue
        cpus = layout.cpus_of[node.id]
        size = most * sets.working_set(layout.inventory.cpu, cpus, layout.requested)
        spec = layout.spec(node, size, cpus)
        group = f"stores.node{node.id}"
        found += [
            layout.cell(f"{kernel}.node{node.id}", group, node.id, node.id, cpus, spec, kernel=kernel)
            for kernel in chosen
        ]
    return layout.fitting(found)


def setup_seconds(case: Case, *, builds: bool) -> float:
    """Seconds of a round beside the timed regions; `builds`: it is the case that touches the group's pool."""
    (spec,) = case.parameters["pools"]
    threads = len(spec["touch"])
    seconds: float = _FILLS * spec["bytes"] / min(threads * READ_RATE, READ_RATE_MOST)
    if builds:
        seconds += spec["bytes"] / min(threads * TOUCH_RATE, TOUCH_RATE_MOST)
    return seconds
