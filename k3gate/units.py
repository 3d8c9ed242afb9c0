"""Base units scaled for display. Stored values never pass through here.

GB = 10^9 bytes; GiB only where memory is sold so. Three significant digits for measurements.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

NBSP = "\u00a0"
MINUS = "\u2212"
_SCALES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def significant(value: float, digits: int = 3) -> str:
    """`value` with `digits` significant digits, thousands separated by commas, never in exponent form."""
    if not math.isfinite(value):
        return "unknown"
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    rounded = round(value, digits - 1 - exponent)
    exponent = math.floor(math.log10(abs(rounded))) if rounded else 0
    text = f"{abs(rounded):,.{max(0, digits - 1 - exponent)}f}"
    return (MINUS if rounded < 0 else "") + text


def quantity(value: float | None, unit: str | None, digits: int = 3, space: str = " ") -> str:
    """A value in base units as a person reads it: "26.3 GB/s", "1.45 TB", "85.0 ns"; None is "unknown"."""
    if value is None:
        return "unknown"
    if unit in (None, "", "1"):
        return significant(value, digits)
    if unit == "s":
        return _seconds(value, digits, space)
    if unit == "s/B":
        return f"{significant(value * 1e9, digits)}{space}s/GB"
    if unit in ("B", "B/s", "FLOP/s", "Hz", "OP/s"):
        for scale, prefix in _SCALES:
            if abs(value) >= scale:
                return f"{significant(value / scale, digits)}{space}{prefix}{unit}"
    return f"{significant(value, digits)}{space}{unit}"


def _seconds(value: float, digits: int, space: str) -> str:
    if value == 0 or abs(value) >= 1:
        return f"{significant(value, digits)}{space}s"
    for scale, prefix in ((1e-3, "ms"), (1e-6, "µs")):
        if abs(value) >= scale:
            return f"{significant(value / scale, digits)}{space}{prefix}"
    return f"{significant(value / 1e-9, digits)}{space}ns"


def gib(value: float | None, space: str = " ") -> str:
    """Bytes in GiB, as memory is sold: "24.0 GiB", "4,096 GiB"; None is "unknown"."""
    if value is None:
        return "unknown"
    size = value / 2**30
    return f"{f'{size:,.0f}' if size >= 1000 else significant(size)}{space}GiB"


def exact_bytes(value: int, space: str = " ") -> str:
    """A size for arithmetic that must be checked: "1,560.9 GB"."""
    return f"{value / 1e9:,.1f}{space}GB"


def duration(seconds: float | None) -> str:
    """A span for a person: "48 s", "3 min 20 s", "1 h 05 min"; None is "unknown"."""
    if seconds is None:
        return "unknown"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def cpu_list(cpus: tuple[int, ...] | list[int]) -> str:
    """CPU ids as the kernel writes them: "0-3,8"; "none" for an empty list."""
    parts: list[str] = []
    ids = sorted(cpus)
    index = 0
    while index < len(ids):
        start = end = ids[index]
        while index + 1 < len(ids) and ids[index + 1] == end + 1:
            index += 1
            end = ids[index]
        parts.append(str(start) if start == end else f"{start}-{end}")
        index += 1
    return ",".join(parts) or "none"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """ "1 waiver", "2 waivers"; `plural` for nouns that do not take an s."""
    return f"{number} {noun}" if number == 1 else f"{number:,} {plural or noun + 's'}"


def capital(text: str) -> str:
    """`text` with its first letter upper case."""
    return text[:1].upper() + text[1:]


def listed(items: Iterable[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    names = list(items)
    if len(names) < 2:
        return "".join(names)
    return ", ".join(names[:-1]) + " and " + names[-1]
