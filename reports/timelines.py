"""What was watched over the time of the run: heat, power, clocks, use of processors and drives, with the phases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen
from markupsafe import Markup

from k3gate import series as names
from k3gate import units
from k3gate.records import Phase, RunRecord, Series
from k3gate.reports import charts
from k3gate.reports.figures import BarRow, Figure
from k3gate.units import NBSP

_HEIGHT, _TOP, _BOTTOM = 190, 12, 132
_PHASES_Y, _AXIS_Y = 142, 160
_MOST_LINES = 8
_MOST_POINTS = 400


@frozen
class _Kind:
    """A plot: which series it draws, and in which words."""

    anchor: str
    names: tuple[str, ...]
    title: str
    unit: str
    scale: float


_KINDS = (
    _Kind("fig-heat", (names.TEMPERATURE,), "Temperatures", "degC", 1.0),
    _Kind("fig-power", (names.POWER,), "Power", "W", 1.0),
    _Kind("fig-clocks", (names.CLOCK,), "Clocks", "GHz", 1e-9),
    _Kind("fig-busy", (names.BUSY, names.STOLEN), "Use of the processors", "%", 100.0),
    _Kind("fig-traffic", (names.DISK_READ, names.DISK_WRITTEN), "Traffic of drives", "GB/s", 1e-9),
)


def figures(record: RunRecord, number: int) -> list[Figure]:
    """A figure for each kind of what was watched; none where nothing was."""
    made: list[Figure] = []
    for kind in _KINDS:
        own = [
            one for one in record.series if one.name in kind.names and any(v is not None for v in one.values)
        ]
        if own:
            made.append(_figure(kind, own, record, number + len(made)))
    return made


def _figure(kind: _Kind, series: list[Series], record: RunRecord, number: int) -> Figure:
    ranked = sorted(series, key=lambda one: -_highest(one))
    drawn = ranked[:_MOST_LINES]
    until = max(
        [one.times[-1] for one in series] + [phase.end_s for phase in record.phases] + [1e-3],
    )
    top = max(_highest(one) for one in drawn) * kind.scale
    at = charts.ticks(max(top, 1e-9))
    place = charts.scale(0, until)
    level = charts.scale(0, at[-1], start=_BOTTOM, end=_TOP)
    parts: list[Markup] = charts.levels(level, at, lambda value: units.significant(value))
    for one in reversed(drawn):
        style = "c-roof" if one is drawn[0] else "c-thin"
        for piece in _pieces(one, until):
            parts.append(
                charts.curve([(place(t), level(value * kind.scale)) for t, value in piece], _HEIGHT, style)
            )
    parts += _bands(record.phases, place)
    parts += charts.axis(
        place, [t for t in charts.ticks(until) if t <= until], _AXIS_Y, lambda t: f"{t:,.0f}{NBSP}s"
    )
    highest = _words(kind, _highest(drawn[0]))
    name = _name(drawn[0])
    left = len(ranked) - len(drawn)
    more = f"; the {len(drawn)} highest of {len(ranked)}" if left else ""
    title = f"{kind.title}: at most {highest} ({name})"
    return Figure(
        anchor=kind.anchor,
        number=number,
        title=title,
        subtitle=f"{kind.title} in {kind.unit} over the seconds of the run; dark: the highest{more}; below: when "
        "cases ran",
        source="Read by the monitor in the parent process on a fixed grid; a gap was not read. Values that cannot be "
        "true are none.",
        plot=charts.svg(parts, height=_HEIGHT, key=kind.anchor, title=title, desc=_told(kind, drawn)),
        head=("What", "Range", "Lowest", "Highest", "At the end", ""),
        bars=tuple(_row(kind, one, charts.scale(0, at[-1], end=92)) for one in drawn),
    )


def _pieces(series: Series, until: float) -> Iterable[list[tuple[float, float]]]:
    """The steps of a series as lines, one for each stretch without a gap, thinned to what a page can show."""
    piece: list[tuple[float, float]] = []
    width = until / _MOST_POINTS
    last: float | None = None
    for at, value in zip(series.times, series.values, strict=True):
        if value is None:
            if piece:
                yield [*piece, (at, piece[-1][1])]
            piece, last = [], None
            continue
        if piece and last is not None and at - last < width and abs(value - piece[-1][1]) < 0.02 * abs(value):
            continue
        if piece:
            piece.append((at, piece[-1][1]))
        piece.append((at, value))
        last = at
    if piece:
        yield [*piece, (series.times[-1], piece[-1][1])]


def _bands(phases: Sequence[Phase], place: charts.Scale) -> list[Markup]:
    """When cases ran, as bars; those of neighbouring cases in turn lighter and darker."""
    parts = []
    names = list(dict.fromkeys((phase.probe, phase.case) for phase in phases))
    for phase in phases:
        style = "f-grey" if names.index((phase.probe, phase.case)) % 2 else "f-data2"
        parts.append(charts.band(place(phase.start_s), place(phase.end_s), _PHASES_Y, 8, style))
    return parts


def _row(kind: _Kind, series: Series, place: charts.Scale) -> BarRow:
    values = [value for value in series.values if value is not None]
    low, high = (place(end * kind.scale) for end in (min(values), max(values)))
    return BarRow(
        title=_name(series),
        sub="",
        chart=charts.cell([charts.band(low, max(high, low + 0.5), "25%", "50%", "f-data2")]),
        figures=tuple(_words(kind, value) for value in (min(values), max(values), values[-1])),
        link=None,
    )


def _name(series: Series) -> str:
    """What a series is of: its sensor, drive, processor, or what it counts."""
    labels = series.labels
    if "sensor" in labels:
        return str(labels["sensor"])
    if "drive" in labels:
        return f"{labels['drive']} {'read' if series.name == names.DISK_READ else 'written'}"
    if "cpu" in labels:
        return f"CPU {labels['cpu']}"
    return {names.BUSY: "busy", names.STOLEN: "stolen by a hypervisor"}.get(series.name, series.name)


def _highest(series: Series) -> float:
    return max((value for value in series.values if value is not None), default=0.0)


def _words(kind: _Kind, value: float) -> str:
    return f"{units.significant(value * kind.scale)}{NBSP}{kind.unit}"


def _told(kind: _Kind, drawn: Sequence[Series]) -> str:
    return "; ".join(f"{_name(one)} up to {_words(kind, _highest(one))}" for one in drawn)
