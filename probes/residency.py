"""Residency: an image of the wanted size is allocated, touched and read back; and experts are read in it.

The memory is given back when the worker ends: unmapping a terabyte is silent for longer than the parent waits
while a case runs.
"""

from __future__ import annotations

import errno
import random
import resource
from collections.abc import Iterator, Sequence
from typing import Any

from attrs import frozen

from k3gate import metrics
from k3gate.errors import ProbeError
from k3gate.model import k3
from k3gate.probes import bandwidth, experts, pools, sharing
from k3gate.probing.contract import Context, SampleToken
from k3gate.records import Case, Inventory, Metric, Proof, Scalar, State
from k3gate.units import exact_bytes

_OWN_BYTES = 1 << 30
"""What a worker maps beside its pools, at most: a limit nearer to them than this counts as in the way."""
SAMPLES = 16
"""Into how many timed regions a pass over the experts of the image is cut."""
Held = list[tuple[pools.FilledPool, Sequence[int]]]
"""The pools of the image, each with the CPUs that touch, verify and read it."""


def measure(case: Case, context: Context) -> Iterator[Metric]:
    """Allocate on every node, touch in parallel, read the pattern back. What was reached is the figure.

    `parameters`: pools, cpus, note.
    """
    parameters = case.parameters
    team = sharing.team(context, list(parameters["cpus"]))
    watch = pools.PinWatch(team)
    held = _held(context)
    touch_seconds, trouble = _fill(held, parameters["pools"], team, context, watch)
    allocation = _allocation_proof(
        sum(spec["bytes"] for spec in parameters["pools"]), context.inventory, trouble
    )
    yield from _metrics(case, context, team, watch, held, touch_seconds, trouble, allocation)


def read_experts(case: Case, context: Context) -> Metric:
    """Read every expert of the image once a pass, in random order, where it lies; touch it first where no case
    of this worker has.

    `parameters`: pools, cpus, isa. Raises `ProbeError` where the image is not there whole.
    """
    parameters = case.parameters
    specs = parameters["pools"]
    team = sharing.team(context, list(parameters["cpus"]))
    watch = pools.PinWatch(team)
    held = _held(context)
    if not held:
        seconds, trouble = _fill(held, specs, team, context, watch)
        context.setup(seconds)
        if trouble is not None:
            raise ProbeError(f"no image to read experts in: {trouble}")
    touched = sum(size for pool, _ in held for _, size in pool.filled)
    if touched < sum(spec["bytes"] for spec in specs):
        raise ProbeError(f"no image to read experts in: only {exact_bytes(touched)} of it could be touched")
    filled = [pool for pool, _ in held]
    isa = sharing.choose_isa(parameters["isa"], "read")
    traffic = pools.traffic("read", isa)
    before = pools.placement(filled)
    samples, sums = _passes(context, team, isa, held, watch)
    after = pools.placement(filled)
    size, size_proof = pools.page_size(filled)
    caches = case.labels["cache_bytes"]
    working_set = sharing.working_set(
        touched, caches if isinstance(caches, int) else None, parameters["level_2_bytes"]
    )
    placed = before if before.ok is not True else after
    labels: dict[str, Scalar] = {
        **case.labels,
        "page_size": size,
        "isa": isa,
        "stores": traffic["stores"],
        "counting": traffic["counting"],
    }
    limit = bandwidth.ceiling(bandwidth.median_rate(samples), context.inventory, labels)
    proofs = [placed, size_proof, watch.proof(), sums, working_set, *limit]
    state, reason = sharing.state_of(proofs)
    return context.metric(metrics.EXPERT_READ, samples, labels, proofs, state, reason)


def _passes(
    context: Context, team: Any, isa: str, held: Held, watch: pools.PinWatch
) -> tuple[list[SampleToken], Proof]:
    """Whole passes over the experts of all pools, one at least: (samples, the proof "checksum")."""
    if all(pool.bytes < k3.EXPERT_BYTES for pool, _ in held):
        raise ProbeError(f"no expert of {exact_bytes(k3.EXPERT_BYTES)} fits into the image")
    chance = random.Random(held[0][0].seed)
    samples: list[SampleToken] = []
    proofs: list[Proof] = []
    spent = passes = 0.0
    while not passes or spent * (1 + 1 / passes) <= context.seconds:
        orders = [experts.order(pool.bytes, chance) for pool, _ in held]
        for number in range(min(SAMPLES, max(map(len, orders)))):
            parts = _dealt(team, held, [order[number::SAMPLES] for order in orders], chance)
            sums = pools.Checksums(parts)
            if not samples:
                context.setup(team.run("read", isa, parts, 1).seconds)  # to warm up
            region = team.run("read", isa, parts, 1)
            watch.see(region)
            sums.see(region, 1)
            proofs.append(sums.proof())
            read = sum(thread.bytes for thread in region.threads)
            samples.append(context.sample(read / region.seconds, region.seconds))
            spent += region.seconds
            context.heartbeat("reading experts")
        passes += 1
    return samples, next((proof for proof in proofs if proof.ok is not True), proofs[0])


def _dealt(
    team: Any, held: Held, orders: Sequence[Sequence[int]], chance: random.Random
) -> list[list[pools.Part]]:
    """The tensors of these experts of each pool, given out to the CPUs that touched it; a list per thread."""
    index = {cpu: thread for thread, cpu in enumerate(team.cpus)}
    parts: list[list[pools.Part]] = [[] for _ in team.cpus]
    for (pool, cpus), offsets in zip(held, orders, strict=True):
        for cpu, own in zip(cpus, experts.deal(pool, offsets, len(cpus)), strict=True):
            parts[index[cpu]] += own
    for own in parts:
        chance.shuffle(own)  # or all threads of several pools would read one pool after another
    return parts


def _held(context: Context) -> Held:
    """The pools of the image, empty until a case of this worker fills them."""
    held: Held = context.share("image", list, _give_back)
    return held


def _fill(
    held: Held, specs: Sequence[dict[str, Any]], team: Any, context: Context, watch: pools.PinWatch
) -> tuple[float, _Trouble | None]:
    """Allocate and touch the pools: (seconds of touching, why not all of it was done)."""
    pools.check_available(
        sum(spec["bytes"] for spec in specs if not spec["pages"].startswith(pools.RESERVED))
    )
    trouble: _Trouble | None = None
    for spec in specs:
        try:
            held.append((pools.allocate(spec["bytes"], spec["pages"], spec["bind"]), spec["touch"]))
        except OSError as error:
            trouble = _Trouble(error.errno or 0, f"node {spec['node']}: {exact_bytes(spec['bytes'])} refused")
            break
    seconds, failed = pools.touch(team, held, context.heartbeat, watch.see)
    if failed and trouble is None:
        trouble = _Trouble(failed, "touching")
    return seconds, trouble


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


def _give_back(held: Held) -> None:
    for pool, _ in held:
        pool.close()


def _metrics(
    case: Case,
    context: Context,
    team: Any,
    watch: pools.PinWatch,
    held: Held,
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
