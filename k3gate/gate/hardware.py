"""Whether a run can speak about hardware at all: virtual, restricted and contradictory machines cannot."""

from __future__ import annotations

from attrs import frozen

from k3gate.host import numa as numa_module
from k3gate.host import restrictions
from k3gate.records import Inventory, State


def virtual(inventory: Inventory) -> str | None:
    """Why the machine is not the bare one, or None."""
    machine = inventory.machine
    if machine.wsl:
        return "this is the Windows Subsystem for Linux, which runs in a virtual machine"
    if machine.virtual:
        return f"the machine is virtual ({machine.hypervisor or 'hypervisor not named'})"
    return None


@frozen
class Doubt:
    """Why nothing is evidence about the whole machine, as a part of a sentence, and what to do."""

    reason: str
    remedy: str


_AS_ROOT = 'Run it as root: `sudo "$(command -v k3gate)" run`.'
_ON_THE_MACHINE = "Run it on the machine's own operating system, outside any container."
_UNLIMITED = "Run it again without a CPU list, a control group or a container around it."


def unknown(inventory: Inventory) -> Doubt | None:
    """What about the machine's nature could not be seen, or None."""
    machine = inventory.machine
    if machine.virtual is None:
        sentence = "whether the machine is virtual is not known"
        return Doubt(_because(sentence, inventory, "machine.virtual"), f"{_AS_ROOT} {_ON_THE_MACHINE}")
    if machine.wsl is None:
        return Doubt(_because("whether this is WSL is not known", inventory, "machine.wsl"), _ON_THE_MACHINE)
    if not container_known(inventory):
        sentence = "whether this is a container is not known"
        return Doubt(_because(sentence, inventory, "machine.container"), f"{_ON_THE_MACHINE} {_AS_ROOT}")
    return None


def container_known(inventory: Inventory) -> bool:
    """Whether a container, or that there is none, was seen."""
    told = inventory.provenance.get("machine.container")
    return inventory.machine.container is not None or (told is not None and told.state is State.OK)


def restricted(inventory: Inventory) -> Doubt | None:
    """How the process is kept from a part of the machine, or that it is not known; None where it had all of it."""
    cpu, limits = inventory.cpu, inventory.limits
    told = inventory.provenance.get("cpu.allowed")
    if cpu.allowed is None or cpu.online is None or (told is not None and told.state is not State.OK):
        return Doubt("which CPUs the process may use is not known", _UNLIMITED)
    for found in restrictions.of_process(cpu, inventory.memory, limits, inventory.numa):
        return Doubt(found.sentence, found.finding.remedy)
    if limits.restricted:
        return Doubt("a control group restricted the run", _UNLIMITED)
    if limits.restricted is None:
        sentence = "whether the run was restricted is not known"
        return Doubt(_because(sentence, inventory, "limits.restricted"), _UNLIMITED)
    return None


def incomplete(inventory: Inventory) -> Doubt | None:
    """What the machine has and its kernel does not use, or None. Its figures can then be too low, never too good."""
    for found in restrictions.of_machine(inventory):
        return Doubt(found.sentence, found.finding.remedy)
    return None


def every_cpu(inventory: Inventory) -> str:
    """Which CPUs "all" are, of a machine that is not restricted."""
    if restrictions.cpus_told(inventory.cpu) is not None:
        return "all CPUs of the firmware's processors"
    return "all CPUs that the kernel knows; the firmware's table, which counts them too, was not read"


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
        found = look(inventory)
        if found is not None:
            return found.reason if isinstance(found, Doubt) else found
    return None


def because(inventory: Inventory, field: str) -> str | None:
    """Why a field of the inventory is unknown, as its reader said."""
    provenance = inventory.provenance.get(field)
    return provenance.reason if provenance is not None else None


def _because(sentence: str, inventory: Inventory, field: str) -> str:
    reason = because(inventory, field)
    return f"{sentence} ({reason})" if reason else sentence
