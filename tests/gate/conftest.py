"""Synthetic runs for the gate: a sound bare-metal run that can be bent in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs
import pytest

from k3gate import metrics
from k3gate.gate.criteria import Criteria
from k3gate.gate.criteria import load as load_criteria
from k3gate.gate.evaluator import evaluate
from k3gate.gate.targets import Target
from k3gate.gate.targets import load as load_target
from k3gate.records import (
    CheckResult,
    GateResult,
    Inventory,
    Metric,
    Outcome,
    Proof,
    Run,
    RunRecord,
    RunStatus,
    State,
)

LAB_IMAGE = 1_560_656_733_184
PROOFS = tuple(
    Proof(name, True, "seen") for name in ("placement", "page_size", "pinned", "checksum", "working_set")
)


def make_metric(
    name: str, value: float | None, spread: float = 0.01, state: State = State.OK, **changes: Any
) -> Metric:
    """A metric of the registry with an interval of +- `spread`."""
    declaration = metrics.find(name)
    assert declaration is not None
    interval = None if value is None else (value * (1 - spread), value * (1 + spread))
    metric = Metric(name, declaration.unit, declaration.better, {}, (), value, interval, state, None, PROOFS)
    return attrs.evolve(metric, **changes)


def read(cpu_node: int | None, memory_node: int | None, rate: float | None, **changes: Any) -> Outcome:
    """An outcome of the memory probe: one node (local or remote), or the whole machine for None."""
    whole = cpu_node is None
    labels = {
        "cpu_node": cpu_node,
        "memory_node": memory_node,
        "scope": "machine" if whole else "node",
        "placement": "spread" if whole else "local" if cpu_node == memory_node else "remote",
        "page_size": 2**21,
    }
    name = "read.machine" if whole else f"read.node{cpu_node}.node{memory_node}"
    metric = make_metric("memory.bandwidth.read", rate, **{"labels": labels, **changes})
    return Outcome("memory", name, metric.state, metric.reason, 1.0, 3, (), (metric,))


def residency(held: float | None, **changes: Any) -> Outcome:
    """The outcome of holding an image."""
    labels = {"memory": "image", "wanted_bytes": LAB_IMAGE, "nodes": "0,1"}
    proofs = (*PROOFS, Proof("resident", True, "nothing swapped"))
    defaults = {"labels": labels, "proofs": proofs}
    metric = make_metric("memory.residency.bytes", held, spread=0.0, **{**defaults, **changes})
    return Outcome("memory", "residency.image", metric.state, metric.reason, 60.0, 1, (), (metric,))


def idle(other: float = 0.01, steal: float = 0.0, disk: float = 1e6) -> Outcome:
    """What the harness says of the rest of the machine."""
    here = {"labels": {"scope": "machine"}}
    rows = (
        make_metric("machine.cpu.other_share", other, **here),
        make_metric("machine.cpu.steal_share", steal, **here),
        make_metric("machine.disk.other_rate", disk, **here),
    )
    return Outcome("machine", "idle", State.OK, None, 0.0, 1, (), rows)


def sound_outcomes() -> tuple[Outcome, ...]:
    """Two nodes of 358.4 GB/s on paper: local 0.75, remote 0.45 of local, image held, machine idle."""
    return (
        read(0, 0, 270e9),
        read(1, 1, 268e9),
        read(0, 1, 120e9),
        read(1, 0, 121e9),
        read(None, None, 530e9),
        residency(LAB_IMAGE),
        idle(),
    )


@pytest.fixture(scope="session")
def bare_metal(make_inventory: Callable[..., Inventory]) -> Inventory:
    """A two-socket machine with 2 TiB: large enough for the model."""
    return make_inventory("bare_metal", memory={"total_bytes": 2**41, "available_bytes": 2**41 - 2**35})


@pytest.fixture(scope="session")
def make_record(bare_metal: Inventory) -> Callable[..., RunRecord]:
    """`make_record(outcomes=..., inventory=..., status=..., **fields of the record)`."""

    def make(
        outcomes: Iterable[Outcome] | None = None,
        inventory: Inventory | None = None,
        status: RunStatus = RunStatus.COMPLETE,
        **fields: Any,
    ) -> RunRecord:
        run = Run("abcd2345", "sha256:m", "sha256:bare", "bare", "standard", "0", "2026", "2026", status)
        found = sound_outcomes() if outcomes is None else tuple(outcomes)
        return RunRecord(run, inventory or bare_metal, found, **fields)

    return make


@pytest.fixture(scope="session")
def criteria() -> Criteria:
    """The shipped criteria."""
    return load_criteria()


@pytest.fixture(scope="session")
def lab() -> Target:
    """The shipped target residency-lab."""
    return load_target("residency-lab")


@pytest.fixture(scope="session")
def judge(criteria: Criteria, lab: Target) -> Callable[..., GateResult]:
    """`judge(record, target=..., criteria=...)`."""

    def run(record: RunRecord, target: Target = lab, criteria: Criteria = criteria) -> GateResult:
        return evaluate(record, criteria, target, evaluated="2026-11-30T00:00:00Z", version="0")

    return run


def check_of(result: GateResult, check: str) -> CheckResult:
    """One check of a judged run."""
    return next(each for step in result.steps for each in step.checks if each.id == check)


@pytest.fixture(scope="session")
def check(judge: Callable[..., GateResult]) -> Callable[..., CheckResult]:
    """`check(record, "roofline.local", target=..., criteria=...)`: the one check of the judged record."""

    def run(record: RunRecord, name: str, **options: Any) -> CheckResult:
        return check_of(judge(record, **options), name)

    return run


@pytest.fixture(scope="session")
def build() -> Any:
    """The builders of this module, for tests that bend a run."""

    class Builders:
        LAB_IMAGE = LAB_IMAGE
        PROOFS = PROOFS
        metric = staticmethod(make_metric)
        read = staticmethod(read)
        residency = staticmethod(residency)
        idle = staticmethod(idle)
        sound = staticmethod(sound_outcomes)
        check_of = staticmethod(check_of)

    return Builders
