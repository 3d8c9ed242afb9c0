"""A model of routing with a stated skew and next-token reuse, for where there is no trace. Pure, and equal by seed.

Experts of a layer have log-normal weights, in an order of their own in each layer, and are drawn as `race` says. Two
numbers are solved for: the spread of the weights gives the skew, the persistence gives the reuse beyond that which
popular experts have by themselves. The expectation is solved, expert by expert, in the stationary state: an expert
is used with probability a = 1 - exp(-w f t) after it was used and b = 1 - exp(-w t) after it was not, so its load is
b / (1 - a + b), and t makes all loads sum to `used`.

Log-normal, since that is what the one public trace at hand looks like (Kimi-Linear-48B-A3B, 300 tokens: 8.7, 28.2 and
51.3 % of the slots have 50, 80 and 95 % of all uses; log-normal weights alone with spread 1.36 give 8.7, 30 and 61 %
over endless tokens). Left out: topics that change, and layers that choose alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import repeat
from statistics import NormalDist

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from k3gate.errors import UsageError
from k3gate.model.routing.race import draw
from k3gate.model.routing.statistics import Statistics, describe
from k3gate.model.routing.trace import MAX_EXPERTS, Trace, check_sizes

REUSE = 0.295
"""Next-token reuse reported for Kimi K3 (waste; medium confidence)."""
SKEW = 32.9
"""Busiest expert by the mean of all, reported for Kimi K3 (PipeNetwork; medium confidence). It is taken as that of each
layer; over all slots of the trace above it is 29.8 of at most 32."""
BUSIEST = SKEW / 56
"""The share of tokens that use a layer's busiest expert: 59 %, since the skew is 56 where all tokens use one of 896."""
TOLERANCE = 0.01
"""Of the reuse that comes out against the one that was asked for."""
MAX_SKEW = 0.95
"""Of experts by used, which is an expert that every token uses."""
_SETTLING = 8
"""Steps before the first that is kept, so that it has the reuse and the skew of all others."""
_GROUP = 1 << 22
_TRIES = 12


@frozen
class Modelled:
    """A trace that was drawn, what was asked for (`reuse` None: what chance gives), and what came out."""

    trace: Trace
    reuse: float | None
    skew: float
    seed: int
    spread: float
    """Standard deviation of the logarithm of weights."""
    persistence: float
    realised: Statistics


def synthesize(
    tokens: int,
    layers: int,
    experts: int,
    used: int,
    reuse: float | None = REUSE,
    skew: float | None = None,
    seed: int = 0,
    sequences: int = 1,
) -> Modelled:
    """`sequences` independent ones of `tokens` each; trace.experts is [sequences x tokens, layers, used], one sequence
    after another.

    `skew`: uses of a layer's busiest expert by the mean of all, from 1; None: so much that `BUSIEST` of the tokens use
    that expert, which is `SKEW` of Kimi K3 and less where a layer has fewer experts. `reuse`: share of experts that
    the token before used too, None for what chance gives; skew 1 and reuse None are uniform routing. The reuse that
    comes out is within `TOLERANCE` where the trace has at least some thousand uses. `UsageError` where both cannot be.
    """
    name = "the model of routing"
    check_sizes(name, tokens * sequences, layers, used)
    if not used <= experts <= MAX_EXPERTS or sequences < 1:
        raise UsageError(
            f"{name}: {used} of {experts} experts cannot be used by {sequences} sequences: correct that"
        )
    if skew is None:
        skew = max(1.0, round(BUSIEST * experts / used, 6))
    spread, persistence = solve(experts, used, reuse, skew)
    weights = _weights(layers, experts, spread, seed)

    def made(persistence: float) -> Trace:
        told = "what chance gives" if reuse is None else f"{reuse:.1%}"
        source = f"a model with skew {skew:g} and reuse {told}, seed {seed}"
        return _drawn(weights, tokens, sequences, used, persistence, seed, source)

    trace = made(persistence)
    realised = describe(trace)
    if reuse is not None and realised.reuse is not None and experts > used:
        low, high = math.log(persistence) - 2, math.log(persistence) + 2
        for _ in range(_TRIES):
            if abs(realised.reuse - reuse) <= TOLERANCE / 2:
                break
            low, high = (
                (math.log(persistence), high) if realised.reuse < reuse else (low, math.log(persistence))
            )
            tried = math.exp((low + high) / 2)
            other = made(tried)
            persistence, trace, realised = tried, other, describe(other)
            assert realised.reuse is not None
    return Modelled(trace, reuse, skew, seed, spread, persistence, realised)


