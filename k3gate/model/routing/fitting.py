"""A trace fitted to another shape: other layers, experts and used ones, with its reuse and its coverage kept. Pure.

The rule. Layers: as many of the trace's as are asked for, of some hundred drawn choices the one whose reuse and
coverage differ least from the whole trace's; where more are asked for than there are, all of them in turn. Experts:
in each layer they are ranked by their uses, and rank r of E stands for the ranks around r x N / E of N, so that a
part of the slots keeps its part of the uses. Tokens: at each token those experts race whose rank the trace used, and
only where they are fewer than are asked for the others too, by the uses of their rank. Who was used before has a head
start (see `race`), which is solved for so that the reuse is the trace's; a power of the uses is chosen so that
coverage is nearest. Where not both can be kept, the reuse is. Ids are then shuffled in each layer, so that nothing
follows from the rank.

What cannot be kept is told: 16 of 32 experts have half of all uses on no fewer than a quarter of the slots.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from attrs import evolve, frozen
from numpy.typing import NDArray

from k3gate.errors import UsageError
from k3gate.model.routing.race import Weights, draw
from k3gate.model.routing.statistics import Statistics, coverage, describe, distances, loads, reuse_by_layer
from k3gate.model.routing.trace import MAX_EXPERTS, MAX_IDS, MAX_LAYERS, Trace

TOLERANCE = 0.05
"""Of reuse, and of the fractions of slots that have 50, 80 and 95 % of all uses."""
MAX_TOKENS = 4096
"""The first of a longer trace; a replay never takes as many steps."""
_CHOICES = 200
_TUNED_LAYERS, _TUNED_TOKENS = 8, 512
_NEAR = 0.015
"""Where tuning ends, of the largest distance in reuse and coverage."""
_FIRST = 1e6
"""Weight of experts whose rank the trace used at this token, against all others. No more, so that they can be passed
over where the reuse could not be kept otherwise: ranks that are joined follow each other more often."""


@frozen
class Fitted:
    """A trace in another shape. `of`: what the given trace shows; `realised`: what this one does.

    `kept`: whether reuse and coverage are within `TOLERANCE`; `reason`: in words, which is not, None where all are.
    `layers`: which of the given trace's layers each one stands for. `unchanged`: the shape was the same already.
    """

    trace: Trace
    of: Statistics
    realised: Statistics
    layers: tuple[int, ...]
    persistence: float
    power: float
    unchanged: bool = False

    @property
    def kept(self) -> bool:
        """Whether reuse and each fraction of slots are within 5 points."""
        return max(distances(self.of, self.realised)) <= TOLERANCE

    @property
    def reason(self) -> str | None:
        """One sentence with the figures that were not kept; None where all were."""
        names = ("reuse", *(f"slots that have {one.share:.0%} of all uses" for one in self.of.coverage))
        given = (self.of.reuse or 0.0, *(one.fraction for one in self.of.coverage))
        realised = (self.realised.reuse or 0.0, *(one.fraction for one in self.realised.coverage))
        told = [
            f"{name} {new:.1%} instead of {old:.1%}"
            for name, old, new, far in zip(
                names, given, realised, distances(self.of, self.realised), strict=True
            )
            if far > TOLERANCE
        ]
        if not told:
            return None
        shape = f"{self.trace.used} of {self.trace.expert_count} experts"
        return f"not kept within {TOLERANCE * 100:.0f} points with {shape}: {'; '.join(told)}"


def fit(trace: Trace, layers: int, experts: int, used: int, seed: int = 0) -> Fitted:
    """`trace` as one of `layers` layers with `used` of `experts` experts, int16 [tokens, layers, used].

    Tokens and sequences stay as they are, but for those after `MAX_TOKENS`. The same seed gives the same ids.
    `UsageError` where the shape cannot be.
    """
    if not (1 <= layers <= MAX_LAYERS and 1 <= used <= experts <= MAX_EXPERTS):
        raise UsageError(
            f"a shape of {layers} layers with {used} of {experts} experts cannot be: give 1 to {MAX_LAYERS} layers, "
            f"up to {MAX_EXPERTS:,} experts, and no more used ones than there are"
        )
    trace = _first(trace, MAX_TOKENS)
    if trace.tokens * layers * used > MAX_IDS:
        raise UsageError(
            f"{trace.tokens} tokens x {layers} layers x {used} experts are too many: ask for fewer"
        )
    of = describe(trace)
    if trace.shape == (layers, experts, used):
        return Fitted(trace, of, of, tuple(range(layers)), 1.0, 0.0, unchanged=True)
    chosen = _layers(trace, layers, of, seed)
    tuned = _first(_only(trace, chosen[: trace.layers]), _TUNED_TOKENS)
    if tuned.layers > _TUNED_LAYERS:
        tuned = _only(tuned, _layers(tuned, _TUNED_LAYERS, describe(tuned), seed))
    persistence, power = _tune(tuned, experts, used, seed)
    made = _raced(_only(trace, chosen), experts, used, persistence, power, seed)
    source = f"{trace.source}, fitted to {layers} layers with {used} of {experts} experts"
    made = evolve(_shuffled(made, seed), source=source)
    return Fitted(made, of, describe(made), chosen, persistence, power)


def _first(trace: Trace, tokens: int) -> Trace:
    starts = tuple(start for start in trace.starts if start < tokens)
    return evolve(trace, experts=trace.experts[:tokens], starts=starts)


def _only(trace: Trace, layers: tuple[int, ...]) -> Trace:
    return evolve(trace, experts=trace.experts[:, list(layers)])


def _layers(trace: Trace, number: int, of: Statistics, seed: int) -> tuple[int, ...]:
    """The layers of `trace` that stand for it, in their order."""
    if number >= trace.layers:
        return tuple(layer % trace.layers for layer in range(number))
    random = np.random.default_rng((seed, 1))
    counts, reuse = loads(trace), reuse_by_layer(trace)
    best: tuple[float, tuple[int, ...]] | None = None
    for _ in range(_CHOICES):
        some = tuple(sorted(random.choice(trace.layers, number, replace=False).tolist()))
        far = [
            abs(a.fraction - b.fraction)
            for a, b in zip(coverage(counts[list(some)]), of.coverage, strict=True)
        ]
        if reuse is not None and of.reuse is not None:
            far.append(abs(float(reuse[list(some)].mean()) - of.reuse))
        if best is None or max(far) < best[0]:
            best = max(far), some
    assert best is not None
    return best[1]


def _tune(trace: Trace, experts: int, used: int, seed: int) -> tuple[float, float]:
    """(persistence, power) with which the fitted `trace` has its own reuse and comes nearest to its coverage."""
    of = describe(trace)
    found: dict[float, tuple[float, float]] = {}

    def far(power: float) -> float:
        if power not in found:
            persistence, realised = _persistence(trace, experts, used, power, of, seed)
            apart = distances(of, realised)
            # Where not all can be kept the reuse is, since it decides what a cache holds.
            found[power] = max(apart) + 10 * max(0.0, apart[0] - 0.02), persistence
        return found[power][0]

    low, high = -1.0, 1.0
    for _ in range(5):
        if found and min(found.values())[0] < _NEAR:
            break
        left, middle, right = (3 * low + high) / 4, (low + high) / 2, (low + 3 * high) / 4
        best = min((left, middle, right), key=far)
        width = (high - low) / 4
        low, high = best - width, best + width
    power = min(found, key=lambda one: found[one][0])
    return found[power][1], power


def _persistence(
    trace: Trace, experts: int, used: int, power: float, of: Statistics, seed: int
) -> tuple[float, Statistics]:
    if of.reuse is None:
        return 1.0, describe(_raced(trace, experts, used, 1.0, power, seed))
    low, high = -16.0, 16.0
    for _ in range(11):
        middle = (low + high) / 2
        realised = describe(_raced(trace, experts, used, math.exp(middle), power, seed))
        assert realised.reuse is not None
        if abs(realised.reuse - of.reuse) < 0.002:
            break
        low, high = (middle, high) if realised.reuse < of.reuse else (low, middle)
    return math.exp(middle), realised


def _raced(trace: Trace, experts: int, used: int, persistence: float, power: float, seed: int) -> Trace:
    """Each layer of `trace` with `used` of `experts`, whose ids are ranks by the uses that they stand for."""
    counts = loads(trace)
    order = np.argsort(-counts, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(trace.expert_count)[None, :], axis=1)
    ranked = np.take_along_axis(counts, order, axis=1)
    parents = ((np.arange(experts) + 0.5) * trace.expert_count / experts).astype(np.intp)
    children = ((np.arange(trace.expert_count) + 0.5) * experts / trace.expert_count).astype(np.intp)
    fewer = experts < trace.expert_count
    if fewer:
        sums = np.stack([np.bincount(children, weights=row, minlength=experts) for row in ranked])
        standing = sums.astype(np.float64) / np.bincount(children, minlength=experts)
    else:
        standing = ranked[:, parents].astype(np.float64)
    # A quarter of a use, so that an expert that the trace never used can be.
    uses = standing + 0.25
    uses /= uses.mean(1, keepdims=True)
    first = (_FIRST * uses**power).astype(np.float32)
    other = (uses ** (1 + power)).astype(np.float32)
    width = experts if fewer else trace.expert_count
    offsets = np.arange(trace.layers)[:, None] * width

    def weights() -> Iterator[Weights]:
        for ids in trace.experts:
            at = np.take_along_axis(rank, ids.astype(np.intp), axis=1)
            at = children[at] if fewer else at
            hits = np.bincount((at + offsets).ravel(), minlength=trace.layers * width).reshape(
                trace.layers, width
            )
            hits = hits if fewer else hits[:, parents]
            yield np.where(hits > 0, first * hits, other).astype(np.float32)

    random = np.random.default_rng((seed, 2))
    steps = draw(weights(), 1, used, persistence, random, frozenset(trace.starts))
    return Trace(np.concatenate(steps), experts, trace.source, trace.starts)


def _shuffled(trace: Trace, seed: int) -> Trace:
    """The same with other ids in each layer."""
    random = np.random.default_rng((seed, 3))
    ids = np.tile(np.arange(trace.expert_count, dtype=np.int16), (trace.layers, 1))
    names: NDArray[np.int16] = random.permuted(ids, axis=1)
    return evolve(trace, experts=names[np.arange(trace.layers)[None, :, None], trace.experts.astype(np.intp)])
