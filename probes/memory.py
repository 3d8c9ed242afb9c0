"""Sustained bandwidth of memory: one core, each CPU node against each memory node, the whole machine; latency;
and residency, whether an image of the wanted size can be held.

Cases, planned from the inventory alone:

    read.core.nodeN     one core of node N reads memory of its own node
    read.nodeC.nodeM    one thread per physical core of node C reads memory of node M
    read.socketS        one thread per physical core of socket S, each reads memory of its own node, where a
                        socket has several nodes and the machine several sockets
    read.machine        one thread per physical core, each reads memory of its own node, or of the nearest where that
                        has none
    read.4k.nodeN       as read.nodeN.nodeN, with base pages in place of huge ones
    read.interleaved    one thread per physical core, each reads a part of the memory of every node, in stripes
    sweep.nodeN.tT      T threads of node N read its own memory; beyond one per core, SMT siblings join
    experts.machine     as read.machine, experts of Kimi K3 in random order; experts.nodeN of one node
    write.nodeN         one thread per physical core of node N stores to its own memory, with ordinary stores, and
                        write_nt.nodeN with stores past the caches; copy.nodeN and copy_nt.nodeN load as much as
                        they store, triad.nodeN and triad_nt.nodeN twice as much
    latency.nodeC.nodeM one core of node C follows a random chain of pointers through memory of node M; latency.4k.nodeN
                        in base pages
    staircase.nodeN     the same through 16 KiB, 32 KiB and so on: each cache is a step
    loaded.nodeN        the same while the other cores of the node read, slowed by an injected delay
    fileN.*             the same for files that the user names: see `file_plan`
    residency.image     the target's image is allocated, touched and verified; a small pool in short profiles
    experts.image       experts of Kimi K3 are read in random order all over that image

A rate is bytes counted / (last end - first start) of all threads, taken over whole passes of arrays that are
at least four times the level-2 and last-level caches in play.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from k3gate import metrics
from k3gate.probes import bandwidth, file_memory, latency, layout, memory_plan, residency, sharing
from k3gate.probing.contract import Applies, Context, Planned, Reason
from k3gate.records import Case, Inventory, Metric, MetricDeclaration, Profile


class MemoryProbe:
    """Bandwidth, latency and residency. See the module's text for the cases."""

    name = "memory"
    title = "Memory: bandwidth and latency by node, and whether the image fits"
    metrics: Sequence[MetricDeclaration] = (
        metrics.MEMORY_READ,
        metrics.CORE_CLOCK,
        metrics.EXPERT_READ,
        metrics.MEMORY_WRITE,
        metrics.MEMORY_COPY,
        metrics.MEMORY_TRIAD,
        metrics.LATENCY_IDLE,
        metrics.LATENCY_LOADED,
        metrics.UNDER_LOAD,
        metrics.FILE_READ,
        metrics.FILE_EXPERTS,
        metrics.FILE_LATENCY,
        metrics.RESIDENCY_BYTES,
        metrics.RESIDENCY_RATE,
    )

    def applies(self, inventory: Inventory) -> Applies | Reason:
        """Needs a CPU that may be used and a node that has memory."""
        return layout.applies(inventory)

    def cases(self, inventory: Inventory, profile: Profile) -> Planned:
        """Raises `UsageError` for a working set that fits in caches, or a lacking instruction set."""
        return memory_plan.plan(self.name, inventory, profile, sharing.forced_isa())

    def run(self, case: Case, context: Context) -> Iterator[Metric]:
        """One round of a case."""
        if case.name == "residency.image":
            yield from residency.measure(case, context)
        elif case.name == "experts.image":
            yield residency.read_experts(case, context)
        elif "file" in case.parameters:
            yield from file_memory.measure(case, context)
        elif case.parameters["kernel"] == "chase":
            yield from latency.measure(case, context)
        else:
            yield from bandwidth.measure(case, context)
