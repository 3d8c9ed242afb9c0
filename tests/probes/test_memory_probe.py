"""The memory probe run for real on small pools of this machine, in a fake context that only keeps books."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import attrs
import pytest
from fakes import FakeContext

from k3gate.errors import ProbeError
from k3gate.probes import _native, pools, sharing
from k3gate.probes.memory import MemoryProbe
from k3gate.records import Case, Inventory, Metric, NumaNode, Profile, State

SMALL = 8 << 20


def _inventory(make_inventory) -> Inventory:
    """The synthetic guest with the CPUs of this machine, all in node 0."""
    cpus = tuple(_native.allowed_cpus()[:2])
    inventory = make_inventory("vm", cpu={"online": cpus, "allowed": cpus, "siblings": ()})
    memory = inventory.memory.total_bytes
    numa = attrs.evolve(inventory.numa, nodes=(NumaNode(0, cpus, memory, memory // 2, "dram", {0: 10}),))
    return attrs.evolve(inventory, numa=numa)


def _small(case: Case) -> Case:
    specs = [{**spec, "bytes": SMALL} for spec in case.parameters["pools"]]
    return attrs.evolve(case, parameters={**case.parameters, "pools": specs})


def _run(make_inventory, name: str, context: FakeContext | None = None) -> list[Metric]:
    inventory = _inventory(make_inventory)
    cases = MemoryProbe().cases(inventory, Profile("quick", 180.0)).cases
    case = _small(next(one for one in cases if one.name == name))
    own = context or FakeContext(inventory)
    try:
        return list(MemoryProbe().run(case, own))
    finally:
        own.close()


@pytest.fixture
def context(make_inventory) -> Iterator[FakeContext]:
    yield FakeContext(_inventory(make_inventory))


READS = ("read.core.node0", "read.node0.node0", "read.machine", "read.4k.node0")


@pytest.mark.case("BW-04")
@pytest.mark.parametrize("name", READS)
def test_bw_04_every_figure_carries_kernel_stores_and_counting(make_inventory, name: str) -> None:
    metric, *_ = _run(make_inventory, name)
    assert metric.labels["kernel"] == "read"
    assert metric.labels["stores"] == "none"
    assert metric.labels["counting"] == "bus bytes = counted bytes: loads only"
    assert metric.labels["isa"] in _native.supported_isas()
    assert {"cpu_node", "memory_node", "scope", "placement", "threads", "page_size"} <= set(metric.labels)
    assert [proof.name for proof in metric.proofs] == [
        "placement",
        "page_size",
        "pinned",
        "checksum",
        "working_set",
        "counter_check",
    ]
    proofs = {proof.name: proof.ok for proof in metric.proofs}
    assert proofs["pinned"] is True
    assert proofs["checksum"] is True
    if name == "read.4k.node0":
        assert metric.labels["page_size"] == os.sysconf("SC_PAGESIZE")


def test_samples_are_long_enough_and_warm_up_is_booked_as_set_up(make_inventory, context) -> None:
    [metric] = _run(make_inventory, "read.node0.node0", context)
    assert len(metric.samples) >= 3
    assert min(context.timed) >= 0.05
    assert context.booked > 0
    assert all(sample.value > 0 for sample in metric.samples)


@pytest.mark.case("BW-03")
def test_bw_03_a_pool_that_sits_in_the_cache_disproves_its_figure(make_inventory) -> None:
    [metric] = _run(make_inventory, "read.node0.node0")
    working_set = next(proof for proof in metric.proofs if proof.name == "working_set")
    assert working_set.ok is False
    assert metric.state is State.FAILED
    assert "33.6 MB of last-level" in (metric.reason or "")


@pytest.mark.parametrize(
    ("total", "level_2", "ok"), [(400, 0, True), (399, 0, False), (400, 10, False), (440, 10, True)]
)
def test_a_working_set_is_held_against_level_2_and_last_level_caches(
    total: int, level_2: int, ok: bool
) -> None:
    proof = sharing.working_set(total * 10**6, 100 * 10**6, level_2 * 10**6)
    assert proof.ok is ok
    assert ("100.0 MB last-level, 10.0 MB level 2" in proof.detail) == bool(level_2)
    assert sharing.working_set(total, None, 0).ok is None


def test_the_plan_sizes_every_pool_so_that_its_proof_holds(make_inventory) -> None:
    """On a machine whose level-2 caches hold more than its last level."""
    for case in MemoryProbe().cases(make_inventory("bare_metal"), Profile("quick", 180.0)).cases:
        if case.name.startswith("read."):
            level_2 = case.parameters["level_2_bytes"]
            assert level_2 == case.labels["threads"] * 2 * 2**20
            proof = sharing.working_set(case.labels["pool_bytes"], case.labels["cache_bytes"], level_2)
            assert proof.ok is True, (case.name, proof)


def test_a_wrong_checksum_fails_the_figure(make_inventory, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = pools.pattern_sum
    monkeypatch.setattr(pools, "pattern_sum", lambda part: honest(part) + 1)
    metric, *_ = _run(make_inventory, "read.core.node0")
    assert metric.state is State.FAILED
    assert "wrong sum" in (metric.reason or "")


def test_pages_on_another_node_fail_the_figure(make_inventory, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = pools.allocate

    def elsewhere(size: int, pages: str, node: int | None) -> pools.FilledPool:
        filled = honest(size, pages, None)
        filled.node = 7
        return filled

    monkeypatch.setattr(pools, "allocate", elsewhere)
    metric, *_ = _run(make_inventory, "read.core.node0")
    assert metric.state is State.FAILED
    assert "wanted on node 7" in (metric.reason or "")


def test_the_pool_is_held_and_verified_and_its_touch_timed(make_inventory) -> None:
    held, rate = _run(make_inventory, "residency.image")
    assert held.name == "memory.residency.bytes"
    assert [sample.value for sample in held.samples] == [SMALL]
    assert held.labels["memory"] == "pool"
    assert "not the image" in (held.reason or "")
    assert rate.samples[0].value > 0


def test_refused_memory_says_errno_and_what_was_reached(make_inventory, monkeypatch) -> None:
    monkeypatch.setattr(pools, "check_available", lambda size: None)
    inventory = _inventory(make_inventory)
    cases = MemoryProbe().cases(inventory, Profile("quick", 180.0)).cases
    case = next(one for one in cases if one.name == "residency.image")
    spec = case.parameters["pools"][0]
    specs = [{**spec, "bytes": SMALL}, {**spec, "bytes": 1 << 55}]
    case = attrs.evolve(case, parameters={**case.parameters, "pools": specs})
    held, _ = list(MemoryProbe().run(case, FakeContext(inventory)))
    assert held.state is State.FAILED
    assert "ENOMEM" in (held.reason or "")
    assert [sample.value for sample in held.samples] == [SMALL]


def test_memory_that_went_since_planning_is_refused_before_it_is_touched() -> None:
    available = pools.available_bytes()
    assert available is not None
    with pytest.raises(ProbeError, match="available now"):
        pools.check_available(2 * available)


def test_a_plan_for_an_instruction_set_that_the_worker_lacks_fails_in_words(make_inventory) -> None:
    inventory = _inventory(make_inventory)
    cases = MemoryProbe().cases(inventory, Profile("quick", 180.0)).cases
    case = _small(cases[0])
    case = attrs.evolve(case, parameters={**case.parameters, "isa": "avx4096"})
    with pytest.raises(ProbeError, match="avx4096"):
        list(MemoryProbe().run(case, FakeContext(inventory)))


@pytest.mark.case("TOP-16")
@pytest.mark.parametrize("name", ["read.node0.node0", "latency.node0.node0"])
def test_top_16_unknown_placement_is_said_on_the_figure(make_inventory, monkeypatch, name: str) -> None:
    honest = pools.allocate

    def unbound(size: int, pages: str, node: int | None) -> pools.FilledPool:
        filled = honest(size, pages, None)
        filled.node, filled.bind_error = node, 1
        return filled

    monkeypatch.setattr(pools, "allocate", unbound)
    monkeypatch.setattr("k3gate.probes.working_sets.CACHE_FACTOR", 0)
    [metric] = _run(make_inventory, name)
    assert metric.proofs[0].ok is None
    assert (metric.reason or "").startswith("placement unknown: mbind refused")


@pytest.mark.case("TOP-18")
@pytest.mark.parametrize("name", ["read.node0.node0", "latency.node0.node0"])
def test_top_18_without_node_directory_it_is_measured_and_placed_nowhere(make_inventory, name: str) -> None:
    inventory = _inventory(make_inventory)
    inventory = attrs.evolve(inventory, numa=attrs.evolve(inventory.numa, available=False))
    cases = MemoryProbe().cases(inventory, Profile("quick", 180.0)).cases
    assert not any(case.labels.get("placement") == "remote" for case in cases)
    context = FakeContext(inventory)
    [metric] = MemoryProbe().run(_small(next(one for one in cases if one.name == name)), context)
    context.close()
    assert metric.samples and all(sample.value > 0 for sample in metric.samples)
    assert metric.proofs[0].ok is None
    assert "the kernel shows no NUMA information" in metric.proofs[0].detail


@pytest.mark.parametrize(
    ("pages", "huge", "ok"),
    [("transparent", 0.8, None), ("transparent", 1.0, True), ("small", 0.5, False), ("small", 1.0, False)],
)
def test_pages_that_are_mixed_are_not_proven_and_fail_nothing_but_base_pages(
    monkeypatch: pytest.MonkeyPatch, pages: str, huge: float, ok: bool | None
) -> None:
    from types import SimpleNamespace

    from k3gate.probes import pools

    size = 100 * 2**21
    fields = {"KernelPageSize": 4096, "AnonHugePages": int(huge * size)}
    monkeypatch.setattr(pools, "smaps_fields", lambda address: fields)
    pool = SimpleNamespace(pool=SimpleNamespace(address=0, advice_error=0), pages=pages, bytes=size)
    found, proof = pools.page_size([pool])  # type: ignore[list-item]  # a stand-in for a pool
    assert proof.ok is ok
    assert (found is None) == (huge < 1)


def test_a_refused_request_for_huge_pages_is_said_with_the_page_size(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    monkeypatch.setattr(pools, "smaps_fields", lambda address: {"KernelPageSize": 4096, "AnonHugePages": 0})
    refused = SimpleNamespace(address=0, advice_error=errno.EINVAL)
    pool = SimpleNamespace(pool=refused, pages="transparent", bytes=2**21)
    size, proof = pools.page_size([pool])  # type: ignore[list-item]  # a stand-in for a pool
    assert (size, proof.ok) == (4096, True)
    assert "madvise for transparent pages refused: EINVAL" in proof.detail
