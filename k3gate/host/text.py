"""The page of `k3gate host`: findings first, then the machine drawn as text, then what could not be seen."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from k3gate import pages
from k3gate.host import device_text, link_text, module_map
from k3gate.host.numa import doubtful
from k3gate.pages import WIDTH, row
from k3gate.records import Cache, Inventory, NumaNode, State
from k3gate.topology import nodes_of_packages
from k3gate.units import cpu_list, gib, quantity, significant


def page(inventory: Inventory) -> str:
    """Plain text of at most 100 columns."""
    sections = (
        ("Findings", pages.findings(inventory.findings, "None: nothing seen that would spoil figures.")),
        ("Machine", _machine(inventory)),
        ("Processors", _processors(inventory)),
        ("Sockets and NUMA nodes", _topology(inventory)),
        ("Memory", _memory(inventory)),
        ("Memory modules", module_map.lines(inventory, WIDTH)),
        ("GPUs", link_text.gpus(inventory)),
        ("PCIe", link_text.tree(inventory)),
        ("Network", link_text.network(inventory)),
        ("Drives", device_text.drives(inventory)),
        ("Heat and power", device_text.heat(inventory)),
        ("Limits of this process", _limits(inventory)),
        ("Kernel and settings", _kernel(inventory)),
        ("Not seen, and why", _unseen(inventory)),
    )
    return pages.page(sections)


def _machine(inventory: Inventory) -> Iterator[str]:
    machine = inventory.machine
    if machine.name:
        yield row("name", machine.name)
    yield row("id", machine.id)
    yield row("fingerprint", machine.fingerprint)
    yield row("product", " ".join(text for text in (machine.vendor, machine.product) if text))
    yield row("board", machine.board)
    yield row("firmware", ", ".join(f"{k} {v}" for k, v in machine.firmware.items() if v))
    kinds = {True: f"virtual machine ({machine.hypervisor or 'hypervisor unnamed'})", False: "bare metal"}
    yield row("kind", None if machine.virtual is None else kinds[machine.virtual])
    if machine.wsl:
        yield row("WSL", "yes")
    container = inventory.provenance.get("machine.container")
    none_seen = "none seen" if container and container.state is State.OK else None
    yield row("container", machine.container or none_seen)


def _processors(inventory: Inventory) -> Iterator[str]:
    cpu = inventory.cpu
    doubt = " (unreliable: the topology contradicts itself)" if doubtful(inventory.numa) else ""
    yield row("model", cpu.model)
    yield row("architecture", cpu.architecture)
    yield row("sockets", f"{cpu.sockets}{doubt}" if cpu.sockets else None)
    yield row("cores", str(cpu.cores) if cpu.cores else None)
    yield row(
        "logical CPUs",
        f"{cpu.threads} online ({cpu_list(cpu.online)})"
        if cpu.threads and cpu.online
        else f"{cpu.threads} (which are online is not known)"
        if cpu.threads
        else None,
    )
    if cpu.offline:
        yield row("offline", f"{len(cpu.offline)} ({cpu_list(cpu.offline)})")
    yield row("SMT", {True: "on", False: "off", None: None}[cpu.smt])
    for cache in cpu.caches:
        yield row(_cache_name(cache), _cache(cache))
    yield row("instruction sets", " ".join(cpu.isa))
    amx = cpu.amx
    if amx.tile:
        kinds = " ".join(name for name in ("tile", "int8", "bf16") if getattr(amx, name))
        granted = {True: "granted by the kernel", False: "refused by the kernel", None: "grant not asked"}
        yield row("AMX", f"{kinds}; {granted[amx.granted]}")
    yield row("microcode", cpu.microcode)
    yield row("governor", f"{cpu.governor} ({cpu.scaling_driver})" if cpu.governor else None)
    yield row("boost", {True: "on", False: "off", None: None}[cpu.boost])


def _cache_name(cache: Cache) -> str:
    return f"L{cache.level}" + ("" if cache.kind == "unified" else f" {cache.kind}")


def _cache(cache: Cache) -> str:
    shared = f", each shared by {cache.shared_by} CPUs" if cache.shared_by > 1 else ""
    return f"{cache.instances} x {_kib(cache.bytes)}{shared}"


def _kib(size: int) -> str:
    return f"{significant(size / 2**20)} MiB" if size >= 2**20 else f"{significant(size / 2**10)} KiB"


def _topology(inventory: Inventory) -> Iterator[str]:
    numa = inventory.numa
    if not numa.available:
        yield "NUMA information unavailable: one stand-in node holds all CPUs and memory."
    by_id = {node.id: node for node in numa.nodes}
    drawn: set[int] = set()
    for package, ids in nodes_of_packages(inventory.cpu, numa).items():
        yield f"+ socket {package}"
        for node_id in ids:
            drawn.add(node_id)
            yield from _node(by_id[node_id], "|   ")
    rest = [node for node in numa.nodes if node.id not in drawn]
    if rest:
        yield "+ no socket" if drawn else "+ socket unknown"
        for node in rest:
            yield from _node(node, "|   ")
    if len(numa.nodes) > 1:
        yield ""
        yield from _distances(inventory)


def _node(node: NumaNode, lead: str) -> Iterator[str]:
    if node.memory_bytes == 0:
        memory = "no memory"
    else:
        memory = f"{gib(node.memory_bytes)} {node.kind if node.kind != 'unknown' else 'of unknown kind'}"
    near = f", nearest to node {node.nearest}" if node.nearest is not None else ""
    cpus = f"{len(node.cpus)} CPUs {cpu_list(node.cpus)}" if node.cpus else f"no CPUs{near}"
    yield textwrap.fill(
        f"{lead}+ node {node.id}: {memory}, {cpus}",
        WIDTH,
        subsequent_indent=f"{lead}    ",
        break_on_hyphens=False,
        break_long_words=True,
    )
    pools = [pool for pool in node.huge_pages if pool.total]
    if pools:
        text = ", ".join(f"{pool.total} x {_kib(pool.page_bytes)} ({pool.free} free)" for pool in pools)
        yield f"{lead}    huge pages: {text}"


def _distances(inventory: Inventory) -> Iterator[str]:
    nodes = inventory.numa.nodes
    if len(nodes) > 16:
        values = sorted({value for node in nodes for value in node.distances.values()})
        yield textwrap.fill(
            f"distances: {', '.join(map(str, values))} ({len(nodes)} nodes, see --json)", WIDTH
        )
        return
    yield "distances  " + "".join(f"{node.id:>5}" for node in nodes)
    for node in nodes:
        cells = (str(node.distances.get(other.id, "?")) for other in nodes)
        yield f"  node {node.id:>4}" + "".join(f"{cell:>5}" for cell in cells)


def _memory(inventory: Inventory) -> Iterator[str]:
    memory = inventory.memory
    yield row("usable by kernel", _size(memory.total_bytes))
    yield row("available", _size(memory.available_bytes))
    swap = (
        f"{gib(memory.swap_used_bytes)} used of {gib(memory.swap_total_bytes)}"
        if memory.swap_total_bytes
        else {0: "none", None: None}[memory.swap_total_bytes]
    )
    yield row("swap", swap)


def _size(value: int | None) -> str | None:
    if value is None:
        return None
    binary = gib(value) if value >= 2**30 else f"{significant(value / 2**20)} MiB"
    return f"{binary} ({quantity(value, 'B')})"


def _limits(inventory: Inventory) -> Iterator[str]:
    limits, cpu = inventory.limits, inventory.cpu
    yield row("usable memory", _size(limits.usable_memory_bytes))
    yield row("memory limit", _limit(inventory, "cgroup_memory_bytes", _size(limits.cgroup_memory_bytes)))
    quota = None if limits.cgroup_cpus is None else f"{significant(limits.cgroup_cpus)} CPUs of time"
    yield row("CPU quota", _limit(inventory, "cgroup_cpus", quota))
    allowed = cpu_list(cpu.allowed) if cpu.allowed is not None else None
    yield row("allowed CPUs", f"{len(cpu.allowed)} ({allowed})" if cpu.allowed else None)
    yield row("locked memory", _limit(inventory, "memlock_bytes", _size(limits.memlock_bytes)))
    yield row("restricted", {True: "yes", False: "no", None: None}[limits.restricted])


def _limit(inventory: Inventory, name: str, value: str | None) -> str | None:
    if value is not None:
        return value
    entry = inventory.provenance.get(f"limits.{name}")
    return "no limit" if entry and entry.state is State.OK else None


def _kernel(inventory: Inventory) -> Iterator[str]:
    kernel = inventory.kernel
    switch = {True: "on", False: "off", None: None}
    yield row("release", kernel.release)
    yield row("command line", kernel.command_line)
    thp = kernel.transparent_hugepage
    yield row(
        "huge pages", f"{thp} (defrag {kernel.transparent_hugepage_defrag or 'unknown'})" if thp else None
    )
    pools = [f"{pool.total} x {_kib(pool.page_bytes)}" for pool in kernel.huge_pages if pool.total]
    yield row("reserved pages", ", ".join(pools) or ("none" if kernel.huge_pages else None))
    yield row("NUMA balancing", switch[kernel.numa_balancing])
    for label, number in (
        ("overcommit", kernel.overcommit_memory),
        ("zone reclaim", kernel.zone_reclaim_mode),
        ("swappiness", kernel.swappiness),
    ):
        yield row(label, None if number is None else str(number))
    load = kernel.load_average
    yield row("load average", " ".join(f"{value:.2f}" for value in load) if load else None)
    open_ones = [name for name, text in kernel.mitigations.items() if text.startswith("Vulnerable")]
    told = f"{len(kernel.mitigations)} told; vulnerable: {', '.join(open_ones) or 'none'}"
    yield row("mitigations", told if kernel.mitigations else None)


def _unseen(inventory: Inventory) -> Iterator[str]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, entry in inventory.provenance.items():
        if entry.state is not State.OK:
            reasons.setdefault((entry.state.value.replace("_", " "), entry.reason or ""), []).append(name)
    if not reasons:
        yield "Everything that this version looks for was seen."
    for (state, reason), names in reasons.items():
        shown = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
        yield textwrap.fill(
            f"{state}: {shown}: {reason}", WIDTH, subsequent_indent="    ", break_on_hyphens=False
        )
