"""Pages that move while something is timed, and rates beyond what memory can give: seen by every kind of case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from fakes import SIZE, FakeContext, FakeRegion, FakeTeam, FakeThread, fake_pool
from planning import case_of, plan_of

from k3gate.probes import chase, pools
from k3gate.probes.memory import MemoryProbe
from k3gate.records import Metric, Proof, State

LOAD_BYTES, LOAD_SECONDS = 4 * 10**9, 0.25
"""Each walk under load takes 0.1 s, and its loaders read so much in a longer window of their own: 16 GB/s."""


class Chaser(FakeTeam):
    """Walks come back where they began after a turn, and each takes 0.1 s."""

    def build_cycle(self, thread: int, part: pools.Part, window_bytes: int) -> FakeRegion:
        return FakeRegion(0.01, [FakeThread() for _ in self.cpus])

    def chase(self, thread: int, part: pools.Part, steps: int, start: int) -> Any:
        threads = [FakeThread(cpu_before=cpu, cpu_after=cpu) for cpu in self.cpus]
        end = (start + steps * chase.BLOCK) % part[2]
        return SimpleNamespace(seconds=0.1, steps=steps, end=end, threads=threads)

    def chase_loaded(self, thread: int, part: pools.Part, steps: int, start: int, *how: Any) -> Any:
        walk = self.chase(thread, part, steps, start)
        walk.load_bytes, walk.load_seconds = LOAD_BYTES, LOAD_SECONDS
        return walk


def _proof(metric: Metric, name: str) -> Proof | None:
    return next((proof for proof in metric.proofs if proof.name == name), None)


def _moves_after(asked: int) -> Callable[[], list[int]]:
    """Pages that are on node 0 until they were asked so many times; then one of them is on node 1."""
    times = 0

    def nodes() -> list[int]:
        nonlocal times
        times += 1
        return [0] * 63 + [int(times > asked)]

    return nodes


@pytest.fixture
def latency(make_inventory: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Metric]]:
    """`latency(name, nodes, paper)`: the metrics of a latency case on fakes, its chain's pages on such nodes."""

    def run(
        name: str,
        nodes: Callable[[], list[int]] | None = None,
        paper: float | None = None,
        seconds: float = 0.3,
    ) -> list[Metric]:
        monkeypatch.setattr(pools, "make_team", lambda cpus: Chaser(cpus))
        monkeypatch.setattr(pools, "allocate", lambda size, pages, node: fake_pool(size, nodes=nodes))
        fields = {"KernelPageSize": 4096, "AnonHugePages": 0, "Swap": 0}
        monkeypatch.setattr(pools, "smaps_fields", lambda address: fields)
        inventory = make_inventory("vm", cpu={"siblings": ()}, memory={"theoretical_bytes_per_s": paper})
        case = case_of(plan_of(inventory), name)
        specs = [{**spec, "bytes": SIZE, "pages": "small"} for spec in case.parameters["pools"]]
        parameters = {**case.parameters, "pools": specs}
        if "load" in parameters:
            # Its pool is another, that is touched by threads and asked for its pages too.
            load = fake_pool(SIZE)
            monkeypatch.setattr(pools, "build", lambda *_, **__: load)
        if "sizes" in parameters:
            parameters["sizes"] = [16 << 10, SIZE]
        case = attrs.evolve(case, parameters=parameters, labels={**case.labels, "cache_bytes": SIZE // 16})
        return list(MemoryProbe().run(case, FakeContext(inventory, seconds)))

    return run


@pytest.mark.parametrize("name", ["latency.node0.node0", "staircase.node0", "loaded.node0"])
@pytest.mark.parametrize(("asked", "ok"), [(99, True), (1, False), (0, False)])
def test_pages_that_leave_while_a_chain_is_walked_are_no_latency_of_that_node(
    latency: Callable[..., list[Metric]], name: str, asked: int, ok: bool
) -> None:
    """Whether they were elsewhere before the walk, or only after it."""
    found = latency(name, _moves_after(asked))
    metric = found[-1] if name.startswith("staircase") else found[0]
    placed = _proof(metric, "placement")
    assert placed is not None and placed.ok is ok
    assert (metric.state is State.FAILED) is not ok


@pytest.mark.parametrize("name", ["read.node0.node0", "experts.image"])
@pytest.mark.parametrize(("asked", "ok"), [(99, True), (1, False), (0, False)])
def test_pages_that_leave_while_they_are_read_are_no_rate_of_that_node(
    fake: Any, name: str, asked: int, ok: bool
) -> None:
    [metric] = [one for one in fake(name, FakeTeam([0, 1]), nodes=_moves_after(asked))[0] if one.proofs]
    placed = _proof(metric, "placement")
    assert placed is not None and placed.ok is ok
    assert (metric.state is State.FAILED) is not ok


@pytest.mark.parametrize(
    ("nodes", "ok"), [([0] * 64, True), ([1] * 64, False), ([0] * 63 + [1], False), ([0] * 63 + [-2], False)]
)
def test_one_page_elsewhere_is_enough_to_say_so(nodes: Sequence[int], ok: bool) -> None:
    proof = pools.placement([fake_pool(SIZE), fake_pool(SIZE, nodes=lambda: list(nodes))])
    assert proof.ok is ok
    assert ok or "wanted on node 0" in proof.detail


def test_the_rate_under_load_is_that_of_the_loaders_own_window(latency: Callable[..., list[Metric]]) -> None:
    for rate in latency("loaded.node0")[1::2]:
        assert {sample.value for sample in rate.samples} == {LOAD_BYTES / LOAD_SECONDS}
        assert _proof(rate, "ceiling") is None, "no paper rate, no ceiling"


def test_a_chain_under_load_is_walked_to_its_end_though_no_idle_case_did(
    latency: Callable[..., list[Metric]],
) -> None:
    """A turn takes 1.3 s here, and the walks under the first load are of 1 s."""
    checksum = _proof(latency("loaded.node0", seconds=3.0)[0], "checksum")
    assert checksum is not None and checksum.ok is True


@pytest.mark.parametrize(("paper", "ok"), [(15e9, False), (17e9, True)])
def test_a_rate_under_load_above_paper_is_failed_and_the_latency_stands(
    latency: Callable[..., list[Metric]], paper: float, ok: bool
) -> None:
    """It were 40 GB/s by the time of the chaser."""
    found = latency("loaded.node0", paper=paper)
    assert len(found) == 6
    for chased, rate in zip(found[::2], found[1::2], strict=True):
        ceiling = _proof(rate, "ceiling")
        assert ceiling is not None and ceiling.ok is ok
        assert (rate.state is State.FAILED) is not ok
        assert ok or "a fault of the measurement" in (rate.reason or "")
        assert _proof(chased, "ceiling") is None and chased.state is not State.FAILED


@pytest.mark.parametrize(("paper", "ok"), [(0.1e9, False), (1e9, True), (None, None)])
def test_experts_of_the_image_above_paper_are_failed(fake: Any, paper: float | None, ok: bool | None) -> None:
    """An expert each 0.1 s."""
    [metric] = fake("experts.image", FakeTeam([0, 1]), paper=paper)[0]
    ceiling = _proof(metric, "ceiling")
    assert (ceiling.ok if ceiling else None) is ok
    assert (metric.state is State.FAILED) is (ok is False)
