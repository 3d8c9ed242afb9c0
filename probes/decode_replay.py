"""A round of the decode replay in a worker: memory, proofs, timed steps, and what they left."""

from __future__ import annotations

import base64
import secrets
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from attrs import define, evolve, field, frozen

from k3gate import metrics
from k3gate.errors import ProbeError
from k3gate.probes import bandwidth, counting, decode_kernels, pools, sharing, timing
from k3gate.probes.decode_kernels import Engine, Report, Setup, Shape
from k3gate.probing.contract import Context, SampleToken
from k3gate.records import Case, Metric, MetricDeclaration, Proof, Scalar, State
from k3gate.units import exact_bytes

T = TypeVar("T")
HEARTBEAT_SECONDS = 2.0
REDUCED = Shape(
    layers=4,
    dense_layers=0,
    experts=32,
    hidden=256,
    width=128,
    inner=128,
    router_rows=32,
    used=4,
    heads=4,
    head_dim=32,
    query_rank=64,
    cache_rank=64,
    rest=32,
    decay_rank=32,
    dense_inner=256,
    block_layers=3,
    vocabulary=128,
)
"""The shape that is compared with float64 in full."""
REDUCED_CONTEXT = 16
EVEN = 0.1
"""How far a node's share of interleaved pages may lie from an even one, as a part of it."""


@frozen
class _Region:
    """Some steps, as `timing.regions` wants them."""

    seconds: float
    reports: tuple[Report, ...]


@define
class _Replay:
    """An engine and where it stands in its routing."""

    engine: Engine
    ids: bytes
    steps: int
    step: int = 0
    rows: int = 0
    watches: list[pools.PinWatch] = field(factory=list)

    def run(self, steps: int) -> _Region:
        """The next steps, round and round; the cache starts anew where it is full, between timed regions."""
        reports = []
        size = len(self.ids) // self.steps
        left = steps
        while left:
            if self.rows == self.engine.setup.room:
                self.engine.reset()
                self.rows = 0
            some = min(left, self.steps - self.step, self.engine.setup.room - self.rows)
            reports.append(self.engine.run(self.ids[self.step * size : (self.step + some) * size], some))
            self.step = (self.step + some) % self.steps
            self.rows += some
            left -= some
        return _Region(sum(one.seconds for one in reports), tuple(reports))


def setup_of(parameters: Mapping[str, Any]) -> Setup:
    """The setup that a case's parameters describe."""
    told = dict(parameters["setup"])
    shape = dict(told.pop("shape"))
    if shape["mla_layers"] is not None:
        shape["mla_layers"] = tuple(shape["mla_layers"])
    nodes = tuple((int(node), tuple(cpus)) for node, cpus in told.pop("node_cpus"))
    return Setup(Shape(**shape), node_cpus=nodes, **told)


def measure(case: Case, context: Context) -> Iterator[Metric]:
    """Tokens/s and B/s of the miniature, and of each part its seconds and bytes a step.

    `parameters`: setup, ids (zlib, base64; int16 [steps, layers, batch, used]), steps, and for the proof of the working
    set the bytes of all routed experts and of the level-2 caches in play.
    """
    parameters = case.parameters
    setup = evolve(setup_of(parameters), seed=secrets.randbits(31))
    labels: dict[str, Scalar] = dict(case.labels)
    begun = time.monotonic()
    reference = _patiently(context, "comparing a reduced model with float64", lambda: prove_reduced(setup))
    context.setup(time.monotonic() - begun)
    if reference.ok is not True:
        yield from _withheld(context, labels, [reference])
        return
    replay = context.share(
        "replay", lambda: _built(context, setup, parameters), lambda one: one.engine.close()
    )
    engine = replay.engine
    filled = [
        pools.FilledPool(
            pool, node if setup.bind and node >= 0 else None, setup.pages, 0, engine.bind_errors.get(node, 0)
        )
        for node, pool in engine.pools
    ]
    page, page_proof = pools.page_size(filled)
    labels["page_size"] = page
    watch = pools.PinWatch(_Threads(engine, setup))
    begun = time.monotonic()
    replay.run(1)
    context.setup(time.monotonic() - begun)
    samples = _Samples(context)
    counters = counting.of(context, {node if node >= 0 else None for node, _ in engine.pools})

    def counted(steps: int) -> _Region:
        return counters.around(lambda: replay.run(steps), _moved)

    for region, steps in timing.regions(context, counted, context.seconds, "decoding"):
        for report in region.reports:
            watch.see(report)
        samples.add(region, steps, setup.batch)
    begun = time.monotonic()
    wrong = _patiently(context, "computing timed rows again", lambda: engine.recheck(secrets.randbits(31)))
    context.setup(time.monotonic() - begun)
    caches = case.labels["cache_bytes"]
    proofs = [
        reference,
        wrong,
        placement(engine, setup, filled),
        page_proof,
        watch.proof(),
        sharing.working_set(
            parameters["routed_bytes"],
            caches if isinstance(caches, int) else None,
            parameters["level_2_bytes"],
        ),
    ]
    if wrong.ok is not True:
        yield from _withheld(context, labels, proofs)
        return
    proofs += bandwidth.ceiling(bandwidth.median_rate(samples.moved), context.inventory, labels)
    checked = counters.proof_beside(case.labels, parameters["routed_bytes"])
    state, reason = sharing.state_of([*proofs, checked] if checked.ok is False else proofs)
    proofs.append(checked)
    yield context.metric(metrics.REPLAY_RATE, samples.tokens, labels, proofs, state, reason)
    yield context.metric(metrics.REPLAY_BANDWIDTH, samples.moved, labels, proofs, state, reason)
    for part, seconds in samples.seconds.items():
        own = {**labels, "part": part}
        yield context.metric(metrics.REPLAY_PART, seconds, own, proofs, state, reason)
        yield context.metric(
            metrics.REPLAY_BYTES, [context.sample(samples.bytes_of(part), 0.0)], own, proofs, state, reason
        )
    yield context.metric(
        metrics.REPLAY_CROSSED, [context.sample(samples.crossed(), 0.0)], labels, proofs, state, reason
    )


