"""A fake GPU driver: the interface of `pcie_driver` over real host memory, with a clock of its own and faults by wish.

Device memory is ordinary memory, and every copy moves its bytes, so that what is compared is what was copied. Streams
are queues that run when somebody looks; what stands behind a gate waits. It stands for CUDA and shows nothing of it.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from typing import Any

from k3gate.errors import NotPresentError
from k3gate.probes.pcie_driver import PinningRefusedError

GOOD = {"in": 24e9, "out": 26e9, "within": 800e9, "peer": 40e9, "seconds": 1e-6}
"""B/s by kind of copy, and what each takes besides."""


class FakeGate:
    def __init__(self, driver: FakeDriver) -> None:
        self._driver = driver
        self.ticket = self.reached = 0

    def shut(self) -> None:
        self.ticket += 1

    def open(self) -> None:
        self.reached = self.ticket
        self._driver.now = max([self._driver.now, *(one.clock for one in self._driver.streams)])


class FakeStream:
    def __init__(self, device: FakeDevice) -> None:
        self.device, self.clock = device, 0.0
        self.queue: deque[tuple[str, Any, float]] = deque()


class FakeEvent:
    time: float | None = None


class FakeDevice:
    def __init__(self, driver: FakeDriver, address: str, rates: dict[str, float]) -> None:
        self._driver, self.address, self.rates = driver, address, rates
        self._memory: dict[int, Any] = {}
        self.reachable = True

    def allocate(self, size: int) -> int:
        memory = ctypes.create_string_buffer(size)
        self._memory[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    def free(self, memory: int) -> None:
        del self._memory[memory]

    @property
    def held(self) -> int:
        """How many pieces of its memory were not given back."""
        return len(self._memory)

    def fill(self, memory: int, size: int, byte: int) -> None:
        ctypes.memset(memory, byte, size)

    def stream(self) -> FakeStream:
        self._driver.streams.append(FakeStream(self))
        return self._driver.streams[-1]

    def event(self) -> FakeEvent:
        return FakeEvent()

    def hold(self, stream: FakeStream, gate: FakeGate) -> None:
        if not self._driver.ungated:
            stream.queue.append(("hold", gate.ticket, 0.0))

    def copy_in(self, to: int, host: int, size: int, stream: FakeStream) -> None:
        self._host_copy(stream, host, size)
        self._copy(stream, "in", to, host, size)

    def copy_out(self, host: int, memory: int, size: int, stream: FakeStream) -> None:
        self._host_copy(stream, host, size)
        self._copy(stream, "out", host, memory, size)

    def copy_within(self, to: int, memory: int, size: int, stream: FakeStream) -> None:
        self._copy(stream, "within", to, memory, size)

    def copy_from(self, to: int, peer: FakeDevice, memory: int, size: int, stream: FakeStream) -> None:
        assert memory in peer._memory
        self._copy(stream, "peer", to, memory, size)

    def _host_copy(self, stream: FakeStream, host: int, size: int) -> None:
        pinned = any(at <= host and host + size <= at + length for at, length in self._driver.pinned.items())
        waits = any(kind == "hold" for kind, _, _ in stream.queue)
        assert pinned or not waits, "a copy of memory that is not locked never returns behind a shut gate"

    def _copy(self, stream: FakeStream, kind: str, to: int, memory: int, size: int) -> None:
        def move() -> None:
            ctypes.memmove(to, memory, size)
            if self._driver.flips(kind):
                ctypes.memset(to + size // 2, ctypes.c_ubyte.from_address(to + size // 2).value ^ 1, 1)

        stream.queue.append(("copy", move, size / self.rates[kind] + self.rates["seconds"]))
        assert len(stream.queue) < 1000, "a driver's queue is full, and nothing opens the gate any more"

    def reach(self, peer: FakeDevice) -> bool:
        return self.reachable

    def record(self, event: FakeEvent, stream: FakeStream) -> None:
        event.time = None
        stream.queue.append(("record", event, 0.0))

    def passed(self, event: FakeEvent) -> bool:
        self._driver.run()
        return event.time is not None

    def seconds(self, start: FakeEvent, end: FakeEvent) -> float:
        assert start.time is not None and end.time is not None
        return end.time - start.time

    def wait(self, stream: FakeStream) -> None:
        self._driver.run()
        assert not stream.queue, "the host waits for a stream that waits for the host"

    def memory_limit(self) -> float | None:
        return self._driver.memory_limit


class FakeDriver:
    """`gpus`: rates by address. `pin_limit`: of one piece; `flips(kind)`: whether a copy of this kind spoils a byte."""

    def __init__(self, *gpus: str, **rates: float) -> None:
        self.devices = {one: FakeDevice(self, one, {**GOOD, **rates}) for one in gpus}
        self.streams: list[FakeStream] = []
        self.pinned: dict[int, int] = {}
        self.now = 0.0
        self.ungated = self.stuck = self.closed = False
        self.pin_limit: int | None = None
        self.memory_limit: float | None = 900e9
        self.flips: Callable[[str], bool] = lambda kind: False
        self._gate = FakeGate(self)

    def device(self, address: str) -> FakeDevice:
        if address not in self.devices:
            raise NotPresentError(f"the fake driver does not show {address}")
        return self.devices[address]

    def gate(self) -> FakeGate:
        return self._gate

    @property
    def gate_is_open(self) -> bool:
        return self._gate.reached == self._gate.ticket

    def pin(self, host: int, size: int) -> None:
        if self.pin_limit is not None and size > self.pin_limit:
            raise PinningRefusedError("out of memory (fake)")
        self.pinned[host] = size

    def unpin(self, host: int) -> None:
        del self.pinned[host]

    def close(self) -> None:
        assert not self.pinned, "memory is locked yet"
        self.closed = True

    def run(self) -> None:
        for stream in self.streams:
            while stream.queue:
                kind, what, seconds = stream.queue[0]
                if kind == "hold":
                    if self._gate.reached < what:
                        break
                    stream.clock = max(stream.clock, self.now)
                elif kind == "copy":
                    if self.stuck:
                        break
                    what()
                    stream.clock += seconds
                else:
                    what.time = stream.clock
                stream.queue.popleft()
