"""Experts read all over the image that was held: planned with it, read where it lies, checked to the last word."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from fakes import FakeContext, FakeTeam, fake_pool
from planning import GB, case_of, names_of, plan_of

from k3gate.errors import ProbeError
from k3gate.model import k3
from k3gate.probes import _native, pools, residency
from k3gate.probes.memory import MemoryProbe
from k3gate.records import Case, NumaNode, Profile, State

STANDARD = Profile("standard", 1200.0, image_bytes=400 * GB)
IMAGE = 48 << 20
"""Two experts and a rest that is none."""


def test_the_image_is_read_from_standard_up_and_takes_no_memory_of_its_own(make_inventory) -> None:
    inventory = make_inventory("bare_metal")
    planned = plan_of(inventory, STANDARD)
    held, read = case_of(planned, "residency.image"), case_of(planned, "experts.image")
    names = [case.name for case in planned.cases]
    assert names.index("experts.image") == names.index("residency.image") + 1
    assert (read.group, read.bytes) == (held.group, held.bytes), "one worker, one allocation"
    assert read.parameters["pools"] == held.parameters["pools"]
    assert read.rounds == 1 and read.labels["pool_bytes"] >= 400 * GB
    assert read.labels["scope"] == "image" and read.labels["expert_bytes"] == k3.EXPERT_BYTES
    for profile in (Profile("quick", 180.0), Profile("standard", 1200.0)):
        assert "experts.image" not in names_of(plan_of(inventory, profile)), "no image, nothing to read in"


@pytest.fixture
def image(make_inventory) -> Iterator[tuple[Case, Case, FakeContext]]:
    """(the case that holds an image of 48 MiB, the one that reads in it, their worker's context), for real."""
    cpus = tuple(_native.allowed_cpus()[:2])
    inventory = make_inventory("vm", cpu={"online": cpus, "allowed": cpus, "siblings": ()})
    memory = inventory.memory.total_bytes
    numa = attrs.evolve(inventory.numa, nodes=(NumaNode(0, cpus, memory, memory // 2, "dram", {0: 10}),))
    planned = plan_of(attrs.evolve(inventory, numa=numa), attrs.evolve(STANDARD, image_bytes=GB))
    held, read = (_small(case_of(planned, name)) for name in ("residency.image", "experts.image"))
    context = FakeContext(inventory, 0.05)
    yield held, read, context
    context.close()


def _small(case: Case) -> Case:
    specs = [{**spec, "bytes": IMAGE} for spec in case.parameters["pools"]]
    return attrs.evolve(case, parameters={**case.parameters, "pools": specs})


def test_experts_are_read_where_the_image_lies(image, monkeypatch) -> None:
    held, read, context = image
    size, _ = MemoryProbe().run(held, context)
    assert [sample.value for sample in size.samples] == [IMAGE]
    monkeypatch.setattr(pools, "allocate", lambda *_: pytest.fail("the image is there already"))
    [metric] = MemoryProbe().run(read, context)
    assert metric.name == "memory.bandwidth.expert_read"
    assert metric.labels["scope"] == "image" and metric.labels["stores"] == "none"
    proofs = {proof.name: proof.ok for proof in metric.proofs}
    assert set(proofs) >= {"placement", "page_size", "pinned", "checksum", "working_set"}
    assert proofs["checksum"] is True and proofs["pinned"] is True
    assert len(metric.samples) >= 2 and all(sample.value > 0 for sample in metric.samples)


def test_a_word_that_memory_lost_after_it_was_verified_fails_the_figure(image) -> None:
    held, read, context = image
    list(MemoryProbe().run(held, context))
    [(pool, _)] = context.shared["image"]
    ctypes.c_uint8.from_address(pool.pool.address + k3.EXPERT_BYTES + 12_345).value ^= 4
    [metric] = MemoryProbe().run(read, context)
    assert metric.state is State.FAILED
    assert "wrong sum" in (metric.reason or "")


def test_alone_it_touches_the_image_itself_and_books_that_as_set_up(image) -> None:
    _, read, context = image
    [metric] = MemoryProbe().run(read, context)
    assert {proof.name: proof.ok for proof in metric.proofs}["checksum"] is True
    assert context.booked > 0


def test_an_image_that_is_not_whole_is_not_read(image, monkeypatch) -> None:
    held, read, context = image
    monkeypatch.setattr(pools, "touch", lambda *_: (0.1, 12))
    size, _ = MemoryProbe().run(held, context)
    assert size.state is State.FAILED
    with pytest.raises(ProbeError, match=r"no image to read experts in: only 0\.0 GB"):
        list(MemoryProbe().run(read, context))
    context.shared["image"].clear()
    with pytest.raises(ProbeError, match="no image to read experts in: touching: ENOMEM"):
        list(MemoryProbe().run(read, context))


class Reads(FakeTeam):
    """Keeps the parts of every region."""

    def run(self, kernel: str, isa: str, parts: Any, passes: int) -> Any:
        self.regions = [*getattr(self, "regions", ()), parts]
        return super().run(kernel, isa, parts, passes)


def _pass_over(make_inventory: Any, held: Any, cpus: list[int]) -> tuple[list[Any], Any, Any]:
    """(the regions of a pass but for the one that warms up, its samples, its proof)."""
    team = Reads(cpus, (0.01,))
    context = FakeContext(make_inventory("vm"), seconds=0.0)
    samples, proof = residency._passes(context, team, "generic", held, pools.PinWatch(team))
    assert team.regions[0] == team.regions[1], "the first of sixteen regions is read once before to warm up"
    return team.regions[1:], samples, proof


def test_every_expert_of_every_pool_is_read_once_a_pass(make_inventory) -> None:
    filled = [fake_pool(40 * k3.EXPERT_BYTES + 4096), fake_pool(5 * k3.EXPERT_BYTES)]
    regions, samples, proof = _pass_over(make_inventory, [(filled[0], [0, 1]), (filled[1], [2])], [0, 1, 2])
    for one, number in zip(filled, (40, 5), strict=True):
        end = 0
        parts = [part for region in regions for own in region for part in own]
        for start, size in sorted((part[1], part[2]) for part in parts if part[0] is one.pool):
            assert start == end
            end = start + size
        assert end == number * k3.EXPERT_BYTES
    assert len(samples) == 16 and proof.ok is True


def test_every_region_of_a_pass_gives_each_thread_of_a_pool_as_much(make_inventory) -> None:
    held = [(fake_pool(40 * k3.EXPERT_BYTES), [0, 1, 2, 3, 4])]
    regions, _, _ = _pass_over(make_inventory, held, [0, 1, 2, 3, 4])
    for region in regions:
        loads = [sum(size for _, _, size, _ in own) for own in region]
        assert max(loads) - min(loads) <= 64


def test_threads_that_read_several_pools_read_them_mixed(make_inventory) -> None:
    """As with memory without CPUs, which all read besides their own: else it is read by all at once, at the end."""
    filled = [fake_pool(200 * k3.EXPERT_BYTES), fake_pool(200 * k3.EXPERT_BYTES)]
    regions, _, _ = _pass_over(make_inventory, [(one, [0, 1]) for one in filled], [0, 1])
    for region in regions:
        for own in region:
            second = [index for index, part in enumerate(own) if part[0] is filled[1].pool]
            assert sum(second) / len(second) < 0.75 * len(own), "not all of it at the end"
            assert sum(second) / len(second) > 0.25 * len(own)
            assert min(second) < len(own) / 2
