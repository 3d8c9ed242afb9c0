"""Paired ratios: two sides measured in turn, A B A B, so that drift of the machine falls on both alike."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

from attrs import frozen

LEAST_PAIRS = 15
RESOLVABLE = 0.10
"""An interval wider than +-10 % of its ratio decides nothing."""


@frozen
class Ratio:
    """The geometric mean of first / second over the pairs, with its 95 % interval (t, on logarithms)."""

    ratio: float
    low: float
    high: float
    pairs: int


def measure(
    first: Callable[[], float],
    second: Callable[[], float],
    pairs: int,
    note: str = "",
    unit: str = "GB/s",
    scale: float = 1e9,
) -> list[tuple[float, float]]:
    """Rates of both sides, interleaved; which side goes first alternates from pair to pair."""
    first(), second()  # warm-up, not counted
    taken = []
    for number in range(pairs):
        if number % 2 == 0:
            a = first()
            b = second()
        else:
            b = second()
            a = first()
        taken.append((a, b))
        told = f"{a / scale:.2f} against {b / scale:.2f} {unit}"
        print(f"  {note} pair {number + 1}/{pairs}: {told}", file=sys.stderr)
    return taken


def ratio(taken: list[tuple[float, float]]) -> Ratio:
    """The ratio of pairs of rates."""
    from scipy import stats

    logs = [math.log(a / b) for a, b in taken]
    count = len(logs)
    mean = sum(logs) / count
    deviation = math.sqrt(sum((one - mean) ** 2 for one in logs) / (count - 1))
    half = float(stats.t.ppf(0.975, count - 1)) * deviation / math.sqrt(count)
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), count)


def verdict(found: Ratio, goal: float) -> str:
    """The speed-line rule: held when the interval reaches the goal, provided that it is narrow enough.

    An interval that only its upper end carries there is said so: it is no proof of the goal.
    """
    if found.pairs < LEAST_PAIRS:
        return f"not resolvable here ({found.pairs} pairs, {LEAST_PAIRS} are needed)"
    if found.high / found.ratio - 1 > RESOLVABLE or 1 - found.low / found.ratio > RESOLVABLE:
        return "not resolvable here"
    if found.low >= goal:
        return "held"
    return "held, by the upper part of the interval alone" if found.high >= goal else "not held"


def direction(name: str, found: Ratio) -> str:
    """One line on whether the first side is faster, by however much: its interval is wholly above 1."""
    if found.pairs < LEAST_PAIRS:
        told = f"not resolvable here ({found.pairs} pairs, {LEAST_PAIRS} are needed)"
    elif found.low > 1.0:
        told = "held"
    else:
        told = "the wrong way" if found.high < 1.0 else "not resolvable here"
    return f"{name}: {found.ratio:.3f} ({found.low:.3f} to {found.high:.3f}, {found.pairs} pairs), over 1: {told}"


def line(name: str, found: Ratio, goal: float) -> str:
    """One line to print and to keep."""
    return (
        f"{name}: {found.ratio:.3f} ({found.low:.3f} to {found.high:.3f}, {found.pairs} pairs), "
        f"goal {goal:.2f}: {verdict(found, goal)}"
    )
