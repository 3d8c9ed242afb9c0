"""The lines of `k3gate host` about GPUs, the PCIe tree and network adapters."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from k3gate import links
from k3gate.pages import WIDTH, row
from k3gate.records import Gpu, Inventory, NetworkAdapter, PciDevice, PcieLink, State
from k3gate.units import count, gib, quantity

SHOWN = ("gpu", "accelerator", "nvme", "network", "infiniband")
"""Kinds of devices whose links carry what K3 needs."""
_MOST = 64
_NOUNS = {
    "gpu": "GPU",
    "accelerator": "accelerator",
    "nvme": "NVMe drive",
    "network": "network",
    "infiniband": "InfiniBand",
}


def gpus(inventory: Inventory) -> Iterator[str]:
    """A few lines a GPU; equal ones are not drawn together, since their places differ."""
    found = inventory.gpus
    if found is None:
        note = inventory.provenance.get("gpus")
        yield row("GPUs", f"unknown: {note.reason}" if note and note.reason else None)
        return
    if not found:
        yield row("GPUs", "none")
    for one in found[:_MOST]:
        yield row(one.address or "no address", "; ".join(_gpu(one, inventory)))
    yield from _more(len(found))


def _gpu(one: Gpu, inventory: Inventory) -> Iterator[str]:
    yield one.name or f"a GPU of {one.vendor or 'an unknown maker'}"
    if one.state is not State.OK:
        yield one.reason or str(one.state)
    if one.shared_memory:
        yield "uses the machine's memory; integrated interconnect, not evaluated"
    elif one.memory_bytes:
        bar = f" ({gib(one.bar_bytes)} within reach of the CPU)" if one.bar_bytes else ""
        yield gib(one.memory_bytes) + bar
    elif one.state is State.OK:
        yield f"memory unknown: {one.unknown.get('memory_bytes', 'not told')}"
    if one.partitioned:
        sizes = ", ".join(gib(part.memory_bytes) for part in one.parts)
        into = f"into {count(len(one.parts), 'part')} ({sizes})" if one.parts else one.partition_mode or ""
        yield f"partitioned {into}".rstrip()
    if one.node is not None:
        yield f"node {one.node}"
    elif len(inventory.numa.nodes) > 1:
        yield "node not told"
    if one.link is not None and not one.shared_memory:
        yield state(one.link)
    if one.power_w is not None or one.power_limit_w is not None:
        limit = f" of {quantity(one.power_limit_w, 'W')}" if one.power_limit_w else ""
        yield f"{quantity(one.power_w, 'W')}{limit}"
    if one.temperature is not None:
        yield f"{one.temperature:g} degC"
    if one.ecc is not None:
        yield f"ECC {'on' if one.ecc else 'off'}"
    if one.nvlinks:
        rates = [link.bytes_per_s for link in one.nvlinks if link.active and link.bytes_per_s]
        total = f", {quantity(sum(rates), 'B/s')} in one direction" if rates else ""
        yield f"{sum(bool(link.active) for link in one.nvlinks)} of {len(one.nvlinks)} NVLinks up{total}"
    if one.driver:
        yield f"driver {one.driver}"


def state(link: PcieLink) -> str:
    """What a link does, and what keeps it from more, as far as an idle link tells."""
    if link.width is None and link.gt_per_s is None:
        return f"link not seen, at best {links.words(link.best_gt_per_s, link.best_width)}"
    parts = [links.told(link)]
    if links.narrow(link):
        parts.append("fewer lanes than both ends have")
    elif links.slow(link):
        parts.append("idle: it slows down while nothing is sent")
    limit = links.limited_by(link)
    if limit == "port":
        parts.append(f"the device could {links.words(link.device_gt_per_s, link.device_width)}")
    elif limit == "device":
        parts.append(f"the slot could {links.words(link.port_gt_per_s, link.port_width)}")
    return parts[0] + (f" ({'; '.join(parts[1:])})" if parts[1:] else "")


def tree(inventory: Inventory) -> Iterator[str]:
    """The devices that matter, by node, each with its way up and its link; then where traffic meets."""
    devices = inventory.pci
    if devices is None:
        yield row("PCI devices", None)
        return
    shown = [one for one in devices if one.kind in SHOWN and one.virtual_of is None]
    yield row(
        "PCI devices",
        f"{len(devices):,}, of which {len(shown):,} are GPUs, NVMe drives, network or accelerators",
    )
    drawn: dict[int | None, list[PciDevice]] = {}
    for one in shown[:_MOST]:
        drawn.setdefault(one.node, []).append(one)
    for node in sorted(drawn, key=lambda each: (each is None, each or 0)):
        yield f"+ node {node}" if node is not None else "+ node not told"
        for one in drawn[node]:
            yield textwrap.fill(_device(one), WIDTH, initial_indent="|   ", subsequent_indent="|       ")
    yield from _more(len(shown))
    for met in links.meetings(devices, [each.address for each in shown]):
        names = ", ".join(met.devices[:8])
        rate = f", which carries {quantity(met.bytes_per_s, 'B/s')}" if met.bytes_per_s else ""
        yield textwrap.fill(f"{names} meet behind {met.at}{rate}", WIDTH, subsequent_indent="    ")


def _device(one: PciDevice) -> str:
    name = " ".join(word for word in (one.vendor, one.device) if word)
    if not name and one.vendor_id is not None and one.device_id is not None:
        name = f"{one.vendor_id:04x}:{one.device_id:04x}"
    parts = [f"{one.address} {_NOUNS[one.kind]}{f' {name}' if name else ''}"]
    parts += [f"slot {one.slot}"] if one.slot else []
    parts += [f"below {' '.join(one.above)}"] if one.above else []
    parts += [state(one.link)] if one.link else []
    if one.corrected or one.uncorrected:
        parts.append(f"{one.corrected or 0:,} link errors corrected, {one.uncorrected or 0:,} not")
    return ", ".join(parts)


def network(inventory: Inventory) -> Iterator[str]:
    """A line an adapter, or port of one."""
    found = inventory.network
    if found is None:
        yield row("adapters", None)
        return
    if not found:
        yield row("adapters", "none")
    for one in found[:_MOST]:
        yield row(one.name, ", ".join(_adapter(one)))
    yield from _more(len(found))


def _adapter(one: NetworkAdapter) -> Iterator[str]:
    yield {"ethernet": "Ethernet", "infiniband": "InfiniBand"}.get(one.kind, one.kind)
    if one.state:
        yield one.state
    yield f"{one.bytes_per_s * 8 / 1e9:g} Gbit/s" if one.bytes_per_s else "rate not told"
    if one.mtu:
        yield f"MTU {one.mtu}"
    if one.driver:
        yield one.driver
    if one.node is not None:
        yield f"node {one.node}"
    if one.link is not None and one.link.width:
        yield state(one.link)


def _more(number: int) -> Iterator[str]:
    if number > _MOST:
        yield f"and {number - _MOST} more, see --json"
