"""From samples to a median, an interval and a judgement of stability. Every sample counts; none is dropped.

Rounds differ more than the samples of one round do (page placement, neighbours), so the 95 % interval is
Student's over the medians of the rounds. The stability rules are pyperf's (`_checks.py`), with two of ours:
fewer than 3 rounds, and an interval wider than +-10 %. Outliers are named by the modified z-score of Iglewicz
and Hoaglin with the limit of hyperfine, 14.8.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence

from attrs import frozen

from k3gate.records import Interval, MetricDeclaration, Sample, State
from k3gate.units import quantity

CONFIDENCE = 0.95
SPREAD_LIMIT = 0.10
"""Largest standard deviation, as a share of the mean."""
EXTREME_LIMIT = 0.50
"""How far the least and the greatest sample may lie off the mean, as a share of it."""
INTERVAL_LIMIT = 0.10
"""Largest half-width of the interval, as a share of the median."""
OUTLIER_LIMIT = 14.8
ROUNDS_NEEDED = 3


@frozen
class Summary:
    """What the samples of a metric say. `interval` None: fewer than 2 rounds. `reason` names the figures."""

    median: float | None
    interval: Interval | None
    state: State
    reason: str | None


def summarise(samples: Sequence[Sample], declaration: MetricDeclaration) -> Summary:
    """Median, interval and state of a metric's samples, in the metric's unit.

    A metric that is `exact` has the range of its samples as its interval and is never unstable. Otherwise
    `unstable` comes with every rule that was broken. Without a sample the state is `not_run`.
    """
    values = [sample.value for sample in samples]
    if not values:
        return Summary(None, None, State.NOT_RUN, "no sample was taken")
    median = statistics.median(values)
    if not math.isfinite(median):  # the mean of the middle two overflowed
        median = statistics.median_low(values)
    if declaration.exact:
        return Summary(median, (min(values), max(values)), State.OK, None)
    # Scaled to at most 1, so that no square overflows.
    scale = max(abs(value) for value in values) or 1.0
    scaled = [
        Sample(sample.value / scale, sample.round, sample.process, sample.start_s) for sample in samples
    ]
    rounds = round_medians(scaled)
    interval = _interval(rounds, median / scale)
    if interval is not None and min(values) >= 0:
        # A rate is never negative; Student's interval over three scattered rounds may say so.
        interval = max(0.0, interval[0]), interval[1]
    broken = _broken_rules([sample.value for sample in scaled], interval, len(rounds), median / scale)
    notes = _outliers(scaled, scale, declaration.unit)
    return Summary(
        median,
        None if interval is None else _unscaled(interval, scale, median),
        State.UNSTABLE if broken else State.OK,
        "; ".join([*broken, *notes]) or None,
    )


def round_medians(samples: Sequence[Sample]) -> list[float]:
    """The median of each round's samples, in the order in which the rounds first appear."""
    rounds: dict[int, list[float]] = {}
    for sample in samples:
        rounds.setdefault(sample.round, []).append(sample.value)
    return [statistics.median(values) for values in rounds.values()]


def _interval(rounds: Sequence[float], median: float) -> Interval | None:
    """Student's interval of the mean of the round medians, widened where needed to hold the median."""
    count = len(rounds)
    if count < 2:
        return None
    mean = math.fsum(rounds) / count
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in rounds) / (count - 1))
    half = 0.0
    if deviation > 0:
        from scipy.special import stdtrit

        half = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * deviation / math.sqrt(count)
    return min(mean - half, median), max(mean + half, median)


def _broken_rules(
    values: Sequence[float], interval: Interval | None, rounds: int, median: float
) -> list[str]:
    broken = []
    count = len(values)
    mean = math.fsum(values) / count
    deviation = (
        math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1)) if count > 1 else 0.0
    )
    if deviation > 0 and deviation >= SPREAD_LIMIT * abs(mean):
        share = _share(deviation, mean, SPREAD_LIMIT)
        broken.append(f"the standard deviation is {share} of the mean, not under 10 %")
    for name, value in (("least", min(values)), ("greatest", max(values))):
        if value != mean and abs(value - mean) >= EXTREME_LIMIT * abs(mean):
            share = _share(abs(value - mean), mean, EXTREME_LIMIT)
            broken.append(f"the {name} sample is {share} off the mean, not under 50 %")
    if rounds < ROUNDS_NEEDED:
        broken.append(f"{rounds} of the {ROUNDS_NEEDED} rounds that are needed")
    if interval is not None:
        half = max(interval[1] - median, median - interval[0])
        if half > INTERVAL_LIMIT * abs(median):
            share = _share(half, median, INTERVAL_LIMIT)
            broken.append(f"the 95 % interval over rounds is +-{share} wide, over +-10 %")
    return broken


def _outliers(samples: Sequence[Sample], scale: float, unit: str) -> list[str]:
    values = [sample.value for sample in samples]
    median = statistics.median(values)
    off = [abs(value - median) for value in values]
    # 0.6745 and 1.2533 make both spreads that of a normal distribution; the second stands in where more than
    # half of the samples are equal.
    spread = statistics.median(off) / 0.6745 or 1.2533 * math.fsum(off) / len(off)
    if spread == 0:
        return []
    named = [
        f"{quantity(sample.value * scale, unit)} in round {sample.round + 1} (modified z {distance / spread:.0f})"
        for sample, distance in zip(samples, off, strict=True)
        if distance / spread > OUTLIER_LIMIT
    ]
    if not named:
        return []
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return [f"outliers: {', '.join(named[:3])}{more}"]


def _share(part: float, whole: float, limit: float) -> str:
    """`part` as a percentage of `whole`, with digits enough to be told from `limit`."""
    if abs(whole) < sys.float_info.min or part / abs(whole) >= 1000:
        return "a multiple"
    percent = 100 * part / abs(whole)
    if percent >= 1000:
        return f"{percent:,.0f} %"
    texts = (f"{percent:.{digits}g}" for digits in (3, 5, 8))
    return f"{next((text for text in texts if float(text) != 100 * limit), f'{percent:.3g}')} %"


def _unscaled(interval: Interval, scale: float, median: float) -> Interval:
    """The interval in the metric's unit: finite, and holding the median though scaling rounds."""
    largest = sys.float_info.max
    low, high = max(-largest, interval[0] * scale), min(largest, interval[1] * scale)
    return min(low, median), max(high, median)
