"""The expected decode rate on the first page, as the replay predicts it or as a ceiling, and what limits it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import frozen
from markupsafe import Markup

from k3gate import units
from k3gate.analysis.limits import TITLES
from k3gate.records import CheckResult, State
from k3gate.reports import charts, words
from k3gate.reports.evidence import Link
from k3gate.units import NBSP

if TYPE_CHECKING:
    from k3gate.analysis.expectation import Expectation
    from k3gate.analysis.ladder import Rung

_IN_SIGHT = 2.5
"""A ceiling is drawn where it is no further off than so many times what else is drawn."""
_THICK = 20
"""Of the bar in px."""
_NOT_FITTING = "It holds only if the model fitted, and it does not."


@frozen
class Expected:
    """What may be said of the decode rate. `key`: what the drawing's patterns mean; empty where there is none."""

    hero: str
    small: str
    chart: Markup | None
    key: str
    note: str
    link: Link


def expected(
    rungs: Sequence[Rung],
    target: float | None,
    residency: CheckResult | None,
    found: Expectation | None,
    parts: Link | None,
) -> Expected:
    """The prediction of the replay, else a ceiling, else that nothing is known. `residency`: the check, if it fails."""
    ceiling, basis = _ceiling(rungs)
    if found is not None:
        return _predicted(found, ceiling, target, residency, parts)
    unknown = "A prediction needs the decode replay, which this run does not hold."
    if ceiling is None:
        return Expected(
            hero="Not known",
            small="no prediction, and no ceiling either",
            chart=None,
            key="",
            note=f"{unknown} A ceiling needs a read of the whole machine and the bytes of a token.",
            link=Link("Ladder", "#ladder"),
        )
    against = f", against a target of at least {target:g}" if target else ""
    fit = f" {_NOT_FITTING}" if residency else ""
    return Expected(
        hero=f"At most {told(ceiling)}",
        small=f"tokens/s for one sequence{against}",
        chart=charts.ceiling(ceiling, target, told, key="c-ceiling"),
        key="Hatched: out of reach of this memory.",
        note=f"A ceiling from {basis}{fit} {unknown}",
        link=Link("Ladder", "#ladder"),
    )


def _ceiling(rungs: Sequence[Rung]) -> tuple[float | None, str]:
    """(the most tokens/s that memory allows, of what and how sure as sentences); None where nothing says so."""
    best = next(
        (
            rung
            for key in ("read", "paper")
            for rung in rungs
            if rung.key == key and rung.tokens_per_s is not None
        ),
        None,
    )
    if best is None or best.tokens_per_s is None:
        return None, ""
    # A ceiling must not be met by luck: the upper end of the interval, not the median.
    limit = best.tokens_per_s
    if best.interval and best.value:
        limit *= max(1.0, best.interval[1] / best.value)
    basis = "measured read bandwidth" if best.key == "read" else "paper bandwidth"
    end = " the upper end of its interval," if best.interval else ""
    shaky = " That reading was unstable." if best.state is State.UNSTABLE else ""
    return limit, f"{basis},{end} not an expectation: nothing but memory is counted.{shaky}"


def told(value: float) -> str:
    """A rate in tokens/s for a heading: two digits below a hundred."""
    return units.significant(value, 2 if value < 100 else 3)


def _predicted(
    found: Expectation,
    ceiling: float | None,
    target: float | None,
    residency: CheckResult | None,
    parts: Link | None,
) -> Expected:
    low, high = found.prediction.interval
    who = "one sequence" if found.batch == 1 else f"each of {found.batch:,} sequences"
    own = found.prediction.base.number("layers")
    notes = [
        f"Predicted from a miniature of {own} layers that was replayed here, part by part; {found.held[0].lower()}"
        f"{found.held[1:]}"
    ]
    if found.doubts:
        notes.append(f"In doubt: {'; '.join(found.doubts)}.")
    if found.trunk == "gpu":
        notes.append("Of what CPU memory does alone: GPUs and the links to them take time besides.")
    if ceiling is not None and low > ceiling:
        notes.append(
            f"It lies above the {told(ceiling)} that the measured read rate allows: one of the two is wrong."
        )
    elif ceiling is not None and high > ceiling:
        notes.append(f"Its upper end lies above the {told(ceiling)} that the measured read rate allows.")
    elif ceiling is not None:
        notes.append(f"Memory allows at most {told(ceiling)}.")
    if residency:
        notes.append(_NOT_FITTING)
    key = "Solid: meets the target. Hatched: misses it." if target else ""
    return Expected(
        hero=_range(low, high),
        small=f"tokens/s for {who}, predicted from the replay",
        chart=_chart(low, high, target, ceiling),
        key=key,
        note=" ".join(notes),
        link=parts or Link("Ladder", "#ladder"),
    )


