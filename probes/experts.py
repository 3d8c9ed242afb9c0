"""Routed experts as a decoder reads them: six tensors each, at random places of a pool. Pure.

An expert of Kimi K3 is 17,547,264 bytes: packed codes and scales of its gate, up and down matrices, which lie
together. Every expert of the pool is read once in a pass, in random order, so that a pass covers the pool and no
cache keeps what comes next.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from typing import Any

from k3gate.model import k3
from k3gate.probes.pools import FilledPool, Part


def order(pool_bytes: int, chance: random.Random) -> list[int]:
    """Offsets, in bytes, of all whole experts of a pool, in random order."""
    offsets = [index * k3.EXPERT_BYTES for index in range(pool_bytes // k3.EXPERT_BYTES)]
    chance.shuffle(offsets)
    return offsets


def tensors(offset: int) -> Iterator[tuple[int, int]]:
    """(offset, bytes) of the six tensors of the expert that lies at `offset`."""
    for size in k3.EXPERT_TENSORS:
        yield offset, size
        offset += size


def deal(pool: FilledPool, offsets: Sequence[int], threads: int) -> list[list[Part]]:
    """The tensors of experts given out to threads, each to the one that has least so far; whole tensors each."""
    loads = [(0, thread) for thread in range(threads)]
    parts: list[list[Part]] = [[] for _ in range(threads)]
    memory: Any = pool.pool
    for offset in offsets:
        for start, size in tensors(offset):
            load, thread = heapq.heappop(loads)
            parts[thread].append((memory, start, size, pool.seed))
            heapq.heappush(loads, (load + size, thread))
    return parts
