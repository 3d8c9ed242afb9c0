"""Memory of the whole machine from proc/meminfo, and the huge page pools."""

from __future__ import annotations

import re
from typing import Any

from attrs import evolve

from k3gate.host import parsing
from k3gate.host.channels import channels_of_processors, channels_per_socket
from k3gate.host.files import Root
from k3gate.host.firmware import Firmware
from k3gate.host.notes import Notes, Reason
from k3gate.records import Cpu, HugePagePool, Memory, MemoryArray, Numa, State
from k3gate.units import gib

MEMINFO = "proc/meminfo"
MODULE_FIELDS = tuple(
    field.name
    for field in Memory.__attrs_attrs__
    if not field.name.endswith(("total_bytes", "available_bytes", "used_bytes")) and field.name != "notes"
)
"""What the firmware's table tells: all but what the kernel counts."""
_CUT = re.compile(r"truncated|structures?\b.*rest was not read|larger than .*rest was not read")
_POOL = re.compile(r"hugepages-(\d{1,12})kB", re.ASCII)


def read(root: Root, notes: Notes, firmware: Firmware, cpu: Cpu, virtual: bool | None) -> Memory:
    """The `Memory` record: totals as the kernel counts them (installed memory less what it reserves), and the
    modules as the firmware tells of them; of a guest's table nothing is believed."""
    return _with_modules(_totals(root, notes), notes, firmware, cpu, virtual)


def _with_modules(memory: Memory, notes: Notes, firmware: Firmware, cpu: Cpu, virtual: bool | None) -> Memory:
    table = firmware.table
    if table is None:
        missing = firmware.missing or Reason(State.NOT_PRESENT, "absent")
        for name in MODULE_FIELDS:
            notes.unknown(f"memory.{name}", missing.state, firmware.source, missing.text)
        return memory
    from k3gate.host import dimms

    found = dimms.summarize(
        table.devices,
        table.arrays,
        table.processors,
        virtual=virtual,
        cut=next((text for text in table.problems if _CUT.search(text)), None),
        sockets=cpu.sockets,
        channels_per_socket=channels_per_socket(cpu),
        channels_of_processors=channels_of_processors(cpu),
    )
    for name in dimms.FIELDS:
        reason = found.reasons.get(name)
        if reason is None:
            notes.seen(f"memory.{name}", firmware.source)
        else:
            notes.unknown(f"memory.{name}", reason.state, firmware.source, reason.text)
    arrays = None
    if found.evaluated:
        notes.seen("memory.arrays", firmware.source)
        arrays = tuple(
            MemoryArray(one.location, one.ecc, one.maximum_bytes, one.devices)
            for one in table.arrays
            if one.use in (None, "system memory")
        )
    else:
        why = next(iter(found.reasons.values()), None)
        state, text = (why.state, why.text) if why else (State.NOT_PRESENT, "absent")
        notes.unknown("memory.arrays", state, firmware.source, text)
    return evolve(
        memory,
        **{name: getattr(found, name) for name in dimms.FIELDS},
        arrays=arrays,
        notes=(*found.notes, *table.problems),
    )


def _totals(root: Root, notes: Notes) -> Memory:
    reading = root.read(MEMINFO)
    names = ("total_bytes", "available_bytes", "swap_total_bytes", "swap_used_bytes")
    if reading.text is None:
        for name in names:
            notes.unknown(f"memory.{name}", reading.state, MEMINFO, reading.reason or "unreadable")
        return Memory()
    table = parsing.kilobytes(reading.text)
    total = _amount(notes, "total_bytes", table, "MemTotal", 1)
    available = _amount(notes, "available_bytes", table, "MemAvailable", 0)
    if available is not None and total is not None and available > total:
        notes.implausible("memory.available_bytes", MEMINFO, "more memory is available than there is")
        available = None
    swap = _amount(notes, "swap_total_bytes", table, "SwapTotal", 0)
    free = _amount(notes, "swap_used_bytes", table, "SwapFree", 0)
    used = None
    if swap is not None and free is not None:
        if free > swap:
            notes.implausible("memory.swap_used_bytes", MEMINFO, "more swap is free than there is")
        else:
            used = swap - free
    return Memory(total_bytes=total, available_bytes=available, swap_total_bytes=swap, swap_used_bytes=used)


