"""Sustained read bandwidth of memory: one core, each CPU node against each memory node, the whole machine;
and residency, whether an image of the wanted size can be held.

Cases, planned from the inventory alone:

    read.core.nodeN     one core of node N reads memory of its own node
    read.nodeC.nodeM    one thread per physical core of node C reads memory of node M
    read.machine        one thread per physical core, each reads memory of its own node
    read.4k.nodeN       as read.nodeN.nodeN, with base pages in place of huge ones
    read.interleaved    one thread per physical core, each reads a part of the memory of every node
    sweep.nodeN.tT      T threads of node N read its own memory; beyond one per core, SMT siblings join
    experts.machine     as read.machine, experts of Kimi K3 in random order; experts.nodeN of one node
    latency.nodeC.nodeM one core of node C follows a random chain of pointers through memory of node M; latency.4k.nodeN
                        in base pages
    staircase.nodeN     the same through 16 KiB, 32 KiB and so on: each cache is a step
    loaded.nodeN        the same while the other cores of the node read, slowed by an injected delay
    fileN.*             the same for files that the user names: see `file_plan`
    residency.image     the target's image is allocated, touched and verified; a small pool in short profiles

A figure is bytes loaded / (last end - first start) of all threads, taken over whole passes of a pool that is
at least four times the level-2 and last-level caches in play.
"""

from __future__ import annotations

import errno
import math
import random
import resource
from collections.abc import Iterator, Sequence
from typing import Any

from attrs import frozen

from k3gate import metrics
from k3gate.model import k3
from k3gate.probes import experts, file_memory, latency, memory_plan, pools, sharing
from k3gate.probes import working_sets as sets
from k3gate.probing.contract import Applies, Context, Planned, Reason, SampleToken
from k3gate.records import Case, Inventory, Metric, MetricDeclaration, Profile, Proof, Scalar, State
from k3gate.units import exact_bytes

SAMPLE_SECONDS = 0.05
"""No timed region is shorter; the clock's own resolution is then below 1e-6 of it."""
SAMPLES = 16
"""How many samples a round is divided into, where a pass is short enough."""
LEAST_SAMPLES = 3
_OWN_BYTES = 1 << 30
"""What a worker maps beside its pools, at most: a limit nearer to them than this counts as in the way."""


class MemoryProbe:
    """Read bandwidth and residency. See the module's text for the cases."""

    name = "memory"
    title = "Memory: read bandwidth by node, and whether the image fits"
    metrics: Sequence[MetricDeclaration] = (
        metrics.MEMORY_READ,
        metrics.EXPERT_READ,
        metrics.LATENCY_IDLE,
        metrics.LATENCY_LOADED,
        metrics.UNDER_LOAD,
        metrics.FILE_READ,
        metrics.FILE_EXPERTS,
        metrics.FILE_LATENCY,
        metrics.RESIDENCY_BYTES,
        metrics.RESIDENCY_RATE,
    )

    def applies(self, inventory: Inventory) -> Applies | Reason:
        """Needs a CPU that may be used and a node that has memory."""
        if not sets.usable_cpus(inventory):
            return Reason(State.NOT_PRESENT, "no CPU is known to be online and allowed to this process")
        if not inventory.numa.nodes:
            return Reason(State.NOT_PRESENT, "no memory node is known")
        return Applies()

    def cases(self, inventory: Inventory, profile: Profile) -> Planned:
        """Raises `UsageError` for a working set that fits in caches, or a lacking instruction set."""
        return memory_plan.plan(self.name, inventory, profile, sharing.forced_isa())

    def run(self, case: Case, context: Context) -> Iterator[Metric]:
        """One round of a case."""
        if case.name == "residency.image":
            yield from _residency(case, context)
        elif "file" in case.parameters:
            yield from file_memory.measure(case, context, _samples)
        elif case.parameters["kernel"] == "chase":
            yield from latency.measure(case, context)
        else:
            yield _read(case, context)


