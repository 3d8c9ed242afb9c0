"""The memory modules drawn as text: a line per socket, a cell per channel, holes visible."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from k3gate.host.channels import usable_channels
from k3gate.records import Dimm, Inventory
from k3gate.units import count, gib, quantity, significant

_PERSISTENT = {"pmem": "p", "hbm": "h", "cxl": "c", "unknown": "?"}


def lines(inventory: Inventory, width: int) -> Iterator[str]:
    """The map with its totals, of at most `width` columns; why there is none where the table was not read."""
    memory = inventory.memory
    if memory.dimms is None:
        entry = inventory.provenance.get("memory.dimms")
        yield f"Not known: {entry.reason if entry and entry.reason else 'the firmware table was not read'}."
        return
    yield from _totals(inventory)
    yield ""
    named = [dimm for dimm in memory.dimms if dimm.channel is not None]
    unnamed = [dimm for dimm in memory.dimms if dimm.channel is None]
    sockets: dict[tuple[int | None, int | None], dict[str, list[Dimm]]] = {}
    for dimm in named:
        channels = sockets.setdefault((dimm.socket, dimm.controller), {})
        channels.setdefault(dimm.channel or "", []).append(dimm)
    for (socket, controller), found in sockets.items():
        title = "the socket" if socket is None else f"socket {socket}"
        if controller is not None:
            title += f" controller {controller}"
        cells = [f"{name} [{' '.join(_cell(dimm) for dimm in slots)}]" for name, slots in found.items()]
        yield from _packed(f"{title[:40]:<22}", cells, width)
    if unnamed:
        cells = [f"{dimm.locator or '?'} [{_cell(dimm)}]" for dimm in unnamed]
        yield from _packed(f"{'channel not told':<22}", cells, width)
    for note in memory.notes[:4]:
        yield from textwrap.wrap(f"note: {note}", width)
    yield "GiB in each slot of a channel; -- is an empty slot" + _legend(memory.dimms)


def _totals(inventory: Inventory) -> Iterator[str]:
    memory = inventory.memory
    channels = memory.channels
    if channels is None:
        told = "channels unknown"
    else:
        whole = usable_channels(inventory.cpu, memory)
        told = f"{channels} of {whole} channels" if whole is not None else count(channels, "channel")
    populated = "unknown" if memory.populated is None else str(memory.populated)
    yield f"{populated} of {memory.slots} slots populated, {told}, {gib(memory.dram_bytes)} of DRAM"
    configured = f"{memory.configured_mts:,}" if memory.configured_mts else "an unknown number of"
    rated = f"{memory.rated_mts:,}" if memory.rated_mts else "unknown"
    derating = memory.derating_percent
    share = f", {significant(derating)} % below" if derating is not None and derating > 0 else ""
    yield f"{configured} MT/s configured, {rated} rated{share}"
    if memory.theoretical_bytes_per_s is None:
        entry = inventory.provenance.get("memory.theoretical_bytes_per_s")
        yield f"paper rate unknown: {entry.reason if entry else 'not told'}"
        return
    paper = f"paper rate {quantity(memory.theoretical_bytes_per_s, 'B/s')}"
    full = memory.full_bytes_per_s
    if full is not None and full > memory.theoretical_bytes_per_s:
        paper += f"; {quantity(full, 'B/s')} with every channel populated"
    yield paper


def _cell(dimm: Dimm) -> str:
    if dimm.populated is False:
        return "--"
    if not dimm.bytes:
        return "?"
    size = dimm.bytes / 2**30
    return f"{size:.4g}{_PERSISTENT.get(dimm.kind or '', '')}" if size >= 1 else "<1"


def _legend(dimms: tuple[Dimm, ...]) -> str:
    kinds = {dimm.kind for dimm in dimms}
    words = {"pmem": "p: persistent", "hbm": "h: HBM", "cxl": "c: CXL", "unknown": "?: of unknown kind"}
    shown = [text for kind, text in words.items() if kind in kinds]
    return "".join(f"; {text}" for text in shown)


def _packed(lead: str, cells: list[str], width: int) -> Iterator[str]:
    """Cells in columns of one width behind `lead`."""
    room = width - len(lead)
    cells = [cell if len(cell) <= room else f"{cell[: room - 4]}...{cell[-1]}" for cell in cells]
    widest = max(len(cell) for cell in cells)
    cells = [cell.ljust(widest) for cell in cells]
    line = lead
    for cell in cells:
        if len(line) + len(cell) > width and line != lead and line.strip():
            yield line.rstrip()
            line = " " * len(lead)
        line += f"{cell}  "
    yield line.rstrip()
