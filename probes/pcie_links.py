"""What links of devices do while copies are under way, read from sysfs by a thread, at both ends."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

from k3gate import links, metrics
from k3gate.host import pcie
from k3gate.host.files import Root
from k3gate.links import LinkState
from k3gate.probes.pcie_watch import WatchThread
from k3gate.probing.contract import Context
from k3gate.records import Metric, Proof, Scalar
from k3gate.units import count

PERIOD_S = 0.004
LEAST_SHARE = 0.1
"""A state that fewer of the readings showed is one that the link passed through."""


class LinkWatch(WatchThread):
    """Reads the links of these devices, each with the port above it, between `begin` and `end`."""

    def __init__(self, addresses: Sequence[str], root: Root | None = None) -> None:
        root = root or Root("/")
        self._root = root
        self._folders = {one: root.real(f"{pcie.DEVICES}/{one}") for one in addresses}
        self._seen: dict[str, Counter[tuple[float, int]]] = {one: Counter() for one in addresses}
        self._kept: dict[str, Counter[tuple[float, int]]] = {one: Counter() for one in addresses}
        self._lock = threading.Lock()
        super().__init__(PERIOD_S)

    def forget(self) -> None:
        """Begin anew."""
        with self._lock:
            for counter in self._seen.values():
                counter.clear()

    def keep(self) -> None:
        """What was seen since the last `forget` counts for the case."""
        with self._lock:
            for address, counter in self._seen.items():
                self._kept[address].update(counter)
                counter.clear()

    def _look(self) -> None:
        found = {one: self._read(folder) for one, folder in self._folders.items()}
        with self._lock:
            # What was read when the copies ended meanwhile may be of an idle link.
            if self._busy.is_set():
                for address, state in found.items():
                    if state is not None:
                        self._seen[address][state] += 1

    def _read(self, folder: str | None) -> tuple[float, int] | None:
        """GT/s and lanes, the lower of both ends where they differ."""
        own = pcie.link(self._root, folder) if folder else None
        if own is None or own.gt_per_s is None or own.width is None or folder is None:
            return None
        above = pcie.link(self._root, folder.rpartition("/")[0])
        if above is None or above.gt_per_s is None or above.width is None or above.address != own.port:
            return own.gt_per_s, own.width
        return min(own.gt_per_s, above.gt_per_s), min(own.width, above.width)

    def state(self, address: str) -> LinkState | None:
        """The lowest state that the link was in for some time since the last `forget`; None: it was not seen."""
        with self._lock:
            return _lowest(address, Counter(self._seen[address]))

    def metric(self, context: Context, address: str) -> Metric | None:
        """What the link carries at most in the lowest state that was kept, for the gate; None: it was not seen."""
        with self._lock:
            seen = Counter(self._kept[address])
        state = _lowest(address, seen)
        rate = links.bytes_per_s(state.gt_per_s, state.width) if state is not None else None
        if state is None or rate is None:
            return None
        labels: dict[str, Scalar] = {"device": address, "gt_per_s": state.gt_per_s, "width": state.width}
        told = ", ".join(
            f"{links.words(*one)} in {count(times, 'reading')}" for one, times in seen.most_common(4)
        )
        return context.metric(
            metrics.LINK_RATE, [context.sample(rate, 0.0)], labels, [Proof("under_load", True, told)]
        )


def _lowest(address: str, seen: Counter[tuple[float, int]]) -> LinkState | None:
    kept = [one for one, times in seen.items() if times >= LEAST_SHARE * seen.total()]
    if not kept:
        return None
    rate, width = min(kept, key=lambda one: one[0] * one[1])
    return LinkState(address, rate, width)