def _read(case: Case, context: Context) -> Metric:
    """`parameters`: kernel, isa (None: the best), pools, of each pool the CPUs that read it, and the bytes of
    the level-2 caches in play below the last level."""
    parameters = case.parameters
    kernel = str(parameters["kernel"])
    isa = sharing.choose_isa(parameters["isa"], kernel)
    filled = [sharing.pool(context, spec) for spec in parameters["pools"]]
    readers: list[list[int]] = [list(cpus) for cpus in parameters["readers"]]
    cpus = [cpu for group in readers for cpu in group]
    team = sharing.team(context, cpus)
    parts = _parts(parameters["layout"], filled, readers)
    before = pools.placement(filled)
    watch = pools.PinWatch(team)
    sums = pools.Checksums(parts)
    samples = _samples(context, team, kernel, isa, parts, watch, sums)
    after = pools.placement(filled)
    size, size_proof = pools.page_size(filled)

    total = sum(pool.bytes for pool in filled)
    caches = case.labels["cache_bytes"]
    proofs = [
        before if before.ok is not True else after,
        size_proof,
        watch.proof(),
        sums.proof(),
        sharing.working_set(total, caches if isinstance(caches, int) else None, parameters["level_2_bytes"]),
    ]
    traffic = next(row for row in pools.kernel_table() if (row["name"], row["isa"]) == (kernel, isa))
    labels: dict[str, Scalar] = {
        **case.labels,
        "page_size": size,
        "pool_bytes": total,
        "isa": isa,
        "stores": traffic["stores"],
        "counting": traffic["counting"],
    }
    state, reason = sharing.state_of(proofs)
    declaration = metrics.MEMORY_READ
    if parameters["layout"] == "experts":
        declaration, labels["expert_bytes"] = metrics.EXPERT_READ, k3.EXPERT_BYTES
    return context.metric(declaration, samples, labels, proofs, state, reason)


def _parts(
    layout: str, filled: Sequence[pools.FilledPool], readers: Sequence[Sequence[int]]
) -> list[list[pools.Part]]:
    """What each thread reads in a pass, threads in the order of the readers.

    "own": each group its own pool, in contiguous parts; "interleaved": every thread a part of every pool;
    "experts": each group the experts of its own pool in random order.
    """
    if layout == "interleaved":
        threads = sum(len(group) for group in readers)
        return [list(parts) for parts in zip(*(pool.parts(threads) for pool in filled), strict=True)]
    pairs = list(zip(filled, readers, strict=True))
    if layout == "experts":
        chance = random.Random(filled[0].seed)
        dealt = (experts.deal(pool, experts.order(pool.bytes, chance), len(group)) for pool, group in pairs)
        return [own for group in dealt for own in group]
    return [[part] for pool, group in pairs for part in pool.parts(len(group))]


def _samples(
    context: Context,
    team: Any,
    kernel: str,
    isa: str,
    parts: list[list[pools.Part]],
    watch: pools.PinWatch,
    sums: pools.Checksums,
) -> list[SampleToken]:
    """Timed regions of whole passes until the time of this round is used, after one pass to warm up."""
    per_word = next(
        row["counted_bytes_per_word"]
        for row in pools.kernel_table()
        if (row["name"], row["isa"]) == (kernel, isa)
    )
    region = team.run(kernel, isa, parts, 1)
    context.setup(region.seconds)
    goal = max(1.2 * SAMPLE_SECONDS, context.seconds / SAMPLES)
    passes = max(1, round(goal / max(region.seconds, 1e-6)))
    samples: list[SampleToken] = []
    spent = 0.0
    while len(samples) < LEAST_SAMPLES or spent + region.seconds <= context.seconds:
        region = team.run(kernel, isa, parts, passes)
        context.heartbeat("reading")
        if region.seconds < SAMPLE_SECONDS:
            # The warm-up was slower than what follows: more passes, and this one counts as warm-up too.
            passes = max(passes + 1, math.ceil(passes * 1.2 * SAMPLE_SECONDS / max(region.seconds, 1e-6)))
            context.setup(region.seconds)
            continue
        watch.see(region)
        sums.see(region, passes)
        counted = sum(thread.bytes for thread in region.threads) / 8 * per_word
        samples.append(context.sample(counted / region.seconds, region.seconds))
        spent += region.seconds
    return samples


