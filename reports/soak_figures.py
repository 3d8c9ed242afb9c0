"""A lasting load over its time: rates, heat, power, what others took; and the rate against the temperature."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from attrs import frozen
from markupsafe import Markup

from k3gate import series as names
from k3gate import units
from k3gate.analysis import sustained
from k3gate.analysis.sustained import Lasting, Soak, Spans
from k3gate.analysis.throttling import domain_of
from k3gate.metrics import SUSTAINED_RATIO
from k3gate.records import RunRecord, Series
from k3gate.reports import charts, words
from k3gate.reports.evidence import Index, SampleRow
from k3gate.reports.figures import BarRow, Figure
from k3gate.reports.readings import ends
from k3gate.units import NBSP

MOST_POINTS = 300
"""Of a line; a longer load is drawn by means of its stretches."""
MOST_LINES = 6
"""Of a panel: those that lie highest; of rates those that lost most."""
_TITLE_ROOM, _RATES_HEIGHT, _HEIGHT, _GAP = 20, 150, 64, 12
_BAND_HEIGHT, _AXIS_HEIGHT = 16, 26
_SCATTER_HEIGHT, _SCATTER_TOP, _SCATTER_FLOOR = 240, 12, 204
_ENDS = ("highest", "lowest")
_LONG_S = 600.0
"""From here on time is told in minutes."""


@frozen
class _Panel:
    """One of the plots that share the axis of time. `lines`: name and points (s, value), the first one dark."""

    title: str
    lines: Sequence[tuple[str, Sequence[tuple[float, float]]]]
    height: int
    label: Callable[[float], str]
    zero: bool


def figures(record: RunRecord, index: Index, number: int) -> list[Figure]:
    """The load over its time, and the rate against temperature; none where there was no load."""
    found = sustained.soak(record)
    if found is None or not found.parts:
        return []
    rows = [row for row in index.samples if row.metric.name == SUSTAINED_RATIO.name]
    made = [_timeline(record, found, rows, number)]
    scatter = _scatter(record, found, number + 1)
    return made if scatter is None else [*made, scatter]


def _worst(found: Soak) -> Lasting:
    return min(found.parts, key=lambda part: part.ratio)


def _title(found: Soak) -> str:
    part = _worst(found)
    after = units.duration(found.spans.seconds)
    share = words.share(part.ratio, 3)
    title = f"After {after} of load the rate of {part.name} is {share} of that of the first minute"
    if part.fell_s is None:
        return title
    since = units.duration(part.fell_s - found.spans.start)
    return f"{title}; it stays below {words.share(sustained.HELD, 2)} from {since} on"


def _timeline(record: RunRecord, found: Soak, rows: Sequence[SampleRow], number: int) -> Figure:
    spans = found.spans
    panels = _panels(record, found)
    until = max(spans.cooled, spans.end) - spans.start
    place = charts.scale(0, until)
    height = sum(_TITLE_ROOM + panel.height + _GAP for panel in panels) + _BAND_HEIGHT + _AXIS_HEIGHT
    parts: list[Markup] = []
    top = 0
    # What is compared lies on a wash, behind all panels.
    for start, end in ((spans.warm, spans.first_end), (spans.last, spans.end)):
        parts.append(
            charts.band(
                place(start - spans.start), place(end - spans.start), 0, height - _AXIS_HEIGHT, "f-wash"
            )
        )
    for panel in panels:
        parts += _panel(panel, place, top, height)
        top += _TITLE_ROOM + panel.height + _GAP
    parts += _bands(spans, place, top)
    parts += _time_axis(place, until, top + _BAND_HEIGHT)
    title = _title(found)
    key = "1 warm-up, 2 first minute, 3 load, 4 last part" + (
        ", 5 cooling" if spans.cooled - spans.end > 1.5 else ""
    )
    return Figure(
        anchor="fig-soak",
        number=number,
        title=title,
        subtitle=f"All at once over the time of the load, one above the other; {key}; the rates of 2 and 4 are "
        "compared. The strong line is the one that is named",
        source=_source(record, found),
        links=ends(rows) if rows else (),
        plot=charts.svg(parts, height=height, key="fig-soak", title=title, desc=_told(found)),
        head=("Part", "First minute and end", "First minute", "End", "End / first", "95 % interval", "State"),
        bars=tuple(_row(part, found, rows) for part in found.parts),
    )


def _panels(record: RunRecord, found: Soak) -> list[_Panel]:
    spans = found.spans
    ranked = sorted(found.parts, key=lambda part: part.ratio)[:MOST_LINES]
    rates = [
        (part.name, [(at, 100 * value / part.first) for at, value in _points(part.series, spans)])
        for part in ranked
    ]
    more = (
        f", the {len(ranked)} of {len(found.parts)} that lost most" if len(found.parts) > MOST_LINES else ""
    )
    strong = f": {ranked[0].name}" if len(ranked) > 1 else ""
    panels = [_Panel(f"Rate, % of the first minute{strong}{more}", rates, _RATES_HEIGHT, _plain, zero=False)]
    for name, title in (
        (names.TEMPERATURE, "Temperature, °C"),
        (names.POWER, "Power, W"),
        (names.CLOCK, "Clock, GHz"),
        (names.FAN, "Fans, rpm"),
    ):
        scale = 1e-9 if name == names.CLOCK else 1.0
        own = [one for one in found.watched if one.name == name]
        lines = [(_sensor(one), [(at, value * scale) for at, value in _points(one, spans)]) for one in own]
        lines = [line for line in lines if line[1]]
        # Of clocks the lowest is telling.
        low = name == names.CLOCK
        lines.sort(key=lambda line: min(v for _, v in line[1]) if low else -max(v for _, v in line[1]))
        if lines:
            strong = f": {lines[0][0]}{f' {_ENDS[low]}' if len(lines) > 1 else ''}"
            shown = f", {MOST_LINES} of {len(lines)}" if len(lines) > MOST_LINES else ""
            zero = name not in (names.TEMPERATURE, names.CLOCK)
            panels.append(_Panel(f"{title}{strong}{shown}", lines[:MOST_LINES], _HEIGHT, _plain, zero))
    others = _others(record, spans)
    if others:
        panels.append(
            _Panel(
                "Processors taken by others and by a hypervisor, %",
                [("others", others)],
                _HEIGHT,
                _plain,
                zero=True,
            )
        )
    return panels


def _plain(value: float) -> str:
    return f"{round(value, 6):,g}"


def _others(record: RunRecord, spans: Spans) -> list[tuple[float, float]]:
    """What was not ours, in per cent, from the start of the load."""
    told = [one for one in record.series if one.name in (names.OTHERS, names.STOLEN)]
    lines = [dict(_points(one, spans)) for one in told if one.name == names.OTHERS]
    stolen = next((one for one in told if one.name == names.STOLEN), None)
    found = []
    for at, share in lines[0].items() if lines else ():
        more = 0.0
        if stolen is not None:
            begun = at + spans.start
            more = names.mean_within(stolen, [(begun - 0.5, begun + 0.5)]) or 0.0
        found.append((at, 100 * min(1.0, share + more)))
    return found


def _points(series: Series, spans: Spans) -> list[tuple[float, float]]:
    """(seconds from the start of the load, value) by means of neighbouring stretches, so many that a page bears."""
    until = max(spans.cooled, spans.end)
    width = max(1.0, (until - spans.start) / MOST_POINTS)
    found = []
    for place in range(int((until - spans.start) / width)):
        begun = spans.start + width * place
        mean = names.mean_within(series, [(begun, begun + width)])
        if mean is not None:
            found.append((begun + width / 2 - spans.start, mean))
    return found


def _sensor(series: Series) -> str:
    labels = series.labels
    if series.name == names.CLOCK:
        return f"package {labels.get('of')}"
    return domain_of(series) if series.name == names.TEMPERATURE else str(labels.get("sensor"))


def _panel(panel: _Panel, place: charts.Scale, top: int, height: int) -> list[Markup]:
    values = [value for _, line in panel.lines for _, value in line]
    at = _levels(min(values), max(values), panel.zero, 4 if panel.height > _HEIGHT else 2)
    upper, floor = top + _TITLE_ROOM, top + _TITLE_ROOM + panel.height
    level = charts.scale(at[0], at[-1], start=floor, end=upper)
    parts = charts.levels(level, at, panel.label)
    for number, (_, line) in reversed(list(enumerate(panel.lines))):
        style = "c-line" if number == 0 and panel.zero is False and panel.height > _HEIGHT else "c-line2"
        style = style if number == 0 else "c-thin"
        parts.append(charts.curve([(place(at_), level(value)) for at_, value in line], height, style))
    parts.append(charts.text(0, top + 13, panel.title, style="tb halo"))
    return parts


def _levels(low: float, high: float, zero: bool, wanted: int) -> list[float]:
    """Round values from at most the lowest to at least the highest; from 0 where a plot begins there."""
    if zero:
        return charts.ticks(max(high, 1e-9), wanted)
    step_of = charts.ticks(max(high - low, abs(high) * 0.02, 1e-9), wanted)
    step = step_of[1] - step_of[0]
    first = step * (low // step)
    found = [first]
    while found[-1] < high - 1e-9:
        found.append(found[-1] + step)
    return found


def _bands(spans: Spans, place: charts.Scale, top: int) -> list[Markup]:
    """The numbered phases of the load."""
    edges = [spans.start, spans.warm, spans.first_end, max(spans.last, spans.first_end), spans.end]
    if spans.cooled - spans.end > 1.5:
        edges.append(spans.cooled)
    parts = []
    for number, (start, end) in enumerate(pairwise(edges), 1):
        low, high = place(start - spans.start), place(end - spans.start)
        if end <= start:
            continue
        parts.append(charts.band(low, high, top, 13, "f-data2" if number in (2, 4) else "f-wash"))
        parts.append(charts.vertical(high, top, top + 13, "ax"))
        # What is compared is numbered however short it is.
        if high - low > 2 or number == 2:
            parts.append(charts.text((low + high) / 2, top + 11, str(number), style="tb", anchor="middle"))
    return parts


def _time_axis(place: charts.Scale, until: float, y: int) -> list[Markup]:
    unit, name = (60.0, "min") if until > _LONG_S else (1.0, "s")
    at = [tick * unit for tick in charts.ticks(until / unit) if tick * unit <= until]
    return charts.axis(place, at, y, lambda value: f"{value / unit:,.0f}{NBSP}{name}")


def _row(part: Lasting, found: Soak, rows: Sequence[SampleRow]) -> BarRow:
    most = max(each.first for each in found.parts if each.part == part.part)
    place = charts.scale(0, max(most, *(each.last for each in found.parts if each.part == part.part)), end=96)
    chart = charts.cell(
        [
            charts.band(0, place(part.first), "18%", "28%", "f-data2"),
            charts.band(0, place(part.last), "54%", "28%", "f-data"),
        ]
    )
    own = (
        row
        for row in rows
        if all(row.metric.labels.get(key) == value for key, value in part.series.labels.items())
    )
    row = next(own, None)
    interval = "unknown" if part.interval is None else f"{part.interval[0]:.3f}–{part.interval[1]:.3f}"
    return BarRow(
        title=words.capital(part.name),
        sub="",
        chart=chart,
        figures=(
            words.value(part.first, "B/s"),
            words.value(part.last, "B/s"),
            f"{part.ratio:.3f}",
            interval,
        ),
        link=row.link if row else None,
        state="lasts" if part.fell_s is None else "falls",
    )


def _source(record: RunRecord, found: Soak) -> str:
    """What else is known: energy, room to the limits, cooling, and how the interval was made."""
    told = []
    drawn = sustained.energy(record, found)
    if drawn is not None:
        each = f", {units.significant(drawn.per_byte * 1e12)}{NBSP}pJ a byte read" if drawn.per_byte else ""
        token = (
            f"; the replay's miniature took {units.significant(drawn.per_token)}{NBSP}J a token"
            if drawn.per_token
            else ""
        )
        told.append(
            f"{units.capital(drawn.source)} drew {units.significant(drawn.watts)}{NBSP}W in the last part{each}{token}."
        )
    rooms = sustained.headroom(found)
    if rooms:
        near = rooms[0]
        told.append(
            f"Nearest to its limit: {near.domain}, {near.left:.0f} degrees below {near.limit:.0f}{NBSP}°C."
        )
    cooling = sustained.cooling(found)
    if cooling is not None:
        told.append(
            f"{units.capital(cooling.domain)} cooled by {cooling.fell:.0f} degrees in the "
            f"{units.duration(cooling.seconds)} after the end."
        )
    if not found.watched:
        told.append("No sensor was readable: the rates alone decide.")
    told.append(
        "Intervals are of block means, fewer of which count where they follow each other. Kernels are counted in bytes "
        "of weights."
    )
    return " ".join(told)


def _told(found: Soak) -> str:
    return "; ".join(
        f"{part.name} {words.value(part.first, 'B/s')} at first, {words.value(part.last, 'B/s')} at the end"
        for part in found.parts
    )


# --- rate against temperature ------------------------------------------------------------------------------


def _scatter(record: RunRecord, found: Soak, number: int) -> Figure | None:
    """Of the part that lost most, its rate against the sensor that tells most of it; None without a sensor."""
    part, spans = _worst(found), found.spans
    sensor = _telling(record, found, part)
    if sensor is None:
        return None
    rates = dict(_points(part.series, spans))
    heat = dict(_points(sensor, spans))
    pairs = [(heat[at], 100 * rate / part.first, at) for at, rate in rates.items() if at in heat]
    if len(pairs) < 3:
        return None
    across = _levels(min(x for x, _, _ in pairs), max(x for x, _, _ in pairs), False, 5)
    up = _levels(min(y for _, y, _ in pairs), max(y for _, y, _ in pairs), False, 4)
    place = charts.scale(across[0], across[-1], start=1, end=99)
    level = charts.scale(up[0], up[-1], start=_SCATTER_FLOOR, end=_SCATTER_TOP)
    parts = charts.levels(level, up, lambda value: f"{_plain(value)}{NBSP}%")
    limit = sensor.labels.get("limit")
    if isinstance(limit, int | float) and across[0] <= limit <= across[-1]:
        parts.append(charts.vertical(place(limit), _SCATTER_TOP, _SCATTER_FLOOR, "target"))
    warm = spans.first_end - spans.start
    for x, y, at in _thinned(pairs):
        parts.append(charts.dot(place(x), f"{level(y):.1f}", "o-data" if at < warm else "f-data", 3.0))
    parts += charts.axis(place, across, _SCATTER_FLOOR + 6, lambda value: f"{value:.0f}{NBSP}°C")
    name = domain_of(sensor)
    low, high = min(x for x, _, _ in pairs), max(x for x, _, _ in pairs)
    title = (
        f"From {low:.0f} to {high:.0f} °C of {name} the rate of {part.name} goes from "
        f"{words.share(_mean_at(pairs, hot=False), 3)} to {words.share(_mean_at(pairs, hot=True), 3)}"
    )
    return Figure(
        anchor="fig-soak-heat",
        number=number,
        title=title,
        subtitle=f"Rate of {part.name} in % of its first minute against the temperature of {name}, by stretches of the "
        "load; open: until the end of the first minute",
        source=f"Sensor: {sensor.labels.get('sensor')}. Both axes begin where the values do.",
        plot=charts.svg(parts, height=_SCATTER_HEIGHT, key="fig-soak-heat", title=title, desc=title),
    )


def _telling(record: RunRecord, found: Soak, part: Lasting) -> Series | None:
    """The sensor that shows why, else that of the part's own socket, else the one that rose most."""
    heat = [
        one for one in found.watched if one.name == names.TEMPERATURE and len(_points(one, found.spans)) > 2
    ]
    if not heat:
        return None
    for sign in sustained.evidence(record, found, part):
        for one in heat:
            if sign.role is not None and domain_of(one) == sign.domain:
                return one
    own = sustained.packages_of(record.inventory, part.node)
    if part.part == "storage":
        heat = [one for one in heat if one.labels.get("role") == "drive"]
        if not heat:
            return None
    near = [one for one in heat if one.labels.get("role") == "cpu" and one.labels.get("of") in own]
    return max(near or heat, key=lambda one: _span(_points(one, found.spans)))


def _span(points: Sequence[tuple[float, float]]) -> float:
    values = [value for _, value in points]
    return max(values) - min(values)


def _mean_at(pairs: Sequence[tuple[float, float, float]], *, hot: bool) -> float:
    """The mean rate in the coldest or hottest tenth of the range, as a share."""
    low, high = min(x for x, _, _ in pairs), max(x for x, _, _ in pairs)
    edge = (high - low) / 10
    some = [y for x, y, _ in pairs if (x >= high - edge if hot else x <= low + edge)]
    return sum(some) / (100 * len(some))


def _thinned(pairs: Sequence[tuple[float, float, float]]) -> Iterable[tuple[float, float, float]]:
    return pairs[:: max(1, len(pairs) // 150)]
