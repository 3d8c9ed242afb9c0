"""The lines of `k3gate host` about drives, asked paths, heat, power and what was counted."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from k3gate import links
from k3gate.host import sensors
from k3gate.pages import WIDTH, row
from k3gate.records import Drive, Inventory, PowerZone, SensorReading, State, StoragePath
from k3gate.units import count, quantity, significant

_KINDS = {
    "nvme": "NVMe",
    "sata": "SATA",
    "sas": "SAS",
    "scsi": "SCSI",
    "pmem": "persistent memory",
    "mmc": "MMC",
}
_DRIVES = 64


def drives(inventory: Inventory) -> Iterator[str]:
    """One line a drive, then what the paths lie on that were asked about."""
    storage = inventory.storage
    if storage is None:
        yield row("drives", None)
        return
    if not storage.drives:
        yield row("drives", "none")
    for drive in storage.drives[:_DRIVES]:
        yield row(drive.name, _drive(drive, inventory))
    if len(storage.drives) > _DRIVES:
        yield f"and {len(storage.drives) - _DRIVES} more, see --json"
    for namespace in storage.pmem:
        size = quantity(namespace.bytes, "B")
        where = f", node {namespace.node}" if namespace.node is not None else ""
        yield row(namespace.id, f"{size} of persistent memory, {namespace.mode or 'mode unknown'}{where}")
    for path in storage.paths:
        yield textwrap.fill(_path(path), WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def _drive(drive: Drive, inventory: Inventory) -> str:
    parts = [f"{quantity(drive.bytes, 'B')} {_KINDS.get(drive.kind, drive.kind)}"]
    model = " ".join(word for word in (drive.vendor, drive.model) if word)
    parts += [model] if model else []
    parts += [f"firmware {drive.firmware}"] if drive.firmware else []
    parts += [links.told(drive.link)] if drive.link and drive.link.gt_per_s else []
    parts += [f"node {drive.node}"] if drive.node is not None else []
    parts += ["rotating"] if drive.rotational and drive.kind in ("sata", "sas", "scsi") else []
    readings = inventory.sensors.readings if inventory.sensors else ()
    own = [one for one in readings if one.role == "drive" and one.of in (drive.name, drive.controller)]
    hottest = max(
        (one.value for one in own if one.value is not None and one.quantity == "temperature"), default=None
    )
    parts += [f"{hottest:g} degC"] if hottest is not None else []
    return ", ".join(parts)


def _path(path: StoragePath) -> str:
    room = "" if path.free_bytes is None else f", {quantity(path.free_bytes, 'B')} free"
    below = f" ({', '.join(path.drives[:8])})" if path.drives else ""
    why = f": {path.reason}" if path.reason else ""
    return f"{path.path} lies on {path.summary}{below}{room}{why}"


def heat(inventory: Inventory) -> Iterator[str]:
    """Temperatures by what they are of, fans, power, and what was counted since the start."""
    told = inventory.sensors
    if told is None:
        yield row("sensors", None)
        return
    for package, one in sensors.cpu_temperatures(told.readings).items():
        yield row(f"processor {package}", f"{_value(one)} ({one.label}{_limit(one)})")
    for role, name in (
        ("module", "memory modules"),
        ("drive", "drives"),
        ("gpu", "GPUs"),
        ("board", "board"),
        ("bmc", "BMC"),
    ):
        yield from _range(
            name, [one for one in told.readings if one.role == role and one.quantity == "temperature"]
        )
    yield from _range("fans", [one for one in told.readings if one.quantity == "fan"])
    for one in told.readings:
        if one.quantity == "power" and one.state is State.OK:
            yield row("power", f"{_value(one)} ({one.label})")
    bad = [one for one in told.readings if one.state is State.FAILED]
    if bad:
        yield row(
            "left out",
            "; ".join(f"{one.id}: {one.reason}" for one in bad[:4]) + ("; ..." if len(bad) > 4 else ""),
        )
    yield row("energy counters", _zones(told.power_zones))
    counted = [f"{one.domain}: {one.value:,}" for one in told.counters if one.value]
    note = inventory.provenance.get("sensors.counters")
    none = "none" if note is not None and note.state is State.OK else None
    yield row("events counted", "; ".join(counted[:8]) or none)
    if not told.readings:
        yield row("sensors", "none that can be read")


def _value(one: SensorReading) -> str:
    return f"{significant(one.value)} {one.unit}" if one.value is not None else one.reason or "unknown"


def _limit(one: SensorReading) -> str:
    room = sensors.headroom(one)
    return "" if room is None else f", {significant(room)} below its limit"


def _range(name: str, readings: Sequence[SensorReading]) -> Iterator[str]:
    values = [one.value for one in readings if one.value is not None]
    if not values:
        return
    low, high = significant(min(values)), significant(max(values))
    span = low if low == high else f"{low} to {high}"
    yield row(name, f"{span} {readings[0].unit}, {count(len(values), 'sensor')}")


def _zones(zones: Sequence[PowerZone]) -> str | None:
    if not zones:
        return "none"
    refused = [zone for zone in zones if zone.state is not State.OK]
    names = ", ".join(zone.id.removeprefix("rapl ") for zone in zones[:8])
    return f"{names}: {refused[0].reason}" if refused else names
