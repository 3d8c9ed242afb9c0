"""The names of what is watched while a run goes on, and what a series says of a span of time.

`records.Series` has what each consists of. Labels of temperatures, fans and power: sensor, role, of; of temperatures
also limit; of events: counter, kind (throttle, corrected, uncorrected), domain; of clocks: cpu, of; of drives: drive;
of rates and of what others took, which a probe tells: part, memory_node, place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from k3gate.records import Series

TEMPERATURE = "temperature"
FAN = "fan"
POWER = "power"
CLOCK = "clock"
BUSY = "cpu.busy"
STOLEN = "cpu.stolen"
DISK_READ = "disk.read"
DISK_WRITTEN = "disk.written"
EVENTS = "events"
RATE = "load.rate"
"""Of a lasting load, by part and memory node."""
OTHERS = "load.others"
"""Share of all CPU time that neither the load took nor a hypervisor, while it went on."""
OF_MONITOR = frozenset(
    {TEMPERATURE, FAN, POWER, CLOCK, BUSY, STOLEN, DISK_READ, DISK_WRITTEN, EVENTS},
)
"""What only the monitor tells: no worker may."""
LAST_HOLDS_S = 30.0
"""For how long the last value of a series stands for what came after: a BMC has a slow grid."""


def check(series: Series) -> None:
    """Raise `ValueError` for a series that is none: unequal lengths, times that fall, or what is no number."""
    if len(series.times) != len(series.values):
        raise ValueError(
            f"series {series.name} has {len(series.times)} times and {len(series.values)} values"
        )
    known: Sequence[float] = [value for value in series.values if value is not None]
    numbers = [*series.times, *known, *(one for one in series.labels.values() if isinstance(one, float))]
    if not all(isinstance(one, int | float) and math.isfinite(one) for one in numbers):
        raise ValueError(f"series {series.name} holds what is no finite number")
    if any(late < early for early, late in pairwise(series.times)):
        raise ValueError(f"series {series.name} goes back in time")


def mean_within(series: Series, spans: Sequence[tuple[float, float]]) -> float | None:
    """The mean over time of a series' values within spans of time; None where none was read there."""
    weight = total = 0.0
    ends = (*series.times[1:], series.times[-1] + LAST_HOLDS_S if series.times else 0.0)
    for start, end, value in zip(series.times, ends, series.values, strict=True):
        for low, high in spans if value is not None else ():
            held = min(end, high) - max(start, low)
            if held > 0:
                weight, total = weight + held, total + held * (value or 0.0)
    return total / weight if weight else None


def risen(series: Series) -> float | None:
    """By how much a counter rose; one that was set back counts from 0. None: it was never read."""
    values = [value for value in series.values if value is not None]
    if not values:
        return None
    return sum(late - early if late >= early else late for early, late in pairwise(values))
