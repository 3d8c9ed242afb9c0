"""The whole machine at once for a long time: whether its rates last, and what of it grows hot meanwhile.

One case, `soak`: the cores of each memory node stream from it or multiply experts, all together (`thermal_plan` says
which and why). The rate of each part is told as a series, a point a second, and fewer after ten minutes, on the clock
on which the monitor tells heat, power, clocks and fans. The figures are means over the last minute, or the last tenth,
and their ratio to the first minute after warm-up; what interval that has is a matter of the whole series
(`analysis/sustained`). Nothing on the machine is changed, and nothing is written.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

from k3gate import metrics, series
from k3gate.errors import ProbeError
from k3gate.probes import gemm_kernels, layout, sharing, thermal_load, thermal_plan
from k3gate.probes.thermal_load import Loader
from k3gate.probing import idle
from k3gate.probing.contract import Applies, Context, Planned, Reason
from k3gate.records import Case, Inventory, Labels, Metric, MetricDeclaration, Profile, Series
from k3gate.units import duration, quantity

WINDOW_S = 1.0
"""Of the rates that are told, for `FINE_S`; then so much that a load has at most `MOST_POINTS` more of them."""
FINE_S = 600.0
MOST_POINTS = 3600
SENT_EACH = 10
"""So many windows go to the parent at once."""
KEYS = ("part", "memory_node", "place")
"""Labels by which the parts of a load are told apart."""
WAIT_S = 0.2
END_S = 60.0
"""For how long threads may take to end what they have begun."""


class ThermalProbe:
    """A lasting load of everything. See the module's text."""

    name = "thermal"
    title = "Lasting load: memory, kernels and drives at once, and whether rates hold"
    metrics: Sequence[MetricDeclaration] = (metrics.SUSTAINED_RATIO, metrics.SUSTAINED_RATE)

    def applies(self, inventory: Inventory) -> Applies | Reason:
        """Needs a CPU that may be used and a node that has memory."""
        return layout.applies(inventory)

    def cases(self, inventory: Inventory, profile: Profile) -> Planned:
        """Raises `UsageError` for a working set that fits in caches, or a lacking instruction set."""
        allowed = gemm_kernels.choose_path(None)
        return thermal_plan.plan(
            self.name, inventory, profile, sharing.forced_isa(), gemm_kernels.variants(allowed)
        )

    def run(self, case: Case, context: Context) -> Iterator[Metric]:
        """The load, the rates at its end, and the time in which the machine cools."""
        loaders = thermal_load.workers(context, case)
        tape = _Tape(context, loaders, case)
        start, end = tape.record(float(case.parameters["load_s"]))
        told = list(_figures(case, context, loaders, tape, start, end))
        _cool(context, float(case.parameters["cool_s"]))
        yield from told


