"""Watches heat, power, clocks and counters while cases run: a thread for each source, on a grid of its own.

The threads live in the parent process, never in a worker. What a source costs and how late it came is kept, and a
source that hangs, as a BMC may, holds up no other. Series are kept as steps: a value counts until the next one.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from attrs import field, frozen

from k3gate.records import Case, Labels, Phase, Series

PERIOD_S = 0.5
"""The grid of what is cheap to read."""
FINE_S = 3600.0
"""Until then every change is kept; later only the lowest and highest value of each `COARSE_S`, and of twice that
whenever the time has doubled: so many points more for each doubling, however long it lasts."""
COARSE_S = 10.0
JOIN_S = 0.5
"""How long the end of a run waits for a source that is reading."""
# Steps below these are no change that a person reads.
_STEPS = {"W": 0.1, "Hz": 1e6, "B/s": 1e5, "1": 1e-4, "rpm": 1.0}

Clock = Callable[[], float]


@frozen
class Quantity:
    """What a source tells. `labels` as pairs, so that it can be a key."""

    name: str
    unit: str
    pairs: tuple[tuple[str, str | int | float | bool | None], ...] = ()

    @property
    def labels(self) -> Labels:
        """The labels as of a series."""
        return dict(self.pairs)


Told = Mapping[Quantity, float | None]
Read = Callable[[float], Told]


@frozen
class Source:
    """Something that is read again and again. `read(now)` gives what it tells at the monotonic time `now`.

    `ends`: it counts, so that its last reading is taken when all is over. `interrupt` ends a reading that hangs;
    `close` lets go of files when nobody reads any more.
    """

    name: str
    period_s: float
    read: Read
    ends: bool = False
    close: Callable[[], None] = field(default=lambda: None)
    interrupt: Callable[[], None] = field(default=lambda: None)


@frozen
class Account:
    """What a source cost: readings, grid points that were missed, readings that failed, and how late they came."""

    name: str
    period_s: float
    readings: int
    missed: int
    failed: int
    worst_late_s: float
    mean_late_s: float
    cpu_s: float
    seconds: float


class Steps:
    """One series in the making. `add` takes rising times; `drain` gives what came since the last one."""

    def __init__(self, unit: str) -> None:
        self._step = _STEPS.get(unit)
        self._times: list[float] = []
        self._values: list[float | None] = []
        self._last: float | None = None
        self._seen: float | None = None
        self._started = False
        self._bucket: tuple[tuple[int, float], dict[str, tuple[float, float]]] | None = None

    def add(self, at: float, value: float | None) -> None:
        """A reading; a value that is no finite number was not read."""
        if value is not None and not math.isfinite(value):
            value = None
        if value is not None and self._step is not None:
            value = round(round(value / self._step) * self._step, 6)
        if at < FINE_S or value is None:
            self._flush()
            self._put(at, value)
            return
        width = COARSE_S * 2 ** math.floor(math.log2(at / FINE_S))
        # Where the width has just doubled the number would come again.
        number = int(at / width), width
        if self._bucket is not None and self._bucket[0] != number:
            self._flush()
        if self._bucket is None:
            self._bucket = (number, {"low": (value, at), "high": (value, at)})
            return
        ends = self._bucket[1]
        if value < ends["low"][0]:
            ends["low"] = (value, at)
        if value > ends["high"][0]:
            ends["high"] = (value, at)

    def _flush(self) -> None:
        if self._bucket is None:
            return
        ends, self._bucket = self._bucket[1], None
        for at, value in sorted({(at, value) for value, at in ends.values()}):
            self._put(at, value)

    def _put(self, at: float, value: float | None) -> None:
        self._seen = at
        if self._started and value == self._last:
            return
        self._times.append(round(at, 3))
        self._values.append(value)
        self._last, self._started = value, True

    def drain(self) -> tuple[tuple[float, ...], tuple[float | None, ...]]:
        """Times and values since the last drain, with the time until which the last value was seen."""
        self._flush()
        if (
            self._seen is not None
            and self._started
            and (not self._times or self._seen > self._times[-1] + 1e-3)
        ):
            self._times.append(round(self._seen, 3))
            self._values.append(self._last)
        self._seen = None
        found = tuple(self._times), tuple(self._values)
        self._times, self._values = [], []
        return found


class Sampler:
    """Reads one source on its grid, and keeps account of it. `step` is one reading; `run` is the thread's work."""

    def __init__(self, source: Source, base: float, clock: Clock = time.monotonic) -> None:
        self.source = source
        self._base = base
        self._clock = clock
        self._lock = threading.Lock()
        self._steps: dict[Quantity, Steps] = {}
        self._begun = clock()
        self._due = self._begun
        self._readings = self._missed = self._failed = 0
        self._worst = self._sum = self._cpu = 0.0

    @property
    def due(self) -> float:
        """When the next reading is due, on the monotonic clock."""
        return self._due

    def step(self) -> None:
        """Read once, now; the next reading is due at the first point of the grid that is not past."""
        begun = self._clock()
        late = max(0.0, begun - self._due)
        try:
            told = self.source.read(begun)
        except Exception:
            # Whatever a driver or a BMC does, it costs this reading and never the run.
            self._failed += 1
            told = {}
        with self._lock:
            for quantity, value in told.items():
                self._steps.setdefault(quantity, Steps(quantity.unit)).add(begun - self._base, value)
            for quantity, steps in self._steps.items():
                if quantity not in told:
                    steps.add(begun - self._base, None)
        self._readings += 1
        self._worst, self._sum = max(self._worst, late), self._sum + late
        period = self.source.period_s
        passed = math.floor((self._clock() - self._due) / period + 1e-9)
        self._missed += max(0, passed)
        self._due += period * (1 + max(0, passed))

    def run(self, ended: threading.Event) -> None:
        """Read until `ended`; CPU time is that of the calling thread."""
        start = time.thread_time()
        while not ended.wait(max(0.0, self._due - self._clock())):
            self.step()
            self._cpu = time.thread_time() - start

    def drain(self) -> list[Series]:
        """What came since the last drain."""
        with self._lock:
            drained = [(quantity, *steps.drain()) for quantity, steps in self._steps.items()]
        return [
            Series(quantity.name, quantity.unit, quantity.labels, times, values)
            for quantity, times, values in drained
            if times
        ]

    def account(self) -> Account:
        """What the source cost until now."""
        return Account(
            self.source.name,
            self.source.period_s,
            self._readings,
            self._missed,
            self._failed,
            self._worst,
            self._sum / self._readings if self._readings else 0.0,
            self._cpu,
            max(0.0, self._clock() - self._begun),
        )