@lru_cache(maxsize=64)
def solve(experts: int, used: int, reuse: float | None, skew: float) -> tuple[float, float]:
    """(spread, persistence) whose expected skew and reuse are those; `UsageError` where none are."""
    if reuse is not None and not 0 <= reuse <= 1:
        raise UsageError(f"a reuse of {reuse:g} cannot be: give a share from 0 to 1")
    least = max(0.0, 2 - experts / used)
    if reuse is not None and reuse < least - 1e-9:
        raise UsageError(
            f"a reuse of {reuse:.1%} cannot be: two tokens that use {used} of {experts} experts share at least "
            f"{least:.1%}"
        )
    most = max(1.0, MAX_SKEW * experts / used)
    if not 1 <= skew <= most:
        raise UsageError(
            f"a skew of {skew:g} cannot be: where {used} of {experts} experts are used, give 1 to {most:.4g}"
        )
    if experts == used:
        return 0.0, 1.0
    ranks = np.array([NormalDist().inv_cdf((n + 0.5) / experts) for n in range(experts)])

    def persistence_of(spread: float) -> float:
        if reuse is None:
            return 1.0
        return math.exp(_rising(lambda f: _expected(ranks, spread, math.exp(f), used)[1] - reuse, -9.0, 14.0))

    def too_even(spread: float) -> float:
        return _expected(ranks, spread, persistence_of(spread), used)[0] * experts / used - skew

    spread = 0.0 if skew == 1 else _rising(too_even, 0.0, 6.0)
    persistence = persistence_of(spread)
    load, again = _expected(ranks, spread, persistence, used)
    if (reuse is not None and abs(again - reuse) > TOLERANCE / 2) or abs(
        load * experts / used / skew - 1
    ) > 0.02:
        raise UsageError(
            f"a skew of {skew:g} with a reuse of {reuse or 0:.1%} cannot be had with {used} of {experts} experts: "
            "experts that are used so often are used again more often, or less often, than that; change one of them"
        )
    return spread, persistence


def _rising(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function passes 0, between `low` and `high`."""
    for _ in range(26):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return (low + high) / 2


def _expected(
    ranks: NDArray[np.float64], spread: float, persistence: float, used: int
) -> tuple[float, float]:
    """(load of the busiest expert, reuse) in the stationary state."""
    weights = np.exp(spread * (ranks - ranks[-1]))
    low, high = -30.0, 60.0
    for _ in range(44):
        middle = (low + high) / 2
        time = math.exp(middle)
        again, anew = -np.expm1(-weights * persistence * time), -np.expm1(-weights * time)
        loads = anew / (1 - again + anew + 1e-300)
        low, high = (middle, high) if loads.sum() < used else (low, middle)
    return float(loads.max()), float((loads * again).sum() / loads.sum())


def _weights(layers: int, experts: int, spread: float, seed: int) -> NDArray[np.float32]:
    """[layers, experts], the same weights in another order in each layer."""
    normal = NormalDist()
    sorted_weights = np.exp([spread * normal.inv_cdf((n + 0.5) / experts) for n in range(experts)])
    random = np.random.default_rng((seed, 0))
    return random.permuted(np.tile(sorted_weights.astype(np.float32), (layers, 1)), axis=1)


def _drawn(
    weights: NDArray[np.float32],
    tokens: int,
    sequences: int,
    used: int,
    persistence: float,
    seed: int,
    source: str,
) -> Trace:
    layers, experts = weights.shape
    together = max(1, _GROUP // weights.size)
    parts = []
    for first in range(0, sequences, together):
        number = min(together, sequences - first)
        random = np.random.default_rng((seed, 1 + first))
        steps = draw(repeat(weights, _SETTLING + tokens), number, used, persistence, random)[_SETTLING:]
        parts.append(np.stack(steps, axis=1).reshape(number * tokens, layers, used))
    starts = tuple(range(0, sequences * tokens, tokens))
    return Trace(np.concatenate(parts), experts, source, starts)
