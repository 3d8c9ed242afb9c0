"""Where the steady part of a case begins: cores that lower their clock under vector code do so within seconds. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

LEAST_CHANGE = 0.05
"""A smaller step between two parts of a round is noise, as a rule."""
LONGEST_SHARE = 1 / 3
"""No longer part of the time counts as settling."""
LEAST_KEPT = 3


def steady_from(values: Sequence[float], seconds: Sequence[float]) -> int:
    """The index of the first of `values` (in time order, each taken over so many seconds) of the steady part.

    What comes before differs from the rest by 5 % or more in the middle, lies wholly on one side of it, and takes
    at most a third of the time. 0 where no such part is seen.
    """
    whole = sum(seconds)
    found, spent = 0, 0.0
    for index in range(1, len(values) - LEAST_KEPT + 1):
        spent += seconds[index - 1]
        if spent > LONGEST_SHARE * whole:
            break
        before, after = values[:index], values[index:]
        apart = min(before) > max(after) or max(before) < min(after)
        if apart and abs(median(before) - median(after)) >= LEAST_CHANGE * abs(median(after)):
            found = index
    return found
