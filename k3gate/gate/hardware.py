"""Whether a run can speak about hardware at all: virtual, restricted and contradictory machines cannot."""

from __future__ import annotations

from k3gate.host import numa as numa_module
from k3gate.records import Inventory, State
from k3gate.units import cpu_list, exact_bytes, significant


def virtual(inventory: Inventory) -> str | None:
    """Why the machine is not the bare one, or None."""
    machine = inventory.machine
    if machine.wsl:
        return "this is the Windows Subsystem for Linux, which runs in a virtual machine"
    if machine.virtual:
        return f"the machine is virtual ({machine.hypervisor or 'hypervisor not named'})"
    return None


def unknown(inventory: Inventory) -> str | None:
    """What about the machine's nature could not be seen, or None."""
    machine = inventory.machine
    if machine.virtual is None:
        return _because("whether the machine is virtual is not known", inventory, "machine.virtual")
    if machine.wsl is None:
        return _because("whether this is WSL is not known", inventory, "machine.wsl")
    provenance = inventory.provenance.get("machine.container")
    unseen = (State.NOT_PERMITTED, State.FAILED, State.NOT_RUN)
    if machine.container is None and provenance is not None and provenance.state in unseen:
        return _because("whether this is a container is not known", inventory, "machine.container")
    return None


def restricted(inventory: Inventory) -> str | None:
    """How the process is kept from a part of the machine, or None."""
    cpu, limits = inventory.cpu, inventory.limits
    if cpu.allowed is None or cpu.online is None:
        return "which CPUs the process may use is not known"
    allowed = set(cpu.allowed) & set(cpu.online)
    if len(allowed) < len(set(cpu.online)):
        return (
            f"the run was restricted to {len(allowed)} of {len(cpu.online)} CPUs ({cpu_list(tuple(allowed))})"
        )
    if limits.cgroup_cpus is not None and limits.cgroup_cpus < len(cpu.online):
        share = significant(limits.cgroup_cpus)
        return f"a control group gave the run the time of {share} of {len(cpu.online)} CPUs"
    total, granted = inventory.memory.total_bytes, limits.cgroup_memory_bytes
    if total is not None and granted is not None and granted < total:
        return f"a control group gave the run {exact_bytes(granted)} of {exact_bytes(total)} of memory"
    nodes = {node.id for node in inventory.numa.nodes if node.memory_bytes != 0}
    if limits.cpuset_mems is not None and not nodes <= set(limits.cpuset_mems):
        return f"the run was restricted to the memory of nodes {cpu_list(limits.cpuset_mems)}"
    if limits.restricted:
        where = (
            f"a container ({inventory.machine.container})"
            if inventory.machine.container
            else "a control group"
        )
        return f"{where} restricted the run"
    return None


def topology(inventory: Inventory) -> str | None:
    """Why node and socket cannot be relied on, or None."""
    if numa_module.doubtful(inventory.numa):
        worst = next(s for s in inventory.numa.contradictions if numa_module.NOT_ONLINE not in s)
        return f"the topology contradicts itself: {worst}"
    if not inventory.numa.available:
        return "NUMA information is unavailable: the kernel shows no nodes"
    return None


def doubt(inventory: Inventory) -> str | None:
    """The first reason for which no figure of this run says anything about the hardware, or None."""
    for look in (virtual, unknown, restricted, topology):
        reason = look(inventory)
        if reason is not None:
            return reason
    return None


def because(inventory: Inventory, field: str) -> str | None:
    """Why a field of the inventory is unknown, as its reader said."""
    provenance = inventory.provenance.get(field)
    return provenance.reason if provenance is not None else None


def _because(sentence: str, inventory: Inventory, field: str) -> str:
    reason = because(inventory, field)
    return f"{sentence} ({reason})" if reason else sentence
