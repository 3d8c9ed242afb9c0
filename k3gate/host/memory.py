"""Memory of the whole machine from proc/meminfo, and the huge page pools."""

from __future__ import annotations

import re

from k3gate.host import parsing
from k3gate.host.files import Root
from k3gate.host.notes import Notes
from k3gate.records import HugePagePool, Memory, State

MEMINFO = "proc/meminfo"
_POOL = re.compile(r"hugepages-(\d{1,12})kB", re.ASCII)
_FIRMWARE_FIELDS = (
    "slots",
    "populated",
    "channels",
    "configured_mts",
    "rated_mts",
    "theoretical_bytes_per_s",
    "dimms",
)


def read(root: Root, notes: Notes) -> Memory:
    """The `Memory` record: totals as the kernel counts them (installed memory less what it reserves)."""
    for name in _FIRMWARE_FIELDS:
        notes.unknown(
            f"memory.{name}",
            State.NOT_RUN,
            None,
            "this version does not read the firmware's memory table yet",
        )
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
