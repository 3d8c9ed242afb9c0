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


def test_every_expert_of_every_pool_is_read_once_a_pass(make_inventory) -> None:
    class Reads(FakeTeam):
        seen: list[tuple[int, int]]

        def run(self, kernel: str, isa: str, parts: Any, passes: int) -> Any:
            self.seen += [(id(memory), start) for own in parts for memory, start, _, _ in own]
            return super().run(kernel, isa, parts, passes)

    filled = [fake_pool(40 * k3.EXPERT_BYTES + 4096), fake_pool(5 * k3.EXPERT_BYTES)]
    team = Reads([0, 1, 2], (0.01,))
    team.seen = []
    context = FakeContext(make_inventory("vm"), seconds=0.0)
    watch = pools.PinWatch(team)
    held = [(filled[0], [0, 1]), (filled[1], [2])]
    samples, proof = residency._passes(context, team, "generic", held, watch)
    warm = len(team.seen) - len(set(team.seen))
    assert len(set(team.seen)) == 45 * 6
    assert warm == 6 * (3 + 1), "the first of sixteen regions, which is read once before to warm up"
    assert len(samples) == 16 and proof.ok is True
