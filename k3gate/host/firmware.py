"""The firmware's SMBIOS table below a root, and what it adds where the kernel tells nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from attrs import evolve, frozen

from k3gate.host import files
from k3gate.host.files import ENTRY_POINT, TABLE, Root
from k3gate.host.notes import Notes, Reason
from k3gate.records import Cpu, CpuSocket, ExpansionSlot, State

if TYPE_CHECKING:
    from k3gate.host import smbios

ENTRIES = "sys/firmware/dmi/entries"
_ENTRY = re.compile(r"(\d{1,3})-(\d{1,5})", re.ASCII)
_BYTES = 1024 * 1024
_ENTRIES = 20_000
_END = b"\x7f\x04\xff\xff\0\0"


@frozen
class Firmware:
    """The decoded table and where it was read; `missing` says why there is none."""

    table: smbios.Table | None
    source: str
    missing: Reason | None = None


def read(root: Root) -> Firmware:
    """The table as a whole, or put together from the kernel's folder of its entries. Never raises."""
    try:
        raw = root.raw(TABLE, _BYTES, head=True)
    except (OSError, ValueError) as error:
        parts = _entries(root)
        if parts:
            from k3gate.host import smbios

            return Firmware(smbios.decode(smbios.structures(parts)), f"{ENTRIES}/*/raw")
        state, reason = files.explain(error)
        if state is State.NOT_PERMITTED:
            reason = 'the firmware\'s table is readable by root only: sudo "$(command -v k3gate)" run'
        elif state is State.NOT_PRESENT:
            reason = "the machine shows no firmware table"
        return Firmware(None, TABLE, Reason(state, reason))
    # Decoding takes a tenth of the whole command to import, and most users may not read the table.
    from k3gate.host import smbios

    try:
        entry = smbios.entry_point(root.raw(ENTRY_POINT))
    except (OSError, ValueError):
        entry = None
    return Firmware(smbios.decode(smbios.structures(raw, entry)), TABLE)


def _entries(root: Root) -> bytes:
    """All `raw` files of the entries folder, in the order of their types; an end marker only where none was lost."""
    found = [
        (int(match[1]), int(match[2])) for name in root.names(ENTRIES) if (match := _ENTRY.fullmatch(name))
    ]
    parts, size, whole = [], 0, True
    for kind, number in sorted(found)[:_ENTRIES]:
        try:
            part = root.raw(f"{ENTRIES}/{kind}-{number}/raw")
        except (OSError, ValueError):
            whole = False
            continue
        size += len(part)
        if size > _BYTES:
            whole = False
            break
        parts.append(part)
    if parts and whole and not parts[-1].startswith(_END[:1]):
        parts.append(_END)
    return b"".join(parts)


def complete(cpu: Cpu, notes: Notes, firmware: Firmware) -> Cpu:
    """`cpu` with the board's sockets, and with model and counts where the kernel shows none."""
    table = firmware.table
    if table is None or not table.processors:
        reason = firmware.missing or Reason(
            State.NOT_PRESENT, "the firmware's table names no processor socket"
        )
        notes.unknown("cpu.socket_list", reason.state, firmware.source, reason.text)
        return cpu
    notes.seen("cpu.socket_list", firmware.source)
    sockets = tuple(
        CpuSocket(
            designation=one.socket,
            populated=one.populated,
            model=one.version if one.populated else None,
            cores=one.cores if one.populated else None,
            threads=one.threads if one.populated else None,
            max_hz=one.max_mhz * 1e6 if one.max_mhz and one.populated else None,
            status=one.status if one.populated else None,
            cores_enabled=one.cores_enabled if one.populated else None,
        )
        for one in table.processors
    )
    there = [one for one in sockets if one.populated]
    told = {
        "model": next((one.model for one in there if one.model), None),
        "sockets": len(there) or None,
        "cores": _sum([one.cores for one in there]),
        "threads": _sum([one.threads for one in there]),
    }
    added: dict[str, Any] = {
        name: value for name, value in told.items() if value is not None and getattr(cpu, name) is None
    }
    for name in added:
        notes.seen(f"cpu.{name}", firmware.source)
    return evolve(cpu, socket_list=sockets, **added)


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def slots(notes: Notes, firmware: Firmware) -> tuple[ExpansionSlot, ...] | None:
    """The expansion slots of the board."""
    if firmware.table is None:
        missing = firmware.missing or Reason(State.NOT_PRESENT, "absent")
        notes.unknown("slots", missing.state, firmware.source, missing.text)
        return None
    notes.seen("slots", firmware.source)
    return tuple(
        ExpansionSlot(one.designation, one.kind, one.width, one.in_use, one.bus_address)
        for one in firmware.table.slots
    )


def power_supplies(notes: Notes, firmware: Firmware) -> int | None:
    """How many power supplies are present, where the firmware tells."""
    field = "machine.power_supplies"
    if firmware.table is None:
        missing = firmware.missing or Reason(State.NOT_PRESENT, "absent")
        notes.unknown(field, missing.state, firmware.source, missing.text)
        return None
    supplies = firmware.table.power_supplies
    if supplies and all(one.present is not None for one in supplies):
        notes.seen(field, firmware.source)
        return sum(one.present is True for one in supplies)
    notes.absent(field, firmware.source, "the firmware's table does not tell of power supplies")
    return None
