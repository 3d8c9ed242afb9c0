"""Timed regions of some work that is done over and over, each long enough to be trusted."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from k3gate.probes.bandwidth import LEAST_SAMPLES, SAMPLE_SECONDS
from k3gate.probing.contract import Context


def regions(
    context: Context,
    run: Callable[[int], Any],
    seconds: float,
    note: str,
    *,
    start: int = 1,
    least: int = LEAST_SAMPLES,
) -> Iterator[tuple[Any, int]]:
    """(region, calls) until `seconds` are used, `least` of them in any case.

    `run` does the work so many times and gives its timed region. How many times is found out first, from `start` on;
    that is booked as set-up, as are regions that turn out too short.
    """
    begun = time.monotonic()
    calls, region = start, run(start)
    while region.seconds < SAMPLE_SECONDS / 4:
        calls *= 4
        region = run(calls)
    calls = max(1, round(calls * 1.2 * SAMPLE_SECONDS / region.seconds))
    context.setup(time.monotonic() - begun)
    taken, spent = 0, 0.0
    while taken < least or spent + region.seconds <= seconds:
        region = run(calls)
        context.heartbeat(note)
        if region.seconds < SAMPLE_SECONDS:
            # The warm-up was slower than what follows: more calls, and this one counts as warm-up too.
            calls = max(calls + 1, math.ceil(calls * 1.2 * SAMPLE_SECONDS / region.seconds))
            context.setup(region.seconds)
            continue
        taken, spent = taken + 1, spent + region.seconds
        yield region, calls
