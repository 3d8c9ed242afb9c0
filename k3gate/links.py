"""What the state of a PCIe link says: at its best, held down, saving power, or nothing. Pure; ground floor, for all.

A link saves power by its rate, so that a slow link of an idle device says nothing; its number of lanes mostly stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen

from k3gate.records import PciDevice, PcieLink

BEST, BELOW, IDLE, UNKNOWN = "best", "below", "idle", "unknown"
_SAVING = 2.5
"""GT/s of the first generation, to which links go while nothing is sent."""
_SAME = 0.999
# The share of the transfers that carry data, from a rate on: 8b/10b, 128b/130b, and the flits of PAM4.
_CODES = ((64.0, 242 / 256), (8.0, 128 / 130), (0.0, 0.8))


@frozen
class LinkState:
    """What a link was seen to do while its device was busy. GT/s of a lane, and lanes."""

    address: str
    gt_per_s: float | None
    width: int | None


@frozen
class LinkVerdict:
    """`word`: best, below, idle (seen while nothing was sent) or unknown; `reason` as a sentence without its end.

    `bytes_per_s`: what passes at most in one direction, as the link was seen under load.
    """

    word: str
    reason: str
    bytes_per_s: float | None = None


def bytes_per_s(gt_per_s: float | None, width: int | None) -> float | None:
    """What a link of such lanes carries in one direction, before packets and their heads."""
    if gt_per_s is None or width is None:
        return None
    share = next(share for rate, share in _CODES if gt_per_s >= rate)
    return gt_per_s * 1e9 * share / 8 * width


def narrow(link: PcieLink | None) -> bool:
    """Whether fewer lanes are used than both ends have; False where that is not told."""
    return bool(link and link.width and link.best_width and link.width < link.best_width)


def slow(link: PcieLink | None) -> bool:
    """Whether a lane runs slower than both ends can; False where that is not told. Of an idle link it means nothing."""
    return bool(link and link.gt_per_s and link.best_gt_per_s and link.gt_per_s < _SAME * link.best_gt_per_s)


def below_best(link: PcieLink | None) -> bool:
    """Whether a link runs slower or narrower than both its ends can; False where that is not told."""
    return narrow(link) or slow(link)


def saving(link: PcieLink | None) -> bool:
    """Whether a link is at the rate to which it goes while nothing is sent, and could do more."""
    return slow(link) and link is not None and (link.gt_per_s or 0) <= _SAVING


def limited_by(link: PcieLink | None) -> str | None:
    """ "device" or "port", where one end can do less than the other; None where both are alike or not told."""
    if link is None or not (link.device_width and link.port_width):
        return None
    if not (link.device_gt_per_s and link.port_gt_per_s):
        return None
    device, port = link.device_gt_per_s * link.device_width, link.port_gt_per_s * link.port_width
    if min(device, port) > _SAME * max(device, port):
        return None
    return "device" if device < port else "port"


def words(gt_per_s: float | None, width: int | None) -> str:
    """ "16 GT/s x8"."""
    return f"{f'{gt_per_s:g}' if gt_per_s is not None else '?'} GT/s x{width or '?'}"


def told(link: PcieLink) -> str:
    """ "8 GT/s x4 of 16 GT/s x4", or the one where both are the same."""
    now, best = words(link.gt_per_s, link.width), words(link.best_gt_per_s, link.best_width)
    return now if now == best or link.best_gt_per_s is None else f"{now} of {best}"


def judge(link: PcieLink | None, under_load: Sequence[LinkState]) -> LinkVerdict:
    """Whether a link does its best, by what it was seen to do under load; the lowest reading decides.

    Without a reading under load it is never below its best, since an idle link says nothing.
    """
    if link is None or link.best_gt_per_s is None or link.best_width is None:
        return LinkVerdict(UNKNOWN, "what both ends of its link can do is not told")
    seen = [one for one in under_load if one.gt_per_s is not None and one.width is not None]
    best = words(link.best_gt_per_s, link.best_width)
    if not seen:
        now = words(link.gt_per_s, link.width)
        if link.gt_per_s is None or link.width is None:
            return LinkVerdict(UNKNOWN, f"its link was not seen at work; at best it does {best}")
        return LinkVerdict(
            IDLE, f"its link was seen idle only, at {now} of {best}; links slow down while nothing is sent"
        )
    low = min(seen, key=lambda one: (one.gt_per_s or 0) * (one.width or 0))
    assert low.gt_per_s is not None and low.width is not None
    if low.gt_per_s < _SAME * link.best_gt_per_s or low.width < link.best_width:
        told = f"its link did {words(low.gt_per_s, low.width)} under load, of {best}"
        return LinkVerdict(BELOW, told, bytes_per_s(low.gt_per_s, low.width))
    return LinkVerdict(BEST, f"its link did {best} under load, the best of both ends", link.best_bytes_per_s)


@frozen
class Meeting:
    """Devices whose traffic meets on one link: that of the bridge `at`. B/s in one direction at best."""

    at: str
    devices: tuple[str, ...]
    bytes_per_s: float | None
    wanted_bytes_per_s: float | None


def meetings(devices: Iterable[PciDevice], wanted: Iterable[str]) -> tuple[Meeting, ...]:
    """Where two or more of the `wanted` devices share a link on their way to the root: the link nearest to the root.

    A root port with one device has no traffic that meets; devices right on a root bus meet nobody here. Functions of
    one device are one.
    """
    known = {one.address: one for one in devices}
    below: dict[str, list[str]] = {}
    for address in {one.rpartition(".")[0]: one for one in sorted(wanted, reverse=True)}.values():
        device = known.get(address)
        # The link of a bridge carries all that lies below it: of a root port, that is the link of the one below it.
        for bridge in device.above if device else ():
            below.setdefault(bridge, []).append(address)
    found: list[Meeting] = []
    taken: set[str] = set()
    for bridge in sorted(below, key=lambda one: len(known[one].above) if one in known else 0):
        group = tuple(sorted(below[bridge]))
        if len(group) < 2 or taken & set(group):
            continue
        taken |= set(group)
        found.append(Meeting(bridge, group, _carried(known, bridge, group), _wanted(known, group)))
    return tuple(found)


def _carried(known: dict[str, PciDevice], bridge: str, group: Sequence[str]) -> float | None:
    """The best of the narrowest link that all of the group pass: that of the bridge, or of the one right below it."""
    ways = [(*known[one].above, one) for one in group]
    shared = []
    for steps in zip(*ways, strict=False):
        if len(set(steps)) > 1:
            break
        link = known[steps[0]].link if steps[0] in known else None
        # A root port's own link is told by the device at its other end.
        if link is not None and link.port is not None and link.best_bytes_per_s:
            shared.append(link.best_bytes_per_s)
    return min(shared, default=None)


def _wanted(known: dict[str, PciDevice], group: Sequence[str]) -> float | None:
    rates = [link.best_bytes_per_s if (link := known[one].link) else None for one in group]
    return None if None in rates else sum(rate for rate in rates if rate is not None)
