"""How a bandwidth figure is made of timed regions, and what disproves it: fakes report what is bent."""

from __future__ import annotations

import pytest
from fakes import SIZE, FakeRegion, FakeTeam, FakeThread, fake_pool

from k3gate.probes import _native, bandwidth, pools
from k3gate.probes.memory import MemoryProbe
from k3gate.records import Metric, Profile, Proof, State


def _proof(metric: Metric, name: str) -> Proof:
    return next(proof for proof in metric.proofs if proof.name == name)


HALF = pools.SAMPLED_PAGES // 2


@pytest.mark.parametrize(
    "nodes",
    [[0] * HALF + [1] * HALF, [0, 1] * HALF, [0] * (2 * HALF - 1) + [1], [0] * HALF + [-2] * HALF],
    ids=["the second half", "every other", "the last", "absent"],
)
def test_pages_on_another_node_disprove_the_placement_wherever_they_lie(nodes: list[int]) -> None:
    good = fake_pool(SIZE)
    assert pools.placement([good]).ok is True
    bad = fake_pool(SIZE, nodes=lambda: nodes)
    assert pools.placement([bad]).ok is False
    assert pools.placement([good, bad]).ok is False


@pytest.mark.case("BW-01")
def test_bw_01_pages_that_stayed_on_another_node_contaminate_the_figure(fake) -> None:
    """A file's pages stay where the run before put them. Five pages in a hundred on node 1 are too many."""
    some = [0] * pools.SAMPLED_PAGES
    some[::20] = [1] * len(some[::20])
    for name in ("read.node0.node0", "copy.node0", "experts.image"):
        [metric], _ = fake(name, FakeTeam([0, 1]), nodes=lambda: some)
        assert metric.state is State.FAILED
        assert "3891 pages on node 0, 205 pages on node 1" in (metric.reason or "")


@pytest.mark.case("BW-01")
def test_bw_01_pools_are_private_memory_that_the_threads_bound_to_the_node_touched(make_inventory) -> None:
    cpu = _native.allowed_cpus()[0]
    filled = pools.build(4 << 20, "small", None, [cpu], _native.Team([cpu]), lambda note: None)
    with open("/proc/self/maps", encoding="ascii") as maps:
        spans = [line.split() for line in maps]
    filled_at = filled.pool.address
    [entry] = [
        one for one in spans if int(one[0].split("-")[0], 16) <= filled_at < int(one[0].split("-")[1], 16)
    ]
    filled.close()
    assert entry[1] == "rw-p" and entry[4] == "0", "private, and of no file"
    inventory = make_inventory("bare_metal")
    for case in MemoryProbe().cases(inventory, Profile("standard", 1200.0, image_bytes=10**9)).cases:
        for spec in case.parameters["pools"]:
            [node] = [one for one in inventory.numa.nodes if one.id == spec["node"]]
            assert spec["bind"] == node.id and set(spec["touch"]) <= set(node.cpus), case.name


@pytest.mark.case("BW-08")
def test_bw_08_seconds_before_the_clock_has_settled_are_no_part_of_a_rate(fake) -> None:
    """Thirty seconds of regions of one second, whose rate falls by 15 % after three."""
    falling = (1.0, *[1.0] * 3, *[1 / 0.85] * 40)
    [metric], _ = fake("read.node0.node0", FakeTeam([0, 1], falling), seconds=30.0)
    assert {round(sample.value / SIZE, 6) for sample in metric.samples} == {2 * 0.85}
    assert len(metric.samples) > 10
    assert "3.0 s at the start of a round, before the rate settled, are left out" in (metric.reason or "")
    assert metric.state is State.OK


@pytest.mark.case("BW-08")
@pytest.mark.parametrize("name", ["read.core.node0", "read.machine"])
def test_bw_08_the_clock_that_the_slowest_core_achieved_is_stored_where_it_is_known(fake, name: str) -> None:
    metrics, _ = fake(name, FakeTeam([0, 1], hertz=(3.1e9, 2.7e9)))
    assert [metric.name for metric in metrics] == ["memory.bandwidth.read", "cpu.clock.achieved"]
    assert [sample.value for sample in metrics[1].samples] == [2.7e9]
    for unknown in ((), (0.0, 0.0)):
        metrics, _ = fake(name, FakeTeam([0, 1], hertz=unknown))
        assert [metric.name for metric in metrics] == ["memory.bandwidth.read"]


def test_the_clock_of_this_machine_is_one_that_a_core_can_have() -> None:
    cpus = _native.allowed_cpus()
    clocks = _native.Team(cpus).clocks()
    assert len(clocks) == len(cpus)
    assert all(clock == 0 or 1e8 < clock < 1e10 for clock in clocks)


