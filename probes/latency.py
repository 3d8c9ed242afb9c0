"""Latency of memory: a core follows a chain of pointers, alone, through more and more memory, or under load.

The chain is one random cycle with a pointer in every 256 bytes, so that each load waits for the one before and no
prefetcher guesses the next. A figure is the time of a walk divided by its loads; walks go on where the last one
ended. That as many loads as the chain has links come back to where they began shows that they went through all of
it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from k3gate import metrics
from k3gate.errors import ProbeError
from k3gate.probes import bandwidth, chase, pools, sharing
from k3gate.probes.scatter import Scatter
from k3gate.probing.contract import Context, SampleToken
from k3gate.records import Case, Metric, Proof, Scalar

WALK_SECONDS = 0.06
"""No timed walk is meant to be shorter; the clock's own resolution is then below 1e-6 of it."""
SAMPLES = 16
LEAST_SAMPLES = 3
_FIRST_STEPS = 20_000
LOAD_BLOCK_BYTES = 64 << 10
"""What a loader reads between two looks at the clock: blocks of 4 KiB cost it four tenths of its bandwidth."""
PROOF_TURN = 3
"""The untimed end of a turn may take this many times the seconds of the case, for the sake of its proof."""
HEARTBEAT_SECONDS = 1.0
"""An untimed walk is cut into pieces of this length."""


def measure(case: Case, context: Context) -> Iterator[Metric]:
    """`parameters`: cpu, pools (the chain's first), and for some: sizes, or load, loaders and delays."""
    if "sizes" in case.parameters:
        yield from _staircase(case, context)
    elif "load" in case.parameters:
        yield from _loaded(case, context)
    else:
        yield _idle(case, context)


def _empty_pool(context: Context, spec: dict[str, Any]) -> pools.FilledPool:
    """A pool for a chain: bound and untouched, since building the chain is its first touch."""

    def build() -> pools.FilledPool:
        if not spec["pages"].startswith("reserved"):
            pools.check_available(spec["bytes"])
        try:
            return pools.allocate(spec["bytes"], spec["pages"], spec["bind"])
        except OSError as error:
            raise ProbeError(f"no memory for the chain: {pools.error_text(error.errno or 0)}") from error

    key = f"chain:{spec['node']}:{spec['pages']}:{spec['bytes']}"
    return context.share(key, build, pools.FilledPool.close)


def _shared_chain(context: Context, team: Any, spec: dict[str, Any]) -> tuple[pools.FilledPool, chase.Chain]:
    """The chain over the whole pool, linked by the first case of the group that needs it."""
    pool = _empty_pool(context, spec)
    key = f"linked:{spec['node']}:{spec['pages']}:{spec['bytes']}"
    # `share` books the time of building itself.
    chain = context.share(key, lambda: chase.build_chain(team, 0, (pool.pool, 0, pool.bytes, pool.seed)))
    # Another case's team may be larger; its first thread has the same CPU.
    chain.team = team
    return pool, chain


def walks(
    context: Context,
    chain: chase.Chain | Scatter,
    seconds: float,
    watch: pools.PinWatch,
    turn_seconds: float = 0.0,
) -> list[SampleToken]:
    """Timed walks until `seconds` are used. A turn is then walked to its end, untimed, for the proof, where that
    takes no longer than `turn_seconds`, or `PROOF_TURN` times as long."""
    first = chain.walk(_FIRST_STEPS)
    context.setup(first.seconds)
    each = max(first.seconds / _FIRST_STEPS, 1e-11)
    steps = max(_FIRST_STEPS, round(max(WALK_SECONDS, seconds / SAMPLES) / each))
    samples: list[SampleToken] = []
    spent = 0.0
    while len(samples) < LEAST_SAMPLES or spent + steps * each <= seconds:
        walk = chain.walk(steps)
        watch.see(walk)
        context.heartbeat("walking a chain")
        samples.append(context.sample(walk.seconds / walk.steps, walk.seconds))
        spent += walk.seconds
    _finish_turn(context, chain, each, max(turn_seconds, PROOF_TURN * seconds))
    return samples


def _finish_turn(
    context: Context, chain: chase.Chain | Scatter, seconds_per_step: float, most_seconds: float
) -> None:
    """Walk a turn to its end, untimed, where it is not yet known to come back and that takes no longer than this."""
    if chain.proof().ok is not None or chain.missing * seconds_per_step > most_seconds:
        return
    while chain.missing:
        walk = chain.walk(min(chain.missing, math.ceil(HEARTBEAT_SECONDS / seconds_per_step)))
        context.setup(walk.seconds)
        context.heartbeat("walking a chain to its end")


def _idle(case: Case, context: Context) -> Metric:
    parameters = case.parameters
    team = sharing.team(context, [parameters["cpu"]])
    pool, chain = _shared_chain(context, team, parameters["pools"][0])
    before = pools.placement([pool])
    watch = pools.PinWatch(team)
    samples = walks(context, chain, context.seconds, watch)
    proofs, size = _proofs(case, [pool], before, watch, chain.proof())
    state, reason = sharing.state_of(proofs)
    labels = {**_labels(case), "page_size": size}
    return context.metric(metrics.LATENCY_IDLE, samples, labels, proofs, state, reason)


