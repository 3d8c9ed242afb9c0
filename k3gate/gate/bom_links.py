"""Whether every ordered card and drive has the lanes that it needs, in the machine that a run saw. Pure.

What a link can do is what both its ends can, with the lanes that are in use: lanes do not come back under load, and the
rate of a lane does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from k3gate import links, units
from k3gate.analysis.system import System
from k3gate.gate import bom, hardware
from k3gate.gate.bom import BETTER, NOT_MEASURED, SAME, WORSE, Line
from k3gate.records import Inventory, PcieLink, State, Verdict

_ENOUGH = 0.99
"""An order rounds the rates of links: 63 for 63.015 GB/s."""
_OWN = "all lanes that the device has"
Found = Sequence[tuple[str, PcieLink | None]]
"""The devices of one line of the order: name and link."""


def check(system: System, inventory: Inventory) -> tuple[Line, ...]:
    """A line for each kind of card, the drives and the network of the order, against the links of the machine."""
    return bom.unless_virtual(inventory, _lines(system, inventory), "its links are not those of the machine")


def verdict(lines: Sequence[Line]) -> Verdict:
    """As of other lines; an order without a card, a drive and a network asks for no lanes, and has them."""
    return bom.verdict(lines) if lines else Verdict.PASS


def sentence(lines: Sequence[Line]) -> str:
    """What the lines say together."""
    return (
        bom.sentence(lines)
        if lines
        else "The order names no card, no drive and no network: it needs no lanes."
    )


def _lines(system: System, inventory: Inventory) -> Iterator[Line]:
    for number, gpu in enumerate(system.gpus, 1):
        cards: Found | None = None
        if inventory.gpus is not None:
            cards = [
                (one.address or one.name or "a GPU", one.link)
                for one in inventory.gpus
                if one.state is State.OK
                and bom.same_part(gpu.model, one.name or "")
                and not one.shared_memory
            ]
        why = hardware.because(inventory, "gpus") or "the run does not tell of GPUs"
        yield _line(
            f"links.gpu.{number}", f"links of {gpu.model}", gpu.count, gpu.pcie_bytes_per_s, cards, why
        )
    if system.storage is not None:
        storage = system.storage
        drives: Found | None = None
        if inventory.storage is not None:
            drives = [(one.name, one.link) for one in inventory.storage.drives if one.kind == "nvme"]
            # More drives than ordered, such as that of the system: the best of them are meant.
            drives = sorted(drives, key=lambda one: -(_usable(one[1]) or 0.0))[: storage.drives]
        why = hardware.because(inventory, "storage.drives") or "the run does not tell of drives"
        yield _line("links.storage", "links of the drives", storage.drives, storage.bytes_per_s, drives, why)
    if system.network_bytes_per_s is not None:
        adapters: Found | None = None
        if inventory.network is not None:
            best = max(inventory.network, key=lambda one: _usable(one.link) or 0.0, default=None)
            adapters = [(best.name, best.link)] if best is not None else []
        why = hardware.because(inventory, "network") or "the run does not tell of network adapters"
        yield _line(
            "links.network", "link of the network adapter", 1, system.network_bytes_per_s, adapters, why
        )


def _line(key: str, title: str, count: int, wanted: float | None, found: Found | None, why: str) -> Line:
    ordered = _OWN if wanted is None else f"{units.quantity(wanted, 'B/s')} each way"
    if found is None:
        return Line(key, title, ordered, None, NOT_MEASURED, why)
    if len(found) < count:
        return Line(key, title, ordered, None, NOT_MEASURED, f"of {count} ordered the run shows {len(found)}")
    if any(_usable(link) is None for _, link in found):
        blind = next(name for name, link in found if _usable(link) is None)
        return Line(key, title, ordered, None, NOT_MEASURED, f"the link of {blind} is not told")
    name, low = min(found, key=lambda one: _usable(one[1]) or 0.0)
    rate = _usable(low)
    assert low is not None and rate is not None
    shown = f"{links.words(low.best_gt_per_s, low.width or low.best_width)}: {units.quantity(rate, 'B/s')} each way"
    if wanted is None:
        bad = next(((one, link) for one, link in found if link is not None and _lacks(link)), None)
        if bad is None:
            return Line(key, title, ordered, shown, SAME)
        told = f"{bad[0]} has {bad[1].width or bad[1].best_width} of its {_own_lanes(bad[1])} lanes"
        return Line(key, title, ordered, shown, WORSE, told)
    if rate < _ENOUGH * wanted:
        told = f"the link of {name} carries {units.quantity(rate, 'B/s')}, ordered are {units.quantity(wanted, 'B/s')}"
        return Line(key, title, ordered, shown, WORSE, told)
    return Line(key, title, ordered, shown, BETTER if rate > wanted / _ENOUGH else SAME)


def _usable(link: PcieLink | None) -> float | None:
    """B/s with the lanes in use at the best rate of both ends."""
    return None if link is None else links.bytes_per_s(link.best_gt_per_s, link.width or link.best_width)


def _own_lanes(link: PcieLink) -> int | None:
    return link.device_width or link.best_width


def _lacks(link: PcieLink) -> bool:
    own, used = _own_lanes(link), link.width or link.best_width
    return own is not None and used is not None and used < own
