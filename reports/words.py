"""The words and numbers of a page: verdicts, states, values with units, dates. Everything returns plain text.

Numbers and their units are tied by a no-break space; ranges take an en dash; a minus is U+2212.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from k3gate import units
from k3gate.records import Bound, Interval, Labels, State, Verdict
from k3gate.units import NBSP

if TYPE_CHECKING:
    from k3gate.analysis.comparison import MetricComparison

capital = units.capital
listed = units.listed

VERDICTS: Mapping[Verdict, str] = {
    Verdict.PASS: "pass",
    Verdict.FAIL: "fail",
    Verdict.UNPROVEN: "unproven",
    Verdict.WAIVED: "waived",
    Verdict.NOT_APPLICABLE: "does not apply",
}
STATES: Mapping[State, str] = {
    State.OK: "ok",
    State.UNSTABLE: "unstable",
    State.FAILED: "failed",
    State.NOT_PERMITTED: "not permitted",
    State.NOT_PRESENT: "not present",
    State.NOT_RUN: "not run",
}
_SMALL = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_TIED = re.compile(
    r"(?<=\d) (?=(?:%|[kMGTPE]?B(?:/s)?|[KMGT]iB|[kMG]?Hz|MT/s|tokens|bytes|ms|µs|ns|s|min|h|W)(?![A-Za-z]))"
)


def tied(text: str) -> str:
    """`text` with no-break spaces between numbers and the units after them."""
    return _TIED.sub(NBSP, text)


def small(number: int) -> str:
    """ "two", "13": counts up to ten in words."""
    return _SMALL[number] if 0 <= number < len(_SMALL) else f"{number:,}"


def count(number: int, one: str, many: str | None = None) -> str:
    """ "one check", "12 checks": small counts in words."""
    return f"{small(number)} {one if number == 1 else many or one + 's'}"


def bare(text: str) -> str:
    """`text` without the full stop at its end, to stand inside a sentence or a cell."""
    return text.strip().removesuffix(".")


def ended(text: str) -> str:
    """`text` as a sentence: first letter upper case, a full stop at the end."""
    text = capital(tied(text.strip()))
    return text if text.endswith((".", "?")) else text + "."


def rate(value: float | None, digits: int = 3) -> str:
    """B/s as GB/s without the unit: "235", "26.3"; None is "unknown"."""
    return "unknown" if value is None else units.significant(value / 1e9, digits)


def nanoseconds(value: float | None, digits: int = 3) -> str:
    """Seconds as ns without the unit: "112"; None is "unknown"."""
    return "unknown" if value is None else units.significant(value * 1e9, digits)


def microseconds(value: float | None) -> str:
    """Seconds as µs without the unit: "8.4"; None is "unknown"."""
    return "unknown" if value is None else units.significant(value * 1e6)


def nanosecond_range(interval: tuple[float, float] | None) -> str:
    """An interval of seconds in ns: "90-112"; None is "no interval"."""
    return "no interval" if interval is None else "–".join(nanoseconds(edge) for edge in interval)


def share(value: float | None, digits: int = 3) -> str:
    """A fraction in prose: "76.5 %"; None is "unknown"."""
    return "unknown" if value is None else f"{units.significant(value * 100, digits)}{NBSP}%"


def value(number: float | None, unit: str | None, digits: int = 3) -> str:
    """A value in base units for a table cell: rates in GB/s, sizes of a gigabyte and more to 0.1 GB."""
    if number is None or not math.isfinite(number):
        return "unknown"
    if unit in (None, "", "1") and 0 < abs(number) < 1e-3:
        mantissa, _, power = f"{number:.{digits - 1}e}".partition("e")
        return f"{mantissa}{NBSP}×{NBSP}10{str(int(power)).translate(_RAISED)}"
    if unit == "B/s" and abs(number) >= 1e8:
        return f"{rate(number, digits)}{NBSP}GB/s"
    if unit == "B" and abs(number) >= 1e9:
        return units.exact_bytes(int(number), NBSP)
    return tied(units.quantity(number, unit, digits, NBSP))


def interval(bounds: Interval | None, unit: str | None, digits: int = 3) -> str:
    """ "234–237 GB/s"; None is "no interval"."""
    if bounds is None:
        return "no interval"
    low, high = (value(edge, unit, digits) for edge in bounds)
    if NBSP in low and NBSP in high and low.split(NBSP)[1] == high.split(NBSP)[1]:
        low = low.split(NBSP)[0]
    return f"{low}–{high}"


def bound(limits: Bound, unit: str | None) -> str:
    """ "≥ 0.700", "≤ 140 ns", "0.900 to 1.10"; a check without figures is judged by its claim."""
    if limits.min is not None and limits.max is not None:
        if limits.min == limits.max:
            return value(limits.min, unit)
        return f"{value(limits.min, unit)} to {value(limits.max, unit)}"
    if limits.min is not None:
        return f"≥{NBSP}{value(limits.min, unit)}"
    if limits.max is not None:
        return f"≤{NBSP}{value(limits.max, unit)}"
    return "as claimed"


def stamp(text: str | None) -> datetime.datetime | None:
    """An ISO 8601 stamp, or None where it is none."""
    try:
        return datetime.datetime.fromisoformat(text) if text else None
    except ValueError:
        return None


def date(text: str | None) -> str:
    """ "9 December 2026"; what is no stamp stays as it is, None is "unknown"."""
    moment = stamp(text)
    if moment is None:
        return text or "unknown"
    return f"{moment.day}{NBSP}{_MONTHS[moment.month - 1]}{NBSP}{moment.year}"


def span(started: str | None, ended: str | None) -> str:
    """ "9 December 2026, 10:04 to 11:10 (UTC)"."""
    first, last = stamp(started), stamp(ended)
    if first is None:
        return started or "unknown"
    zone = "UTC" if not first.utcoffset() else f"UTC{first:%z}"
    if last is None:
        return f"{date(started)}, from {first:%H:%M} ({zone}); the end is unknown"
    until = f"{last:%H:%M}" if first.date() == last.date() else f"{date(ended)}, {last:%H:%M}"
    return f"{date(started)}, {first:%H:%M} to {until} ({zone})"


def duration(seconds: float | None) -> str:
    """ "48 s", "3 min 20 s", tied."""
    return tied(units.duration(seconds))


def size(number: object) -> str:
    """A size as it was asked for: binary where it is a round binary number, else decimal."""
    if not isinstance(number, int | float) or isinstance(number, bool):
        return "unknown"
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= factor and number % factor == 0:
            return f"{number // factor:,.0f}{NBSP}{unit}"
    return value(float(number), "B")


def label(key: str, content: object) -> str:
    """One label of a metric: "threads 64", "page size 2 MiB"."""
    if content is None:
        return f"{key.replace('_', ' ')}: the whole machine" if key.endswith("_node") else f"{key}: unknown"
    if key == "page_size" or key.endswith("_bytes"):
        return f"{key.removesuffix('_bytes').replace('_', ' ')} {size(content)}"
    return f"{key.replace('_', ' ')} {content}"


def labels(content: Mapping[str, object]) -> str:
    """All labels of a metric in one line."""
    return "; ".join(label(key, item) for key, item in content.items())


def telling(alike: Iterable[Mapping[str, object]]) -> list[str]:
    """The labels that tell figures of one name apart, in order."""
    every = list(alike)
    return [
        key
        for key in sorted({key for one in every for key in one})
        if len({one.get(key) for one in every}) > 1
    ]


def apart(key: str, content: object) -> str:
    """A label beside the name of a metric: "path avx512_vnni", "tokens 1", "pool 2 MiB"."""
    return f"{key.removesuffix('_bytes').replace('_', ' ')} {size(content) if key.endswith('_bytes') else content}"


def apart_in_both(metrics: Sequence[MetricComparison]) -> list[str]:
    """For each metric of two runs, which figure of its case it is: ", path avx512_vnni, tokens 1"; often empty.

    A label by which the runs differ is told of both: "path avx512_vnni in A, path amx_int8 in B".
    """
    sides: dict[tuple[str, str, str], tuple[list[Labels], list[Labels]]] = {}
    for item in metrics:
        both = sides.setdefault((item.probe, item.case, item.name), ([], []))
        for own, metric in zip(both, (item.a, item.b), strict=True):
            if metric is not None:
                own.append(metric.labels)
    keys_of = {name: {key for own in both for key in telling(own)} for name, both in sides.items()}
    found = []
    for item in metrics:
        keys = set(keys_of[item.probe, item.case, item.name])
        if (
            item.a is not None
            and item.b is not None
            and item.a.labels.get("path") != item.b.labels.get("path")
        ):
            keys.add("path")
        found.append("".join(f", {_apart_in_both(item, key)}" for key in sorted(keys)))
    return found


def _apart_in_both(item: MetricComparison, key: str) -> str:
    if item.a is not None and item.b is not None:
        one, other = (metric.labels.get(key) for metric in (item.a, item.b))
        if one != other:
            return f"{apart(key, one)} in A, {apart(key, other)} in B"
    return apart(key, item.labels.get(key))


def reading(labels_: Mapping[str, object]) -> str | None:
    """What a bandwidth metric reads by its labels: "node 0 reads from node 1"; None where they do not say."""
    cpu, memory, scope = (labels_.get(key) for key in ("cpu_node", "memory_node", "scope"))
    pages = f", pages of {size(labels_['page_size'])}" if labels_.get("page_size") == 4096 else ""
    if scope == "machine":
        return f"the whole machine, each node its own memory{pages}"
    if scope == "socket":
        return f"socket {labels_.get('socket')}, each node its own memory{pages}"
    if scope == "image":
        held = labels_.get("pool_bytes")
        much = value(float(held), "B") if isinstance(held, int) else "an unknown part"
        return f"the whole machine, all over {much} of the image{pages}"
    if scope == "interleaved":
        return f"the whole machine, every thread all nodes' memory{pages}"
    if cpu is None or memory is None:
        return None
    who = f"one core of node {cpu}" if scope == "core" else f"node {cpu}"
    if scope == "sweep":
        who = f"node {cpu}, {count(int(str(labels_.get('threads') or 0)), 'thread')},"
    return f"{who} reads {'its own memory' if cpu == memory else f'from node {memory}'}{pages}"
