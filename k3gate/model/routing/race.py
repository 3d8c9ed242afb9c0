"""Drawing the experts of one token after another: a race in which those of the token before have a head start. Pure.

Each expert of a layer gets an exponential time whose rate is its weight, times `persistence` where the token before
used it; the fastest are used. Without persistence that is drawing without replacement by weight.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from k3gate.model.routing.trace import Ids

Weights = NDArray[np.float32]


def draw(
    weights: Iterable[Weights],
    sequences: int,
    used: int,
    persistence: float,
    random: np.random.Generator,
    breaks: frozenset[int] = frozenset(),
) -> list[Ids]:
    """int16 [sequences, layers, used] of each step. `weights`: of each step, above 0, [layers, experts].

    `breaks`: steps whose tokens follow no other.
    """
    before: NDArray[np.intp] | None = None
    found = []
    for step, rates in enumerate(weights):
        times = random.standard_exponential((sequences, *rates.shape), dtype=np.float32)
        times /= rates
        if before is not None and step not in breaks:
            ahead = np.take_along_axis(times, before, axis=2) / np.float32(persistence)
            np.put_along_axis(times, before, ahead, axis=2)
        before = np.argpartition(times, used - 1, axis=2)[..., :used]
        found.append(before.astype(np.int16))
    return found
