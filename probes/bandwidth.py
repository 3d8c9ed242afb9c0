"""Bandwidth: a kernel walks pools over and over, and what it returned or left in memory is checked.

A figure is the bytes that the kernel counts / (last end - first start) of all threads, over whole passes.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from k3gate import metrics, topology
from k3gate.model import k3
from k3gate.probes import counting, experts, pools, sharing
from k3gate.probing.contract import Context, SampleToken
from k3gate.probing.settling import steady_from
from k3gate.records import Case, Inventory, Labels, Metric, MetricDeclaration, Proof, Scalar
from k3gate.units import quantity

SAMPLE_SECONDS = 0.05
"""No timed region is shorter; the clock's own resolution is then below 1e-6 of it."""
SAMPLES = 16
"""How many samples a round is divided into, where a pass is short enough."""
LEAST_SAMPLES = 3
STRIPE_BYTES = 2 << 20
"""What a thread reads of one pool before it turns to the next, where pools are interleaved: at most so much."""
T = TypeVar("T")


def measure(case: Case, context: Context) -> Iterator[Metric]:
    """The rate of a case, and where one core or all are at work, the clock that they achieve.

    `parameters`: kernel, isa (None: the best), layout, pools, of each pool the CPUs that walk it (readers),
    how many arrays the kernel makes of it, and the bytes of the level-2 caches in play below the last level."""
    parameters = case.parameters
    kernel = str(parameters["kernel"])
    isa = sharing.choose_isa(parameters["isa"], kernel)
    traffic = pools.traffic(kernel, isa)
    filled = [sharing.pool(context, spec) for spec in parameters["pools"]]
    readers: list[list[int]] = [list(cpus) for cpus in parameters["readers"]]
    team = sharing.team(context, [cpu for group in readers for cpu in group])
    parts = _parts(parameters["layout"], filled, readers)
    before = pools.placement(filled)
    watch = pools.PinWatch(team)
    words = _words(context, team, traffic, parts)
    counters = counting.of(context, {spec["node"] for spec in parameters["pools"]})
    taken = whole_passes(context, team, traffic, parts, watch, words, counters)
    clocks = team.clocks()
    samples, settling = _steady(taken)
    stored = _booked(context, words.proof)
    after = pools.placement(filled)
    size, size_proof = pools.page_size(filled)

    total = sum(pool.bytes for pool in filled)
    labels: dict[str, Scalar] = {
        **case.labels,
        "page_size": size,
        "pool_bytes": total,
        "isa": isa,
        "stores": traffic["stores"],
        "counting": traffic["counting"],
    }
    if traffic["stores"] != "none":
        labels |= {key: int(traffic[key]) for key in ("counted_bytes_per_word", "bus_bytes_per_word")}
    if parameters["layout"] == "experts":
        labels["expert_bytes"] = k3.EXPERT_BYTES
    caches = case.labels["cache_bytes"]
    proofs = [
        before if before.ok is not True else after,
        size_proof,
        watch.proof(),
        stored,
        sharing.working_set(
            total // parameters["arrays"],
            caches if isinstance(caches, int) else None,
            parameters["level_2_bytes"],
        ),
        *ceiling(median_rate(samples), context.inventory, labels),
    ]
    checked = counters.proof_beside(case.labels, total)
    state, reason = sharing.state_of([*proofs, checked] if checked.ok is False else proofs)
    proofs.append(checked)
    reason = "; ".join(filter(None, (reason, settling))) or None
    yield context.metric(_declaration(parameters), samples, labels, proofs, state, reason)
    if case.name.startswith(("read.core.", "read.machine")) and min(clocks, default=0.0) > 0:
        # Not a label of the rate: it differs from round to round.
        own = {key: value for key, value in case.labels.items() if key in _OF_CLOCK}
        yield context.metric(metrics.CORE_CLOCK, [context.sample(min(clocks), 0.0)], {**own, "isa": isa})


_OF_CLOCK = ("scope", "cpu_node", "threads")


def _steady(taken: Sequence[SampleToken]) -> tuple[Sequence[SampleToken], str | None]:
    """The samples of the steady part of a round, and what was left out before it, in words."""
    seconds = [one.timed_seconds or 0.0 for one in taken]
    start = steady_from([one.value for one in taken], seconds)
    if not start:
        return taken, None
    left_out = f"{sum(seconds[:start]):.1f} s at the start of a round, before the rate settled, are left out"
    return taken[start:], left_out


def _declaration(parameters: Mapping[str, Any]) -> MetricDeclaration:
    if parameters["layout"] == "experts":
        return metrics.EXPERT_READ
    named = {
        "read": metrics.MEMORY_READ,
        "write": metrics.MEMORY_WRITE,
        "copy": metrics.MEMORY_COPY,
        "triad": metrics.MEMORY_TRIAD,
    }
    return named[str(parameters["kernel"]).removesuffix("_nt")]


