"""The page of `k3gate diff -o FILE.html`: comparable or not, what differs in the machines, then figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen
from markupsafe import Markup

from k3gate import units
from k3gate.records import Better, Interval, Metric
from k3gate.reports import charts, words
from k3gate.reports.page import environment, footer

if TYPE_CHECKING:
    from k3gate.analysis.comparison import Comparison, MetricComparison

_MARKS = (0.1, 0.2, 0.5, 0.67, 0.8, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1, 1.25, 1.5, 2.0, 5.0, 10.0)


@frozen
class RatioRow:
    """A metric of both runs: words and the drawing of its ratio."""

    title: str
    what: str
    case: str
    note: str
    chart: Markup
    ratio: str
    interval: str
    a: str
    b: str
    verdict: str
    reason: str


def render(comparison: Comparison) -> str:
    """The page as text; everything from the two runs is escaped."""
    sides = comparison.sides
    place, marks = _axis(comparison.metrics)
    context = {
        "comparison": comparison,
        "sides": sides,
        "heading": heading(comparison),
        "rows": [
            _row(item, told, place, marks)
            for item, told in zip(comparison.metrics, words.apart_in_both(comparison.metrics), strict=True)
        ],
        "axis": _axis_cell(place, marks),
        "settings": [d for d in comparison.differences if d.setting],
        "parts": [d for d in comparison.differences if not d.setting],
        "shown": shown,
        "unknown": unknown(comparison),
        "counts": counts(comparison.metrics),
        "footer": footer(f"k3gate comparison of runs {sides[0].run} and {sides[1].run}"),
    }
    return environment().get_template("comparison.html.j2").render(context)


def heading(comparison: Comparison) -> str:
    """The verdict as a heading; B against A."""
    if not comparison.comparable:
        return "Not comparable"
    found = {item.verdict for item in comparison.metrics}
    if {"better", "worse"} <= found:
        return "B is better in some metrics, worse in others"
    return {
        "same": "A and B measure the same",
        "better": "B measures better than A",
        "worse": "B measures worse than A",
    }.get(comparison.verdict, "Cannot tell which is better")


def counts(metrics: Sequence[MetricComparison]) -> str:
    """ "2 better, 1 worse, 7 same, 3 cannot tell"."""
    found: dict[str, int] = {}
    for item in metrics:
        found[item.verdict] = found.get(item.verdict, 0) + 1
    return ", ".join(f"{number} {word}" for word, number in found.items())


def shown(item: Any) -> str:
    """A value of the inventory in words."""
    if item is None:
        return "unknown"
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, int | float):
        return f"{item:,}"
    if isinstance(item, list | tuple):
        if len(item) > 4 and all(isinstance(e, int) and not isinstance(e, bool) for e in item):
            return units.cpu_list(list(item))
        return ", ".join(shown(entry) for entry in item) or "none"
    return str(item) or "empty"


def unknown(comparison: Comparison) -> list[str]:
    """What this page does not tell, in sentences."""
    found = ["No runtime has run Kimi K3 in these figures; a ratio of bandwidths is no ratio of tokens/s."]
    alone = [item for item in comparison.metrics if item.a is None or item.b is None]
    if alone:
        found.append(f"{words.capital(words.count(len(alone), 'metric'))} stand in one of the runs only.")
    unsure = sum(item.verdict == "cannot tell" for item in comparison.metrics) - len(alone)
    if unsure > 0:
        found.append(
            f"{words.capital(words.count(unsure, 'metric'))} scatter too much, or were measured too "
            "differently, to tell."
        )
    if not comparison.same_machine:
        found.append(
            "Each machine was measured after one boot; differences between boots are not part of it."
        )
    return found


def _drawn(item: MetricComparison) -> tuple[float, Interval | None] | None:
    """The ratio with better to the right: inverted where less is better."""
    if item.ratio is None or not item.ratio > 0 or not math.isfinite(item.ratio):
        return None
    interval = item.interval
    if interval is not None and not (interval[0] > 0 and math.isfinite(interval[1])):
        interval = None
    if item.better is Better.LOWER:
        return 1 / item.ratio, (1 / interval[1], 1 / interval[0]) if interval else None
    return item.ratio, interval


def _axis(metrics: Sequence[MetricComparison]) -> tuple[charts.Scale, list[float]]:
    drawn = [d for d in map(_drawn, metrics) if d is not None]
    edges = [edge for ratio, interval in drawn for edge in (ratio, *(interval or ()))]
    reach = max((abs(math.log(edge)) for edge in edges), default=0.0)
    reach = min(max(reach * 1.12, math.log(1.06)), math.log(12))
    place = charts.scale(math.exp(-reach), math.exp(reach), log=True, start=2, end=98)
    inside = [m for m in _MARKS if abs(math.log(m)) <= reach]
    marks: list[float] = []
    for mark in sorted(inside, key=lambda m: (abs(math.log(m)) > 0, -abs(math.log(m)))):
        if all(abs(place(mark) - place(other)) > 13 for other in marks):
            marks.append(mark)
    return place, sorted(marks)


def _axis_cell(place: charts.Scale, marks: Sequence[float]) -> Markup:
    parts = [
        charts.text(place(m), 39, f"{m:g}", style="tb" if m == 1 else "", anchor="middle") for m in marks
    ]
    parts += [charts.vertical(place(m), 44, 50, "g") for m in marks]
    parts.append(charts.text(place(1), 19, "← A better", anchor="end", dx=-8))
    parts.append(charts.text(place(1), 19, "B better →", dx=8))
    return charts.cell(parts)


def _row(item: MetricComparison, told: str, place: charts.Scale, marks: Sequence[float]) -> RatioRow:
    parts = [charts.vertical(place(m), 0, "100%", "one" if m == 1 else "g") for m in marks]
    drawn = _drawn(item)
    if drawn is not None:
        ratio, interval = drawn
        if interval is not None:
            parts.append(charts.whisker(place(interval[0]), place(interval[1])))
        parts.append(charts.dot(place(ratio), "50%", "f-data", 4.6))
    note = "less is better; drawn as A ÷ B" if item.better is Better.LOWER else ""
    return RatioRow(
        title=words.capital(words.reading(item.labels) or item.title + told),
        what=item.title + told,
        case=f"{item.probe}/{item.case}",
        note=note,
        chart=charts.cell(parts),
        ratio=units.significant(item.ratio) if item.ratio is not None else "unknown",
        interval="–".join(units.significant(edge) for edge in item.interval)
        if item.interval
        else "no interval",
        a=_value(item.a),
        b=_value(item.b),
        verdict=item.verdict,
        reason=item.reason or "",
    )


def _value(metric: Metric | None) -> str:
    if metric is None:
        return "not measured"
    if metric.median is None:
        return words.STATES[metric.state]
    return words.value(metric.median, metric.unit)
