"""Findings: what a buyer must know about the machine before any figure measured on it is believed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from k3gate import topology
from k3gate.host import (
    device_findings,
    gpu_findings,
    link_findings,
    module_findings,
    restrictions,
    setting_findings,
)
from k3gate.host import numa as nodes
from k3gate.host.memory import MEMINFO
from k3gate.records import Finding, Inventory, Numa, Severity
from k3gate.units import cpu_list, gib

_ORDER = {Severity.HIGH: 0, Severity.MEDIUM: 1, Severity.LOW: 2}
# An idle machine's load stays well below this; above it other work takes memory bandwidth.
_HIGH_LOAD_PER_CPU = 0.1
_HIGH_LOAD_LEAST = 1.0
_TOTALS_DIFFER = 0.1


def find(inventory: Inventory) -> tuple[Finding, ...]:
    """All findings of an inventory, the most severe first."""
    found = [finding for rule in _RULES for finding in rule(inventory)]
    return tuple(sorted(found, key=lambda finding: _ORDER[finding.severity]))


def _virtual(inventory: Inventory) -> Iterator[Finding]:
    machine = inventory.machine
    if machine.virtual:
        yield Finding(
            "virtual_machine",
            Severity.HIGH,
            "This is a virtual machine",
            machine.hypervisor or "a hypervisor that does not tell its name",
            "bare metal",
            "Memory channels, NUMA placement and neighbours are out of sight in a guest; its rates say "
            "little about the machine that would be bought for K3.",
            "Rent the bare-metal machine and run there.",
        )
    if machine.container:
        yield Finding(
            "container",
            Severity.MEDIUM,
            "This runs in a container",
            machine.container,
            "the machine itself",
            "A container may refuse memory placement and page locking and may share CPUs with others.",
            "Run on the host, or with --cap-add SYS_NICE --ulimit memlock=-1 and without limits.",
        )


def _restricted(inventory: Inventory) -> Iterator[Finding]:
    process = restrictions.of_process(inventory.cpu, inventory.memory, inventory.limits, inventory.numa)
    for restriction in (*process, *restrictions.of_machine(inventory)):
        yield restriction.finding
    isolated = restrictions.isolated(inventory.kernel)
    if isolated is not None:
        yield Finding(
            "isolated_cpus",
            Severity.MEDIUM,
            "CPUs are isolated from the scheduler",
            f"isolcpus={isolated} at boot",
            "no isolated CPUs",
            "A runtime that does not pin its threads to those CPUs leaves them idle.",
            "Boot without isolcpus=.",
        )


def _memory(inventory: Inventory) -> Iterator[Finding]:
    memory = inventory.memory
    if memory.swap_used_bytes:
        yield Finding(
            "swap_in_use",
            Severity.MEDIUM,
            "Swap is in use",
            f"{gib(memory.swap_used_bytes)} of {gib(memory.swap_total_bytes)}",
            "no swap in use",
            "Pages of the weights that are swapped out are read at disk speed.",
            "Stop what fills memory, then: sudo swapoff -a",
        )
    known = [node.memory_bytes for node in inventory.numa.nodes]
    held = sum(value for value in known if value is not None)
    total = memory.total_bytes
    if (
        inventory.numa.available
        and total
        and None not in known
        and abs(held - total) > _TOTALS_DIFFER * total
    ):
        yield Finding(
            "node_memory_differs",
            Severity.LOW,
            "Nodes and machine tell different amounts of memory",
            f"nodes {gib(held)}; {MEMINFO} {gib(total)}",
            "about the same",
            "Memory that is plugged in while the machine runs shows up late in one of the two.",
            "Nothing on bare metal shows this; in a VM look at its memory hot-plug or balloon.",
        )


def _topology(inventory: Inventory) -> Iterator[Finding]:
    numa, cpu = inventory.numa, inventory.cpu
    if not numa.available:
        yield Finding(
            "numa_unavailable",
            Severity.MEDIUM,
            "NUMA information unavailable",
            f"no {nodes.NODES}",
            "one folder per NUMA node",
            "Local and remote memory cannot be told apart, so neither placement nor node rates can be shown.",
            "Use a kernel with CONFIG_NUMA and, in a capture, take sys/devices/system/node along.",
        )
    for sentence in numa.contradictions:
        mild = nodes.NOT_ONLINE in sentence
        yield Finding(
            "node_names_offline_cpus" if mild else "topology_contradiction",
            Severity.LOW if mild else Severity.HIGH,
            "A node names CPUs that are not online" if mild else "The topology contradicts itself",
            sentence,
            "nodes, CPUs and packages that agree",
            "Those CPUs are left out; work is placed on online and allowed CPUs only."
            if mild
            else "Which memory is near which cores cannot be relied upon; node lists are used for placement.",
            "Nothing is needed where the CPUs are off on purpose."
            if mild
            else "Mostly a VM or a firmware fault: use bare metal, update the firmware, check NPS or SNC.",
        )
    if numa.available:
        yield from _odd_nodes(numa)
    low = topology.uneven(numa)
    if low:
        sizes = ", ".join(f"node {n.id} {gib(n.memory_bytes)}" for n in numa.nodes if n.cpus)
        yield Finding(
            "uneven_nodes",
            Severity.MEDIUM,
            "Nodes hold uneven amounts of memory",
            sizes,
            "the same at every node",
            "Weights spread evenly over the nodes are bounded by the smallest one, and a smaller node "
            "often has fewer channels.",
            "Populate all nodes alike.",
        )
    per_package = {
        package: ids for package, ids in topology.nodes_of_packages(cpu, numa).items() if len(ids) > 1
    }
    if per_package and not nodes.doubtful(numa):
        package, ids = next(iter(per_package.items()))
        yield Finding(
            "several_nodes_per_socket",
            Severity.LOW,
            f"{len(ids)} NUMA nodes per socket",
            f"package {package} holds nodes {cpu_list(ids)}",
            "the mode that the runtime is planned for",
            "A node is a part of a socket here: rates per node are not rates per socket.",
            "A firmware setting (NPS on AMD, SNC on Intel) decides it; compare machines in one mode only.",
        )


def _odd_nodes(numa: Numa) -> Iterator[Finding]:
    empty = [node.id for node in numa.nodes if node.cpus and node.memory_bytes == 0]
    if empty:
        yield Finding(
            "nodes_without_memory",
            Severity.HIGH,
            f"{_nodes(empty)} with CPUs and no memory",
            f"no memory at {_nodes(empty).lower()}",
            "memory at every node with CPUs",
            "All loads of those cores are remote, and their memory channels carry nothing.",
            "Populate the channels of these nodes, or check the DIMMs and the BIOS setting for NPS or SNC.",
        )
    cached = [node for node in numa.nodes if node.cpus and (node.memory_side_cache_bytes or 0) >= 2**30]
    if cached:
        yield Finding(
            "memory_side_cache",
            Severity.HIGH,
            "A cache stands before the memory of nodes",
            "; ".join(
                f"node {n.id}: {gib(n.memory_side_cache_bytes)} before {gib(n.memory_bytes)}"
                for n in cached[:8]
            ),
            "DRAM as the memory of every node",
            "That is persistent memory in Memory Mode, or HBM in cache mode: weights beyond the cache are read at the "
            "pace of what stands behind it.",
            "Switch to App Direct or flat mode in the firmware settings, or count the cache alone.",
        )
    bare = [node for node in numa.nodes if not node.cpus and node.memory_bytes]
    if bare:
        yield Finding(
            "nodes_without_cpus",
            Severity.MEDIUM
            if any(node.kind in ("gpu", "pmem", "unknown") for node in bare)
            else Severity.LOW,
            f"{_nodes([node.id for node in bare])} with memory and no CPUs",
            "; ".join(f"node {node.id}: {gib(node.memory_bytes)}, {_KINDS[node.kind]}" for node in bare[:16]),
            "DRAM at nodes with CPUs",
            "MemTotal counts it, the model would be laid on it, and it is no DRAM of a socket: slower, smaller or "
            "another device's. It is measured apart and not counted with the DRAM of others.",
            "Find out what it is before the weights of K3 are planned into it.",
        )


_KINDS = {
    "dram": "DRAM whose CPUs are off",
    "hbm": "high-bandwidth memory",
    "pmem": "persistent memory",
    "cxl": "CXL memory",
    "gpu": "memory of a GPU",
    "unknown": "of unknown kind (HBM, persistent, CXL or GPU memory)",
}


def _nodes(ids: list[int]) -> str:
    return f"{'Node' if len(ids) == 1 else 'Nodes'} {cpu_list(ids)}"


def _kernel(inventory: Inventory) -> Iterator[Finding]:
    kernel, cpu = inventory.kernel, inventory.cpu
    if kernel.numa_balancing and len(inventory.numa.nodes) > 1:
        yield Finding(
            "numa_balancing_on",
            Severity.MEDIUM,
            "The kernel moves pages between nodes",
            "kernel.numa_balancing is on",
            "off",
            "It takes pages of the weights from where they were placed and costs up to a tenth of the rate.",
            "sudo sysctl kernel.numa_balancing=0",
        )
    if kernel.transparent_hugepage == "never":
        yield Finding(
            "thp_never",
            Severity.MEDIUM,
            "Transparent huge pages are off",
            "never",
            "always or madvise",
            "Walking hundreds of GB of weights in 4 KiB pages misses the TLB all the time.",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        )
    if kernel.zone_reclaim_mode:
        yield Finding(
            "zone_reclaim_on",
            Severity.LOW,
            "The kernel reclaims local pages before it uses remote ones",
            f"vm.zone_reclaim_mode is {kernel.zone_reclaim_mode}",
            "0",
            "Loading weights larger than a node stalls while pages are reclaimed.",
            "sudo sysctl vm.zone_reclaim_mode=0",
        )
    load = kernel.load_average
    if load and load[0] > max(_HIGH_LOAD_LEAST, _HIGH_LOAD_PER_CPU * len(cpu.online or ())):
        yield Finding(
            "high_load",
            Severity.MEDIUM,
            "The machine is busy",
            f"load average {load[0]:.2f} over the last minute",
            "an idle machine",
            "Other work takes memory bandwidth and cores from what is measured.",
            "Stop other work and run again.",
        )


def _frequency(inventory: Inventory) -> Iterator[Finding]:
    cpu = inventory.cpu
    drivers = set((cpu.scaling_driver or "").split(", "))
    governors = set((cpu.governor or "").split(", "))
    observed = f"driver {cpu.scaling_driver}, governor {cpu.governor}"
    slow = governors & {"ondemand", "conservative", "powersave", "userspace"}
    if not slow:
        return
    if drivers <= {"intel_pstate", "amd-pstate-epp"} and slow <= {"powersave"}:
        yield Finding(
            "governor_powersave",
            Severity.LOW,
            "The governor is powersave of a driver that scales by itself",
            observed,
            "performance, or powersave of this driver",
            "This driver's powersave reaches full clocks under load; short tests see the ramp.",
            "Nothing is needed; for figures without the ramp: sudo cpupower frequency-set -g performance",
        )
        return
    yield Finding(
        "governor_slow",
        Severity.MEDIUM,
        f"The frequency governor is {', '.join(sorted(slow))}",
        observed,
        "performance",
        "Clocks rise late or not at all, and with them the rate of short and of single-core tests.",
        "sudo cpupower frequency-set -g performance",
    )


_RULES: tuple[Callable[[Inventory], Iterator[Finding]], ...] = (
    _virtual,
    _restricted,
    _memory,
    module_findings.find,
    _topology,
    _kernel,
    _frequency,
    setting_findings.find,
    device_findings.find,
    gpu_findings.find,
    link_findings.find,
)
