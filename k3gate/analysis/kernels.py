"""Products of a run by what limits them: memory at few tokens, arithmetic at many, and where one gives way. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    """The points of a case, by tokens."""

    outcome: Outcome
    shape: str
    format: str
    points: tuple[Point, ...]


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
    """The products and experts of a scope that have figures, in the order of the run."""
    found = []
    for outcome in record.outcomes:
        weights: dict[int, Metric] = {}
        flops: dict[int, Metric] = {}
        for metric in evidence(outcome):
            tokens = tokens_of(metric)
            if tokens is None or metric.labels.get("scope") != scope or not usable(metric):
                continue
            if metric.name in (KERNEL_EXPERT.name, KERNEL_WEIGHTS.name):
                weights[tokens] = metric
            elif metric.name == KERNEL_FLOPS.name:
                flops[tokens] = metric
        both = sorted(set(weights) & set(flops))
        if both:
            labels = weights[both[0]].labels
            points = tuple(Point(tokens, weights[tokens], flops[tokens]) for tokens in both)
            found.append(Product(outcome, str(labels.get("shape")), str(labels.get("format")), points))
    return tuple(found)


def turning(points: Sequence[Point], limits: Roofs) -> tuple[float | None, str]:
    """(tokens from which on arithmetic is used more than memory, in words).

    Both rates are taken as shares of what the machine gives, and the logarithms of shares and tokens are joined by
    straight lines. None where they do not cross between the least and the most tokens, or a roof is not known.
    """
    shares = []
    for point in points:
        peak = limits.peak(point)
        if not limits.read or not peak:
            return None, "not known: no roof of memory or of arithmetic was measured"
        memory = (point.weights.median or 0.0) / limits.read
        shares.append((point.tokens, math.log(memory / ((point.flops.median or 0.0) / peak))))
    if shares[0][1] <= 0:
        return None, f"bound by arithmetic from {shares[0][0]} on"
    for (few, above), (many, below) in pairwise(shares):
        if below <= 0:
            part = above / (above - below)
            tokens = math.exp(math.log(few) + part * (math.log(many) - math.log(few)))
            return tokens, f"at about {tokens:.0f}"
    return None, f"bound by memory up to {shares[-1][0]}"
