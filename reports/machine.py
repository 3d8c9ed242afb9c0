"""The machine, its settings and the provenance of a report, as rows of words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import frozen

from k3gate import units
from k3gate.documents import plain
from k3gate.gate import hardware
from k3gate.host import restrictions
from k3gate.records import GateResult, Inventory, RunRecord, RunStatus
from k3gate.reports import link_table, modules, words
from k3gate.units import NBSP

UNKNOWN = "unknown"
STATUS_WORDS = {
    RunStatus.RUNNING: "still running",
    RunStatus.COMPLETE: "complete",
    RunStatus.INTERRUPTED: "interrupted",
    RunStatus.ABANDONED: "abandoned",
    RunStatus.STORAGE_FAILED: "cut short because its results could not be stored",
}


def machine_kind(inventory: Inventory) -> tuple[str, bool]:
    """What kind of machine this is in words, and whether nothing stands between the run and the hardware."""
    machine = inventory.machine
    parts = []
    if machine.virtual:
        parts.append(f"virtual machine ({machine.hypervisor or 'hypervisor not named'})")
    elif machine.virtual is None:
        parts.append("bare metal or virtual: not known")
    else:
        parts.append("bare metal")
    if machine.wsl:
        parts.append("WSL")
    if machine.container:
        parts.append(f"in a container ({machine.container})")
    elif not hardware.container_known(inventory):
        parts.append("in a container or not: not known")
    bare = machine.virtual is False and not machine.container and hardware.container_known(inventory)
    held = (*_of_process(inventory), *restrictions.of_machine(inventory))
    left = list(dict.fromkeys(restriction.left for restriction in held))
    if inventory.limits.restricted or left:
        parts.append("limited to " + words.listed(left) if left else "limited to a part of the machine")
        bare = False
    text = words.capital(", ".join(parts))
    return (text if bare else f"{text}. Figures are those of what was rented, not of the hardware"), bare


def _of_process(inventory: Inventory) -> tuple[restrictions.Restriction, ...]:
    return restrictions.of_process(inventory.cpu, inventory.memory, inventory.limits, inventory.numa)


def machine_line(inventory: Inventory) -> str:
    """The machine in one line: sockets, cores, memory, nodes."""
    cpu, memory = inventory.cpu, inventory.memory
    sockets, cores = cpu.sockets, cpu.cores
    parts = []
    if sockets and cores and cores % sockets == 0 and sockets > 1:
        parts.append(f"{sockets}{NBSP}×{NBSP}{cores // sockets} cores")
    elif cores:
        parts.append(f"{cores} cores" if cores > 1 else "1 core")
    if cpu.model:
        parts.append(cpu.model)
    if memory.total_bytes is not None:
        parts.append(f"{units.gib(memory.total_bytes, NBSP)} usable memory")
    if memory.channels and memory.configured_mts:
        parts.append(f"{memory.channels} channels at {memory.configured_mts:,}{NBSP}MT/s")
    nodes = len(inventory.numa.nodes)
    if nodes:
        parts.append(words.count(nodes, "NUMA node"))
    return ", ".join(parts) or "unknown"


_GRANTED = {
    True: "granted to this process",
    False: "not granted to this process",
    None: "not known whether granted to this process",
}


@frozen
class Setting:
    """A setting: found, wanted, and what it spoils; `spoils` False: it spoils nothing here."""

    name: str
    found: str
    wanted: str
    effect: str
    spoils: bool


def processor(inventory: Inventory) -> Iterable[tuple[str, str]]:
    """Rows about processors and caches."""
    cpu = inventory.cpu
    yield "Processor", cpu.model or UNKNOWN
    yield "Architecture", cpu.architecture or UNKNOWN
    yield (
        "Sockets, cores, threads",
        ", ".join(
            units.count(number, name) if number is not None else f"{name}s unknown"
            for number, name in ((cpu.sockets, "socket"), (cpu.cores, "core"), (cpu.threads, "thread"))
        ),
    )
    yield "CPUs online", units.cpu_list(cpu.online) if cpu.online is not None else UNKNOWN
    yield "CPUs allowed here", units.cpu_list(cpu.allowed) if cpu.allowed is not None else UNKNOWN
    if cpu.offline:
        yield "CPUs offline", units.cpu_list(cpu.offline)
    for cache in cpu.caches:
        yield (
            f"Cache level {cache.level}, {cache.kind}",
            f"{words.size(cache.bytes * cache.instances)} in {words.count(cache.instances, 'part')} of "
            f"{words.size(cache.bytes)}, each shared by {words.count(cache.shared_by, 'CPU')}",
        )
    if not cpu.caches:
        yield "Caches", UNKNOWN
    yield "Instructions", ", ".join(cpu.isa) or UNKNOWN
    amx = cpu.amx
    yield (
        "AMX",
        "not in this processor"
        if amx.tile is False
        else UNKNOWN
        if amx.tile is None
        else f"present, {_GRANTED[amx.granted]}",
    )
    yield "Microcode", cpu.microcode or UNKNOWN


def system(inventory: Inventory) -> Iterable[tuple[str, str]]:
    """Rows about memory, board, kernel and limits."""
    memory, machine, limits = inventory.memory, inventory.machine, inventory.limits
    yield "Kind", machine_kind(inventory)[0]
    yield "Vendor and product", " ".join(p for p in (machine.vendor, machine.product) if p) or UNKNOWN
    yield "Board", machine.board or UNKNOWN
    yield (
        "Firmware",
        "; ".join(f"{key}: {value or UNKNOWN}" for key, value in machine.firmware.items()) or UNKNOWN,
    )
    yield "Memory the kernel uses", _both(memory.total_bytes)
    yield "Available at the start", _both(memory.available_bytes)
    yield "This process may use", _both(limits.usable_memory_bytes)
    yield (
        "Slots",
        f"{memory.populated} of {memory.slots} populated"
        if memory.slots is not None and memory.populated is not None
        else UNKNOWN,
    )
    rate = memory.theoretical_bytes_per_s
    yield (
        "Paper bandwidth",
        f"{memory.channels} × {memory.configured_mts:,}{NBSP}MT/s × 8{NBSP}B = {rate / 1e9:,.1f}{NBSP}GB/s"
        if rate is not None and memory.channels and memory.configured_mts
        else f"{rate / 1e9:,.1f}{NBSP}GB/s"
        if rate is not None
        else UNKNOWN,
    )
    yield from modules.rows(memory)
    if machine.power_supplies is not None:
        yield "Power supplies", str(machine.power_supplies)
    for name, rows in (
        ("GPUs", inventory.gpus),
        ("Drives", inventory.storage and inventory.storage.drives),
        ("PCI devices", inventory.pci),
        ("Network adapters", inventory.network),
    ):
        yield name, UNKNOWN if rows is None else f"{len(rows):,} listed" if rows else "none"
    yield "Kernel", inventory.kernel.release or UNKNOWN
    yield "Command line", inventory.kernel.command_line or UNKNOWN
    yield (
        "Memory limit",
        _both(limits.cgroup_memory_bytes) if limits.cgroup_memory_bytes is not None else "none found",
    )
    yield "CPU time limit", f"{limits.cgroup_cpus:g} CPUs" if limits.cgroup_cpus is not None else "none found"


def _both(amount: int | None) -> str:
    if amount is None:
        return UNKNOWN
    return f"{units.gib(amount, NBSP)} ({units.exact_bytes(amount, NBSP)})"


@frozen
class NodeRow:
    """A NUMA node in words."""

    name: str
    cpus: str
    memory: str
    free: str
    kind: str
    distances: str
    huge: str


def nodes(inventory: Inventory) -> Iterable[NodeRow]:
    """A row per NUMA node, by its real id."""
    for node in inventory.numa.nodes:
        yield NodeRow(
            f"node {node.id}",
            units.cpu_list(node.cpus),
            "no memory" if node.memory_bytes == 0 else units.gib(node.memory_bytes, NBSP),
            units.gib(node.free_bytes, NBSP),
            node.kind,
            ", ".join(f"{other}: {distance}" for other, distance in sorted(node.distances.items()))
            or UNKNOWN,
            "; ".join(f"{p.free:,} of {p.total:,} × {words.size(p.page_bytes)}" for p in node.huge_pages)
            or "none",
        )


def tables(inventory: Inventory) -> Iterable[tuple[str, list[tuple[str, str, str]]]]:
    """(caption, rows of numbers, count and text) of what is listed device by device; equal ones share a row.

    A device is one row of words however many properties it has, so that no table is wider than a page.
    """
    if inventory.gpus:
        yield "GPUs", link_table.gpu_rows(inventory)
    if inventory.memory.dimms:
        yield "Memory slots, as the firmware tells of them", modules.table(inventory.memory)
    for name, devices in (
        ("Processor sockets, as the firmware tells of them", inventory.cpu.socket_list),
        ("Expansion slots", inventory.slots),
        ("Drives", inventory.storage and inventory.storage.drives),
        ("Network adapters", inventory.network),
        ("What paths lie on", inventory.storage and inventory.storage.paths),
        ("Sensors", inventory.sensors and inventory.sensors.readings),
        ("Energy counters", inventory.sensors and inventory.sensors.power_zones),
        ("Events counted", inventory.sensors and inventory.sensors.counters),
    ):
        if not devices:
            continue
        alike: dict[str, list[int]] = {}
        for place, device in enumerate(devices):
            alike.setdefault("; ".join(_properties(plain(device))), []).append(place)
        rows = [
            (units.cpu_list(places).replace("-", "–"), f"{len(places):,}", text)
            for text, places in alike.items()
        ]
        yield name, rows


def _properties(document: Mapping[str, Any], lead: str = "") -> Iterable[str]:
    """What is known of a device, each with its name; what lies within a property bears its name before its own."""
    for key, value in document.items():
        name = f"{lead}{key.replace('_', ' ')}"
        if isinstance(value, Mapping):
            yield from _properties(value, f"{name} ")
        elif isinstance(value, list):
            inner = (", ".join(_properties(one)) if isinstance(one, Mapping) else str(one) for one in value)
            if value:
                yield f"{name}: {' | '.join(inner)}"
        elif value is not None:
            yield f"{name}: {value}"


def settings(inventory: Inventory) -> Iterable[Setting]:
    """Settings that could spoil figures, as found; k3gate changes none."""
    cpu, kernel, memory, limits = inventory.cpu, inventory.kernel, inventory.memory, inventory.limits
    held = {restriction.finding.code for restriction in _of_process(inventory)}

    def row(name: str, found: str | None, wanted: str, bad: bool, effect: str) -> Setting:
        if found is None:
            return Setting(name, UNKNOWN, wanted, f"not known: {effect}", False)
        return Setting(name, found, wanted, effect if bad else "nothing", bad)

    yield row(
        "Frequency governor",
        cpu.governor,
        "performance",
        cpu.governor not in (None, "performance"),
        "clocks ramp up late, so short cases read low",
    )
    yield row("Boost", _onoff(cpu.boost), "on", cpu.boost is False, "cores stay below their rated clock")
    yield row(
        "Automatic NUMA balancing",
        _onoff(kernel.numa_balancing),
        "off",
        kernel.numa_balancing is True,
        "moved pages turn local reads into remote ones",
    )
    yield row(
        "Transparent huge pages",
        kernel.transparent_hugepage,
        "madvise or always",
        kernel.transparent_hugepage == "never",
        "large working sets spend time in page walks",
    )
    pools = "; ".join(f"{p.free:,} of {p.total:,} × {words.size(p.page_bytes)}" for p in kernel.huge_pages)
    yield row(
        "Huge page pools", pools or "none", "any", False, "pages of a pool are not available to other uses"
    )
    swap = (
        None
        if memory.swap_total_bytes is None
        else "off"
        if memory.swap_total_bytes == 0
        else f"{words.size(memory.swap_total_bytes)}, {_used(memory.swap_used_bytes)}"
    )
    yield row(
        "Swap",
        swap,
        "off",
        bool(memory.swap_total_bytes),
        "a resident model may be swapped out and read back from disk",
    )
    yield row(
        "Memory limit of the control group",
        "none" if limits.cgroup_memory_bytes is None else words.size(limits.cgroup_memory_bytes),
        "none",
        "cgroup_memory_limit" in held,
        "less memory than the machine has; allocations beyond it are killed",
    )
    yield row(
        "CPU limit of the control group",
        "none" if limits.cgroup_cpus is None else f"{limits.cgroup_cpus:g} CPUs",
        "none",
        "cgroup_cpu_quota" in held,
        "threads are stopped for part of each period",
    )
    yield row(
        "Locked memory limit",
        None if limits.memlock_bytes is None else words.size(limits.memlock_bytes),
        "unlimited",
        False,
        "a runtime may be unable to pin the model",
    )
    yield row("SMT", _onoff(cpu.smt), "any", False, "one thread per physical core is used")
    yield row(
        "Overcommit",
        None if kernel.overcommit_memory is None else str(kernel.overcommit_memory),
        "0 or 1",
        kernel.overcommit_memory == 2,
        "large allocations are refused although memory is free",
    )
    yield row(
        "Zone reclaim",
        None if kernel.zone_reclaim_mode is None else str(kernel.zone_reclaim_mode),
        "0",
        bool(kernel.zone_reclaim_mode),
        "allocations on a full node stall in reclaim",
    )
    load = kernel.load_average
    cores = cpu.cores or 1
    yield row(
        "Load at the start",
        None if load is None else ", ".join(f"{part:.2f}" for part in load),
        "near 0",
        load is not None and load[0] > 0.1 * cores,
        "other work takes cores and memory bandwidth from the cases",
    )
    on = [name for name, state in kernel.mitigations.items() if "not affected" not in state.lower()]
    yield row(
        "Mitigations",
        words.listed(on) if on else ("none active" if kernel.mitigations else None),
        "any",
        False,
        "compare only with runs under the same ones",
    )


def _used(amount: int | None) -> str:
    return "how much is used is unknown" if amount is None else f"{words.size(amount)} used"


def _onoff(state: bool | None) -> str | None:
    return None if state is None else "on" if state else "off"


def provenance(
    record: RunRecord, gate: GateResult
) -> tuple[list[tuple[str, str, bool]], list[tuple[str, str, bool]]]:
    """(name, value, identifier?) of the run, and of the judgement."""
    run = record.run
    left = [
        ("Run", run.id, True),
        ("Status", STATUS_WORDS[run.status], False),
        ("Profile", run.profile, False),
        ("Started", run.started, False),
        ("Ended", run.ended or UNKNOWN, False),
        ("Time taken", words.duration(run.seconds), False),
        ("Command", run.command or UNKNOWN, True),
        ("Measured by", f"k3gate {run.version}", False),
        ("Machine", run.machine or UNKNOWN, True),
        ("Fingerprint", run.fingerprint or UNKNOWN, True),
        ("Read from", record.inventory.root, True),
    ]
    for name, seconds in run.split.items():
        part = f" ({words.share(seconds / run.seconds, 2)})" if run.seconds else ""
        left.append((f"Wall time: {name.replace('_', ' ')}", words.duration(seconds) + part, False))
    right = [
        ("Judged", gate.evaluated or UNKNOWN, False),
        ("Judged by", f"k3gate {gate.version}" if gate.version else UNKNOWN, False),
        ("Criteria", gate.criteria, True),
        ("Criteria hash", gate.criteria_hash, True),
        ("Target", gate.target, True),
        ("Target hash", gate.target_hash, True),
    ]
    return left, right
