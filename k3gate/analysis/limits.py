"""Which tier takes the time of a token: memory, arithmetic, or waiting of threads for each other. Pure.

Of a part that streams, so much counts as memory as its bytes take at the read rate of the same run; what it takes
beyond that is arithmetic, or latency that looks like it.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from k3gate.analysis.replay import Prediction
from k3gate.analysis.replayed import STREAMING

ALIKE = 0.2
"""Tiers that differ by no more are named together."""
WORDS = {
    "memory": "bandwidth-bound",
    "arithmetic": "compute-bound",
    "synchronisation": "bound by threads that wait",
}
TITLES = {
    "memory": "memory bandwidth",
    "arithmetic": "arithmetic and latency",
    "synchronisation": "waiting of threads",
}


@frozen
class Tier:
    """One tier: seconds of a token's time, and its share of them."""

    key: str
    seconds: float
    share: float


@frozen
class Limit:
    """The tiers, largest first, those that limit, and what was not measured."""

    tiers: tuple[Tier, ...]
    limiting: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def words(self) -> str:
        """As a buyer reads it: "bandwidth-bound"."""
        return " and ".join(WORDS[key] for key in self.limiting)


def limit(prediction: Prediction, read_rate: float | None) -> Limit | None:
    """How a predicted token's time is shared out; None where the read rate of the run is not known."""
    if not read_rate:
        return None
    seconds = {"memory": 0.0, "arithmetic": 0.0, "synchronisation": 0.0}
    for part, whole in prediction.seconds.items():
        if part == "synchronisation":
            seconds[part] += whole
        elif part in STREAMING:
            streamed = min(whole, prediction.bytes.get(part, 0.0) / read_rate)
            seconds["memory"] += streamed
            seconds["arithmetic"] += whole - streamed
        else:
            seconds["arithmetic"] += whole
    total = sum(seconds.values())
    if total <= 0:
        return None
    tiers = sorted(
        (Tier(key, value, value / total) for key, value in seconds.items()), key=lambda one: -one.seconds
    )
    whole = any(prediction.seconds.get(part) for part in ("attention_projections", "shared"))
    unknown = () if whole else ("GPUs", "the links to them")
    return Limit(tuple(tiers), _limiting(tiers), unknown)


def _limiting(tiers: Sequence[Tier]) -> tuple[str, ...]:
    most = tiers[0].seconds
    return tuple(one.key for one in tiers if one.seconds >= (1 - ALIKE) * most)
