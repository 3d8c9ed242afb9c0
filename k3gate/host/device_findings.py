"""Findings about drives, the paths that were asked about, heat, power and errors of links."""

from __future__ import annotations

from collections.abc import Iterator

from k3gate import links
from k3gate.host import sensors
from k3gate.records import Drive, Finding, Inventory, Severity, State, StoragePath
from k3gate.units import count, listed

_SHOWN = 6
_WORN_PERCENT = 90


def find(inventory: Inventory) -> Iterator[Finding]:
    """All of them."""
    if inventory.storage is not None:
        yield from _links(inventory.storage.drives)
        yield from _health(inventory.storage.drives)
        for path in inventory.storage.paths:
            yield from _path(path)
    if inventory.sensors is not None:
        yield from _sensors(inventory)
        yield from _counted(inventory)


def _links(drives: tuple[Drive, ...]) -> Iterator[Finding]:
    # At the slowest rate of all a link saves power, and says nothing.
    slow = [
        drive
        for drive in drives
        if links.narrow(drive.link) or (links.slow(drive.link) and not links.saving(drive.link))
    ]
    if slow:
        yield Finding(
            "drive_link_below_best",
            Severity.MEDIUM,
            f"The PCIe link of {count(len(slow), 'drive')} is below its best",
            "; ".join(f"{d.name} {links.told(d.link)}" for d in slow[:_SHOWN] if d.link),
            "the best that drive and slot can do",
            "The link bounds how fast the weights load; some drives lower it while they are idle, so that only a "
            "link that stays low under load is a fault.",
            "Look again under load; then reseat the drive, replace riser or cable, or look at the slot's setting.",
        )


def _health(drives: tuple[Drive, ...]) -> Iterator[Finding]:
    told = [(drive, drive.health) for drive in drives if drive.health is not None]
    slowed = [
        f"{drive.name}: {', '.join(words)}"
        for drive, health in told
        if (
            words := [
                f"{value:,} s {what}"
                for value, what in (
                    (health.critical_seconds, "above its critical temperature"),
                    (health.warning_seconds, "above its warning temperature"),
                    (health.heavy_throttle_seconds, "heavily throttled"),
                    (health.light_throttle_seconds, "lightly throttled"),
                )
                if value
            ]
        )
    ]
    if slowed:
        yield Finding(
            "drive_throttled",
            Severity.MEDIUM,
            f"{count(len(slowed), 'drive')} ran too hot or slowed down for heat",
            "; ".join(slowed[:_SHOWN]),
            "never, over the life of the drive",
            "A drive that slows itself down loads the weights at a third of its rate, and only after a minute.",
            "Give the drives air or heat sinks, and watch the counters over a load of the whole model.",
        )
    bad = [
        f"{drive.name}: {', '.join(words)}"
        for drive, health in told
        if (
            words := [
                *([f"{health.media_errors:,} media errors"] if health.media_errors else []),
                *([f"critical warning {health.critical_warning:#04x}"] if health.critical_warning else []),
                *(
                    [f"{health.used_percent} % used up"]
                    if (health.used_percent or 0) >= _WORN_PERCENT
                    else []
                ),
            ]
        )
    ]
    if bad:
        yield Finding(
            "drive_unwell",
            Severity.HIGH,
            "Drives warn of themselves",
            "; ".join(bad[:_SHOWN]),
            "no media errors, no warning, not worn out",
            "Weights that cannot be read again, or are read wrong, end a service or spoil it.",
            "Have the drive replaced before you buy.",
        )


def _path(path: StoragePath) -> Iterator[Finding]:
    degraded = [layer.name for layer in path.layers if layer.degraded]
    if degraded:
        yield Finding(
            "array_degraded",
            Severity.HIGH,
            f"The array below {path.path} lacks a member",
            listed(degraded),
            "all members present",
            "A degraded array reads slower, and the next failure loses the weights.",
            "Replace the missing member and let the array rebuild.",
        )
    if path.kind == "memory":
        yield Finding(
            "storage_is_memory",
            Severity.HIGH,
            f"{path.path} is memory and no storage",
            path.file_system or "a file system in memory",
            "a file system on drives",
            "What lies there is gone after a start, takes the memory of the weights, and has no rate of a drive.",
            "Name a folder on a drive with --storage.",
        )
    elif path.kind in ("network", "pool", "unknown"):
        yield Finding(
            "storage_unseen",
            Severity.LOW,
            f"The drives below {path.path} cannot be seen",
            path.reason or path.summary,
            "a file system on drives of this machine",
            "Their links, their nodes and their throttling stay unknown; a rate measured there is of all in between.",
            "Nothing, where that is how the weights will lie; else name a folder on a drive with --storage.",
        )
    if path.encrypted:
        yield Finding(
            "storage_encrypted",
            Severity.LOW,
            f"{path.path} is encrypted",
            path.summary,
            "no layer that computes between file and drive",
            "Every byte passes through the processor, which may bound the load before the drive does.",
            "Weights that anyone may fetch need no encryption: put them on a plain file system.",
        )


