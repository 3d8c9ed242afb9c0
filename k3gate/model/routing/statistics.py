"""What a trace shows: reuse, skew, entropy, and what a hot set of experts would have caught. Pure.

A hot set that is chosen from the very tokens that are counted catches more than it will catch of others. So each half
of the tokens is counted with the set that the other half chooses too (`held_out`).
"""

from __future__ import annotations

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from k3gate.model.routing.trace import Trace

SHARES = (0.5, 0.8, 0.95)
_CHUNK_BYTES = 1 << 26

Counts = NDArray[np.int64]


@frozen
class Layer:
    """One layer. `skew`: uses of its busiest expert by the mean of all; `busiest`: the share of uses of that expert.

    `reuse`: None where no token follows another. `entropy`: of uses over experts, in bits. `distinct`: experts used.
    """

    reuse: float | None
    skew: float
    busiest: float
    entropy: float
    distinct: int


@frozen
class Covered:
    """The fewest slots, (layer, expert) pairs, that have `share` of all uses, and their part of all slots."""

    share: float
    slots: int
    fraction: float


@frozen
class Caught:
    """What `experts` hot experts of each layer catch of all uses, from 0 to 1; `held_out`: None with one token."""

    experts: int
    caught: float
    held_out: float | None


@frozen
class Statistics:
    """Of a whole trace. `reuse`: the share of used experts that the token before used in the same layer.

    `skew`: the mean of the layers; `skew_of_slots`: uses of the busiest slot by the mean of all. `entropy`: mean of
    the layers, in bits; `uniform_entropy`: of uniform use. `hot_slots`: the busiest slots of all layers together,
    as (slots, share of uses).
    """

    tokens: int
    sequences: int
    layers: int
    experts: int
    used: int
    reuse: float | None
    skew: float
    skew_of_slots: float
    entropy: float
    uniform_entropy: float
    distinct: int
    coverage: tuple[Covered, ...]
    hot_set: tuple[Caught, ...]
    hot_slots: tuple[tuple[int, float], ...]
    by_layer: tuple[Layer, ...]

    @property
    def slots(self) -> int:
        """(layer, expert) pairs."""
        return self.layers * self.experts

    @property
    def uses(self) -> int:
        """Activations: experts used by all tokens in all layers."""
        return self.tokens * self.layers * self.used


def describe(trace: Trace) -> Statistics:
    """All of it, in one pass over parts of the trace: memory is bounded by its own size."""
    counts = loads(trace)
    reuse = reuse_by_layer(trace)
    total = trace.tokens * trace.used
    shares = counts / total
    logs = np.log2(shares, out=np.zeros_like(shares), where=counts > 0)
    entropies = -(shares * logs).sum(1)
    ordered = np.sort(counts, axis=1)[:, ::-1]
    skews = ordered[:, 0] * trace.expert_count / total
    slots = np.sort(counts.ravel())[::-1].cumsum() / counts.sum()
    return Statistics(
        tokens=trace.tokens,
        sequences=len(trace.starts),
        layers=trace.layers,
        experts=trace.expert_count,
        used=trace.used,
        reuse=None if reuse is None else float(reuse.mean()),
        skew=float(skews.mean()),
        skew_of_slots=float(counts.max() / counts.mean()),
        entropy=float(entropies.mean()),
        uniform_entropy=float(np.log2(trace.expert_count)),
        distinct=int((counts > 0).sum()),
        coverage=coverage(counts),
        hot_set=_hot_set(trace, ordered),
        hot_slots=tuple((n, min(1.0, float(slots[n - 1]))) for n in points(slots.size)),
        by_layer=tuple(
            Layer(
                None if reuse is None else float(reuse[layer]),
                float(skews[layer]),
                float(ordered[layer, 0] / total),
                abs(float(entropies[layer])),
                int((counts[layer] > 0).sum()),
            )
            for layer in range(trace.layers)
        ),
    )


