"""Expected decode rates: an interval from the ceiling and bands of what runtimes reached elsewhere. Pure.

Six free numbers, below, each with its source; a test holds them to six. The bands are shares of what memory
*measures*, since that is what a run refines. Where nothing was measured, paper stands in, less what sustained reads
reach of it.

    tokens/s = 1 / (CPU-side bytes / (share x sustained rate) + GPU bytes / sustained rate + links)
    sustained rate = measured, or SUSTAINED x paper; of DRAM x SECOND_SOCKET where a general engine spans sockets

The share is that of CPU engines. GPUs read close to their sustained rate, so it is not applied to them, unless all of
the model lies there: then it is, for want of a band of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from attrs import frozen

from k3gate import units
from k3gate.analysis.ceilings import PAPER, Decode, Part, Rate
from k3gate.analysis.system import TIER_TITLES, System

SUSTAINED = 0.8
"""Sustained read over paper: 0.66 on the node of a Zen 2 machine (kvcache-ai/ktransformers pull 2175), 0.91 on a GPU,
0.93 on two 6980P where their 1564 GB/s are of 24 x 8800 MT/s (libxsmm/kimi-k3-in-c); between them, ours."""
SECOND_SOCKET = 0.725
"""Rate of two sockets over twice that of one, of engines without placement: 12.208 and 8.73 tokens/s on one and two
Xeon 6454S make 1.40, people report 1.4 to 1.5; 1.45 / 2 (KTransformers DeepseekR1_V3_tutorial)."""
BANDS: Mapping[str, tuple[float, float]] = {"general": (0.25, 0.70), "tuned": (0.45, 0.75)}
"""Share of the sustained rate that whole tokens reach, by class of engine: what the testable published rows of the
class show but for a tenth of them at each end, rounded outwards to 0.05 (`k3gate backtest` fits it again, and leaves
machines out). `tuned` rests on three: 0.50 to 0.61 on two 6980P, 0.67 to 0.76 on one EPYC 9965, and 0.51 to 0.54 on 8
machines with two 8592+ each, the time of their network within; 16 of these show 0.32, and lie outside."""
TESTED: Mapping[str, tuple[int, int]] = {"general": (11, 13), "tuned": (8, 10)}
"""By class, testable published rows inside their interval, and all of them; a test holds this to `k3gate backtest`."""
LEFT_OUT: Mapping[str, int] = {"general": 10, "tuned": 6}
"""Of these, the rows that a fit of the other machines alone predicts; one whose class has no other machine is none."""
MACHINES: Mapping[str, int] = {"general": 6, "tuned": 3}
"""Machines behind the testable rows of each class."""
FREE_NUMBERS = (SUSTAINED, SECOND_SOCKET, *(edge for band in BANDS.values() for edge in band))

SECOND_SOCKET_CLASSES = ("general",)
WITHIN = 0.2
"""Two tiers are both named as limiting where their shares differ by no more than this."""


@frozen
class Expected:
    """An interval of tokens/s of each sequence, None where it cannot be had, and what it rests on.

    `shares` of the predicted time of a token by tier.
    """

    low: float | None
    high: float | None
    basis: str
    shares: Mapping[str, float]


def sustained(rate: Rate, system: System) -> float | None:
    """B/s that a tier sustains for a whole token, before the share that an engine reaches of it."""
    if rate.bytes_per_s is None:
        return None
    value = rate.bytes_per_s * (
        SUSTAINED if rate.basis == PAPER and rate.tier not in ("pcie", "network") else 1.0
    )
    if rate.tier == "dram" and (system.sockets or 1) > 1 and system.engine in SECOND_SOCKET_CLASSES:
        value *= SECOND_SOCKET
    return value


def expect(decode: Decode, system: System) -> Expected:
    """The interval for a decode step; never above its ceiling.

    Between machines the latency of their network decides, so that without it nothing is expected.
    """
    if decode.round_trips.get("network") and not system.network_seconds:
        trips = decode.round_trips["network"]
        why = f"{trips} round trips between machines a token decide, and [network] latency_us is not stated"
        return Expected(None, None, why, {})
    low_share, high_share = BANDS[system.engine]
    slow, fast = times(decode, system, "bytes"), times(decode, system, "best")
    if slow is None or fast is None:
        return Expected(None, None, "; ".join(decode.unknown) or "nothing to predict from", {})
    middle = math.sqrt(low_share * high_share)
    spent = {**{tier: value / middle for tier, value in slow.banded.items()}, **slow.fixed}
    total = sum(spent.values())
    shares = {tier: value / total for tier, value in spent.items() if value} if total else {}
    # Hits make a step slower where GPUs read slower than what else holds the experts: either may be the fast end.
    low = min((rate for way in (slow, fast) if (rate := way.rate(low_share)) is not None), default=None)
    high = max((rate for way in (slow, fast) if (rate := way.rate(high_share)) is not None), default=None)
    if high is not None and decode.ceiling is not None:
        high = min(high, decode.ceiling)
    return Expected(low, high, _basis(decode, system), shares)


@frozen
class Times:
    """Seconds of a step by tier at sustained rates: `banded` are divided by a share, `fixed` are not."""

    banded: Mapping[str, float]
    fixed: Mapping[str, float]

    def rate(self, share: float) -> float | None:
        """Tokens/s of each sequence at a share; None where a step takes no time."""
        seconds = sum(self.banded.values()) / share + sum(self.fixed.values())
        return 1 / seconds if seconds else None

    def share(self, rate: float) -> float:
        """The share at which a step is so fast; infinite where not even no time for the banded part suffices."""
        left = 1 / rate - sum(self.fixed.values())
        return sum(self.banded.values()) / left if left > 0 else math.inf


def times(decode: Decode, system: System, key: str = "bytes") -> Times | None:
    """Seconds by tier for `Part.bytes` or, for the fast end, `Part.best`; links without a stated rate are left out,
    memory without one makes it unknown."""
    rates = {rate.tier: sustained(rate, system) for rate in decode.rates}
    found: dict[str, float] = {}
    for part in decode.parts:
        size, rate = _size(part, key), rates.get(part.tier)
        if rate is None and part.tier in ("pcie", "network"):
            continue
        if size is None or (rate is None and size):
            return None
        if rate:
            found[part.tier] = found.get(part.tier, 0.0) + size / rate
    if decode.latency_seconds:
        found["network"] = found.get("network", 0.0) + decode.latency_seconds
    beside = {"gpu", "pcie", "network"}
    # A part of no bytes is none: where it alone lies elsewhere, all of the model is read from GPU memory.
    if all(part.tier in beside or not _size(part, key) for part in decode.parts):
        beside.discard("gpu")
    return Times(
        {tier: value for tier, value in found.items() if tier not in beside},
        {tier: value for tier, value in found.items() if tier in beside},
    )


def _size(part: Part, key: str) -> float | None:
    return part.bytes if key == "bytes" else part.best


def _basis(decode: Decode, system: System) -> str:
    low, high = BANDS[system.engine]
    paper = [rate for rate in decode.rates if rate.basis == PAPER and rate.tier not in ("pcie", "network")]
    first = "measured rates" if not paper else f"{SUSTAINED:g} of the paper rates"
    both = (
        (system.sockets or 1) > 1
        and system.engine in SECOND_SOCKET_CLASSES
        and decode.rate("dram") is not None
    )
    second = (
        f", of which {'two sockets give' if system.sockets == 2 else 'several sockets give the'} {SECOND_SOCKET:g}"
        if both
        else ""
    )
    untested = [
        TIER_TITLES[rate.tier] for rate in decode.rates if rate.tier in ("nvme", "pmem", "hbm", "cxl")
    ]
    if all(rate.tier in ("gpu", "pcie", "network") for rate in decode.rates):
        untested.append("models that lie in GPU memory alone")
    if decode.batch > 1:
        untested.append(f"{decode.batch} sequences at once")
    if decode.without_hits is not None:
        second += ", hits of experts that free memory keeps not counted"
    if both and (system.sockets or 1) > 2:
        untested.append(f"{system.sockets} sockets")
    limits = f"; the band was not tested on {' and '.join(untested)}" if untested else ""
    machines, (inside, rows) = units.count(MACHINES[system.engine], "machine"), TESTED[system.engine]
    tested = (
        f"class {system.engine}: {inside} of {rows} published results of {machines} lie in such intervals, "
        f"{LEFT_OUT[system.engine]} of {rows} where the fit leaves their machine out"
    )
    return f"{low:.0%} to {high:.0%} of {first}{second}; {tested}{limits}"


def limiting(expected: Expected) -> tuple[str, ...]:
    """The tiers that take the most of a token's time: the first, and those within a fifth of it."""
    if not expected.shares:
        return ()
    most = max(expected.shares.values())
    found = [tier for tier, share in expected.shares.items() if share >= most * (1 - WITHIN)]
    return tuple(sorted(found, key=lambda tier: -expected.shares[tier]))
