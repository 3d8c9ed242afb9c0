"""The map of the memory modules: a box per channel, holes and odd ones visible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from attrs import frozen

from k3gate import units
from k3gate.host.channels import usable_channels
from k3gate.records import Dimm, Inventory, Memory
from k3gate.units import NBSP


@frozen
class Box:
    """A channel (or, where none is named, a slot). `odd`: it differs from most others, or is empty."""

    name: str
    size: str
    detail: str
    odd: bool


@frozen
class Group:
    """A socket and its channels."""

    title: str
    note: str
    columns: int
    boxes: tuple[Box, ...]


@frozen
class ModuleMap:
    """The figure: what it says, its groups, what the boxes hold, and the same in words."""

    heading: str
    key: str
    groups: tuple[Group, ...]
    spoken: str


def module_map(inventory: Inventory) -> ModuleMap | None:
    """The map, or None where the firmware's table was not read."""
    memory = inventory.memory
    if not memory.dimms:
        return None
    sockets: dict[str, dict[str, list[Dimm]]] = {}
    named = any(dimm.channel is not None for dimm in memory.dimms)
    for dimm in memory.dimms:
        title = "Socket not told" if dimm.socket is None else f"Socket {dimm.socket}"
        channels = sockets.setdefault(title, {})
        channels.setdefault(_name(dimm, named), []).append(dimm)
    usual = _usual([own for channels in sockets.values() for own in channels.values()])
    groups = tuple(
        Group(
            title,
            _note(channels, named),
            8 if len(channels) % 8 == 0 else 6,
            tuple(_box(name, own, usual) for name, own in channels.items()),
        )
        for title, channels in sockets.items()
    )
    what = "channel: its name" if named else "slot: the board's name of it"
    return ModuleMap(
        heading=_heading(inventory),
        key=f"One box per {what}, GiB in each of its slots, rate and part. Thick frame: empty, or unlike most "
        "others",
        groups=groups,
        spoken="; ".join(
            f"{group.title}: " + ", ".join(f"{box.name} {box.size}" for box in group.boxes)
            for group in groups
        ),
    )


def _name(dimm: Dimm, named: bool) -> str:
    if not named or dimm.channel is None:
        return dimm.locator or dimm.bank or "a slot without a name"
    return dimm.channel if dimm.controller is None else f"{dimm.controller}/{dimm.channel}"


_Filling = tuple[tuple[int | None, int | None, str | None, str | None], ...]


def _filling(slots: Sequence[Dimm]) -> _Filling:
    """What is in the slots of a channel: channels that are filled alike have equal ones."""
    return tuple(
        (dimm.bytes, dimm.configured_mts, dimm.part_number, dimm.kind)
        for dimm in slots
        if dimm.populated is not False
    )


def _usual(channels: Sequence[Sequence[Dimm]]) -> _Filling | None:
    counted = Counter(filling for own in channels if (filling := _filling(own)))
    return counted.most_common(1)[0][0] if counted else None


def _box(name: str, slots: Sequence[Dimm], usual: _Filling | None) -> Box:
    there = [dimm for dimm in slots if dimm.populated is not False]
    if not there:
        return Box(name, "empty", "", odd=True)
    size = " + ".join(_size(dimm) for dimm in there)
    rates = {dimm.configured_mts for dimm in there}
    rate = f"{rates.pop():,}" if len(rates) == 1 and None not in rates else ""
    parts = {dimm.part_number for dimm in there if dimm.part_number}
    kinds = {_KINDS.get(dimm.kind, dimm.kind) for dimm in there if dimm.kind not in (None, "dram")}
    detail = ", ".join(part for part in (*sorted(kinds), rate, *sorted(parts)) if part)
    return Box(name, size, detail, odd=_filling(slots) != usual)


_KINDS = {"pmem": "persistent", "hbm": "HBM", "cxl": "CXL", "unknown": "kind unknown"}


def _size(dimm: Dimm) -> str:
    return "?" if dimm.bytes is None else f"{dimm.bytes / 2**30:.4g}"


def _note(channels: dict[str, list[Dimm]], named: bool) -> str:
    dimms = [dimm for own in channels.values() for dimm in own]
    filled = sum(any(dimm.kind == "dram" for dimm in own) for own in channels.values())
    total = sum(dimm.bytes or 0 for dimm in dimms if dimm.kind == "dram")
    what = "channels" if named else "slots"
    return f"{filled} of {len(channels)} {what}, {units.gib(total, NBSP)} DRAM"


def _heading(inventory: Inventory) -> str:
    memory = inventory.memory
    rate = f" at {memory.configured_mts:,}{NBSP}MT/s" if memory.configured_mts else ""
    if memory.channels is None:
        return f"{memory.populated if memory.populated is not None else 'Some'} of {memory.slots} slots hold a module"
    whole = usable_channels(inventory.cpu, memory)
    empty = 0 if whole is None else whole - memory.channels
    if empty > 0:
        return f"{empty} of {whole} channels {'is' if empty == 1 else 'are'} empty"
    if whole is None:
        return f"{units.count(memory.channels, 'channel')} in use{rate}, of how many is not known"
    alike = memory.mixed_sizes is False and memory.mixed_speeds is not True
    return f"All {memory.channels} channels are populated{'' if alike else ', with unlike modules'}{rate}"


def table(memory: Memory) -> list[tuple[str, str, str]]:
    """Slots, how many, and what is in them; those with like modules share a row."""
    alike: dict[str, list[str]] = {}
    for dimm in memory.dimms or ():
        where = " ".join(part for part in (dimm.bank, dimm.locator) if part) or "a slot without a name"
        alike.setdefault(_described(dimm), []).append(where)
    return [(", ".join(places), str(len(places)), text) for text, places in alike.items()]


def _described(dimm: Dimm) -> str:
    if dimm.populated is False:
        return "empty"
    rated = f"{dimm.rated_mts:,}" if dimm.rated_mts else "unknown"
    configured = f"{dimm.configured_mts:,}" if dimm.configured_mts else "unknown"
    parts = (
        units.gib(dimm.bytes, NBSP),
        dimm.memory_type or "type unknown",
        {"dram": "", "pmem": "persistent memory"}.get(dimm.kind or "", dimm.kind or "kind unknown"),
        f"{configured}{NBSP}MT/s configured, {rated} rated",
        f"rank {dimm.rank}" if dimm.rank else "",
        " ".join(part for part in (dimm.manufacturer, dimm.part_number) if part),
        dimm.technology if dimm.technology not in (None, "DRAM") else "",
    )
    return "; ".join(part for part in parts if part)


def rows(memory: Memory) -> Iterable[tuple[str, str]]:
    """Rows about the modules for the table of the machine."""
    if memory.configured_mts is not None:
        rated = f"{memory.rated_mts:,}{NBSP}MT/s rated" if memory.rated_mts else "rated speed unknown"
        yield "Memory speed", f"{memory.configured_mts:,}{NBSP}MT/s configured, {rated}"
    full, now = memory.full_bytes_per_s, memory.theoretical_bytes_per_s
    if full is not None and now is not None and full > now:
        yield "With every channel populated", f"{full / 1e9:,.1f}{NBSP}GB/s on paper"
    ecc = sorted({array.ecc for array in memory.arrays or () if array.ecc})
    if ecc:
        yield "Error correction", ", ".join(ecc)
