"""Experts in random order: each read once a pass, whole tensors, shared out evenly; and measured for real."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from fakes import SIZE, fake_pool

from k3gate.model import k3
from k3gate.probes import experts


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


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_tensors_are_dealt_whole_and_evenly(threads: int) -> None:
    offsets = experts.order(30 * k3.EXPERT_BYTES, random.Random(3))
    dealt = experts.deal(fake_pool(SIZE), offsets, threads)
    assert len(dealt) == threads
    spans = [(start, size) for own in dealt for _, start, size, _ in own]
    assert Counter(spans) == Counter(span for offset in offsets for span in experts.tensors(offset))
    loads = [sum(size for _, _, size, _ in own) for own in dealt]
    assert max(loads) - min(loads) <= max(k3.EXPERT_TENSORS)
