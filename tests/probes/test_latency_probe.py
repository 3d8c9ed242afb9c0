"""Latency for real on a small pool: walks that come back, proofs, labels; and what spoils them, on fakes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import attrs
import pytest
from fakes import FakeContext
from planning import case_of, names_of, plan_of, with_nodes

from k3gate.probes import _native, chase, latency, pools
from k3gate.probes.memory import MemoryProbe
from k3gate.records import Case, Inventory, Metric, NumaNode, Profile, State

SMALL = 8 << 20


def here(make_inventory: Any) -> Inventory:
    """The synthetic guest with the CPUs of this machine, all in node 0."""
    cpus = tuple(_native.allowed_cpus()[:2])
    inventory = make_inventory("vm", cpu={"online": cpus, "allowed": cpus, "siblings": ()})
    memory = inventory.memory.total_bytes
    return with_nodes(inventory, NumaNode(0, cpus, memory, memory // 2, "dram", {0: 10}))


def small(case: Case) -> Case:
    parameters = dict(case.parameters)
    parameters["pools"] = [{**spec, "bytes": SMALL} for spec in parameters["pools"]]
    if "sizes" in parameters:
        parameters["sizes"] = [16 << 10, 1 << 20, SMALL]
    if "load" in parameters:
        parameters["load"] = {**parameters["load"], "bytes": SMALL}
    return attrs.evolve(case, parameters=parameters, labels={**case.labels, "cache_bytes": SMALL // 16})


def run(make_inventory: Any, name: str, seconds: float = 0.5) -> list[Metric]:
    inventory = here(make_inventory)
    case = small(case_of(plan_of(inventory), name))
    context = FakeContext(inventory, seconds)
    try:
        return list(MemoryProbe().run(case, context))
    finally:
        context.close()


@pytest.mark.parametrize("name", ["latency.node0.node0", "latency.4k.node0"])
def test_an_idle_latency_is_a_time_per_load_with_its_proofs(make_inventory: Any, name: str) -> None:
    (metric,) = run(make_inventory, name)
    assert metric.name == "memory.latency.idle"
    assert len(metric.samples) >= latency.LEAST_SAMPLES
    assert all(1e-10 < sample.value < 1e-4 for sample in metric.samples)
    assert metric.labels["scope"] == "node" and metric.labels["placement"] == "local"
    assert metric.labels["block_bytes"] == 256 and metric.labels["pool_bytes"] >= SMALL
    proofs = {proof.name: proof for proof in metric.proofs}
    assert proofs["checksum"].ok is True and "came back" in proofs["checksum"].detail
    assert proofs["pinned"].ok is not False and proofs["placement"].ok is not False


def test_the_staircase_has_a_step_for_each_size(make_inventory: Any) -> None:
    steps = run(make_inventory, "staircase.node0", 1.0)
    assert [metric.labels["pool_bytes"] for metric in steps] == [16 << 10, 1 << 20, SMALL]
    assert {metric.labels["scope"] for metric in steps} == {"staircase"}
    assert all(metric.state is not State.FAILED for metric in steps)
    names = [proof.name for proof in steps[-1].proofs]
    assert names[:2] == ["placement", "page_size"], "the last size fills the pool, which is looked at then"
    assert "working_set" in names and steps[-1].labels["page_size"] is not None
    checksums = [next(one for one in metric.proofs if one.name == "checksum") for metric in steps]
    assert all(one.ok is True for one in checksums)


def test_a_step_of_a_staircase_is_walked_to_its_end_though_its_share_of_the_time_is_short(
    make_inventory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A walk's bound is of the whole case: the last step, memory, has the longest turn and as short a share."""
    given: list[tuple[float, float]] = []
    real = latency.walks

    def walks(context: Any, chain: Any, seconds: float, watch: Any, turn_seconds: float = 0.0) -> Any:
        given.append((seconds, turn_seconds))
        return real(context, chain, seconds, watch, turn_seconds)

    monkeypatch.setattr(latency, "walks", walks)
    assert len(run(make_inventory, "staircase.node0", 0.6)) == 3
    assert given == [(pytest.approx(0.2), pytest.approx(1.8))] * 3


@pytest.mark.skipif(len(_native.allowed_cpus()) < 2, reason="a load needs a second CPU")
def test_latency_under_load_stands_beside_the_bandwidth_that_was_reached(make_inventory: Any) -> None:
    found = run(make_inventory, "loaded.node0", 1.0)
    pairs = list(zip(found[::2], found[1::2], strict=True))
    assert [one.labels["delay"] for one, _ in pairs] == [262144, 16384, 0]
    for chased, load in pairs:
        assert (chased.name, load.name) == ("memory.latency.loaded", "memory.bandwidth.under_load")
        assert chased.labels == load.labels
        assert len(chased.samples) == len(load.samples) >= latency.LEAST_SAMPLES
        assert all(sample.value > 0 for sample in load.samples)


