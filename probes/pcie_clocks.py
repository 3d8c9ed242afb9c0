"""Whether GPUs were slowed down while they copied, by what NVIDIA's library tells of their clocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from k3gate import metrics
from k3gate.host import gpus
from k3gate.probes.pcie_watch import WatchThread
from k3gate.probing.contract import Context
from k3gate.records import Metric, Proof
from k3gate.units import count

PERIOD_S = 0.05


def library() -> Any:
    """nvidia-ml-py, opened; None where it is not installed or does not start."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # a broken library raises what it likes; the clocks are then not told
        return None
    return pynvml


class ClockWatch(WatchThread):
    """Reads why clocks are held down, of each of these GPUs, between `begin` and `end`."""

    def __init__(self, addresses: Sequence[str], nvml: Any) -> None:
        self._nvml = nvml
        self._handles: dict[str, Any] = {}
        self._seen: dict[str, Counter[int]] = {one: Counter() for one in addresses}
        super().__init__(PERIOD_S)

    def forget(self) -> None:
        """See `Watch`. A GPU that is slowed down while it warms up is so all the same."""

    def _look(self) -> None:
        for address, seen in self._seen.items():
            try:
                if address not in self._handles:
                    self._handles[address] = self._nvml.nvmlDeviceGetHandleByPciBusId(address.encode())
                mask = int(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handles[address]))
            except Exception:  # what does not answer is not counted
                continue
            if self._busy.is_set():
                seen[mask] += 1

    def metric(self, context: Context, address: str) -> Metric | None:
        """The share of the readings that told a reason which harms; None where there was no reading."""
        seen = Counter(self._seen[address])
        if not seen:
            return None
        told = {mask: gpus.under_load(mask) for mask in seen}
        bad = sum(times for mask, times in seen.items() if told[mask][0] == "fail")
        # The worst first: what is kept of several rounds is the first that does not hold.
        order = sorted(seen, key=lambda mask: (told[mask][0] != "fail", -seen[mask]))
        words = "; ".join(f"{told[mask][1]} in {count(seen[mask], 'reading')}" for mask in order[:4])
        share = context.sample(bad / seen.total(), 0.0)
        return context.metric(
            metrics.PCIE_SLOWED, [share], {"device": address}, [Proof("clocks", None if bad else True, words)]
        )
