"""Which part of the machine held it back, by what was watched: counters that rose, limits that were reached, heat.

A rate that fell tells that something throttled; this tells what. Pure: series in, evidence out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from attrs import frozen

from k3gate import series as names
from k3gate.records import Series

AT_LIMIT_DEGREES = 1.0
"""So near to its limit a sensor is at it: firmware acts before the last degree."""
ROSE_DEGREES = 3.0
"""A rise that is more than the noise of a sensor."""
_ROLES = {
    "cpu": "CPU package",
    "module": "memory modules",
    "drive": "drive",
    "gpu": "GPU",
    "board": "board",
    "bmc": "what the BMC watches",
}


@frozen
class Throttling:
    """A domain that was held back. `sign`: counter, limit or heat, the surest first; `at_s`: when it began."""

    domain: str
    sign: str
    detail: str
    at_s: float


def evidence(series: Sequence[Series], start_s: float, end_s: float) -> tuple[Throttling, ...]:
    """What shows throttling between two times of a run, the surest first.

    A counter of throttling that rose is proof. A sensor at the limit that it tells itself, and heat that rose from
    the first tenth of the span to the last, only say where to look: they count beside a rate that fell.
    """
    found = [
        *_counters(series, start_s, end_s),
        *_limits(series, start_s, end_s),
        *_rises(series, start_s, end_s),
    ]
    order = {"counter": 0, "limit": 1, "heat": 2}
    return tuple(sorted(found, key=lambda one: (order[one.sign], one.at_s)))


def within(series: Series, start_s: float, end_s: float) -> list[tuple[float, float]]:
    """The steps of a series that hold at some time between two: each with its beginning, cut to the span."""
    ends = (*series.times[1:], float("inf"))
    return [
        (max(at, start_s), value)
        for at, until, value in zip(series.times, ends, series.values, strict=True)
        if value is not None and at <= end_s and until > start_s
    ]


def domain_of(series: Series) -> str:
    """What a sensor's series is of, in words."""
    role, of = str(series.labels.get("role")), series.labels.get("of")
    if role in ("module", "board", "bmc"):
        return f"{_ROLES[role]} ({series.labels.get('sensor')})"
    return f"{_ROLES.get(role, role)} {of if of is not None else series.labels.get('sensor')}"


def _counters(series: Sequence[Series], start_s: float, end_s: float) -> Iterator[Throttling]:
    for one in series:
        if one.name != names.EVENTS or one.labels.get("kind") != "throttle":
            continue
        steps = within(one, start_s, end_s)
        rises = [(at, late - early) for (_, early), (at, late) in pairwise(steps) if late > early]
        if rises:
            count = sum(rise for _, rise in rises)
            yield Throttling(
                str(one.labels.get("domain")), "counter", f"its counter rose by {count:,.0f}", rises[0][0]
            )


def _limits(series: Sequence[Series], start_s: float, end_s: float) -> Iterator[Throttling]:
    for one in series:
        limit = one.labels.get("limit")
        if one.name != names.TEMPERATURE or not isinstance(limit, int | float):
            continue
        hot = [(at, value) for at, value in within(one, start_s, end_s) if value >= limit - AT_LIMIT_DEGREES]
        if hot:
            most = max(value for _, value in hot)
            yield Throttling(domain_of(one), "limit", f"{most:g} degC, limit {limit:g}", hot[0][0])


def _rises(series: Sequence[Series], start_s: float, end_s: float) -> Iterator[Throttling]:
    part = (end_s - start_s) / 10
    for one in series:
        if one.name != names.TEMPERATURE:
            continue
        early = [value for _, value in within(one, start_s, start_s + part)]
        late = within(one, end_s - part, end_s)
        if early and late:
            rise = max(value for _, value in late) - min(early)
            if rise >= ROSE_DEGREES:
                detail = f"rose by {rise:g} degrees to {max(value for _, value in late):g} degC"
                yield Throttling(domain_of(one), "heat", detail, late[0][0])
