"""Findings about PCIe links. A slow link of an idle device is none: links slow down while nothing is sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from k3gate import links
from k3gate.records import Finding, Inventory, PcieLink, Severity
from k3gate.units import count, quantity

_SHOWN = 6
Named = tuple[str, PcieLink]


def find(inventory: Inventory) -> Iterator[Finding]:
    """All of them. Drives whose links are slow are told by device_findings."""
    gpus = [
        (f"GPU {one.address}", one.link)
        for one in inventory.gpus or ()
        if one.link is not None and not one.shared_memory
    ]
    above = {address for one in inventory.pci or () if one.kind == "gpu" for address in one.above}
    uplinks = [
        (f"the switch {one.address} above GPUs", one.link)
        for one in inventory.pci or ()
        if one.address in above and one.port == "upstream" and one.link is not None
    ]
    adapters = [(f"{one.name}", one.link) for one in inventory.network or () if one.link is not None]
    drives = [
        (f"drive {one.name}", one.link)
        for one in (inventory.storage.drives if inventory.storage else ())
        if one.link is not None
    ]
    yield from _narrow(inventory, _once([*gpus, *uplinks, *adapters]))
    yield from _slots(_once([*gpus, *uplinks, *drives]))
    yield from _errors(inventory)


def place(inventory: Inventory, address: str) -> str:
    """Where a device hangs: its slot, the bridges above, its node; "" where nothing of it is told."""
    device = next((one for one in inventory.pci or () if one.address == address), None)
    if device is None:
        return ""
    parts = [f"slot {device.slot}"] if device.slot else []
    parts += [f"below {' and '.join(device.above)}"] if device.above else []
    parts += [f"node {device.node}"] if device.node is not None else ["node not told"]
    return ", ".join(parts)


def _once(named: Sequence[Named]) -> list[Named]:
    """Each link once: an adapter and its ports share theirs."""
    return list({link.address: (name, link) for name, link in reversed(named)}.values())[::-1]


def _narrow(inventory: Inventory, named: Sequence[Named]) -> Iterator[Finding]:
    found = [(name, link) for name, link in named if links.narrow(link)]
    if found:
        told = []
        for name, link in found[:_SHOWN]:
            where = place(inventory, link.address)
            told.append(
                f"{name} uses {link.width} of {link.best_width} lanes" + (f" ({where})" if where else "")
            )
        link = found[0][1]
        yield Finding(
            "link_narrow",
            Severity.MEDIUM,
            f"{count(len(found), 'PCIe link')} {'uses' if len(found) == 1 else 'use'} fewer lanes than both ends have",
            "; ".join(told) + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""),
            f"{link.best_width} lanes, {quantity(link.best_bytes_per_s, 'B/s')} in one direction",
            "The number of lanes does not change with load on most devices: those that are used bound the copy rate.",
            "Reseat the card; look at riser, cable and contacts, and at how the firmware divides the slot.",
        )


def _slots(named: Sequence[Named]) -> Iterator[Finding]:
    by_slot = [(name, link) for name, link in named if links.limited_by(link) == "port"]
    if by_slot:
        yield Finding(
            "slot_below_device",
            Severity.LOW,
            f"The slot of {count(len(by_slot), 'device')} can do less than the device",
            "; ".join(
                f"{name}: {links.words(one.port_gt_per_s, one.port_width)} of "
                f"{links.words(one.device_gt_per_s, one.device_width)}"
                for name, one in by_slot[:_SHOWN]
            ),
            "slots that can do what the devices can",
            "The device would copy faster elsewhere: in another slot, or in another machine.",
            "Move it to a wider or newer slot, or count with the slot's rate.",
        )
    by_device = [(name, link) for name, link in named if links.limited_by(link) == "device"]
    if by_device:
        yield Finding(
            "device_below_slot",
            Severity.LOW,
            f"{count(len(by_device), 'device')} can do less than {'its' if len(by_device) == 1 else 'their'} slot",
            "; ".join(
                f"{name}: {links.words(one.device_gt_per_s, one.device_width)} of "
                f"{links.words(one.port_gt_per_s, one.port_width)}"
                for name, one in by_device[:_SHOWN]
            ),
            "nothing: it is the device's own bound",
            "A newer device would load or copy faster in the same slot.",
            "Nothing is broken; compare with the slot's rate before ordering more of the same.",
        )


def _errors(inventory: Inventory) -> Iterator[Finding]:
    bad = [
        one
        for one in inventory.pci or ()
        if one.kind in ("gpu", "nvme") and (one.corrected or one.uncorrected)
    ]
    if bad:
        yield Finding(
            "device_link_errors",
            Severity.MEDIUM if any(one.uncorrected for one in bad) else Severity.LOW,
            f"Errors of the links of {count(len(bad), 'GPU or drive', 'GPUs or drives')} were counted",
            "; ".join(
                f"{one.address}: {one.corrected or 0:,} corrected, {one.uncorrected or 0:,} not"
                for one in bad[:_SHOWN]
            ),
            "none",
            "Each packet that is damaged is sent again; a link that needs it often is slow, and close to failing.",
            "Reseat the card or its riser; a run tells whether the count rises under load.",
        )
