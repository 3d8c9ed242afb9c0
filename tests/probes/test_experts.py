"""Experts in random order: each read once a pass, shared out evenly to the last line."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from fakes import SIZE, fake_pool

from k3gate.model import k3
from k3gate.probes import experts
from k3gate.probes.bandwidth import _parts

MIB = 1 << 20


def test_an_expert_is_its_six_tensors() -> None:
    assert sum(k3.EXPERT_TENSORS) == k3.EXPERT_BYTES == 17_547_264
    spans = list(experts.tensors(k3.EXPERT_BYTES))
    assert len(spans) == 6
    assert spans[0] == (17_547_264, 5_505_024)
    assert [offset for offset, _ in spans[1:]] == [offset + size for offset, size in spans[:-1]]
    assert spans[-1][0] + spans[-1][1] == 2 * k3.EXPERT_BYTES


def test_every_expert_of_the_pool_comes_once_and_in_no_order() -> None:
    offsets = experts.order(100 * k3.EXPERT_BYTES + 5000, random.Random(1))
    assert sorted(offsets) == [index * k3.EXPERT_BYTES for index in range(100)]
    assert offsets != sorted(offsets)
    assert offsets != experts.order(100 * k3.EXPERT_BYTES, random.Random(2))


@pytest.mark.parametrize("threads", [1, 2, 7, 24, 48, 64, 192, 385])
@pytest.mark.parametrize("number", [1, 30, 171])
def test_experts_are_dealt_in_equal_shares_whatever_the_number_of_threads(threads: int, number: int) -> None:
    """171 experts are the 3 GB of a machine of 192 cores: the rate goes by the thread that has most."""
    offsets = experts.order(number * k3.EXPERT_BYTES, random.Random(3))
    dealt = experts.deal(fake_pool(SIZE), offsets, threads)
    assert len(dealt) == threads
    loads = [sum(size for _, _, size, _ in own) for own in dealt]
    assert max(loads) - min(loads) <= 64
    assert sum(loads) / threads / max(loads) > 0.998
    assert all(start % 64 == 0 and size % 64 == 0 for own in dealt for _, start, size, _ in own)


@pytest.mark.parametrize("threads", [1, 7, 64])
def test_each_byte_of_each_tensor_is_dealt_once_in_the_order_of_the_experts(threads: int) -> None:
    offsets = experts.order(30 * k3.EXPERT_BYTES, random.Random(3))
    dealt = experts.deal(fake_pool(SIZE), offsets, threads)
    spans = [(start, size) for own in dealt for _, start, size, _ in own]
    end = 0
    for start, size in sorted(spans):
        assert start == end
        end = start + size
    assert end == 30 * k3.EXPERT_BYTES
    whole = {span for offset in offsets for span in experts.tensors(offset)}
    assert len(whole - set(spans)) < threads, "only the tensors at the ends of shares are cut"
    experts_read = [start // k3.EXPERT_BYTES * k3.EXPERT_BYTES for start, _ in spans]
    assert list(dict.fromkeys(experts_read)) == offsets


@pytest.mark.parametrize("cores", [(8, 4), (3, 5, 8), (32, 32), (1, 24)])
def test_threads_of_all_nodes_have_equal_shares_of_experts_though_pools_hold_whole_ones(
    cores: tuple[int, ...],
) -> None:
    """Pools of as many bytes a core: of the whole experts in them, a core of the smaller node would have less."""
    filled = [fake_pool(32 * MIB * number) for number in cores]
    parts = _parts("experts", filled, [list(range(number)) for number in cores])
    loads = [sum(size for _, _, size, _ in own) for own in parts]
    assert max(loads) - min(loads) <= 64
    assert min(loads) > (17 if min(cores) > 1 else 16) * MIB
    for one in filled:
        spans = sorted((start, size) for own in parts for memory, start, size, _ in own if memory is one.pool)
        assert all(a + b <= c for (a, b), (c, _) in pairwise(spans)), "nothing twice"
