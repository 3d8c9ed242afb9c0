"""Products and whole experts, timed over weights that rotate through memory, each proven before and after."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any, TypeVar

from attrs import frozen

from k3gate import metrics
from k3gate.errors import ProbeError
from k3gate.probes import _native, bandwidth, gemm_kernels, pools, sharing, timing
from k3gate.probes.gemm_plan import rows_checked
from k3gate.probing.contract import Context, SampleToken
from k3gate.records import Case, Metric, MetricDeclaration, Proof, Scalar, State
from k3gate.units import exact_bytes

T = TypeVar("T")
HEARTBEAT_SECONDS = 2.0
PROVEN_WIDTH, PROVEN_INNER = 512, 256
"""Of the expert that is compared row by row with fresh operands; of a whole one, float64 computes a sample of rows."""


@frozen
class _Bench:
    """The trials of a case, one for each pool, and the trial of each thread."""

    trials: list[Any]
    filled: list[pools.FilledPool]
    of_thread: list[Any]

    def close(self) -> None:
        for one in self.filled:
            one.close()


def measure(case: Case, context: Context) -> Iterator[Metric]:
    """Two rates for each number of tokens: of weights, and of arithmetic.

    `parameters`: kind (product or expert), rows of what a thread multiplies at a time, tokens, path, pools, of each
    pool the CPUs that multiply from it, and the bytes of the level-2 caches below the last level.
    """
    parameters = case.parameters
    readers: list[list[int]] = [list(cpus) for cpus in parameters["readers"]]
    team = sharing.team(context, [cpu for group in readers for cpu in group])
    path, kind = str(parameters["path"]), str(case.labels["format"])
    variant = next(one for one in gemm_kernels.variants([path]) if one.format == kind)
    bench = _bench(case, context, variant, readers)
    before = pools.placement(bench.filled)
    page, page_proof = pools.page_size(bench.filled)
    proofs = [
        before,
        page_proof,
        sharing.working_set(
            sum(pool.bytes for pool in bench.filled),
            size if isinstance(size := case.labels["cache_bytes"], int) else None,
            parameters["level_2_bytes"],
        ),
    ]
    seconds = context.seconds / len(parameters["tokens"])
    for tokens in parameters["tokens"]:
        yield from _point(case, context, team, bench, variant, tokens, proofs, page, seconds)


def _bench(
    case: Case, context: Context, variant: gemm_kernels.Variant, readers: Sequence[Sequence[int]]
) -> _Bench:
    """Pools filled with packed weights, given back when the worker ends: a case is a group of its own."""
    parameters, labels = case.parameters, case.labels
    specs = parameters["pools"]
    expert = parameters["kind"] == "expert"

    def fill(spec: dict[str, Any]) -> Any:
        node = -1 if spec["bind"] is None else int(spec["bind"])
        return variant.trial(
            expert,
            parameters["rows"],
            int(labels["depth"] or 0),
            spec["bytes"],
            spec["pages"],
            secrets.randbits(32),
            node,
        )

    def build() -> _Bench:
        pools.check_available(
            sum(spec["bytes"] for spec in specs if not spec["pages"].startswith(pools.RESERVED))
        )
        try:
            trials = _patiently(context, "packing weights", [partial(fill, spec) for spec in specs])
        except (OSError, MemoryError) as error:
            size = exact_bytes(sum(spec["bytes"] for spec in specs))
            raise ProbeError(f"no memory for {size} of weights: {error}") from error
        filled = [
            pools.FilledPool(trial.pool, spec["bind"], spec["pages"], 0, trial.bind_error)
            for trial, spec in zip(trials, specs, strict=True)
        ]
        pairs = zip(trials, readers, strict=True)
        return _Bench(trials, filled, [trial for trial, cpus in pairs for _ in cpus])

    return context.share("weights", build, _Bench.close)


def _patiently(context: Context, note: str, work: Sequence[Callable[[], T]]) -> list[T]:
    """What each gives, side by side; the parent hears of this worker meanwhile."""
    with ThreadPoolExecutor(len(work)) as threads:
        futures = [threads.submit(each) for each in work]
        open_ = set(futures)
        while open_:
            _, open_ = wait(open_, HEARTBEAT_SECONDS)
            context.heartbeat(note)
        return [future.result() for future in futures]


def _point(
    case: Case,
    context: Context,
    team: Any,
    bench: _Bench,
    variant: gemm_kernels.Variant,
    tokens: int,
    proofs: Sequence[Proof],
    page: int | None,
    seconds: float,
) -> Iterator[Metric]:
    """One number of tokens: the proof, the timed calls, and the proof of what they left."""
    labels: dict[str, Scalar] = {
        **case.labels,
        "tokens": tokens,
        "path": variant.path,
        "activations": variant.activations,
        "page_size": page,
    }
    expert = case.parameters["kind"] == "expert"
    declared = (metrics.KERNEL_EXPERT if expert else metrics.KERNEL_WEIGHTS, metrics.KERNEL_FLOPS)
    seed = secrets.randbits(32)
    begun = time.monotonic()
    [reference] = _patiently(
        context, "comparing with float64", [partial(_prove, case, variant, tokens, seed)]
    )
    context.setup(time.monotonic() - begun)
    if reference.ok is not True:
        yield from _withheld(context, declared, labels, [*proofs, reference])
        return
    watch = pools.PinWatch(team)
    # The very code, shapes, weights and threads that are timed next, at a sample of rows.
    begun = time.monotonic()
    _native.gemm_run_together(team, bench.of_thread, tokens, 1)
    whole = _recomputed(context, bench, seed, "comparing whole products with float64")
    context.setup(time.monotonic() - begun)
    reference = _joined(reference, whole)
    if reference.ok is not True:
        yield from _withheld(context, declared, labels, [*proofs, reference])
        return
    counted, samples = _timed(context, team, bench, tokens, watch, seconds)
    begun = time.monotonic()
    wrong = _recomputed(context, bench, seed + 1, "computing timed rows again")
    context.setup(time.monotonic() - begun)
    all_ = [*proofs, reference, wrong, watch.proof()]
    if wrong.ok is not True:
        yield from _withheld(context, declared, labels, all_)
        return
    rate = bandwidth.median_rate(samples)
    all_ += bandwidth.ceiling(rate, context.inventory, labels)
    state, reason = sharing.state_of(all_)
    yield context.metric(declared[0], samples, labels, all_, state, reason)
    # The same regions, counted in operations: their time is booked once.
    flops = [SampleToken(one.value * counted, one.start_s, one.timed_seconds) for one in samples]
    yield context.metric(declared[1], flops, labels, all_, state, reason)


def _recomputed(context: Context, bench: _Bench, seed: int, note: str) -> Proof:
    """Of each thread's last output other random rows; the first proof that fails, else that of the first pool."""
    rows = rows_checked(len(bench.of_thread))
    checked = _patiently(
        context,
        note,
        [
            partial(gemm_kernels.recomputed, trial, seed + 1000 * number, rows)
            for number, trial in enumerate(bench.trials)
        ],
    )
    return next((one for one in checked if one.ok is not True), checked[0])


