"""Routed experts as a decoder reads them: six tensors each, at random places of a pool. Pure.

An expert of Kimi K3 is 17,547,264 bytes: packed codes and scales of its gate, up and down matrices, which lie
together. Every expert of the pool is read once in a pass, in random order, so that a pass covers the pool and no
cache keeps what comes next.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from k3gate.model import k3
from k3gate.probes.pools import FilledPool, Part

LINE_BYTES = 64
"""What a tensor is cut at: a divisor of the size of each of them, and a line of the cache."""


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


def share(pool_bytes: int, threads: int) -> int:
    """The bytes of whole experts of a pool that each of so many threads can have: a multiple of `LINE_BYTES`."""
    return pool_bytes // k3.EXPERT_BYTES * k3.EXPERT_BYTES // LINE_BYTES // threads * LINE_BYTES


def deal(pool: FilledPool, offsets: Sequence[int], threads: int, most: int | None = None) -> list[list[Part]]:
    """The tensors of experts given out to threads in equal shares, to within `LINE_BYTES`: runs of them one after
    another, and a tensor that lies across the end of a share is cut there, between two lines.

    A rate goes by the slowest thread: shares that differ would be measured in place of the memory. `most`: no more
    bytes than this for a thread, where those of other pools get no more; the end of the last expert is not read then.
    """
    spans = [span for offset in offsets for span in tensors(offset)]
    lines = sum(size for _, size in spans) // LINE_BYTES
    if most is not None:
        lines = min(lines, most // LINE_BYTES * threads)
    parts: list[list[Part]] = [[] for _ in range(threads)]
    memory: Any = pool.pool
    thread = given = 0
    for start, size in spans:
        end = start + min(size, lines * LINE_BYTES - given)
        while start < end:
            share_end = lines * (thread + 1) // threads * LINE_BYTES
            taken = min(end - start, share_end - given)
            if taken:
                parts[thread].append((memory, start, taken, pool.seed))
            start, given = start + taken, given + taken
            thread += given == share_end and thread + 1 < threads
    return parts
