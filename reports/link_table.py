"""The PCIe tree of the report: GPUs, drives and adapters with their way, lanes and rate, and what is below its best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from attrs import frozen

from k3gate import links, units
from k3gate.gate import links as gate_links
from k3gate.host.link_text import SHOWN
from k3gate.links import LinkState, LinkVerdict
from k3gate.records import Gpu, Inventory, NetworkAdapter, PciDevice, PcieLink, RunRecord, State
from k3gate.reports import words
from k3gate.units import NBSP

_MOST = 1024
_WIDEST = 32
_NOUNS = {
    "accelerator": "Accelerator",
    "network": "Network",
    "infiniband": "InfiniBand",
    "nvme": "NVMe drive",
}
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


@frozen
class LinkRow:
    """A device: where it hangs, which it is, its link. `lanes`: for each lane whether it is in use; `bad`: below its
    best under load, or fewer lanes than both ends have."""

    place: str
    name: str
    node: str
    seen: str
    lanes: tuple[bool, ...]
    best: str
    rate: str
    note: str
    errors: str
    bad: bool


@frozen
class LinkTable:
    """The figure: what it says, its rows, and where traffic meets."""

    heading: str
    rows: tuple[LinkRow, ...]
    notes: tuple[str, ...]


def link_table(record: RunRecord) -> LinkTable | None:
    """The table, or None where neither PCI nor a library told of a device with a link."""
    inventory = record.inventory
    seen = gate_links.under_load(record)
    rows = tuple(_rows(inventory, seen))
    if not rows:
        return None
    wanted = [one.address for one in inventory.pci or () if one.kind in SHOWN and one.virtual_of is None]
    notes = [
        f"{words.listed([_short(one) for one in met.devices])} share the way to the root behind {_short(met.at)}"
        + (
            f", which carries {words.value(met.bytes_per_s, 'B/s')} in one direction"
            if met.bytes_per_s
            else ""
        )
        for met in links.meetings(inventory.pci or (), wanted)
    ]
    if len(rows) > _MOST:
        notes.append(f"{len(rows) - _MOST} more devices stand in the JSON document")
    return LinkTable(_heading(rows, seen), rows[:_MOST], tuple(notes))


def _heading(rows: Sequence[LinkRow], seen: Mapping[str, object]) -> str:
    bad = [row for row in rows if row.bad]
    if len(bad) == 1:
        return f"The link of {bad[0].name} is below its best"
    if bad:
        return f"{len(bad)} of {words.count(len(rows), 'link')} are below their best"
    if seen:
        return "No link that was seen under load is below its best"
    return f"{words.capital(words.count(len(rows), 'link'))}, seen idle only"


def _rows(inventory: Inventory, seen: Mapping[str, tuple[LinkState, ...]]) -> Iterator[LinkRow]:
    devices = {
        one.address: one for one in inventory.pci or () if one.kind in SHOWN and one.virtual_of is None
    }
    gpus = {one.address: one for one in inventory.gpus or ()}
    adapters: dict[str | None, list[NetworkAdapter]] = {}
    for one in inventory.network or ():
        adapters.setdefault(one.address, []).append(one)
    drives = {
        one.link.address: one.name
        for one in (inventory.storage.drives if inventory.storage else ())
        if one.link
    }
    for gpu in inventory.gpus or ():
        yield _row(
            _gpu_name(gpu),
            devices.get(gpu.address or ""),
            gpu.node,
            gpu.link,
            seen.get(gpu.address or "", ()),
            gpu,
        )
    for address, device in devices.items():
        if address in gpus:
            continue
        name = f"{_NOUNS.get(device.kind, device.kind)}"
        if address in drives:
            name = f"Drive {drives[address]}"
        elif address in adapters:
            name = f"{name} {', '.join(one.name for one in adapters[address][:4])}"
        model = " ".join(word for word in (device.vendor, device.device) if word)
        yield _row(
            f"{name}{f', {model}' if model else ''}", device, device.node, device.link, seen.get(address, ())
        )


def _gpu_name(gpu: Gpu) -> str:
    return f"GPU {gpu.name}" if gpu.name else f"GPU of {gpu.vendor or 'an unknown maker'}"


def _row(
    name: str,
    device: PciDevice | None,
    node: int | None,
    link: PcieLink | None,
    seen: Sequence[LinkState],
    gpu: Gpu | None = None,
) -> LinkRow:
    found = links.judge(link, seen)
    address = device.address if device else link.address if link else (gpu.address if gpu else None)
    above = device.above if device else ()
    parts = [f"slot {device.slot}"] if device is not None and device.slot else []
    parts += [_short(address)] if address else []
    parts += [f"below {', '.join(_short(one) for one in above)}"] if above else []
    low = _lowest(seen)
    now = (low.gt_per_s, low.width) if low else (link.gt_per_s, link.width) if link else (None, None)
    bad = found.word == links.BELOW or links.narrow(link)
    return LinkRow(
        place="; ".join(parts) or "place not told",
        name=name,
        node="not told" if node is None else str(node),
        seen="integrated" if gpu is not None and gpu.shared_memory else _words(*now),
        lanes=_lanes(now[1], link.best_width if link else None),
        best="unknown" if link is None else _words(link.best_gt_per_s, link.best_width),
        rate="unknown" if link is None else words.value(link.best_bytes_per_s, "B/s"),
        note=_note(link, found, gpu),
        errors=_errors(device),
        bad=bad,
    )


def _lowest(seen: Iterable[LinkState]) -> LinkState | None:
    return min(seen, key=lambda one: (one.gt_per_s or 0) * (one.width or 0), default=None)


def _words(gt_per_s: float | None, width: int | None) -> str:
    """ "Gen4 x16", as people speak of links."""
    if gt_per_s is None and width is None:
        return "not told"
    generation = _GENERATIONS.get(gt_per_s or 0.0)
    rate = (
        f"Gen{generation}"
        if generation
        else "rate not told"
        if gt_per_s is None
        else f"{gt_per_s:g}{NBSP}GT/s"
    )
    return f"{rate} x{width or '?'}"


def _lanes(used: int | None, best: int | None) -> tuple[bool, ...]:
    if used is None or best is None or max(used, best) > _WIDEST:
        return ()
    return tuple(lane < used for lane in range(max(used, best)))


def _note(link: PcieLink | None, found: LinkVerdict, gpu: Gpu | None) -> str:
    """Why it is what it is, in a few words."""
    if gpu is not None and gpu.state is not State.OK:
        return gpu.reason or str(gpu.state)
    if gpu is not None and gpu.shared_memory:
        return "uses the machine's memory, not evaluated"
    if link is None:
        return "no link is told"
    parts = []
    if found.word == links.BELOW:
        parts.append("below its best under load")
    elif found.word == links.BEST:
        parts.append("its best, under load")
    elif links.narrow(link):
        parts.append("fewer lanes than both ends have")
    elif links.slow(link):
        parts.append("idle: slow while nothing is sent")
    else:
        parts.append("seen idle only")
    limit = links.limited_by(link)
    if limit == "port":
        parts.append(f"the device could do {_words(link.device_gt_per_s, link.device_width)}")
    elif limit == "device":
        parts.append(f"the slot could do {_words(link.port_gt_per_s, link.port_width)}")
    return "; ".join(parts)


def _errors(device: PciDevice | None) -> str:
    if device is None or (device.corrected is None and device.uncorrected is None):
        return "not told"
    total = (device.corrected or 0) + (device.uncorrected or 0)
    return f"{total:,}"


def _short(address: str) -> str:
    """Without the domain where it is the first one, as boards and people write it."""
    return address.removeprefix("0000:")


def gpu_rows(inventory: Inventory) -> list[tuple[str, str, str]]:
    """(addresses, how many, what they say of themselves) of GPUs; those that are alike share a row."""
    alike: dict[str, list[str]] = {}
    for gpu in inventory.gpus or ():
        alike.setdefault("; ".join(_described(gpu)), []).append(
            _short(gpu.address) if gpu.address else "no address"
        )
    return [(", ".join(places), f"{len(places):,}", text) for text, places in alike.items()]


def _described(gpu: Gpu) -> Iterator[str]:
    yield gpu.name or f"a GPU of {gpu.vendor or 'an unknown maker'}"
    if gpu.state is not State.OK:
        yield gpu.reason or str(gpu.state)
    if gpu.shared_memory:
        yield "uses the machine's memory"
    elif gpu.memory_bytes:
        reach = (
            f", of which {units.gib(gpu.bar_bytes, NBSP)} within reach of the CPU" if gpu.bar_bytes else ""
        )
        yield f"{units.gib(gpu.memory_bytes, NBSP)}{reach}"
    elif gpu.state is State.OK:
        yield f"memory unknown ({gpu.unknown.get('memory_bytes', 'not told')})"
    if gpu.partitioned:
        sizes = words.listed([units.gib(part.memory_bytes, NBSP) for part in gpu.parts])
        yield f"partitioned: {sizes or gpu.partition_mode or 'no part is made'}"
    if gpu.power_limit_w is not None:
        default = f" (default {gpu.power_default_w:g}{NBSP}W)" if gpu.power_default_w else ""
        yield f"power limit {gpu.power_limit_w:g}{NBSP}W{default}"
    if gpu.max_clocks:
        yield "clocks up to " + ", ".join(
            f"{name} {value / 1e6:,.0f}{NBSP}MHz" for name, value in gpu.max_clocks.items()
        )
    if gpu.ecc is not None:
        yield f"error correction {'on' if gpu.ecc else 'off'}"
    if gpu.nvlinks:
        yield f"{sum(bool(link.active) for link in gpu.nvlinks)} of {len(gpu.nvlinks)} NVLinks up"
    if gpu.driver:
        yield f"driver {gpu.driver}"