def _sensors(inventory: Inventory) -> Iterator[Finding]:
    told = inventory.sensors
    assert told is not None
    bare = inventory.machine.virtual is False
    good = [one for one in told.readings if one.quantity == "temperature" and one.state is State.OK]
    refused = [zone for zone in told.power_zones if zone.state is State.NOT_PERMITTED]
    # Of files that were taken elsewhere it is not known whether the machine had sensors.
    if bare and not good and (inventory.root == "/" or told.readings):
        yield Finding(
            "no_temperatures",
            Severity.LOW,
            "No temperature can be read",
            "no hwmon driver tells one",
            "at least the processors', the modules' and the drives'",
            "That a rate fell for heat can then only be guessed from the rate itself.",
            "sudo modprobe -a coretemp k10temp jc42 spd5118 drivetemp (those that fit), or name the BMC with --bmc.",
        )
    if bare and refused:
        yield Finding(
            "power_unreadable",
            Severity.LOW,
            "The power of the processors cannot be read",
            f"{refused[0].source} is readable by root alone",
            "readable energy counters",
            "Neither watts under load nor joules per token can then be told.",
            "sudo chmod a+r /sys/class/powercap/*/energy_uj, or run as root, or name the BMC with --bmc.",
        )
    hot = [one for one in good if (room := sensors.headroom(one)) is not None and room <= 0]
    if hot:
        yield Finding(
            "hot",
            Severity.HIGH,
            "Sensors are at their limit already",
            "; ".join(
                f"{one.id}: {one.value:g} of {_limit(one.maximum, one.critical)} degC" for one in hot[:_SHOWN]
            ),
            "below the limit, and idle",
            "What is at its limit while idle is slowed down under load.",
            "Look at fans, air flow and the room before anything is measured.",
        )
    fitted = inventory.memory.populated
    modules = {one.id for one in good if one.role == "module"}
    if modules and fitted and len(modules) < fitted:
        yield Finding(
            "modules_without_sensor",
            Severity.LOW,
            "Not every memory module tells its temperature",
            f"{len(modules)} of {fitted}",
            f"{fitted} of {fitted}",
            "Memory that is too hot is refreshed twice as often, which costs rate; it would not be seen.",
            "Load jc42 (DDR4) or spd5118 (DDR5), or read the modules' temperatures from the BMC.",
        )


def _limit(maximum: float | None, critical: float | None) -> str:
    return f"{min(limit for limit in (maximum, critical) if limit is not None):g}"


def _counted(inventory: Inventory) -> Iterator[Finding]:
    told = inventory.sensors
    assert told is not None
    for kind, code, severity, title, why, remedy in (
        (
            "throttle",
            "events_counted",
            Severity.LOW,
            "Processors have been throttled since the start",
            "A processor that is too hot or draws too much is slowed down, and the rate with it.",
            "Look at cooling and power limits; whether it happens under this load, a run tells.",
        ),
        (
            "uncorrected",
            "link_errors",
            Severity.HIGH,
            "Uncorrected errors of links or machine checks were counted",
            "Data was lost or a process ended; the next time it is the runtime.",
            "Find the device by its address, reseat or replace it, and read the kernel's log.",
        ),
        (
            "corrected",
            "link_errors",
            Severity.LOW,
            "Corrected errors of links or machine checks were counted",
            "Each is repeated, which costs time, and mostly tells of a bad contact.",
            "Reseat the device or its riser, and see whether the count still rises under load.",
        ),
    ):
        found = [one for one in told.counters if one.kind == kind and one.value]
        if found:
            yield Finding(
                code,
                severity,
                title,
                "; ".join(f"{one.domain}: {one.value:,}" for one in found[:_SHOWN]),
                "none",
                why,
                remedy,
            )
