"""Latency of memory: a core follows a chain of pointers, alone, through more and more memory, or under load.

The chain is one random cycle with a pointer in every 256 bytes, so that each load waits for the one before and no
prefetcher guesses the next. A figure is the time of a walk divided by its loads; walks go on where the last one
ended. That a walk of as many loads as the chain has links comes back to where it began shows that it went
through all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attrs import define

from k3gate import metrics
from k3gate.errors import ProbeError
from k3gate.probes import pools, sharing
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
"""An untimed turn of the chain may take this many times the seconds of the case, for the sake of its proof."""


@define
class Chain:
    """A cycle of pointers over the first `size` bytes of a pool, and where the walk along it stands."""

    pool: pools.FilledPool
    size: int
    blocks: int = 0
    position: int = 0
    came_back: bool | None = None

    @property
    def part(self) -> pools.Part:
        """The range, as the native code takes it."""
        return self.pool.pool, 0, self.size, self.pool.seed

    def proof(self) -> Proof:
        """The proof "checksum": the walk came back to its start."""
        if self.came_back is None:
            return Proof("checksum", None, "the chain was not walked to its end")
        told = "came back to where they began" if self.came_back else "did not come back to where they began"
        return Proof("checksum", self.came_back, f"walks of whole turns of {self.blocks:,} links {told}")


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


def _link(
    team: Any, pool: pools.FilledPool, size: int, heartbeat: Callable[[str], None]
) -> tuple[Chain, float]:
    """(a chain over the pool's first bytes, the seconds that linking it took)."""
    chain = Chain(pool, size)
    built = team.build_cycle(0, chain.part)
    errors = [thread.error for thread in built.threads if thread.error]
    if errors:
        raise ProbeError(f"no memory for the chain: {pools.error_text(int(errors[0]))}")
    heartbeat("linking a chain")
    return chain, built.seconds


def _shared_chain(context: Context, team: Any, spec: dict[str, Any]) -> Chain:
    """The chain over the whole pool, linked by the first case of the group that needs it."""
    pool = _empty_pool(context, spec)
    key = f"linked:{spec['node']}:{spec['pages']}:{spec['bytes']}"
    # `share` books the time of building itself.
    return context.share(key, lambda: _link(team, pool, pool.bytes, context.heartbeat)[0])


def _walks(
    context: Context, team: Any, chain: Chain, seconds: float, watch: pools.PinWatch
) -> list[SampleToken]:
    """Timed walks until `seconds` are used: whole turns of the chain where there is time for three of them."""
    first = team.chase(0, chain.part, _FIRST_STEPS, chain.position)
    context.setup(first.seconds)
    chain.position, chain.blocks = first.end, first.blocks
    each = max(first.seconds / _FIRST_STEPS, 1e-11)
    steps = max(_FIRST_STEPS, round(max(WALK_SECONDS, seconds / SAMPLES) / each))
    turns = max(1, round(steps / chain.blocks))
    whole = LEAST_SAMPLES * turns * chain.blocks * each <= seconds
    if whole:
        steps = turns * chain.blocks
    elif chain.came_back is None and chain.blocks * each <= PROOF_TURN * seconds:
        # No time for three turns: one, untimed, shows that the chain is whole.
        turn = team.chase(0, chain.part, chain.blocks, chain.position)
        context.setup(turn.seconds)
        chain.came_back = turn.end == chain.position
    samples: list[SampleToken] = []
    spent = 0.0
    while len(samples) < LEAST_SAMPLES or spent + steps * each <= seconds:
        walk = team.chase(0, chain.part, steps, chain.position)
        if whole:
            chain.came_back = chain.came_back is not False and walk.end == chain.position
        chain.position = walk.end
        watch.see(walk)
        context.heartbeat("walking a chain")
        samples.append(context.sample(walk.seconds / walk.steps, walk.seconds))
        spent += walk.seconds
    return samples


def _idle(case: Case, context: Context) -> Metric:
    parameters = case.parameters
    team = sharing.team(context, [parameters["cpu"]])
    chain = _shared_chain(context, team, parameters["pools"][0])
    before = pools.placement([chain.pool])
    watch = pools.PinWatch(team)
    samples = _walks(context, team, chain, context.seconds, watch)
    proofs, size = _proofs(case, [chain.pool], before, watch, chain.proof(), chain.size)
    state, reason = sharing.state_of(proofs)
    labels = {**_labels(case), "page_size": size}
    return context.metric(metrics.LATENCY_IDLE, samples, labels, proofs, state, reason)


def _staircase(case: Case, context: Context) -> Iterator[Metric]:
    parameters = case.parameters
    team = sharing.team(context, [parameters["cpu"]])
    pool = _empty_pool(context, parameters["pools"][0])
    steps: Sequence[int] = parameters["sizes"]
    for size in steps:
        chain, seconds = _link(team, pool, size, context.heartbeat)
        context.setup(seconds)
        watch = pools.PinWatch(team)
        samples = _walks(context, team, chain, context.seconds / len(steps), watch)
        if size < steps[-1]:
            proofs = [watch.proof(), chain.proof()]
            page_size = None
        else:  # only now is the whole pool there to be looked at
            placed = pools.placement([pool])
            page_size, page_proof = pools.page_size([pool])
            proofs = [placed, page_proof, watch.proof(), chain.proof()]
        state, reason = sharing.state_of(proofs)
        labels = {**_labels(case), "pool_bytes": size, "page_size": page_size}
        yield context.metric(metrics.LATENCY_IDLE, samples, labels, proofs, state, reason)


def _loaded(case: Case, context: Context) -> Iterator[Metric]:
    parameters = case.parameters
    loaders: list[int] = list(parameters["loaders"])
    load = sharing.pool(context, parameters["load"])
    team = sharing.team(context, [parameters["cpu"], *loaders])
    chain = _shared_chain(context, team, parameters["pools"][0])
    loads: list[list[pools.Part]] = [[], *([part] for part in load.parts(len(loaders)))]
    isa = sharing.choose_isa(parameters["isa"], "read")
    for delay in parameters["delays"]:
        before = pools.placement([chain.pool, load])
        watch = pools.PinWatch(team)
        share = context.seconds / len(parameters["delays"])
        walks = _loaded_walks(context, team, chain, loads, isa, delay, share, watch)
        wrong = sum(thread.value for walk in walks for thread in walk.threads[1:])
        sums = chain.proof() if not wrong else Proof("checksum", False, f"{wrong} blocks were read wrong")
        proofs, size = _proofs(case, [chain.pool, load], before, watch, sums, chain.size)
        state, reason = sharing.state_of(proofs)
        labels = {**_labels(case), "page_size": size, "delay": delay, "isa": isa}
        labels["load_block_bytes"] = LOAD_BLOCK_BYTES
        latencies = [context.sample(walk.seconds / walk.steps, walk.seconds) for walk in walks]
        # The same stretch of time: it is booked once, with the latency.
        rates = [context.sample(walk.load_bytes / walk.load_seconds, 0.0) for walk in walks]
        yield context.metric(metrics.LATENCY_LOADED, latencies, labels, proofs, state, reason)
        yield context.metric(metrics.UNDER_LOAD, rates, labels, proofs, state, reason)


def _loaded_walks(
    context: Context,
    team: Any,
    chain: Chain,
    loads: list[list[pools.Part]],
    isa: str,
    delay: int,
    seconds: float,
    watch: pools.PinWatch,
) -> list[Any]:
    def walk(steps: int) -> Any:
        how = ("read", isa, loads, delay, LOAD_BLOCK_BYTES)
        done = team.chase_loaded(0, chain.part, steps, chain.position, *how)
        chain.position = done.end
        context.heartbeat("walking a chain under load")
        return done

    first = walk(_FIRST_STEPS)
    context.setup(first.seconds)
    goal = max(WALK_SECONDS, seconds / SAMPLES)
    steps = max(_FIRST_STEPS, round(goal * _FIRST_STEPS / max(first.seconds, 1e-9)))
    walks: list[Any] = []
    spent = 0.0
    while len(walks) < LEAST_SAMPLES or spent + goal <= seconds:
        done = walk(steps)
        spent += done.seconds
        if not done.load_bytes:  # too short for a block of any loader: not under load
            context.setup(done.seconds)
            steps *= 2
            continue
        walks.append(done)
        watch.see(done)
    return walks


def _labels(case: Case) -> dict[str, Scalar]:
    return {**case.labels, "stores": "none", "counting": "dependent loads, one line each"}


def _proofs(
    case: Case,
    used: Sequence[pools.FilledPool],
    before: Proof,
    watch: pools.PinWatch,
    sums: Proof,
    size: int,
) -> tuple[list[Proof], int | None]:
    after = pools.placement(used)
    page_size, page_proof = pools.page_size(used[:1])
    caches = case.labels["cache_bytes"]
    known = caches if isinstance(caches, int) else None
    enough = sharing.working_set(size, known, case.parameters["level_2_bytes"])
    return [before if before.ok is not True else after, page_proof, watch.proof(), sums, enough], page_size