def _range(low: float, high: float) -> str:
    return f"{told(low)} to {told(high)}"


def _chart(low: float, high: float, target: float | None, ceiling: float | None) -> Markup:
    """The interval on an axis from 0, with the target and, where it is in sight, what memory allows."""
    most = max(high, target or 0.0)
    shown = ceiling if ceiling is not None and ceiling <= _IN_SIGHT * most else None
    at = charts.ticks(max(most, shown or 0.0) * 1.15)
    place = charts.scale(0, at[-1])
    lines = [
        (value, f"{label} {number}", line, text)
        for value, label, number, line, text in (
            (target, "target: at least", f"{target:g}" if target else "", "target", "tb halo"),
            (shown, "memory: at most", told(shown or 0.0), "cut", "halo"),
        )
        if value is not None
    ]
    bar = 8 + 20 * len(lines)
    floor = bar + 36
    parts: list[Markup] = []
    desc = f"Predicted {_range(low, high)} tokens per second."
    if target is not None:
        parts.append(charts.band(place(target), 100, 20, floor - 20, "f-wash"))
        where = "below it" if target <= low else "above it" if target > high else "inside the interval"
        desc += f" The target of at least {target:g} lies {where}."
    if shown is not None:
        desc += f" Memory allows at most {told(shown)}."
    edge = min(max(target, low), high) if target is not None else low
    if edge > low:
        parts.append(charts.band(place(low), place(edge), bar, _THICK, "miss"))
    if edge < high:
        parts.append(charts.band(place(edge), place(high), bar, _THICK, "f-data"))
    for number, (value, label, line, text) in enumerate(lines):
        x, y = place(value), 13 + 20 * number
        anchor = "middle" if 22 < x < 78 else "start" if x <= 22 else "end"
        parts.append(charts.vertical(x, y + 5, floor, line))
        parts.append(charts.text(x, y, label, style=text, anchor=anchor))
    if place(low) > 20:
        parts.append(charts.text(place(low), bar + 14, told(low), style="tb halo", anchor="end", dx=-7))
        parts.append(charts.text(place(high), bar + 14, told(high), style="tb halo", dx=7))
    else:
        # Where there is no room for both ends, the heading has them.
        label = _range(low, high) if place(high) < 62 else told(high)
        parts.append(charts.text(place(high), bar + 14, label, style="tb halo", dx=7))
    parts += charts.axis(place, at, floor, lambda value: f"{value:g}")
    title = "The predicted decode rate"
    return charts.svg(parts, height=floor + 22, key="c-expected", title=title, desc=desc)


def limiting(residency: CheckResult | None, found: Expectation | None) -> tuple[str, str]:
    """(what limits a token, in the words of a buyer; by which figures)."""
    if residency is not None:
        return "Capacity.", words.ended(residency.reason or "the image of the model does not fit")
    if found is None:
        return (
            "Not known.",
            "The decode replay has not run, so nothing says which tier takes the time of a token.",
        )
    if found.limit is None:
        return (
            "Not known.",
            "The read rate of the whole machine was not measured beside the replay, so its time cannot be shared out.",
        )
    first, *others = (one for one in found.limit.tiers if one.share >= 0.005)
    shared = words.listed(
        [
            f"{TITLES[first.key]} takes {words.share(first.share, 2)}",
            *(f"{TITLES[one.key]} {words.share(one.share, 2)}" for one in others),
        ]
    )
    doubt = " The replay was unstable." if found.prediction.base.rate.state is State.UNSTABLE else ""
    if found.limit.unknown:
        missing = words.listed(found.limit.unknown)
        return (
            "Not known.",
            f"{words.capital(missing)} were not measured. Of the time of the CPUs alone {shared}.{doubt}",
        )
    close = " They lie within 20" + NBSP + "% of each other." if len(found.limit.limiting) > 1 else ""
    return (
        words.ended(found.limit.words),
        f"Of a predicted token's time {shared}.{close}{doubt}",
    )
