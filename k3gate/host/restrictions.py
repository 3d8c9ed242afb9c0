"""What keeps a run from a part of the machine: limits of its process, and CPUs and memory that the kernel leaves out.

Each is told once, here: as a finding, in the gate's words, and in those of the report. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from attrs import frozen

from k3gate.records import Cpu, CpuSocket, Finding, Inventory, Kernel, Limits, Memory, Numa, Severity
from k3gate.units import count, cpu_list, exact_bytes, gib, significant

_SIZE = re.compile(r"(\d{1,15})([KMGTP]?)", re.ASCII | re.IGNORECASE)
_CPU_LIMITS = ("nr_cpus", "possible_cpus", "maxcpus")
_HARMLESS_MEM = 1.5
"""A `mem=` so many times MemTotal bounds nothing: what the kernel reserves and holes in the map are less."""


@frozen
class Restriction:
    """`sentence`: how the gate says it, within a longer one. `left`: what the run had, for "limited to ..."."""

    finding: Finding
    sentence: str
    left: str


def of_process(cpu: Cpu, memory: Memory, limits: Limits, numa: Numa) -> tuple[Restriction, ...]:
    """What affinity and control groups keep from this process. A limit above what the machine has is none."""
    return (
        *_allowed(cpu),
        *_quota(cpu, limits),
        *_cpuset_cpus(cpu, limits),
        *_group_memory(memory, limits),
        *_cpuset_mems(limits, numa),
    )


def of_machine(inventory: Inventory) -> tuple[Restriction, ...]:
    """What the machine has and this kernel does not use."""
    cpu, kernel = inventory.cpu, inventory.kernel
    found = [*_offline(cpu, kernel), *_memory_option(inventory.memory, kernel)]
    # In a guest the firmware's table is the hypervisor's invention.
    sockets = () if inventory.machine.virtual else cpu.socket_list or ()
    return (*found, *_disabled(sockets), *_cores_disabled(sockets), *_missing(cpu, kernel, sockets))


def cpus_told(cpu: Cpu) -> int | None:
    """How many CPUs the firmware's processors give the kernel: threads with SMT on, else cores; None: not told."""
    return _cpus_of(cpu, cpu.socket_list or ())


def _cpus_of(cpu: Cpu, sockets: Sequence[CpuSocket]) -> int | None:
    there = [one for one in sockets if one.populated and not _is_disabled(one)]
    total = 0
    for one in there:
        cores = one.cores_enabled or one.cores
        if cores is None:
            return None
        # Without SMT some firmware still counts the threads that there would be with it.
        threads = (one.threads or cores) * cores // (one.cores or cores)
        total += max(cores, threads) if cpu.smt else cores
    return total or None


def _allowed(cpu: Cpu) -> Iterator[Restriction]:
    online = tuple(sorted(set(cpu.online or ())))
    if cpu.allowed is None or not set(online) - set(cpu.allowed):
        return
    allowed = tuple(sorted(set(cpu.allowed) & set(online)))
    left = f"{len(allowed)} of {len(online)} CPUs"
    yield Restriction(
        Finding(
            "restricted_cpus",
            Severity.HIGH,
            f"Restricted to {left}",
            f"allowed CPUs: {cpu_list(allowed)}",
            f"all online CPUs: {cpu_list(online)}",
            "K3 decodes with all cores of all nodes; a part of them cannot draw the whole memory bandwidth.",
            "Start without taskset, numactl, cpuset or a CPUAffinity of systemd, and boot without isolcpus=.",
        ),
        f"the run was restricted to {left} ({cpu_list(allowed)})",
        left,
    )


def _quota(cpu: Cpu, limits: Limits) -> Iterator[Restriction]:
    quota, online = limits.cgroup_cpus, cpu.online
    if quota is None or (online is not None and quota >= len(online)):
        return
    share = significant(quota)
    whole = f"{len(online)}" if online is not None else "an unknown number of"
    yield Restriction(
        Finding(
            "cgroup_cpu_quota",
            Severity.HIGH,
            "A control group limits CPU time",
            f"{share} CPUs of time on {whole} online CPUs",
            "no quota",
            "Threads are stopped when the quota is used up, so every rate is that of the quota.",
            "Remove the quota (cpu.max, CPUQuota=, --cpus) for the run.",
        ),
        f"a control group gave the run the time of {share} of {whole} CPUs",
        f"{share} CPUs of time",
    )