@pytest.mark.parametrize("wrong", [0, 1])
def test_pages_that_moved_before_or_during_the_timed_regions_fail_the_figure(fake, wrong: int) -> None:
    """The placement is asked twice: before the timed regions, and after them."""
    asked: list[int] = []

    def nodes() -> list[int]:
        asked.append(1)
        return [1 if len(asked) - 1 == wrong else 0] * pools.SAMPLED_PAGES

    [metric], _ = fake("read.node0.node0", FakeTeam([0, 1]), nodes=nodes)
    assert len(asked) == 2
    assert _proof(metric, "placement").ok is False
    assert metric.state is State.FAILED


def test_a_rate_is_all_bytes_over_the_common_window_not_a_sum_of_the_threads_rates(fake) -> None:
    """One thread is done in half the time; their own rates add up to half as much again."""

    def drift(call: str, number: int, threads: list[FakeThread]) -> None:
        threads[0].end = threads[0].end / 2

    [metric], _ = fake("read.node0.node0", FakeTeam([0, 1], (0.1,), drift), seconds=0.5)
    assert {sample.value for sample in metric.samples} == {SIZE / 0.1}


@pytest.mark.parametrize("where", ["cpu_before", "cpu_after"])
@pytest.mark.parametrize("number", [1, 3])
def test_a_thread_that_strays_in_any_timed_region_fails_the_figure(fake, where: str, number: int) -> None:
    def bend(call: str, nth: int, threads: list[FakeThread]) -> None:
        if (call, nth) == ("run", number):
            setattr(threads[1], where, 7)

    [metric], _ = fake("read.node0.node0", FakeTeam([0, 1], (0.1,), bend), seconds=0.5)
    assert _proof(metric, "pinned").ok is False
    assert metric.state is State.FAILED


def test_a_thread_that_cannot_see_its_cpu_leaves_the_pinning_unknown(fake) -> None:
    def bend(call: str, nth: int, threads: list[FakeThread]) -> None:
        threads[0].cpu_after = -1

    [metric], _ = fake("read.node0.node0", FakeTeam([0, 1], (0.1,), bend), seconds=0.5)
    assert _proof(metric, "pinned").ok is None


def test_one_wrong_sum_of_one_thread_in_one_region_fails_the_figure(fake) -> None:
    def bend(call: str, nth: int, threads: list[FakeThread]) -> None:
        if (call, nth) == ("run", 2):
            threads[1].value ^= 1 << 40

    [metric], _ = fake("read.node0.node0", FakeTeam([0, 1], (0.1,), bend), seconds=0.5)
    assert _proof(metric, "checksum").ok is False
    assert "1 of 5 timed regions" in _proof(metric, "checksum").detail


def test_a_sum_is_held_against_the_passes_that_were_made(fake) -> None:
    pool = fake_pool(SIZE)
    part = pool.parts(1)[0]
    for passes, ok in ((4, True), (3, False), (5, False)):
        sums = pools.Checksums([[part]])
        sums.see(FakeRegion(0.1, [FakeThread(value=4 * pools.pattern_sum(part) % 2**64)]), passes)
        assert sums.proof().ok is ok
    # A short pass is repeated within a region, and the probe says how often.
    team = FakeTeam([0, 1], (0.01, 0.1))
    [metric], _ = fake("read.node0.node0", team, seconds=0.5)
    passes = {count for call, count in team.calls[2:] if call == "run"}
    assert min(passes) > 1
    assert _proof(metric, "checksum").ok is True
    assert metric.samples[0].value == min(passes) * SIZE / 0.1


def test_regions_that_are_too_short_are_warm_up_and_call_for_more_passes(fake) -> None:
    """A slow first pass misleads: the next regions are short, and none of them may be a sample."""
    assert bandwidth.SAMPLE_SECONDS == 0.05
    team = FakeTeam([0, 1], (0.06, 0.01, 0.049, 0.07))
    [metric], context = fake("read.node0.node0", team, seconds=0.36)
    assert context.timed == [0.07] * 5
    assert len(metric.samples) == 5
    assert context.booked == pytest.approx(0.06 + 0.01 + 0.049, abs=0.01)
    passes = [count for call, count in team.calls if call == "run"]
    assert passes[1] < passes[2] < passes[3]


@pytest.mark.parametrize(("seconds", "samples"), [(0.0, 3), (0.2, 3), (0.55, 5), (1.0, 10)])
def test_a_round_has_three_samples_and_then_as_many_as_its_time_holds(
    fake, seconds: float, samples: int
) -> None:
    assert bandwidth.LEAST_SAMPLES == 3
    [metric], _ = fake("read.node0.node0", FakeTeam([0, 1], (0.1,)), seconds=seconds + 1e-9)
    assert len(metric.samples) == samples
