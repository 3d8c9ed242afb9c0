"""What looks at GPUs in a thread while copies are under way: the thread, and several such as one."""

from __future__ import annotations

import threading
import time

from k3gate.probes.pcie_copies import Watch


class WatchThread:
    """Calls `_look` every `period_s` between `begin` and `end`. In a thread, as a driver may be slow to answer."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._busy, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._drive, daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Copies start: look from now on, at once."""
        self._busy.set()

    def end(self) -> None:
        """They have ended."""
        self._busy.clear()

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._busy.set()
        self._thread.join(1.0)

    def _drive(self) -> None:
        while True:
            self._busy.wait()
            if self._ended.is_set():
                return
            self._look()
            time.sleep(self._period_s)

    def _look(self) -> None:
        raise NotImplementedError


class Watches:
    """Several watches as one."""

    def __init__(self, *parts: Watch) -> None:
        self._parts = parts

    def begin(self) -> None:
        """See `Watch`."""
        for one in self._parts:
            one.begin()

    def end(self) -> None:
        """See `Watch`."""
        for one in self._parts:
            one.end()

    def forget(self) -> None:
        """See `Watch`."""
        for one in self._parts:
            one.forget()