def _cpuset_cpus(cpu: Cpu, limits: Limits) -> Iterator[Restriction]:
    online = set(cpu.online or ())
    if limits.cpuset_cpus is None or not (beyond := online - set(limits.cpuset_cpus)):
        return
    left = f"{len(online - beyond)} of {len(online)} CPUs"
    yield Restriction(
        Finding(
            "cpuset_cpus",
            Severity.HIGH,
            "A cpuset keeps CPUs away",
            f"cpuset {cpu_list(limits.cpuset_cpus)}; out of reach: {cpu_list(sorted(beyond))}",
            "all online CPUs",
            "K3 decodes with all cores; a part of them cannot draw the whole memory bandwidth.",
            "Run outside the cpuset.",
        ),
        f"a cpuset restricted the run to {left}",
        left,
    )


def _group_memory(memory: Memory, limits: Limits) -> Iterator[Restriction]:
    limit, total = limits.cgroup_memory_bytes, memory.total_bytes
    if limit is None or (total is not None and limit >= total):
        return
    of = f"{exact_bytes(total)} of memory" if total is not None else "memory, whose amount is not known"
    yield Restriction(
        Finding(
            "cgroup_memory_limit",
            Severity.HIGH,
            "A control group limits memory",
            f"limit {gib(limit)}; the machine has {gib(total)}",
            "no limit",
            "The weights of K3 fill most of a machine; what lies beyond the limit cannot be used.",
            "Remove the limit (memory.max, MemoryMax=, --memory) for the run.",
        ),
        f"a control group gave the run {exact_bytes(limit)} of {of}",
        f"{gib(limit)} of memory",
    )


def _cpuset_mems(limits: Limits, numa: Numa) -> Iterator[Restriction]:
    holders = {node.id for node in numa.nodes if node.memory_bytes != 0}
    if limits.cpuset_mems is None or not numa.available or not (beyond := holders - set(limits.cpuset_mems)):
        return
    left = cpu_list(sorted(holders - beyond))
    yield Restriction(
        Finding(
            "cpuset_mems",
            Severity.HIGH,
            "A cpuset keeps memory nodes away",
            f"nodes {left}; out of reach: {cpu_list(sorted(beyond))}",
            "all nodes with memory",
            "K3 needs the memory and the channels of all nodes.",
            "Run outside the cpuset.",
        ),
        f"the run was restricted to the memory of nodes {left}",
        f"the memory of nodes {left}",
    )


def _offline(cpu: Cpu, kernel: Kernel) -> Iterator[Restriction]:
    online = len(cpu.online or ())
    # Where SMT was switched off, the other threads of cores that run are offline on purpose.
    if not cpu.offline or (cpu.smt_control in ("off", "forceoff") and len(cpu.offline) <= online):
        return
    verb = "is" if len(cpu.offline) == 1 else "are"
    option = _option(kernel, "maxcpus")
    yield Restriction(
        Finding(
            "offline_cpus",
            Severity.MEDIUM,
            f"{count(len(cpu.offline), 'CPU')} {verb} offline",
            f"offline: {cpu_list(cpu.offline)}" + (f"; maxcpus={option} at boot" if option else ""),
            "all present CPUs online",
            "Cores that are off draw no memory bandwidth.",
            "Bring them online: echo 1 | sudo tee /sys/devices/system/cpu/cpuN/online"
            + ("; boot without maxcpus=" if option else ""),
        ),
        f"{len(cpu.offline)} of {online + len(cpu.offline)} CPUs {verb} offline ({cpu_list(cpu.offline)})",
        f"{online} of {online + len(cpu.offline)} CPUs",
    )


def _is_disabled(socket: CpuSocket) -> bool:
    return (socket.status or "").startswith("disabled")


def _disabled(sockets: Sequence[CpuSocket]) -> Iterator[Restriction]:
    there = [one for one in sockets if one.populated]
    off = [one for one in there if _is_disabled(one)]
    if not off:
        return
    named = ", ".join(f"{one.designation or 'a processor'} ({one.status})" for one in off[:8])
    left = f"{len(there) - len(off)} of {count(len(there), 'processor')}"
    yield Restriction(
        Finding(
            "processors_disabled",
            Severity.HIGH,
            f"{count(len(off), 'processor')} of {len(there)} {'is' if len(off) == 1 else 'are'} disabled",
            named,
            "all processors enabled",
            "A processor that is off computes nothing, and its memory channels carry nothing.",
            "Look for the cause in the event log of the management controller; enable it in the firmware settings.",
        ),
        f"the firmware says that {named} did not start",
        left,
    )


