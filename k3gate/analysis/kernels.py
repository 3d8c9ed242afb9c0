"""Products of a run by what limits them: memory at few tokens, arithmetic at many, and where one gives way. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from attrs import frozen

from k3gate.metrics import KERNEL_EXPERT, KERNEL_FLOPS, KERNEL_PEAK, KERNEL_WEIGHTS, MEMORY_READ
from k3gate.probing.outcomes import evidence
from k3gate.records import Metric, Outcome, RunRecord, State

_USABLE = (State.OK, State.UNSTABLE)
_MOST_TOKENS = 512
_LEAST_RATE, _MOST_RATE = 1.0, 1e20
"""B/s and FLOP/s beyond which no machine of today measures: such a figure is read as if it were not there."""


@frozen
class Point:
    """A product with so many tokens: its rates in B/s of weights and in FLOP/s, and their metrics."""

    tokens: int
    weights: Metric
    flops: Metric

    @property
    def intensity(self) -> float:
        """Operations for each byte of weights."""
        return (self.flops.median or 0.0) / (self.weights.median or 1.0)


@frozen
class Product:
    """The points of a matrix and a format, by tokens: of one case, or of one for each instruction set."""

    outcome: Outcome
    """The first that has points."""
    shape: str
    format: str
    points: tuple[Point, ...]
    outcomes: tuple[Outcome, ...]


@frozen
class Roofs:
    """What the whole machine can do: B/s read, and FLOP/s on registers by type; None or absent: not measured."""

    read: float | None
    peaks: Mapping[str, tuple[float, str]]
    """Of a type the best (FLOP/s, path)."""

    def peak(self, point: Point) -> float | None:
        """The roof of arithmetic for a point, by the type of its activations; float32 where that has none."""
        kind = str(point.flops.labels.get("activations"))
        found = self.peaks.get(kind) or self.peaks.get("float32")
        return found[0] if found else None


def usable(metric: Metric) -> bool:
    """Whether a rate can be shown: it was measured, and some machine could have it."""
    return (
        metric.state in _USABLE and metric.median is not None and _LEAST_RATE <= metric.median <= _MOST_RATE
    )


def tokens_of(metric: Metric) -> int | None:
    """How many tokens a product had; None where its label is no such number."""
    tokens = metric.labels.get("tokens")
    if isinstance(tokens, bool) or not isinstance(tokens, int):
        return None
    return tokens if 1 <= tokens <= _MOST_TOKENS else None


def roofs(record: RunRecord, scope: str = "machine") -> Roofs:
    """The read rate and the peaks of a scope."""
    read: float | None = None
    peaks: dict[str, tuple[float, str]] = {}
    for outcome in record.outcomes:
        for metric in evidence(outcome):
            if not usable(metric) or metric.labels.get("scope") != scope:
                continue
            value = metric.median or 0.0
            if metric.name == MEMORY_READ.name:
                read = max(read or 0.0, value)
            elif metric.name == KERNEL_PEAK.name:
                kind = str(metric.labels.get("type"))
                peaks[kind] = max(peaks.get(kind, (0.0, "")), (value, str(metric.labels.get("path"))))
    return Roofs(read, peaks)


def products(record: RunRecord, scope: str = "machine") -> tuple[Product, ...]:
    """The products and experts of a scope that have figures, in the order of the run.

    Cases of one shape and format are one product, for each takes the instruction set that fits its tokens; of a
    number of tokens seen twice the first stands. Instruction sets timed for themselves (`isa`) stay apart.
    """
    points: dict[tuple[str, str, int], dict[int, Point]] = {}
    outcomes: dict[tuple[str, str, int], list[Outcome]] = {}
    for place, outcome in enumerate(record.outcomes):
        for shape, format_, point in _points(outcome, scope):
            key = (shape, format_, place if scope == "isa" else 0)
            if point.tokens in points.setdefault(key, {}):
                continue
            points[key][point.tokens] = point
            own = outcomes.setdefault(key, [])
            if not own or own[-1] is not outcome:
                own.append(outcome)
    return tuple(
        Product(
            outcomes[key][0],
            key[0],
            key[1],
            tuple(found[tokens] for tokens in sorted(found)),
            tuple(outcomes[key]),
        )
        for key, found in points.items()
    )


def _points(outcome: Outcome, scope: str) -> Iterator[tuple[str, str, Point]]:
    """(shape, format, point) of an outcome: what has both figures."""
    weights: dict[tuple[str, str, int], Metric] = {}
    flops: dict[tuple[str, str, int], Metric] = {}
    for metric in evidence(outcome):
        tokens = tokens_of(metric)
        if tokens is None or metric.labels.get("scope") != scope or not usable(metric):
            continue
        key = (str(metric.labels.get("shape")), str(metric.labels.get("format")), tokens)
        if metric.name in (KERNEL_EXPERT.name, KERNEL_WEIGHTS.name):
            weights.setdefault(key, metric)
        elif metric.name == KERNEL_FLOPS.name:
            flops.setdefault(key, metric)
    for key, metric in weights.items():
        if key in flops:
            yield key[0], key[1], Point(key[2], metric, flops[key])


def turning(points: Sequence[Point], limits: Roofs) -> tuple[float | None, str]:
    """(tokens from which on arithmetic is used more than memory, in words).

    Both rates are taken as shares of what the machine gives, and the shares are joined by straight lines over the
    logarithm of tokens, as they are drawn. None where they do not cross between the least and the most tokens, or a
    roof is not known.
    """
    ahead = []
    for point in points:
        peak = limits.peak(point)
        if not limits.read or not peak:
            return None, "not known: no roof of memory or of arithmetic was measured"
        memory = (point.weights.median or 0.0) / limits.read
        ahead.append((point.tokens, memory - (point.flops.median or 0.0) / peak))
    if ahead[0][1] <= 0:
        return None, f"bound by arithmetic from {ahead[0][0]} on"
    for (few, above), (many, below) in pairwise(ahead):
        if below <= 0:
            part = above / (above - below)
            tokens = math.exp(math.log(few) + part * (math.log(many) - math.log(few)))
            return tokens, f"at about {tokens:.0f}"
    return None, f"bound by memory up to {ahead[-1][0]}"
