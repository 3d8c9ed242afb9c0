"""Batches of copies that wait at a gate until all are queued, timed by the devices' own clocks.

What a launch costs so stays out of a rate: the host opens the gate only when every copy of every stream is queued, and
an event that had passed before would show that a stream did not wait.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from attrs import define, field, frozen

from k3gate.errors import ProbeError
from k3gate.probes.pcie_driver import Device, Driver, Handle
from k3gate.probing.contract import Context, SampleToken
from k3gate.records import Proof

MOST_QUEUED = 256
"""Copies of a stream that wait at the gate: a driver's queue holds some more, and a full one would never be opened."""
BATCH_SECONDS = 0.04
"""About how long a batch of copies takes, where they are not too small for that."""
WARM_UP_SECONDS = 0.15
"""For so long copies of a case go on before any is timed: a link that saves power needs some of it to wake up."""
SAMPLE_SECONDS = 0.005
"""No sample is of less; of small copies it is the sum of several batches."""
SAMPLES, LEAST_SAMPLES = 5, 3
STUCK_SECONDS = 30.0
"""Copies that have not ended so long after the gate was opened are given up."""
_LOOK_SECONDS = 0.0005
_MOST_SHARE = 16


class Watch(Protocol):
    """What looks at links while copies are under way."""

    def begin(self) -> None:
        """Copies start now."""
        ...

    def end(self) -> None:
        """They have ended."""
        ...

    def forget(self) -> None:
        """What was seen until now was not of the measurement: a link that wakes up is slow at first."""
        ...


@define
class Lane:
    """A stream of a device in which `copy` is queued again and again. `share`: how many copies it has for one of the
    first lane; where more than one, it is on the same device, and to be at work for longer."""

    device: Device
    copy: Callable[[Handle], None]
    size: int
    share: int = 1
    stream: Handle = field(init=False)
    start: Handle = field(init=False)
    end: Handle = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.stream, self.start, self.end = self.device.stream(), self.device.event(), self.device.event()


@frozen
class Batch:
    """What a batch took in each lane, in s. `held`: no lane had begun before the gate was opened."""

    seconds: tuple[float, ...]
    held: bool