@pytest.mark.parametrize("level_3", [16 << 20, 32 << 20, 48 << 20, 105 << 20, 384 << 20])
@pytest.mark.parametrize("profile", [Profile("quick", 180.0), Profile("standard", 1200.0)])
def test_a_staircase_climbs_to_the_full_pool_which_no_cache_holds(
    make_inventory: Any, level_3: int, profile: Profile
) -> None:
    """Four times what the caches of the core's chip hold; sizes of a Zen CCD, Ice Lake, Sapphire Rapids."""
    inventory = make_inventory("bare_metal")
    caches = tuple(
        attrs.evolve(one, bytes=level_3) if one.level == 3 else one for one in inventory.cpu.caches
    )
    inventory = attrs.evolve(inventory, cpu=attrs.evolve(inventory.cpu, caches=caches))
    planned = plan_of(inventory, profile)
    held = level_3 + max(one.bytes for one in caches if one.level == 2)
    case = case_of(planned, "staircase.node0")
    sizes = case.parameters["sizes"]
    assert sizes[0] == 16 << 10
    assert sizes[-1] == case.parameters["pools"][0]["bytes"] == case.labels["pool_bytes"]
    assert sizes[-1] >= max(4 * held, 256 << 20)
    assert f"{sizes[-1] / 1e6:,.1f} MB" in case.title
    factor = 4 if profile.name == "quick" else 2
    assert all(1.25 <= b / a <= 1.25 * factor for a, b in pairwise(sizes))
    cells = [one for one in planned.cases if one.name.startswith(("latency.", "loaded."))]
    assert {"latency.node0.node1", "latency.4k.node0", "loaded.node0"} <= {one.name for one in cells}
    for one in cells:
        assert one.parameters["pools"][0]["bytes"] >= max(4 * held, 256 << 20), one.name


def test_latency_cells_are_those_of_the_machine(make_inventory: Any) -> None:
    inventory = make_inventory("bare_metal")
    cxl = NumaNode(5, (), 256 * 2**30, 255 * 2**30, "cxl", {0: 14, 1: 24, 5: 10})
    planned = plan_of(with_nodes(inventory, *inventory.numa.nodes, cxl), Profile("standard", 1200.0))
    cells = {name for name in names_of(planned) if name.startswith("latency.node")}
    assert cells == {f"latency.node{c}.node{m}" for c in (0, 1) for m in (0, 1, 5)}
    assert {"staircase.node0", "staircase.node1", "loaded.node0", "loaded.node1"} <= names_of(planned)
    remote = case_of(planned, "latency.node1.node0")
    assert remote.parameters["cpu"] == 32 and remote.labels["placement"] == "remote"
    assert remote.group == case_of(planned, "latency.node0.node0").group, "one chain serves both"
    short = names_of(plan_of(inventory))
    assert "staircase.node0" in short and "staircase.node1" not in short


class FakeChase:
    """A walk that ends where it is told to."""

    def __init__(self, seconds: float, steps: int, end: int, cpu: int, seen: int) -> None:
        self.seconds, self.steps, self.end, self.blocks = seconds, steps, end, 1000
        thread = type("T", (), {"cpu_before": cpu, "cpu_after": seen, "value": 0, "error": 0})
        self.threads = [thread]


class FakeWalker:
    """Stands in for `_native.Team`: walks of 100 ns a load that end at `end` and are seen on `seen`."""

    cpus = (3,)

    def __init__(self, end: int = 0, seen: int = 3) -> None:
        self.end, self.seen, self.steps = end, seen, []

    def affinities(self) -> list[list[int]]:
        return [[3]]

    def chase(self, thread: int, part: Any, steps: int, start: int = 0) -> FakeChase:
        self.steps.append(steps)
        return FakeChase(steps * 100e-9, steps, self.end, 3, self.seen)


def walked(make_inventory: Any, team: FakeWalker, seconds: float) -> tuple[chase.Chain, Any, Any]:
    chain = chase.Chain(team, 0, (None, 0, 1000 * chase.BLOCK, 1), 0.0)
    watch = pools.PinWatch(team)
    context = FakeContext(here(make_inventory), seconds)
    return chain, latency.walks(context, chain, seconds, watch), watch


def test_turns_that_do_not_come_back_are_no_latency(make_inventory: Any) -> None:
    chain, _, _ = walked(make_inventory, FakeWalker(), 1.0)
    assert chain.missing == 0
    assert chain.proof().ok is True
    chain, _, _ = walked(make_inventory, FakeWalker(end=512), 1.0)
    assert chain.proof().ok is False


def test_a_turn_that_takes_too_long_is_not_walked_for_its_proof(make_inventory: Any) -> None:
    chain = chase.Chain(FakeWalker(), 0, (None, 0, 10**9 * chase.BLOCK, 1), 0.0)
    latency.walks(FakeContext(here(make_inventory)), chain, 1.0, pools.PinWatch(chain.team))
    assert chain.walked < 10**8
    assert chain.proof().ok is None


def test_walks_last_long_enough_and_a_stray_thread_is_seen(make_inventory: Any) -> None:
    team = FakeWalker(seen=7)
    _, samples, watch = walked(make_inventory, team, 1.0)
    assert len(samples) >= latency.LEAST_SAMPLES
    timed = team.steps[1 : 1 + len(samples)]
    assert all(steps * 100e-9 >= 0.05 for steps in timed)
    assert samples[0].value == pytest.approx(100e-9)
    assert watch.proof().ok is False


def test_a_walk_that_ended_before_a_loader_read_a_block_is_no_walk_under_load(make_inventory: Any) -> None:
    """The first estimate misleads where a thread was held up: the walks after it are too short, and grow."""

    class Loaded(FakeWalker):
        def chase_loaded(self, thread: int, part: Any, steps: int, start: int, *how: Any) -> FakeChase:
            walk = self.chase(thread, part, steps, start)
            if len(self.steps) == 1:
                walk.seconds = 10.0
            walk.load_bytes, walk.load_seconds = (65536 if walk.seconds > 0.05 else 0), walk.seconds
            return walk

    team, context = Loaded(), FakeContext(here(make_inventory), 1.0)
    chain = chase.Chain(team, 0, (None, 0, 1000 * chase.BLOCK, 1), 0.0)
    load = chase.Load("generic", [[], []])
    walks = latency._loaded_walks(context, chain, load, 1.0, pools.PinWatch(team))
    assert len(team.steps) > len(walks) + 1 and len(walks) >= latency.LEAST_SAMPLES
    assert all(walk.load_bytes for walk in walks)
