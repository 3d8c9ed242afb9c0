"""What NVIDIA's GPUs do for a server: memory of its processes, and bytes over PCIe, where NVML gives them.

Asked within the process that watches the server, never in the one that runs everything: a driver may hang.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

from attrs import frozen

from k3gate.host.nvml import address_of

_SENT, _RECEIVED = 0, 1
"""NVML_PCIE_UTIL_TX_BYTES and _RX_BYTES: from and to the GPU."""


@frozen
class GpuUse:
    """One GPU. `bytes`: memory of the server's processes, of all where NVML tells none of single ones; `to_gpu`,
    `from_gpu`: B/s over PCIe in a window of 20 ms. None: NVML does not tell."""

    address: str
    bytes: int | None
    to_gpu: float | None
    from_gpu: float | None


class Gpus:
    """All GPUs of NVML; `found` is empty where there is no library or no driver. `close` it."""

    def __init__(self, library: Any = None) -> None:
        self.found: list[tuple[str, Any]] = []
        self._library: Any = None
        try:
            if library is None:
                import pynvml

                library = pynvml
            library.nvmlInit()
            self._library = library
            for number in range(int(library.nvmlDeviceGetCount())):
                handle = library.nvmlDeviceGetHandleByIndex(number)
                bus = library.nvmlDeviceGetPciInfo(handle).busId
                self.found.append((address_of(bus.decode() if isinstance(bus, bytes) else str(bus)), handle))
        except Exception:  # a broken library raises what it likes, and then there is nothing to tell
            self.found = []

    def read(self, pids: Collection[int]) -> list[GpuUse]:
        """What each GPU tells now."""
        return [
            GpuUse(
                address,
                self._memory(handle, pids),
                self._moved(handle, _RECEIVED),
                self._moved(handle, _SENT),
            )
            for address, handle in self.found
        ]

    def close(self) -> None:
        """Let go of the library."""
        if self._library is not None:
            with contextlib.suppress(Exception):
                self._library.nvmlShutdown()
            self._library = None

    def _memory(self, handle: Any, pids: Collection[int]) -> int | None:
        try:
            rows = self._library.nvmlDeviceGetComputeRunningProcesses(handle)
            own = [row.usedGpuMemory for row in rows if row.pid in pids]
            return sum(own) if None not in own else None
        except Exception:
            return None

    def _moved(self, handle: Any, way: int) -> float | None:
        try:
            return float(self._library.nvmlDeviceGetPcieThroughput(handle, way)) * 1024
        except Exception:
            return None