class Monitor:
    """All sources of a run. Use as a context; `begin` and `end` mark the phases from the thread that follows the run.

    `base`: the monotonic time from which the run's stamps count.
    """

    def __init__(self, sources: Iterable[Source], base: float, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._base = base
        self._ended = threading.Event()
        self._samplers = [Sampler(source, base, clock) for source in sources]
        self._threads: list[threading.Thread] = []
        self._open: tuple[Case, int, float] | None = None
        self._phases: list[Phase] = []

    def __enter__(self) -> Monitor:
        for sampler in self._samplers:
            if sampler.source.ends:
                # What counts is read before anything runs.
                sampler.step()
            # A thread that hangs in a BMC's answer must not keep the process alive.
            thread = threading.Thread(
                target=sampler.run, args=(self._ended,), name=f"monitor {sampler.source.name}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End all threads, and read what counts once more; the second time nothing happens."""
        if self._ended.is_set():
            return
        self._ended.set()
        self.end()
        for sampler in self._samplers:
            sampler.source.interrupt()
        until = self._clock() + JOIN_S
        for sampler, thread in zip(self._samplers, self._threads, strict=True):
            thread.join(max(0.0, until - self._clock()))
            if thread.is_alive():
                continue
            if sampler.source.ends:
                sampler.step()
            sampler.source.close()

    def begin(self, case: Case, round_: int) -> None:
        """A round of a case begins; the one before ends where it was not ended."""
        self.end()
        self._open = (case, round_, self._clock() - self._base)

    def end(self) -> None:
        """The round that was begun is over."""
        if self._open is not None:
            case, round_, start = self._open
            self._phases.append(Phase(case.probe, case.name, round_, start, self._clock() - self._base))
            self._open = None

    def drain(self) -> tuple[tuple[Series, ...], tuple[Phase, ...]]:
        """Series and phases since the last drain."""
        phases, self._phases = tuple(self._phases), []
        return tuple(series for sampler in self._samplers for series in sampler.drain()), phases

    def accounts(self) -> tuple[Account, ...]:
        """What each source cost."""
        return tuple(sampler.account() for sampler in self._samplers)


def joined(parts: Iterable[Series]) -> tuple[Series, ...]:
    """Pieces of series put together, in the order in which they come."""
    found: dict[tuple[str, str, tuple[tuple[str, object], ...]], list[Series]] = {}
    for one in parts:
        found.setdefault((one.name, one.unit, tuple(sorted(one.labels.items()))), []).append(one)
    return tuple(
        Series(
            pieces[0].name,
            pieces[0].unit,
            pieces[0].labels,
            tuple(at for piece in pieces for at in piece.times),
            tuple(value for piece in pieces for value in piece.values),
        )
        for pieces in found.values()
    )
