"""What the cases of the memory probe share: the instruction set, threads and memory built once per worker, and
what proves a figure by them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from k3gate.errors import ProbeError, UsageError
from k3gate.probes import pools
from k3gate.probes import working_sets as sets
from k3gate.probing.contract import Context
from k3gate.records import Proof, State
from k3gate.units import exact_bytes

ISA_VARIABLE = "K3GATE_ISA"


def forced_isa() -> str | None:
    """The instruction set that K3GATE_ISA asks for; `UsageError` where this CPU or this build lacks it."""
    wanted = os.environ.get(ISA_VARIABLE)
    if not wanted:
        return None
    return choose_isa(wanted, "read", UsageError)


def choose_isa(wanted: str | None, kernel: str, kind: type[Exception] = ProbeError) -> str:
    """The instruction set for a kernel: the one that is wanted, else the best that this CPU has."""
    from k3gate.probes import _native

    built = {row["isa"] for row in _native.kernels() if row["name"] == kernel}
    here = [isa for isa in _native.supported_isas() if isa in built]
    if wanted is None:
        return str(here[0])
    # A path of products (amx_int8, avx512_vnni, ...) that is here stands for the loads that go with it.
    for row in _native.gemm_paths():
        if row["path"] == wanted and row["presence"] == "ok":
            wanted = str(row["base"])
    if wanted not in here:
        raise kind(
            f"{ISA_VARIABLE}={wanted[:40]!r}: this CPU cannot run {kernel} so; it has {', '.join(here)}"
        )
    return wanted


def team(context: Context, cpus: Sequence[int]) -> Any:
    """The pinned thread team of these CPUs."""
    return context.share(f"team:{','.join(map(str, cpus))}", lambda: pools.make_team(cpus))


def pool(context: Context, spec: dict[str, Any]) -> pools.FilledPool:
    """The pool of a specification, built once per worker and kept for the other cases of the group."""
    touching = spec["touch"]
    # The team is shared too, and must not be built within `build`, or its time would be booked twice.
    threads = team(context, touching)
    return context.share(
        f"pool:{spec['node']}:{spec['pages']}:{spec['bytes']}",
        lambda: pools.build(
            spec["bytes"], spec["pages"], spec["bind"], touching, threads, heartbeat=context.heartbeat
        ),
        pools.FilledPool.close,
    )


def working_set(total: int, last: int | None, level_2: int) -> Proof:
    """Against both levels, as the pool is sized by both: what they hold together is not read from memory."""
    if last is None:
        return Proof("working_set", None, f"{exact_bytes(total)}; the cache sizes are unknown")
    caches = f"the {sets.megabytes(last)} of last-level caches in play"
    if level_2:
        caches = (
            f"the {sets.megabytes(last + level_2)} of caches in play "
            f"({sets.megabytes(last)} last-level, {sets.megabytes(level_2)} level 2)"
        )
    ratio = total / (last + level_2)
    detail = f"{sets.megabytes(total)}, {ratio:.1f} x {caches}"
    return Proof("working_set", total >= sets.CACHE_FACTOR * (last + level_2), detail)


def state_of(proofs: Sequence[Proof]) -> tuple[State, str | None]:
    """A proof that fails makes the figure fail; one that could not be taken leaves it, with a word."""
    failed = [proof for proof in proofs if proof.ok is False and proof.name != "page_size"]
    if failed:
        return State.FAILED, "; ".join(f"{proof.name}: {proof.detail}" for proof in failed)
    unknown = [proof for proof in proofs if proof.ok is not True]
    if unknown:
        return State.OK, "; ".join(
            f"{proof.name.replace('_', ' ')} {'unknown' if proof.ok is None else 'mixed'}: {proof.detail}"
            for proof in unknown
        )
    return State.OK, None