def loads(trace: Trace, first: int = 0, last: int | None = None) -> Counts:
    """int64 [layers, experts]: uses of each expert by the tokens from `first` up to, not with, `last`."""
    slots = trace.layers * trace.expert_count
    offsets = np.arange(trace.layers, dtype=np.int64)[:, None] * trace.expert_count
    counts = np.zeros(slots, np.int64)
    part = max(1, _CHUNK_BYTES // (8 * trace.layers * trace.used))
    ids = trace.experts[first:last]
    for start in range(0, len(ids), part):
        counts += np.bincount((ids[start : start + part] + offsets).ravel(), minlength=slots)
    return counts.reshape(trace.layers, trace.expert_count)


def reuse_by_layer(trace: Trace) -> NDArray[np.float64] | None:
    """[layers]: the share of used experts that the token before in its sequence used too; None where none follows."""
    follows = trace.follows()
    if not follows.any():
        return None
    again = np.zeros(trace.layers, np.int64)
    part = max(1, _CHUNK_BYTES // (trace.layers * trace.expert_count))
    for start in range(0, len(follows), part):
        ids = trace.experts[start : start + part + 1].astype(np.int64)
        seen = np.zeros((len(ids), trace.layers, trace.expert_count), np.bool_)
        np.put_along_axis(seen, ids, True, axis=2)
        both = np.take_along_axis(seen[:-1], ids[1:], axis=2).sum(2)
        again += both[follows[start : start + part]].sum(0)
    shares: NDArray[np.float64] = again / (follows.sum() * trace.used)
    return shares


def coverage(counts: Counts) -> tuple[Covered, ...]:
    """The fewest slots that have half, 80 and 95 % of all uses; `counts`: [layers, experts]."""
    summed = np.sort(counts.ravel())[::-1].cumsum()
    found = []
    for share in SHARES:
        # Rounded up from the exact product, so that half of an odd number of uses is not reached too early.
        slots = int(np.searchsorted(summed, share * summed[-1] - 1e-9)) + 1
        found.append(Covered(share, slots, slots / summed.size))
    return tuple(found)


def points(most: int) -> tuple[int, ...]:
    """1, 2, 3, 4, 6, 8, 12, ... up to `most`, which is the last: where a curve of caught reads is given."""
    found = {most}
    step = 1
    while step < most:
        found |= {step, min(most, step * 3 // 2)}
        step *= 2
    return tuple(sorted(found))


def _hot_set(trace: Trace, ordered: Counts) -> tuple[Caught, ...]:
    """`ordered`: uses by layer, the most first."""
    caught = ordered.sum(0).cumsum() / ordered.sum()
    held: NDArray[np.float64] | None = None
    if trace.tokens > 1:
        half = trace.tokens // 2
        early, late = loads(trace, 0, half), loads(trace, half)
        uses = _of_the_other(early, late) + _of_the_other(late, early)
        held = uses.cumsum() / ordered.sum()
    return tuple(
        Caught(n, min(1.0, float(caught[n - 1])), None if held is None else min(1.0, float(held[n - 1])))
        for n in points(trace.expert_count)
    )


def _of_the_other(chosen_by: Counts, counted: Counts) -> Counts:
    """[experts]: uses in `counted` by the rank that experts have in `chosen_by`, all layers together."""
    order = np.argsort(-chosen_by, axis=1, kind="stable")
    uses: Counts = np.take_along_axis(counted, order, axis=1).sum(0)
    return uses


def distances(one: Statistics, other: Statistics) -> tuple[float, ...]:
    """How far apart in reuse and in each fraction of slots; reuse is 0 where a trace has none."""
    reuse = 0.0 if one.reuse is None or other.reuse is None else abs(one.reuse - other.reuse)
    return reuse, *(abs(a.fraction - b.fraction) for a, b in zip(one.coverage, other.coverage, strict=True))
