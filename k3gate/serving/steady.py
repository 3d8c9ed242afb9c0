"""The steady part of an answer: found in the times at which its chunks came, and not assumed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from attrs import frozen

from k3gate.probing.settling import steady_from

PARTS = 12
_LEAST_GAPS = 2 * PARTS
AGREE = 0.10
"""By how much the halves of the steady part may differ, as a share."""


@frozen
class Steady:
    """`chunks_per_s` after the first chunk of the part; `settled`: chunks before it; `halves`: the second half's rate
    by the first one's, None: too few chunks to tell."""

    chunks_per_s: float
    settled: int
    halves: float | None

    @property
    def ok(self) -> bool | None:
        """Whether the halves agree; None where that cannot be told, or where they do not."""
        return True if self.halves is not None and abs(self.halves - 1) <= AGREE else None

    @property
    def detail(self) -> str:
        """What was found, in words."""
        if self.halves is None:
            return f"fewer than {_LEAST_GAPS + 1} chunks: too few to tell"
        left_out = (
            f"the first {self.settled} chunks are left out" if self.settled else "from the first chunk on"
        )
        return f"{left_out}; the second half has {self.halves:.3f} of the rate of the first"


def find(times_s: Sequence[float]) -> Steady | None:
    """Of an answer's times; None for fewer than two chunks, or where no time passed."""
    count = len(times_s) - 1
    if count < 1 or times_s[-1] <= times_s[0]:
        return None
    if count < _LEAST_GAPS:
        return Steady(count / (times_s[-1] - times_s[0]), 0, None)
    edges = [round(count * part / PARTS) for part in range(PARTS + 1)]
    spans = [times_s[late] - times_s[early] for early, late in pairwise(edges)]
    sizes = [late - early for early, late in pairwise(edges)]
    # Chunks that came at once, in one packet, have no rate of their own.
    rates = [size / span if span > 0 else 0.0 for size, span in zip(sizes, spans, strict=True)]
    begin = edges[steady_from(rates, spans)] if all(rates) else 0
    middle = (begin + count) // 2
    first, second = times_s[middle] - times_s[begin], times_s[count] - times_s[middle]
    whole = times_s[count] - times_s[begin]
    halves = ((count - middle) / second) / ((middle - begin) / first) if first > 0 and second > 0 else None
    return Steady((count - begin) / whole, begin, halves)