class Copies:
    """Lanes that are timed together, and what was seen of them."""

    def __init__(
        self,
        context: Context,
        driver: Driver,
        lanes: Sequence[Lane],
        watch: Watch,
        *,
        awake: bool = False,
    ) -> None:
        """`awake`: copies went over the links just now."""
        self._context, self._gate = context, driver.gate()
        self._warm_up_seconds = 0.0 if awake else WARM_UP_SECONDS
        self.window: tuple[float, float] | None = None
        """From when to when copies were timed, on the monotonic clock."""
        self.lanes, self._watch = list(lanes), watch
        self._batches = self._early = self._uncovered = 0

    def batch(self, number: int) -> Batch:
        """`number` copies in the first lane, as many times that in others as they want, all at once."""
        self._gate.shut()
        try:
            for lane in self.lanes:
                lane.device.hold(lane.stream, self._gate)
                lane.device.record(lane.start, lane.stream)
                for _ in range(number * lane.share):
                    lane.copy(lane.stream)
                lane.device.record(lane.end, lane.stream)
            held = not any(lane.device.passed(lane.start) for lane in self.lanes)
            self._watch.begin()
        finally:
            # Whatever went wrong, a stream that waits for ever would keep the process from ending.
            self._gate.open()
        try:
            self._until_done()
        finally:
            self._watch.end()
        return Batch(tuple(lane.device.seconds(lane.start, lane.end) for lane in self.lanes), held)

    def _until_done(self) -> None:
        until = time.monotonic() + STUCK_SECONDS
        for lane in self.lanes:
            while not lane.device.passed(lane.end):
                if time.monotonic() > until:
                    raise ProbeError(
                        f"copies of GPU {lane.device.address} did not end within {STUCK_SECONDS:.0f} s: look for Xid "
                        "messages in the kernel's log"
                    )
                self._context.heartbeat("copying")
                time.sleep(_LOOK_SECONDS)

    def rates(self, seconds: float) -> list[SampleToken]:
        """B/s of the first lane, warmed up, in samples of about `seconds` in all."""
        return [
            self._context.sample(moved / taken, taken) for moved, taken in self._measured(seconds, _first)
        ]

    def rates_together(self, seconds: float) -> list[SampleToken]:
        """B/s of all lanes: their bytes divided by the time of the slowest, as all begin at once."""
        return [self._context.sample(moved / taken, taken) for moved, taken in self._measured(seconds, _all)]

    def times(self, number: int) -> list[SampleToken]:
        """Seconds of a batch of `number` copies of the first lane, each sample the mean of several batches."""
        self._warm_up(number)
        found = []
        for _ in range(SAMPLES):
            taken, batches = 0.0, 0
            while taken < SAMPLE_SECONDS:
                taken += self._seen(self.batch(number))[0]
                batches += 1
            found.append(self._context.sample(taken / batches, taken))
        return found

    def _measured(
        self, seconds: float, of: Callable[[Sequence[Lane], Sequence[float], int], tuple[float, float]]
    ) -> list[tuple[float, float]]:
        number = self._warm_up(None)
        found: list[tuple[float, float]] = []
        spent = 0.0
        while len(found) < LEAST_SAMPLES or (len(found) < SAMPLES and spent < seconds):
            moved = taken = 0.0
            while taken < SAMPLE_SECONDS:
                more, longer = of(self.lanes, self._seen(self.batch(number)), number)
                moved, taken = moved + more, taken + longer
            found.append((moved, taken))
            spent += taken
        return found

    def _warm_up(self, number: int | None) -> int:
        """How many copies make a batch; the link leaves its idle state meanwhile."""
        begun = time.monotonic()
        if number is None:
            first = self._covering()
            widest = max(lane.share for lane in self.lanes)
            wanted = math.ceil(BATCH_SECONDS / max(first, 1e-9))
            number = max(1, min(wanted, MOST_QUEUED // widest))
        self.batch(number)
        while time.monotonic() - begun < self._warm_up_seconds:
            self.batch(number)
        self._context.setup(time.monotonic() - begun)
        self._watch.forget()
        self.window = (time.monotonic(), time.monotonic())
        return number

    def _covering(self) -> float:
        """Seconds of one copy of the first lane, after other lanes got copies enough to be at work for longer."""
        taken = self.batch(1).seconds[0]
        first, *others = self.lanes
        for other in others:
            if other.share > 1:
                while other.share < _MOST_SHARE and other.device.seconds(first.end, other.end) < 0:
                    other.share *= 2
                    taken = self.batch(1).seconds[0]
        return taken

    def _seen(self, batch: Batch) -> tuple[float, ...]:
        self._batches += 1
        if self.window is not None:
            self.window = (self.window[0], time.monotonic())
        self._early += not batch.held
        first, *others = self.lanes
        # Only times of one device can be compared.
        self._uncovered += any(
            other.share > 1 and other.device.seconds(first.end, other.end) < 0 for other in others
        )
        if min(batch.seconds) <= 0:
            raise ProbeError(
                f"GPU {first.device.address} told {min(batch.seconds):g} s for a batch of copies"
            )
        return batch.seconds

    def gated(self) -> Proof:
        """The proof "gated": every stream waited until all was queued."""
        if not self._batches:
            return Proof("gated", None, "no batch was timed")
        if self._early:
            detail = f"{self._early} of {self._batches} batches began before all was queued"
            return Proof("gated", False, detail)
        return Proof("gated", True, f"{self._batches} batches waited until all was queued, timed by events")

    def overlapped(self) -> Proof:
        """The proof "overlap": the other direction was at work until the end of each batch."""
        if self._uncovered:
            detail = f"in {self._uncovered} of {self._batches} batches the other direction had ended before"
            return Proof("overlap", False, detail)
        return Proof(
            "overlap", True if self._batches else None, "the other direction was at work until the end"
        )


def _first(lanes: Sequence[Lane], seconds: Sequence[float], number: int) -> tuple[float, float]:
    return float(number * lanes[0].share * lanes[0].size), seconds[0]


def _all(lanes: Sequence[Lane], seconds: Sequence[float], number: int) -> tuple[float, float]:
    return float(sum(number * lane.share * lane.size for lane in lanes)), max(seconds)