def _staircase(case: Case, context: Context) -> Iterator[Metric]:
    parameters = case.parameters
    team = sharing.team(context, [parameters["cpu"]])
    pool = _empty_pool(context, parameters["pools"][0])
    steps: Sequence[int] = parameters["sizes"]
    for size in steps:
        chain = chase.build_chain(team, 0, (pool.pool, 0, size, pool.seed))
        context.setup(chain.setup_seconds)
        context.heartbeat("linking a chain")
        whole = size == steps[-1]  # only then is the whole pool there to be looked at
        before = pools.placement([pool]) if whole else None
        watch = pools.PinWatch(team)
        # By the seconds of the whole case: the last step is called memory, and a share is too short for its turn.
        samples = walks(context, chain, context.seconds / len(steps), watch, PROOF_TURN * context.seconds)
        page_size: int | None = None
        proofs = [watch.proof(), chain.proof()]
        if before is not None:
            proofs, page_size = _proofs(case, [pool], before, watch, chain.proof())
        state, reason = sharing.state_of(proofs)
        labels = {**_labels(case), "pool_bytes": size, "page_size": page_size}
        yield context.metric(metrics.LATENCY_IDLE, samples, labels, proofs, state, reason)


def _loaded(case: Case, context: Context) -> Iterator[Metric]:
    parameters = case.parameters
    loaders: list[int] = list(parameters["loaders"])
    load = sharing.pool(context, parameters["load"])
    team = sharing.team(context, [parameters["cpu"], *loaders])
    pool, chain = _shared_chain(context, team, parameters["pools"][0])
    loads: list[list[pools.Part]] = [[], *([part] for part in load.parts(len(loaders)))]
    isa = sharing.choose_isa(parameters["isa"], "read")
    # Its walks under load may be too few for a turn; where an idle case has walked the chain, that is done.
    first = chain.walk(_FIRST_STEPS)
    context.setup(first.seconds)
    _finish_turn(context, chain, max(first.seconds / _FIRST_STEPS, 1e-11), PROOF_TURN * context.seconds)
    for delay in parameters["delays"]:
        before = pools.placement([pool, load])
        watch = pools.PinWatch(team)
        share = context.seconds / len(parameters["delays"])
        found = _loaded_walks(context, chain, chase.Load(isa, loads, delay, LOAD_BLOCK_BYTES), share, watch)
        proofs, size = _proofs(case, [pool, load], before, watch, chain.proof())
        state, reason = sharing.state_of(proofs)
        labels = {**_labels(case), "page_size": size, "delay": delay, "isa": isa}
        labels["load_block_bytes"] = LOAD_BLOCK_BYTES
        latencies = [context.sample(walk.seconds / walk.steps, walk.seconds) for walk in found]
        # The same stretch of time: it is booked once, with the latency.
        rates = [context.sample(walk.load_bytes / walk.load_seconds, 0.0) for walk in found]
        yield context.metric(metrics.LATENCY_LOADED, latencies, labels, proofs, state, reason)
        # The rate alone: the chaser's loads take no part in it.
        proofs = [*proofs, *bandwidth.ceiling(bandwidth.median_rate(rates), context.inventory, labels)]
        state, reason = sharing.state_of(proofs)
        yield context.metric(metrics.UNDER_LOAD, rates, labels, proofs, state, reason)


def _loaded_walks(
    context: Context, chain: chase.Chain, load: chase.Load, seconds: float, watch: pools.PinWatch
) -> list[Any]:
    def walk(steps: int) -> Any:
        done = chain.walk(steps, load)
        context.heartbeat("walking a chain under load")
        return done

    first = walk(_FIRST_STEPS)
    context.setup(first.seconds)
    goal = max(WALK_SECONDS, seconds / SAMPLES)
    steps = max(_FIRST_STEPS, round(goal * _FIRST_STEPS / max(first.seconds, 1e-9)))
    found: list[Any] = []
    spent = 0.0
    while len(found) < LEAST_SAMPLES or spent + goal <= seconds:
        done = walk(steps)
        spent += done.seconds
        if not done.load_bytes:  # too short for a block of any loader: not under load
            context.setup(done.seconds)
            steps *= 2
            continue
        found.append(done)
        watch.see(done)
    return found


def _labels(case: Case) -> dict[str, Scalar]:
    return {**case.labels, "stores": "none", "counting": "dependent loads, one line each"}


def _proofs(
    case: Case,
    used: Sequence[pools.FilledPool],
    before: Proof,
    watch: pools.PinWatch,
    sums: Proof,
) -> tuple[list[Proof], int | None]:
    after = pools.placement(used)
    page_size, page_proof = pools.page_size(used[:1])
    caches = case.labels["cache_bytes"]
    known = caches if isinstance(caches, int) else None
    enough = sharing.working_set(used[0].bytes, known, case.parameters["level_2_bytes"])
    return [before if before.ok is not True else after, page_proof, watch.proof(), sums, enough], page_size
