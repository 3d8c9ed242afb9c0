"""Interleaved reads: at any moment the threads are spread evenly over the memory of all nodes."""

from __future__ import annotations

from collections import Counter

import pytest
from fakes import fake_pool

from k3gate.probes.bandwidth import STRIPE_BYTES, _parts

MIB = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([64 * MIB, 64 * MIB], [[0, 1], [2, 3]]),
        ([64 * MIB, 32 * MIB], [[0, 1, 2, 3], [4, 5]]),
        ([30 * MIB] * 3, [[0], [1], [2]]),
        ([96 * MIB] * 4, [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]),
        ([64 * MIB, 64 * MIB], [[0]]),
    ],
)
def test_threads_of_an_interleaved_read_are_spread_over_the_pools_at_any_moment(
    sizes: list[int], groups: list[list[int]]
) -> None:
    filled = [fake_pool(size) for size in sizes]
    parts = _parts("interleaved", filled, groups)
    assert len(parts) == sum(map(len, groups))
    number = {id(one.pool): index for index, one in enumerate(filled)}
    for step in zip(*parts, strict=True):
        at_work = Counter(number[id(memory)] for memory, _, _, _ in step)
        counts = [at_work[index] for index in range(len(filled))]
        assert max(counts) - min(counts) <= 1, counts
    for group, size in zip(_groups_of(parts, groups), sizes, strict=False):
        # Of each node's own threads too, so that no moment is all local or all remote.
        first = Counter(number[id(own[0][0])] for own in group)
        assert len(first) == min(len(group), len(sizes)), size


def _groups_of(parts: list, groups: list[list[int]]) -> list[list]:
    found, start = [], 0
    for group in groups:
        found.append(parts[start : start + len(group)])
        start += len(group)
    return found


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_every_byte_of_every_pool_is_read_once_in_small_stripes(threads: int) -> None:
    filled = [fake_pool(64 * MIB), fake_pool(24 * MIB)]
    parts = _parts("interleaved", filled, [list(range(threads))])
    for one in filled:
        spans = sorted((start, size) for own in parts for memory, start, size, _ in own if memory is one.pool)
        end = 0
        for start, size in spans:
            assert start == end
            end = start + size
        assert end == one.bytes
    assert all(size <= STRIPE_BYTES + 4096 for own in parts for _, _, size, _ in own)
    loads = [sum(size for _, _, size, _ in own) for own in parts]
    assert max(loads) - min(loads) <= len(filled) * threads * 4096
