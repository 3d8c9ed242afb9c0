"""The processor's energy counters (RAPL), as the kernel's powercap folder shows them.

Since 5.10 only root reads the energy itself, since it tells too much of what runs. No right to read is no 0 W.
"""

from __future__ import annotations

import re

from k3gate.host import parsing
from k3gate.host.files import Root
from k3gate.host.notes import Notes
from k3gate.records import PowerZone, State

CLASS = "sys/class/powercap"
_ZONE = re.compile(r"(?:intel|amd)-rapl(?:-mmio)?(?::\d{1,4}){1,3}", re.ASCII)
_PACKAGE = re.compile(r"package-(\d{1,4})(?:-die-\d{1,4})?", re.ASCII)
_CONSTRAINTS = 6
_ZONES = 256
_LONGEST = 40
_NEEDS_ROOT = "not permitted; needs root: sudo chmod a+r /sys/class/powercap/*/energy_uj until the next start"


def read(root: Root, notes: Notes) -> tuple[PowerZone, ...]:
    """All zones; the sum of packages is no sum of zones, since some lie within others."""
    names = [name for name in root.names(CLASS) if _ZONE.fullmatch(name)][:_ZONES]
    zones = tuple(_zone(root, name, set(names)) for name in names)
    if not zones:
        notes.absent(
            "sensors.power_zones",
            CLASS,
            "no energy counter of the processor is shown; load intel_rapl_msr (a guest has none), or ask the BMC",
        )
        return ()
    refused = next((zone for zone in zones if zone.state is not State.OK), None)
    if refused is None:
        notes.seen("sensors.power_zones", f"{CLASS}/*")
    else:
        notes.unknown("sensors.power_zones", refused.state, refused.source, refused.reason or "unreadable")
    return zones


def joules(before: float, after: float, range_j: float | None) -> float | None:
    """What was used between two readings of a counter, which starts again from 0 once; None where it cannot be told.

    Take readings more often than the counter wraps: at 300 W a range of 262 kJ lasts a quarter of an hour.
    """
    if after >= before:
        return after - before
    return None if range_j is None or before > range_j else after + range_j - before


def _zone(root: Root, name: str, names: set[str]) -> PowerZone:
    base = f"{CLASS}/{name}"
    domain = (parsing.words(root.line(f"{base}/name")) or name)[:_LONGEST]
    # Numbers of zones do not follow those of packages; the name file does. A part of a package lies below it.
    above = name.rpartition(":")[0]
    whole = parsing.words(root.line(f"{CLASS}/{above}/name")) if above in names else domain
    package = _PACKAGE.fullmatch(whole or "")
    reading = root.read(f"{base}/energy_uj")
    state, reason = reading.state, reading.reason
    if reading.text is not None:
        try:
            parsing.integer(reading.text)
        except ValueError as error:
            state, reason = State.FAILED, f"implausible: {error}"
    elif state is State.NOT_PERMITTED:
        reason = _NEEDS_ROOT
    within = f"{whole} {domain}" if above in names else domain
    kind = "mmio " if "-mmio" in name else ""
    return PowerZone(
        id=f"rapl {kind}{within}",
        domain=domain,
        package=int(package[1]) if package else None,
        range_j=_micro(root, f"{base}/max_energy_range_uj"),
        enabled={"0": False, "1": True}.get(root.line(f"{base}/enabled") or ""),
        limits=_limits(root, base),
        state=state,
        reason=reason,
        source=reading.source,
    )


def _limits(root: Root, base: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for number in range(_CONSTRAINTS):
        name = parsing.words(root.line(f"{base}/constraint_{number}_name"))
        watts = _micro(root, f"{base}/constraint_{number}_power_limit_uw")
        if name and watts:
            found[name[:_LONGEST]] = watts
    return found


def _micro(root: Root, path: str) -> float | None:
    try:
        return parsing.integer(root.line(path) or "") * 1e-6
    except ValueError:
        return None
