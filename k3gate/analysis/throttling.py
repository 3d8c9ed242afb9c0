"""Which part of the machine held it back, by what was watched: counters that rose, limits that were reached, heat.

A rate that fell tells that something throttled; this tells what. Pure: series in, evidence out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from attrs import frozen

from k3gate import series as names
from k3gate.records import PowerZone, Series

AT_LIMIT_DEGREES = 1.0
"""So near to its limit a sensor is at it: firmware acts before the last degree."""
ROSE_DEGREES = 3.0
"""A rise that is more than the noise of a sensor."""
AT_POWER_LIMIT = 0.98
"""So much of its limit a package draws on average that is held there."""
CLOCK_FELL = 0.95
"""A clock that is below so much of what it was has fallen."""
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
    """A domain that was held back. `sign`: one of `SIGNS`, the surest first; `at_s`: when it began. `role`, `of`: as of
    the series that showed it, where that is a sensor's."""

    domain: str
    sign: str
    detail: str
    at_s: float
    role: str | None = None
    of: str | None = None


SIGNS = ("counter", "limit", "power", "clock", "heat")


def evidence(
    series: Sequence[Series], start_s: float, end_s: float, zones: Sequence[PowerZone] = ()
) -> tuple[Throttling, ...]:
    """What shows throttling between two times of a run, the surest first.

    A counter of throttling that rose is proof. A sensor at the limit that it tells itself, a package that draws what it
    may (`zones` tell how much), and a clock that fell and heat that rose from the first tenth of the span to the last,
    only say where to look: they count beside a rate that fell.
    """
    found = [
        *_counters(series, start_s, end_s),
        *_limits(series, start_s, end_s),
        *_power(series, start_s, end_s, zones),
        *_clocks(series, start_s, end_s),
        *_rises(series, start_s, end_s),
    ]
    return tuple(sorted(found, key=lambda one: (SIGNS.index(one.sign), one.at_s)))


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
            yield Throttling(
                domain_of(one), "limit", f"{most:g} degC, limit {limit:g}", hot[0][0], *_place(one)
            )


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
                yield Throttling(domain_of(one), "heat", detail, late[0][0], *_place(one))


def _power(
    series: Sequence[Series], start_s: float, end_s: float, zones: Sequence[PowerZone]
) -> Iterator[Throttling]:
    """Packages that draw their lasting limit in the last tenth, on average: an energy counter tells no peaks."""
    limits = {zone.id: limit for zone in zones if (limit := zone.limits.get("long_term"))}
    for one in series:
        limit = limits.get(str(one.labels.get("sensor")))
        if one.name != names.POWER or limit is None:
            continue
        mean = names.mean_within(one, [(end_s - (end_s - start_s) / 10, end_s)])
        if mean is not None and mean >= AT_POWER_LIMIT * limit:
            at = next(
                (at for at, value in within(one, start_s, end_s) if value >= AT_POWER_LIMIT * limit), end_s
            )
            detail = f"{mean:.0f} W, its limit is {limit:.0f} W"
            yield Throttling(domain_of(one), "power", detail, at, *_place(one))


def _clocks(series: Sequence[Series], start_s: float, end_s: float) -> Iterator[Throttling]:
    part = (end_s - start_s) / 10
    for one in series:
        if one.name != names.CLOCK:
            continue
        early = names.mean_within(one, [(start_s, start_s + part)])
        late = names.mean_within(one, [(end_s - part, end_s)])
        if early and late is not None and late < CLOCK_FELL * early:
            detail = f"its clock fell from {early / 1e9:.2f} to {late / 1e9:.2f} GHz"
            yield Throttling(
                f"CPU package {one.labels.get('of')}", "clock", detail, end_s - part, "cpu", _of(one)
            )


def _place(series: Series) -> tuple[str, str | None]:
    return str(series.labels.get("role")), _of(series)


def _of(series: Series) -> str | None:
    of = series.labels.get("of")
    return None if of is None else str(of)