def median_rate(samples: Sequence[SampleToken]) -> float:
    """The middle one of these rates, by which a figure is judged; the upper one of two."""
    return sorted(one.value for one in samples)[len(samples) // 2]


def ceiling(rate: float, inventory: Inventory, labels: Labels) -> list[Proof]:
    """The proof "ceiling", where the paper rate is known: `rate`, in counted B/s, is not above it.

    Nothing is counted that did not cross the bus, so more than the paper rate is a fault of ours. What a cached
    store reads besides is modelled: some processors spare themselves that, and a sum beyond the paper rate then
    says that this one does.
    """
    limit = topology.paper_limit(inventory, labels)
    if limit is None:
        return []
    told = f"{quantity(rate, 'B/s')} of the {quantity(limit, 'B/s')} that the memory can have on paper"
    if rate > limit:
        detail = f"{told}: above the physical limit, a fault of the measurement or of the paper rate"
        return [Proof("ceiling", False, detail)]
    counted, bus = labels.get("counted_bytes_per_word"), labels.get("bus_bytes_per_word")
    if isinstance(counted, int) and isinstance(bus, int) and rate * bus / counted > limit:
        moved = quantity(rate * bus / counted, "B/s")
        detail = (
            f"{told}; with a read of every line that is stored it were {moved}: this processor spares reads"
        )
        return [Proof("ceiling", None, detail)]
    return [Proof("ceiling", True, told)]


def _words(
    context: Context, team: Any, traffic: dict[str, Any], parts: list[list[pools.Part]]
) -> pools.Checksums | pools.StoredWords:
    """What checks the words that a kernel loads or stores; fills the arrays of one that stores."""
    if traffic["stores"] == "none":
        return pools.Checksums(parts)
    return _booked(context, lambda: pools.StoredWords(team, traffic["name"], parts))


def _booked(context: Context, work: Callable[[], T]) -> T:
    """What `work` gives; its time is set-up."""
    begun = time.monotonic()
    done = work()
    context.setup(time.monotonic() - begun)
    context.heartbeat("looking at memory")
    return done


def _parts(
    layout: str, filled: Sequence[pools.FilledPool], readers: Sequence[Sequence[int]]
) -> list[list[pools.Part]]:
    """What each thread walks in a pass, threads in the order of the readers.

    "own": each group its own pool, in contiguous parts; "interleaved": every thread a part of every pool, by
    turns; "experts": each group the experts of its own pool in random order.
    """
    if layout == "interleaved":
        return _by_turns(filled, sum(len(group) for group in readers))
    pairs = list(zip(filled, readers, strict=True))
    if layout == "experts":
        chance = random.Random(filled[0].seed)
        most = min(experts.share(pool.bytes, len(group)) for pool, group in pairs)
        dealt = (
            experts.deal(
                pool,
                experts.order(pool.bytes, chance),
                len(group),
                # Of one pool every expert is read whole.
                most if len(pairs) > 1 else None,
            )
            for pool, group in pairs
        )
        return [own for group in dealt for own in group]
    return [[part] for pool, group in pairs for part in pool.parts(len(group))]


def _by_turns(filled: Sequence[pools.FilledPool], threads: int) -> list[list[pools.Part]]:
    """Of each thread its part of every pool, in stripes: its n-th stripe lies in pool n + its own number.

    So the threads are spread evenly over the pools at any moment, as the pages of an interleaved policy are. Pools
    of different size have as many stripes each.
    """
    stripes = -(-max(pool.bytes for pool in filled) // (threads * STRIPE_BYTES))
    cut = [[pool.parts(stripes, start, size) for _, start, size, _ in pool.parts(threads)] for pool in filled]
    return [
        [
            cut[(thread + turn) % len(filled)][thread][stripe]
            for stripe in range(stripes)
            for turn in range(len(filled))
        ]
        for thread in range(threads)
    ]


class Words(Protocol):
    """What checks the words that a timed region loaded or stored."""

    def see(self, region: Any, passes: int) -> None:
        """Take note of a timed region of so many passes."""
        ...


def whole_passes(
    context: Context,
    team: Any,
    traffic: dict[str, Any],
    parts: list[list[pools.Part]],
    watch: pools.PinWatch,
    words: Words,
    counters: counting.Counting | None = None,
) -> list[SampleToken]:
    """Timed regions of whole passes until the time of this round is used, after one pass to warm up."""
    kernel, isa, per_word = traffic["name"], traffic["isa"], traffic["counted_bytes_per_word"]
    counters = counters or counting.Counting(None)

    def moved(region: Any) -> tuple[float, float]:
        of_words = sum(thread.bytes for thread in region.threads) / 8
        return of_words * per_word, of_words * traffic["bus_bytes_per_word"]

    region = team.run(kernel, isa, parts, 1)
    context.setup(region.seconds)
    goal = max(1.2 * SAMPLE_SECONDS, context.seconds / SAMPLES)
    passes = max(1, round(goal / max(region.seconds, 1e-6)))
    samples: list[SampleToken] = []
    spent = 0.0
    while len(samples) < LEAST_SAMPLES or spent + region.seconds <= context.seconds:
        region = counters.around(partial(team.run, kernel, isa, parts, passes), moved)
        context.heartbeat("walking memory")
        if region.seconds < SAMPLE_SECONDS:
            # The warm-up was slower than what follows: more passes, and this one counts as warm-up too.
            passes = max(passes + 1, math.ceil(passes * 1.2 * SAMPLE_SECONDS / max(region.seconds, 1e-6)))
            context.setup(region.seconds)
            continue
        watch.see(region)
        words.see(region, passes)
        samples.append(context.sample(moved(region)[0] / region.seconds, region.seconds))
        spent += region.seconds
    return samples
