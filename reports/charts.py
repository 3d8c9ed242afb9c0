"""A small set of SVG parts: scale, grid, line, band, dot, text. Fluid: x in per cent, y in px, no viewBox.

Colours come from classes of the style sheet alone, so that one drawing follows light, dark and paper. All
text is escaped here; a part is `Markup`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

from markupsafe import Markup, escape

Scale = Callable[[float], float]


def scale(low: float, high: float, *, log: bool = False, start: float = 0.0, end: float = 100.0) -> Scale:
    """A function from a value to its place in per cent; values outside are held at the edges."""
    forward = math.log if log else float
    first, last = forward(low), forward(high)
    width = (last - first) or 1.0

    def place(value: float) -> float:
        share = (forward(value) - first) / width
        return start + (end - start) * min(1.0, max(0.0, share))

    return place


def ticks(high: float, wanted: int = 4) -> list[float]:
    """Round values from 0 to at least `high`."""
    # What no quantity of a machine is (a stranger's bundle may say anything) gets an axis all the same.
    if not 1e-30 < high < 1e30:
        return [0.0, 1.0]
    raw = high / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999999)
    return [index * step for index in range(math.ceil(high / step - 1e-9) + 1)]


def svg(parts: Iterable[Markup], *, height: int, key: str, title: str, desc: str) -> Markup:
    """A drawing that stands alone: role, title and description for readers that do not see it."""
    return Markup(
        '<svg height="{h}" role="img" aria-labelledby="{k}t {k}d"><title id="{k}t">{t}</title>'
        '<desc id="{k}d">{d}</desc>{p}</svg>'
    ).format(h=height, k=key, t=title, d=desc, p=_join(parts))


def cell(parts: Iterable[Markup]) -> Markup:
    """A drawing in a table cell; hidden from readers, since the numbers stand in the next cells."""
    return Markup('<svg aria-hidden="true" focusable="false">{}</svg>').format(_join(parts))


def band(low: float, high: float, y: int | str, height: int | str, style: str) -> Markup:
    """A filled bar or band between two places."""
    return Markup('<rect class="{}" x="{:.2f}%" width="{:.2f}%" y="{}" height="{}"/>').format(
        style, low, max(0.0, high - low), y, height
    )


def vertical(x: float, y1: int | str, y2: int | str, style: str) -> Markup:
    """A vertical line."""
    return Markup('<line class="{}" x1="{x:.2f}%" x2="{x:.2f}%" y1="{}" y2="{}"/>').format(style, y1, y2, x=x)


def horizontal(x1: float, x2: float, y: int | str, style: str) -> Markup:
    """A horizontal line."""
    return Markup('<line class="{}" x1="{:.2f}%" x2="{:.2f}%" y1="{y}" y2="{y}"/>').format(style, x1, x2, y=y)


def dot(x: float, y: int | str, style: str, radius: float = 3.6) -> Markup:
    """One observed value."""
    return Markup('<circle class="{}" cx="{:.2f}%" cy="{}" r="{}"/>').format(style, x, y, radius)


def curve(points: Sequence[tuple[float, float]], height: int, style: str) -> Markup:
    """A line through places (per cent, px), stretched with its drawing; its stroke keeps its width."""
    told = " ".join(f"{10 * x:.1f},{y:.1f}" for x, y in points)
    return Markup(
        '<svg x="0" y="0" width="100%" height="{h}" viewBox="0 0 1000 {h}" preserveAspectRatio="none">'
        '<polyline class="{s}" points="{p}"/></svg>'
    ).format(h=height, s=style, p=told)


def levels(place: Scale, at: Sequence[float], label: Callable[[float], str]) -> list[Markup]:
    """Horizontal lines of a plot with their values at the left."""
    parts = []
    for value in at:
        y = place(value)
        parts.append(horizontal(0, 100, f"{y:.1f}", "g"))
        parts.append(text(0, round(y) + 4, label(value), style="t2", anchor="end", dx=-8))
    return parts


def text(x: float, y: int, content: str, *, style: str = "", anchor: str = "start", dx: int = 0) -> Markup:
    """A label at a place."""
    return Markup('<text class="{}" x="{:.2f}%" dx="{}" y="{}" text-anchor="{}">{}</text>').format(
        style, x, dx, y, anchor, content
    )


def whisker(low: float, high: float, style: str = "wh") -> Markup:
    """An interval with end strokes, half-way down its cell."""
    stroke = Markup('<line class="{}" x1="0" x2="0" y1="-5" y2="5"/>').format(style)
    ends = (
        Markup('<svg x="{:.2f}%" y="50%" width="1" height="1">{}</svg>').format(x, stroke)
        for x in (low, high)
    )
    return _join(itertools.chain((horizontal(low, high, "50%", style),), ends))


def axis(place: Scale, at: Sequence[float], y: int, label: Callable[[float], str]) -> list[Markup]:
    """A horizontal axis with its ticks and their values."""
    parts = [horizontal(0, 100, y, "ax")]
    for value in at:
        parts.append(vertical(place(value), y, y + 4, "ax"))
        parts.append(text(place(value), y + 17, label(value), style="t2", anchor="middle"))
    return parts


def ceiling(limit: float, target: float | None, label: Callable[[float], str], *, key: str) -> Markup:
    """The rate that nothing can exceed, against the target. Hatched: out of reach."""
    at = ticks(max(limit, target or 0) * 1.15)
    place = scale(0, at[-1])
    x = place(limit)
    parts: list[Markup] = []
    desc = f"Ceiling {label(limit)}."
    if target is not None:
        parts.append(band(place(target), 100, 22, 48, "f-wash"))
        reach = "at or below" if target <= limit else "above"
        desc += f" The target of at least {target:g} lies {reach} it."
    parts += [band(0, x, 36, 20, "f-data2"), band(x, 100, 36, 20, "beyond"), vertical(x, 32, 70, "target")]
    inside = x > 45
    parts.append(
        text(
            x,
            50,
            f"at most {label(limit)}",
            style="tb halo",
            anchor="end" if inside else "start",
            dx=-8 if inside else 8,
        )
    )
    if target is not None:
        t = place(target)
        anchor = "middle" if 18 < t < 82 else ("start" if t <= 18 else "end")
        parts += [
            vertical(t, 20, 70, "target"),
            text(t, 13, f"target: at least {target:g}", style="tb", anchor=anchor),
        ]
    parts += axis(place, at, 70, lambda value: f"{value:g}")
    return svg(parts, height=92, key=key, title="The ceiling of the decode rate", desc=desc)


def _join(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(escape(part) for part in parts)