def free_bytes(root: Root) -> int | None:
    """MemFree, for kernels that do not tell MemAvailable (before 3.14)."""
    value = parsing.kilobytes(root.read(MEMINFO).text or "").get("MemFree")
    return value if value is not None and value >= 0 else None


def _amount(notes: Notes, name: str, table: dict[str, int], key: str, low: int) -> int | None:
    value = table.get(key)
    field = f"memory.{name}"
    if value is None:
        notes.absent(field, MEMINFO, f"no line {key}")
        return None
    if not low <= value < 2**60:
        notes.implausible(field, MEMINFO, f"{key} is {value // 1024} kB")
        return None
    notes.seen(field, MEMINFO)
    return value


def in_memory_mode(memory: Memory) -> bool:
    """Whether persistent modules must be part of what the kernel uses: it has more than there is of DRAM."""
    total, dram = memory.total_bytes, memory.dram_bytes
    return bool(total and dram and memory.pmem_bytes and total > 1.02 * dram)


def not_seen(memory: Memory) -> str | None:
    """Whether the kernel has less than the modules hold, by about one of them or more; in words.

    A kernel keeps some 2 % for itself, which is less than half a module of up to 24.
    """
    total, dram = memory.total_bytes, memory.dram_bytes
    sizes = [dimm.bytes for dimm in memory.dimms or () if dimm.kind == "dram" and dimm.bytes]
    if not total or not dram or not sizes or total >= 0.965 * dram or dram - total < 0.9 * min(sizes):
        return None
    return f"the kernel has {gib(total)} of the {gib(dram)} that the modules hold, as if one or more were not used"


# What counts modules as DRAM of a channel.
_COUNTED = (
    *("dram_bytes", "channels", "channel_list", "empty_channels", "modules_per_channel"),
    *("theoretical_bytes_per_s", "full_bytes_per_s", "mixed_sizes", "mixed_speeds", "mixed_parts"),
)


def without_hidden_cxl(memory: Memory, numa: Numa, notes: Notes) -> Memory:
    """`memory` without its channels and ceilings where CXL modules must be among what the table calls DRAM.

    The kernel has a node of CXL memory, no module of the table is CXL by its name or its array, and the table
    has more DRAM than the other nodes by about as much.
    """
    cxl = sum(node.memory_bytes or 0 for node in numa.nodes if node.kind == "cxl")
    rest = sum(node.memory_bytes or 0 for node in numa.nodes if node.kind != "cxl")
    told = any(dimm.kind == "cxl" for dimm in memory.dimms or ())
    if not cxl or told or memory.dram_bytes is None or memory.dram_bytes < rest + 0.9 * cxl:
        return memory
    reason = (
        f"the table lists {gib(memory.dram_bytes)} as DRAM, of which {gib(cxl)} are CXL memory to the kernel; "
        "which modules these are it does not tell"
    )
    for name in _COUNTED:
        notes.unknown(f"memory.{name}", State.FAILED, "numa.nodes.kind", reason)
    unknown: dict[str, Any] = dict.fromkeys(_COUNTED)
    return evolve(memory, **unknown)


def huge_pages(root: Root, folder: str) -> tuple[HugePagePool, ...]:
    """The pools below `folder` (of the machine or of a node), by page size; unreadable ones are left out."""
    pools: list[HugePagePool] = []
    for name in root.names(folder)[:16]:
        match = _POOL.fullmatch(name)
        if match is None:
            continue
        try:
            total = parsing.integer(root.line(f"{folder}/{name}/nr_hugepages") or "")
            free = parsing.integer(root.line(f"{folder}/{name}/free_hugepages") or "", 0, total)
            pools.append(HugePagePool(parsing.integer(match[1], 1) * 1024, total, free))
        except ValueError:
            continue
    return tuple(sorted(pools, key=lambda pool: pool.page_bytes))