def _joined(reference: Proof, whole: Proof) -> Proof:
    """The proof on fresh operands, all rows of which are compared, and on those that are timed next."""
    if whole.ok is True:
        return Proof(reference.name, True, f"{reference.detail}; of the whole product, {whole.detail}")
    return Proof(reference.name, whole.ok, f"of the whole product: {whole.detail}")


def _prove(case: Case, variant: gemm_kernels.Variant, tokens: int, seed: int) -> Proof:
    if case.parameters["kind"] == "expert":
        return gemm_kernels.prove_expert(variant, tokens, PROVEN_WIDTH, PROVEN_INNER, seed)
    return gemm_kernels.prove(variant, tokens, int(case.labels["depth"] or 0), seed)


def _withheld(
    context: Context,
    declared: Sequence[MetricDeclaration],
    labels: dict[str, Scalar],
    proofs: Sequence[Proof],
) -> Iterator[Metric]:
    """No speed of what computes wrongly."""
    reason = "; ".join(f"{one.name}: {one.detail}" for one in proofs if one.ok is False)
    for declaration in declared:
        yield context.metric(declaration, [], labels, proofs, State.FAILED, f"withheld: {reason}")


def _timed(
    context: Context, team: Any, bench: _Bench, tokens: int, watch: pools.PinWatch, seconds: float
) -> tuple[float, list[SampleToken]]:
    """(operations for each byte of weights, rates of weights in B/s) of timed regions until the time is used."""

    def run(calls: int) -> Any:
        return _native.gemm_run_together(team, bench.of_thread, tokens, calls)

    samples = []
    for region, _ in timing.regions(context, run, seconds, "multiplying"):
        watch.see(region)
        size = sum(thread.bytes for thread in region.threads)
        samples.append(context.sample(size / region.seconds, region.seconds))
    first = bench.trials[0]
    return first.flops_per_item(tokens) / first.bytes_per_item, samples