def _residency(case: Case, context: Context) -> Iterator[Metric]:
    """Allocate on every node, touch in parallel, read the pattern back. What was reached is the figure.

    `parameters`: pools, cpus, note. The memory is given back when the worker ends: unmapping a terabyte is
    silent for longer than the parent waits while a case runs.
    """
    parameters = case.parameters
    team = sharing.team(context, list(parameters["cpus"]))
    watch = pools.PinWatch(team)
    specs = parameters["pools"]
    pools.check_available(
        sum(spec["bytes"] for spec in specs if not spec["pages"].startswith(pools.RESERVED))
    )
    held: list[tuple[pools.FilledPool, Sequence[int]]] = context.share(f"held:{case.name}", list, _give_back)
    trouble: _Trouble | None = None
    for spec in specs:
        try:
            held.append((pools.allocate(spec["bytes"], spec["pages"], spec["bind"]), spec["touch"]))
        except OSError as error:
            trouble = _Trouble(error.errno or 0, f"node {spec['node']}: {exact_bytes(spec['bytes'])} refused")
            break
    touch_seconds, failed = pools.touch(team, held, context.heartbeat, watch.see)
    if failed and trouble is None:
        trouble = _Trouble(failed, "touching")
    allocation = _allocation_proof(sum(spec["bytes"] for spec in specs), context.inventory, trouble)
    yield from _residency_metrics(case, context, team, watch, held, touch_seconds, trouble, allocation)


@frozen
class _Trouble:
    """Why not all was allocated and touched."""

    number: int
    what: str

    def __str__(self) -> str:
        return f"{self.what}: {pools.error_text(self.number)}"


def _allocation_proof(wanted: int, inventory: Inventory, trouble: _Trouble | None) -> Proof:
    """The proof "allocation". False speaks of the machine: it had no memory for what it is large enough for.

    None where something else was refused, or where a limit of this process or a setting stands in the way.
    """
    if trouble is None:
        return Proof("allocation", True, f"{exact_bytes(wanted)} were allocated and touched")
    detail = f"{trouble}; {exact_bytes(wanted)} were wanted"
    total = inventory.memory.total_bytes
    limits = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    limit = min((one for one in limits if one != resource.RLIM_INFINITY), default=None)
    if trouble.number != errno.ENOMEM:
        return Proof("allocation", None, detail)
    if total is None or wanted > total:
        much = "an unknown amount" if total is None else exact_bytes(total)
        return Proof("allocation", None, f"{detail}, and the machine has {much}")
    if limit is not None and limit < wanted + _OWN_BYTES:
        return Proof("allocation", None, f"{detail}, and this process may map {exact_bytes(limit)} (ulimit)")
    if inventory.kernel.overcommit_memory == 2:
        return Proof("allocation", None, f"{detail}, and vm.overcommit_memory is 2: the kernel sets a limit")
    return Proof("allocation", False, f"{detail}, and the machine has {exact_bytes(total)}")


def _give_back(held: list[tuple[pools.FilledPool, Sequence[int]]]) -> None:
    for pool, _ in held:
        pool.close()


def _residency_metrics(
    case: Case,
    context: Context,
    team: Any,
    watch: pools.PinWatch,
    held: list[tuple[pools.FilledPool, Sequence[int]]],
    touch_seconds: float,
    trouble: _Trouble | None,
    allocation: Proof,
) -> Iterator[Metric]:
    touched = sum(size for pool, _ in held for _, size in pool.filled)
    nothing = "nothing was touched"
    filled = [pool for pool, _ in held]
    # Before the pattern is read back, which would bring in what was swapped out.
    resident = pools.resident(filled) if touched else Proof("resident", None, nothing)
    context.heartbeat("verifying memory")
    # The rate of a part is not the rate of the image: the first gigabytes come faster than the last.
    rate = [] if trouble else [context.sample(touched / touch_seconds, touch_seconds)]
    verify_seconds, right, wrong = pools.verify(team, held, context.heartbeat, watch.see)
    verified = context.sample(float(right), verify_seconds)
    context.heartbeat("proving the placement")
    size, size_proof = pools.page_size(filled)
    checksum = Proof("checksum", wrong == 0, f"{right} bytes hold their pattern, {wrong} words do not")
    if not touched:
        checksum = Proof("checksum", None, nothing)
    proofs = [pools.placement(filled) if touched else Proof("placement", None, nothing)]
    proofs += [size_proof, watch.proof(), checksum, allocation, resident]
    state, reason = sharing.state_of(proofs)
    note = case.parameters["note"]
    if trouble:
        state, reason = State.FAILED, f"{exact_bytes(right)} held and verified, then {trouble}"
    elif state is State.OK:
        reason = "; ".join(text for text in (note, reason) if text) or None
    labels: dict[str, Scalar] = {**case.labels, "page_size": size}
    yield context.metric(metrics.RESIDENCY_BYTES, [verified], labels, proofs, state, reason)
    yield context.metric(metrics.RESIDENCY_RATE, rate, labels, proofs, state, reason)