class _Tape:
    """What each loader moved and what others took, window by window."""

    def __init__(self, context: Context, loaders: Sequence[Loader], case: Case) -> None:
        self._context, self._loaders = context, loaders
        self._load_s = float(case.parameters["load_s"])
        self._labels: list[Labels] = [
            {key: loader.worker.labels[key] for key in KEYS if key in loader.worker.labels}
            for loader in loaders
        ]
        self._times: list[float] = []
        self._rates: list[list[float]] = [[] for _ in loaders]
        self._others: list[float | None] = []
        self._sent = 0

    def record(self, seconds: float) -> tuple[float, float]:
        """Load for so long; (start, end) on the monotonic clock. Raises `ProbeError` where a loader failed."""
        ended = threading.Event()
        start = last = time.monotonic()
        before = idle.read()
        for loader in self._loaders:
            loader.start(ended)
        try:
            while not ended.wait(WAIT_S):
                now = time.monotonic()
                due = last + self._width(last - start)
                if now >= due and self._known(due):
                    after = idle.read()
                    self._take(last, due, idle.shares(before, after).other)
                    before, last = after, due
                    self._beat(start, due)
                if last + self._width(last - start) > start + seconds + 1e-6 and now >= start + seconds:
                    break
                self._context.heartbeat()
        finally:
            ended.set()
            self._join()
        failed = [loader.failure for loader in self._loaders if loader.failure]
        if failed:
            raise ProbeError("; ".join(failed))
        self._send(end=last)
        return start, last

    def series(self, number: int) -> Series:
        """The rates of a loader; its times are of the monotonic clock."""
        values = (*self._rates[number], None)
        return Series(series.RATE, "B/s", self._labels[number], (*self._times, self._end), values)

    def _width(self, elapsed: float) -> float:
        if elapsed < FINE_S:
            return min(WINDOW_S, self._load_s / 30)
        return max(WINDOW_S, self._load_s / MOST_POINTS)

    def _known(self, until: float) -> bool:
        """Whether all loaders have told what they moved until then."""
        return all((one.meter.until or 0.0) >= until for one in self._loaders)

    def _take(self, start: float, end: float, others: float | None) -> None:
        self._times.append(start)
        self._end = end
        for rates, loader in zip(self._rates, self._loaders, strict=True):
            rates.append(loader.meter.rate(start, end))
        self._others.append(others)

    def _beat(self, start: float, now: float) -> None:
        if len(self._times) - self._sent >= SENT_EACH:
            self._send()
            parts: dict[str, float] = {}
            for rates, labels in zip(self._rates, self._labels, strict=True):
                parts[str(labels["part"])] = parts.get(str(labels["part"]), 0.0) + rates[-1]
            rates_told = ", ".join(f"{part} {quantity(rate, 'B/s')}" for part, rate in parts.items())
            self._context.heartbeat(f"{duration(now - start)} of {duration(self._load_s)}: {rates_told}")

    def _send(self, end: float | None = None) -> None:
        """What was not sent yet; with `end` the last value of each series ends there."""
        times = self._times[self._sent :]
        last = [] if end is None else [end]
        gap: list[float | None] = [] if end is None else [None]
        for rates, labels in zip(self._rates, self._labels, strict=True):
            self._context.watched(
                series.RATE, "B/s", labels, times + last, [*map(round, rates[self._sent :]), *gap]
            )
        shares = [None if one is None else round(one, 4) for one in self._others[self._sent :]]
        self._context.watched(series.OTHERS, "1", {}, times + last, [*shares, *gap])
        self._sent = len(self._times)

    def _join(self) -> None:
        until = time.monotonic() + END_S
        for loader in self._loaders:
            while loader.thread is not None and loader.thread.is_alive():
                loader.thread.join(WAIT_S)
                self._context.heartbeat("ending the load")
                if time.monotonic() > until:
                    raise ProbeError(f"{loader.worker.part}: a thread does not end")


def _figures(
    case: Case, context: Context, loaders: Sequence[Loader], tape: _Tape, start: float, end: float
) -> Iterator[Metric]:
    """Of each part its rate in the last part of the load, and that as a share of the first minute."""
    parameters = case.parameters
    begun = start + float(parameters["warm_up_s"])
    booked = end - start
    for number, loader in enumerate(loaders):
        rates = tape.series(number)
        first = series.mean_within(rates, [(begun, begun + float(parameters["first_s"]))])
        last = series.mean_within(rates, [(end - float(parameters["last_s"]), end)])
        if not first or last is None:
            raise ProbeError(f"{loader.worker.part}: nothing was moved in the first minute")
        # All parts work at once: the time is booked with the first of them.
        taken = [(metrics.SUSTAINED_RATE, context.sample(last, booked))]
        booked = 0.0
        taken.append((metrics.SUSTAINED_RATIO, context.sample(last / first, 0.0)))
        proofs = loader.worker.proofs()
        state, reason = sharing.state_of(proofs)
        labels = {**loader.worker.labels, "load_s": parameters["load_s"], "scope": "soak"}
        for declaration, token in taken:
            yield context.metric(declaration, [token], labels, proofs, state, reason)


def _cool(context: Context, seconds: float) -> None:
    """Wait, so that the monitor sees how the machine cools."""
    begun = time.monotonic()
    while (left := begun + seconds - time.monotonic()) > 0:
        time.sleep(min(WAIT_S, left))
        context.heartbeat("cooling")
    context.setup(time.monotonic() - begun)
