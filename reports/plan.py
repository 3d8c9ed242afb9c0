"""The page of `k3gate plan -o FILE.html`: what falls short first, then each figure with its arithmetic."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from attrs import frozen
from markupsafe import Markup

from k3gate import units
from k3gate.analysis.system import GB, GIB, TIER_TITLES
from k3gate.reports import charts, words
from k3gate.reports.page import environment, footer
from k3gate.units import NBSP

if TYPE_CHECKING:
    from k3gate.analysis.estimate import Estimate
    from k3gate.analysis.layout import Tier
    from k3gate.analysis.planning import Plan

CLAIM_WORDS = {
    "consistent": "consistent",
    "above_ceiling": "above the ceiling",
    "false_assumption": "false assumption",
    "untestable": "untestable",
}
CLAIM_MARKS = {
    "consistent": None,
    "above_ceiling": "fail",
    "false_assumption": "fail",
    "untestable": "unproven",
}
"""The mark of each verdict. That nothing speaks against a claim is no pass, and carries none."""
FITS = {True: "fits", False: "does not fit", None: "not known"}


@frozen
class Line:
    """An estimate in a table row: its drawing and the numbers beside it."""

    title: str
    note: str
    chart: Markup
    fits: str
    dram: str
    ceiling: str
    expected: str


def render(made: Plan) -> str:
    """The page as text; everything from the file is escaped."""
    found = made.estimate
    place, marks = _axis(made)
    context = {
        "made": made,
        "found": found,
        "step": found.decode,
        "heading": heading(made),
        "mark_name": _mark(made),
        "lead": lead(made),
        "expected": _range(found),
        "ceiling": _ceiling(found),
        "chart": _chart(made),
        "own": _line("As planned", "", found, place, marks),
        "placements": [
            _line(way.title, "; ".join(way.estimate.layout.shortages), way.estimate, place, marks)
            for way in made.placements
        ],
        "changes": [_line(change.title, change.note, change.after, place, marks) for change in made.changes],
        "axis": _axis_cell(place, marks),
        "capacity": capacity,
        "gb": gb,
        "percent": lambda share: f"{share:.0%}".replace("%", f"{NBSP}%"),
        "duration": units.duration,
        "TIERS": TIER_TITLES,
        "FITS": FITS,
        "GB": GB,
        "CLAIM_WORDS": CLAIM_WORDS,
        "CLAIM_MARKS": CLAIM_MARKS,
        "money": _money,
        "footer": footer(f"k3gate plan of {found.system.name}"),
    }
    return environment().get_template("plan.html.j2").render(context)


def heading(made: Plan) -> str:
    """The answer in two or three words."""
    if made.estimate.layout.shortages:
        return "Does not fit"
    if made.falls_short:
        return "Falls short"
    return "Not assured" if made.undecided else "Possible on paper"


def _mark(made: Plan) -> str:
    return "fail" if made.falls_short else "unproven"


def lead(made: Plan) -> str:
    """One sentence for whoever reads no further."""
    if made.falls_short:
        return f"Do not order this for target {made.estimate.demand.name}: {'; '.join(made.falls_short)}."
    rest = f" {words.capital('; '.join(made.undecided))}." if made.undecided else ""
    return (
        f"By arithmetic alone, nothing rules this machine out for target {made.estimate.demand.name}.{rest} "
        "A plan is no evidence: rent it and measure before ordering."
    )


def gb(value: float | None, digits: int = 1) -> str:
    """Bytes as a number of GB; the unit stands in the head."""
    return "unknown" if value is None else f"{value / GB:,.{digits}f}".replace("-", units.MINUS)


def capacity(tier: Tier) -> str:
    """What a tier holds, as GB and as GiB, with the sum behind it."""
    if tier.capacity is None:
        return f"size not stated ({tier.capacity_detail})"
    return f"{gb(tier.capacity)} GB, {tier.capacity / GIB:,.1f} GiB: {tier.capacity_detail}"


def _money(pair: tuple[float, float] | None) -> str:
    if pair is None:
        return "unknown"
    return f"{units.significant(pair[0], 2)} to {units.significant(pair[1], 2)} USD"


def _range(found: Estimate | None) -> str:
    if found is None or found.expected.low is None or found.expected.high is None:
        return "not known"
    return f"{units.significant(found.expected.low, 2)}–{units.significant(found.expected.high, 2)}"


def _ceiling(found: Estimate | None) -> str:
    if found is None or found.decode.ceiling is None:
        return "not known"
    return units.significant(found.decode.ceiling)


# --- drawings --------------------------------------------------------------------------------------------


def _chart(made: Plan) -> Markup | None:
    """Expected interval, ceiling and target on one axis from 0."""
    found = made.estimate
    ceiling, low, high = found.decode.ceiling, found.expected.low, found.expected.high
    if ceiling is None:
        return None
    asked = made.estimate.demand.decode_tokens_per_s
    at = charts.ticks(max(ceiling, asked or 0) * 1.15)
    place = charts.scale(0, at[-1])
    parts: list[Markup] = []
    if asked is not None:
        parts.append(charts.band(place(asked), 100, 22, 48, "f-wash"))
    parts.append(charts.band(place(ceiling), 100, 36, 20, "beyond"))
    desc = f"Ceiling {units.significant(ceiling)} tokens/s."
    if low is not None and high is not None:
        parts.append(charts.band(place(low), place(high), 36, 20, "pred"))
        desc += f" Expected {_range(found)} tokens/s."
    parts.append(charts.vertical(place(ceiling), 32, 70, "target"))
    inside = place(ceiling) > 45
    parts.append(
        charts.text(
            place(ceiling),
            50,
            f"at most {units.significant(ceiling)}",
            style="tb halo",
            anchor="end" if inside else "start",
            dx=-8 if inside else 8,
        )
    )
    if asked is not None:
        x = place(asked)
        anchor = "middle" if 18 < x < 82 else ("start" if x <= 18 else "end")
        parts += [
            charts.vertical(x, 20, 70, "target"),
            charts.text(x, 13, f"target: at least {asked:g}", style="tb", anchor=anchor),
        ]
        desc += f" The target asks for {asked:g}."
    parts += charts.axis(place, at, 70, lambda value: f"{value:g}")
    return charts.svg(parts, height=92, key="c-plan", title="Expected decode rate and its ceiling", desc=desc)


def _estimates(made: Plan) -> list[Estimate]:
    others = [way.estimate for way in made.placements]
    return [made.estimate, *others, *(c.after for c in made.changes if c.after is not None)]


def _axis(made: Plan) -> tuple[charts.Scale, list[float]]:
    """One logarithmic axis for all rows, since a placement changes rates many times over."""
    edges = [
        value
        for found in _estimates(made)
        for value in (found.decode.ceiling, found.expected.low, found.expected.high)
        if value
    ]
    if not edges:
        return charts.scale(0.1, 10, log=True, start=2, end=98), []
    low, high = min(edges) / 1.3, max(edges) * 1.3
    place = charts.scale(low, high, log=True, start=2, end=98)
    marks: list[float] = []
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        for factor in (1, 2, 5):
            mark = factor * 10.0**power
            if low <= mark <= high and all(place(mark) - place(other) > 13 for other in marks):
                marks.append(mark)
    return place, marks


def _axis_cell(place: charts.Scale, marks: list[float]) -> Markup:
    parts = [charts.text(place(mark), 39, f"{mark:g}", anchor="middle") for mark in marks]
    parts += [charts.vertical(place(mark), 44, 50, "g") for mark in marks]
    return charts.cell(parts)


def _line(title: str, note: str, found: Estimate | None, place: charts.Scale, marks: list[float]) -> Line:
    parts = [charts.vertical(place(mark), 0, "100%", "g") for mark in marks]
    if found is not None:
        low, high, most = found.expected.low, found.expected.high, found.decode.ceiling
        if low is not None and high is not None:
            parts.append(charts.band(place(low), place(high), "30%", "40%", "pred"))
        if most is not None:
            parts.append(charts.vertical(place(most), "20%", "80%", "target"))
    return Line(
        title,
        note,
        charts.cell(parts),
        "–" if found is None else FITS[found.layout.fits],
        "–" if found is None else gb(found.decode.bytes_of("dram")),
        "–" if found is None else _ceiling(found),
        "–" if found is None else _range(found),
    )