def _cores_disabled(sockets: Sequence[CpuSocket]) -> Iterator[Restriction]:
    low = [
        (one, one.cores_enabled, one.cores)
        for one in sockets
        if one.populated and one.cores and one.cores_enabled and one.cores_enabled < one.cores
    ]
    if not low:
        return
    named = ", ".join(f"{one.designation or 'a processor'}: {on} of {all_}" for one, on, all_ in low[:8])
    left = f"{sum(on for _, on, _ in low)} of {sum(all_ for _, _, all_ in low)} cores"
    yield Restriction(
        Finding(
            "cores_disabled",
            Severity.HIGH,
            "The firmware has cores disabled",
            f"cores enabled in {named}",
            "all cores of the processors",
            "K3 decodes with all cores; a part of them may not draw the whole memory bandwidth.",
            "Enable all cores in the firmware settings (core count, downcore control).",
        ),
        f"the firmware has enabled {left} of the processors",
        left,
    )


def _missing(cpu: Cpu, kernel: Kernel, sockets: Sequence[CpuSocket]) -> Iterator[Restriction]:
    """CPUs that the firmware's processors have and the kernel never saw, or that an option may keep from it."""
    seen = len(set(cpu.present or ()) | set(cpu.online or ()))
    told = _cpus_of(cpu, sockets)
    if not cpu.online or (told is not None and seen >= told):
        return
    option = next((text for name in _CPU_LIMITS if (text := _binding(cpu, kernel, name, seen))), None)
    if told is None and option is None:
        return
    processors = count(sum(one.populated is True and not _is_disabled(one) for one in sockets), "processor")
    what = f"the {told} CPUs" if cpu.smt else f"the {told} cores"
    left = f"{seen} of {what}" if told is not None else f"the {count(seen, 'CPU')} that {option} allows"
    observed = f"{count(seen, 'CPU')} in the kernel"
    if told is not None:
        observed += f"; the firmware tells of {processors} with {told} {'threads' if cpu.smt else 'cores'}"
    yield Restriction(
        Finding(
            "cpus_not_seen",
            Severity.HIGH,
            "The kernel does not use all CPUs" if told is not None else "The kernel may not use all CPUs",
            observed + (f"; {option} at boot" if option else ""),
            "all CPUs of all processors",
            "K3 decodes with all cores of all nodes; a part of them cannot draw the whole memory bandwidth.",
            f"Boot without {option}."
            if option
            else "Look through the kernel's log for CPUs that did not start, and through the firmware settings.",
        ),
        f"the kernel runs on {left}",
        left,
    )


def _binding(cpu: Cpu, kernel: Kernel, name: str, seen: int) -> str | None:
    """The option of the command line that bounds the number of CPUs, where there are as many as it allows."""
    value = _option(kernel, name)
    if name == "maxcpus" and value is None and _option(kernel, "nosmp") is not None:
        return "nosmp"
    if value is None or not value.isascii() or not value.isdigit() or len(value) > 9:
        return None
    # Those above maxcpus= are present and offline, and told as such.
    reached = seen if name != "maxcpus" else 0 if cpu.offline else len(cpu.online or ())
    return f"{name}={value}" if max(1, int(value)) <= reached else None


def _memory_option(memory: Memory, kernel: Kernel) -> Iterator[Restriction]:
    text = _option(kernel, "mem") or ""
    match = _SIZE.fullmatch(text)
    if match is None or memory.total_bytes is None:
        return
    limit = int(match[1]) << 10 * " KMGTP".index(match[2].upper() or " ")
    whole = memory.dram_bytes
    if limit >= (whole if whole is not None else _HARMLESS_MEM * memory.total_bytes):
        return
    yield Restriction(
        Finding(
            "memory_option",
            Severity.HIGH,
            "The kernel was told to leave out memory",
            f"mem={text} at boot; it uses {gib(memory.total_bytes)}"
            + (f" of {gib(whole)}" if whole is not None else ""),
            "all memory",
            "The weights of K3 fill most of a machine; what lies beyond cannot be used.",
            "Boot without mem=.",
        ),
        f"the kernel was started with mem={text}",
        f"{gib(memory.total_bytes)} of memory by mem={text}",
    )


def isolated(kernel: Kernel) -> str | None:
    """CPUs that the scheduler was told at boot to leave alone, as the command line names them."""
    return _option(kernel, "isolcpus")


def _option(kernel: Kernel, name: str) -> str | None:
    """The value of the kernel's last option of that name; "" for one without a value."""
    # What stands after "--" is for the first process.
    words = (kernel.command_line or "").partition(" -- ")[0].split()
    found = [word.partition("=")[2] for word in words if word.partition("=")[0] == name]
    return found[-1] if found else None