def _moved(region: _Region) -> tuple[float, float]:
    """Bytes that the steps of a region read and wrote, by our count; the same with what the bus has besides."""
    whole = float(
        sum(sum(one.read_bytes.values()) + sum(one.written_bytes.values()) for one in region.reports)
    )
    return whole, whole


class _Samples:
    """What timed regions say, each quantity once a region; their time is booked with the first."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.tokens: list[SampleToken] = []
        self.moved: list[SampleToken] = []
        self.seconds: dict[str, list[SampleToken]] = {}
        self._bytes: dict[str, float] = dict.fromkeys(decode_kernels.PARTS, 0.0)
        self._crossed = 0
        self._steps = 0

    def add(self, region: _Region, steps: int, batch: int) -> None:
        """A region of so many steps, each of which gave `batch` sequences one token."""
        first = self._context.sample(steps / region.seconds, region.seconds)
        self.tokens.append(first)
        self._steps += steps
        seconds = dict.fromkeys(decode_kernels.PARTS, 0.0)
        moved = 0.0
        for report in region.reports:
            for part in decode_kernels.PARTS:
                seconds[part] += report.seconds_by_part[part]
                size = report.read_bytes[part] + report.written_bytes[part]
                self._bytes[part] += size
                moved += size
            self._crossed += sum(report.crossed_bytes.values())
        self.moved.append(SampleToken(moved / region.seconds, first.start_s, region.seconds))
        for part in decode_kernels.PARTS:
            value = SampleToken(seconds[part] / steps, first.start_s, region.seconds)
            self.seconds.setdefault(part, []).append(value)

    def bytes_of(self, part: str) -> float:
        """Bytes of a step, the mean of all that were timed."""
        return self._bytes[part] / self._steps

    def crossed(self) -> float:
        """The same of bytes that crossed nodes."""
        return self._crossed / self._steps


class _Threads:
    """An engine's threads as `pools.PinWatch` wants them."""

    def __init__(self, engine: Engine, setup: Setup) -> None:
        self.cpus = [cpu for _, own in setup.node_cpus for cpu in own]
        self.affinities = engine.affinities


def prove_reduced(setup: Setup, fault: str = "") -> Proof:
    """A model of reduced width, with this trunk, placement, path and batch, against float64."""
    reduced = evolve(
        setup,
        shape=REDUCED,
        context=min(setup.context, REDUCED_CONTEXT),
        room=16,
        pages="transparent",
    )
    return decode_kernels.prove(reduced, seed=setup.seed, fault=fault)


def _built(context: Context, setup: Setup, parameters: Mapping[str, Any]) -> _Replay:
    needed = sum(sum(parts.values()) for parts in decode_kernels.bytes_needed(setup).values())
    pools.check_available(needed)
    try:
        engine = _patiently(context, "filling a miniature with weights", lambda: Engine(setup))
    except (OSError, MemoryError) as error:
        raise ProbeError(f"no memory for {exact_bytes(needed)} of a miniature: {error}") from error
    return _Replay(engine, zlib.decompress(base64.b64decode(parameters["ids"])), int(parameters["steps"]))


def placement(engine: Engine, setup: Setup, filled: Sequence[pools.FilledPool]) -> Proof:
    """Where the pages lie: on their own node, or, interleaved, in even shares on all."""
    if not setup.bind:
        return Proof("placement", None, "the kernel shows no NUMA information")
    own = [one for one, (node, _) in zip(filled, engine.pools, strict=True) if node >= 0]
    spread = [pool for node, pool in engine.pools if node < 0]
    proof = pools.placement(own) if own else Proof("placement", True, "")
    if proof.ok is not True or not spread:
        return proof
    refused = engine.bind_errors.get(-1, 0)
    if refused:
        return Proof("placement", None, f"interleaving refused: {pools.error_text(refused)}")
    nodes = {node for node, _ in setup.node_cpus}
    said = [proof.detail] if proof.detail else []
    for pool in spread:
        error, pages = pool.query_nodes(pools.SAMPLED_PAGES)
        if error:
            return Proof("placement", None, f"move_pages refused: {pools.error_text(error)}")
        counts = Counter(pages)
        even = len(pages) / len(nodes)
        told = ", ".join(f"{number} pages on node {node}" for node, number in sorted(counts.items()))
        if set(counts) != nodes or any(abs(number - even) > EVEN * even for number in counts.values()):
            return Proof("placement", False, f"wanted interleaved over nodes {sorted(nodes)}: {told}")
        said.append(f"interleaved: {told}")
    return Proof("placement", True, "; ".join(said))


def _patiently(context: Context, note: str, work: Any) -> Any:
    """What it gives; the parent hears of this worker meanwhile."""
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(work)
        while True:
            try:
                return future.result(HEARTBEAT_SECONDS)
            except TimeoutError:
                context.heartbeat(note)


_DECLARED: tuple[MetricDeclaration, ...] = (metrics.REPLAY_RATE, metrics.REPLAY_BANDWIDTH)


def _withheld(context: Context, labels: dict[str, Scalar], proofs: Sequence[Proof]) -> Iterator[Metric]:
    """No speed of what computes wrongly."""
    reason = "; ".join(f"{one.name}: {one.detail}" for one in proofs if one.ok is not True)
    for declaration in _DECLARED:
        yield context.metric(declaration, [], labels, proofs, State.FAILED, f"withheld: {reason}")
