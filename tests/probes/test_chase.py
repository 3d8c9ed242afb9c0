"""Chains of pointers: one cycle over all blocks, walked as they lie, alone and under a load."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from k3gate.errors import ProbeError
from k3gate.probes import _native, chase, pools

ISA = _native.supported_isas()[0]
MASK = (1 << 64) - 1


@pytest.fixture(scope="module")
def team() -> Any:
    return _native.Team(_native.allowed_cpus()[:2])


@pytest.fixture(scope="module")
def pool(team: Any) -> Iterator[pools.FilledPool]:
    filled = pools.build(8 << 20, "small", None, team.cpus, team, lambda note: None)
    yield filled
    filled.close()


def links(part: pools.Part) -> list[int]:
    """Of each block of the part, the number of the block that it points to; read straight from memory."""
    memory, offset, size, _ = part
    start = int(memory.address) + offset
    words = np.frombuffer((ctypes.c_uint64 * (size // 8)).from_address(start), dtype=np.uint64)
    heads = words[:: chase.BLOCK // 8][: size // chase.BLOCK].astype(np.int64) - start
    assert (heads % chase.BLOCK == 0).all()
    return [int(head) for head in heads // chase.BLOCK]


def order(part: pools.Part) -> list[int]:
    """The blocks in the order in which a walk from the start visits them, until it is back."""
    next_of, found, at = links(part), [], 0
    while True:
        found.append(at)
        at = next_of[at]
        if at == 0 or len(found) > len(next_of):
            return found


def shuffled(blocks: int, seed: int) -> list[int]:
    """The cycle of a seed by Sattolo's shuffle with SplitMix64, written a second time."""
    state, next_of = seed, list(range(blocks))
    for i in range(blocks - 1, 0, -1):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        j = (z ^ z >> 31) * i >> 64
        next_of[i], next_of[j] = next_of[j], next_of[i]
    return next_of


@pytest.mark.parametrize("size", [512, 4096, 100_008, 8 << 20])
@pytest.mark.parametrize("window", [0, 4096, 64 * 4096])
def test_a_chain_visits_every_block_once(team: Any, pool: pools.FilledPool, size: int, window: int) -> None:
    part = (pool.pool, 0, size, 77)
    chain = chase.build_chain(team, 0, part, window)
    visited = order(part)
    assert sorted(visited) == list(range(chain.blocks))
    if window:
        # No block of a window comes after the walk has left it; but the first one, where the walk begins, ends it.
        windows = [block * chase.BLOCK // window for block in visited[1:] + visited[:1]]
        changes = sum(a != b for a, b in pairwise(windows))
        assert changes == len(set(windows)) - 1
    if chain.blocks > 1000:
        jumps = np.abs(np.diff(visited))
        assert np.mean(jumps == 1) < 0.15  # a window of 16 blocks has neighbours by chance


def test_the_cycle_is_that_of_the_seed(team: Any, pool: pools.FilledPool) -> None:
    for seed in (0, 1, MASK):
        part = (pool.pool, 4096, 64 << 10, seed)
        chase.build_chain(team, len(team.cpus) - 1, part)
        assert links(part) == shuffled(256, seed)


def test_a_walk_ends_where_the_links_lead(team: Any, pool: pools.FilledPool) -> None:
    part = (pool.pool, 8192, 1 << 20, 3)
    chain = chase.build_chain(team, 0, part)
    visited = order(part)
    done = 0
    for steps in (1, 7, 8, 9, 1000, 4096, 12_345):
        region = chain.walk(steps)
        done += steps
        assert region.end == chain.position == visited[done % 4096] * chase.BLOCK
        assert (region.steps, region.blocks) == (steps, 4096)
        assert 0 < region.seconds < 10
        assert region.threads[0].end - region.threads[0].start == pytest.approx(region.seconds)
        assert (region.load_bytes, region.load_seconds) == (0, 0.0)
    assert chain.missing == -done % 4096
    chain.walk(chain.missing or chain.blocks)
    assert chain.proof().ok is True and chain.position == 0
    chain.walk(1)
    assert chain.proof().ok is True, "the turn before came back, along the same links"


def test_a_chain_that_was_bent_does_not_pass_for_a_cycle(team: Any, pool: pools.FilledPool) -> None:
    part = (pool.pool, 0, 64 << 10, 3)
    chain = chase.build_chain(team, 0, part)
    assert chain.proof().ok is None
    start = int(pool.pool.address)
    # Block 0 points to itself's successor's successor: one block is left out.
    first = ctypes.c_uint64.from_address(start)
    first.value = ctypes.c_uint64.from_address(first.value).value
    chain.walk(100)
    assert chain.proof().ok is None
    chain.walk(chain.missing or chain.blocks)
    proof = chain.proof()
    assert proof.ok is False and "did not end where it began" in proof.detail


def test_a_chain_that_was_written_over_is_refused_rather_than_followed(team: Any) -> None:
    filled = pools.build(1 << 20, "small", None, team.cpus[:1], team, lambda note: None)
    part = (filled.pool, 0, 512 << 10, 3)
    elsewhere = (filled.pool, 512 << 10, 512 << 10, 3)
    idle: list[list[pools.Part]] = [[] for _ in team.cpus[1:]]
    overwriting = [
        lambda: team.touch([[part], *idle]),
        lambda: team.prepare("read", [[part], *idle]),
        lambda: team.run("write", "generic", [[part], *idle], 1),
        lambda: team.build_cycle(0, (filled.pool, 4096, 8192, 1)),
    ]
    for overwrite in overwriting:
        chain = chase.build_chain(team, 0, part)
        team.touch([[elsewhere], *idle])
        team.run("read", "generic", [[part], *idle], 1)
        chain.walk(5)
        overwrite()
        with pytest.raises(ValueError, match="no cycle"):
            chain.walk(1)
    chain = chase.build_chain(team, 0, part)
    filled.close()
    with pytest.raises(ValueError, match="no cycle"):
        chain.walk(1)


def test_impossible_chases_are_refused(team: Any, pool: pools.FilledPool) -> None:
    part = (pool.pool, 0, 4096, 3)
    with pytest.raises(ValueError, match="two blocks"):
        team.build_cycle(0, (pool.pool, 0, 256, 3))
    with pytest.raises(ValueError, match="window"):
        team.build_cycle(0, part, 256)
    with pytest.raises(IndexError):
        team.build_cycle(len(team.cpus), part)
    team.build_cycle(0, part)
    for start in (8, 4096):
        with pytest.raises(IndexError):
            team.chase(0, part, 1, start)
    with pytest.raises(ValueError, match="one step"):
        team.chase(0, part, 0)
    loads = [[part], *([] for _ in team.cpus[1:])]
    with pytest.raises(ValueError, match="can not load too"):
        team.chase_loaded(0, part, 1, 0, "read", ISA, loads, 0)
    with pytest.raises(ValueError, match="delay"):
        team.chase_loaded(0, part, 1, 0, "read", ISA, [[] for _ in team.cpus], 1 << 40)


def test_memory_that_is_refused_is_an_error_with_its_number(team: Any, monkeypatch) -> None:
    class Refusing:
        def build_cycle(self, thread: int, part: pools.Part, window: int) -> Any:
            report = type("Report", (), {"error": 12})()
            return type("Region", (), {"threads": [report], "seconds": 0.0})()

    with pytest.raises(ProbeError, match="ENOMEM"):
        chase.build_chain(Refusing(), 0, (None, 0, 4096, 0))


@pytest.mark.skipif(len(_native.allowed_cpus()) < 2, reason="needs two CPUs")
def test_a_loaded_chase_counts_what_the_others_read_meanwhile(team: Any, pool: pools.FilledPool) -> None:
    reading = pools.build(32 << 20, "small", None, team.cpus, team, lambda note: None)
    chain = chase.build_chain(team, 0, (pool.pool, 0, pool.bytes, 3))
    # Two parts, neither a multiple of the block.
    parts: list[list[pools.Part]] = [
        [],
        [(reading.pool, 8, 10_000_008, reading.seed), (reading.pool, 16 << 20, 808, reading.seed)],
    ]
    watch = pools.PinWatch(team)
    rates = []
    for delay in (0, 200_000):
        region = chain.walk(300_000, chase.Load(ISA, parts, delay, block_bytes=4104))
        watch.see(region)
        assert region.load_bytes == region.threads[1].bytes > 0
        assert region.threads[0].bytes == 0
        assert region.load_seconds > 0.5 * region.seconds
        rates.append(region.load_bytes / region.load_seconds)
    assert 0 < rates[1] < 0.5 * rates[0]
    assert watch.proof().ok is True
    chain.walk(chain.missing or chain.blocks)
    assert chain.proof().ok is True
    # The pattern of what the loaders read is spoilt: their sums say so.
    ctypes.c_uint64.from_address(int(reading.pool.address) + 800).value ^= 1
    for _ in range(100):
        chain.walk(300_000, chase.Load(ISA, parts))
        if chain.proof().ok is False:
            break
    proof = chain.proof()
    reading.close()
    assert proof.ok is False and "wrong sum" in proof.detail


@pytest.mark.skipif(len(_native.allowed_cpus()) < 2, reason="needs two CPUs")
def test_loaders_go_on_where_the_walk_before_ended(team: Any, pool: pools.FilledPool) -> None:
    """A loader that began anew would read what a cache holds: it would never come to the spoilt word at the end."""
    reading = pools.build(32 << 20, "small", None, team.cpus, team, lambda note: None)
    chain = chase.build_chain(team, 0, (pool.pool, 0, pool.bytes, 3))
    half = 16 << 20
    parts: list[list[pools.Part]] = [
        [],
        [(reading.pool, 0, half, reading.seed), (reading.pool, half, half, reading.seed)],
    ]
    ctypes.c_uint64.from_address(int(reading.pool.address) + reading.bytes - 8).value ^= 1
    most = read = walks = 0
    wrong: list[int] = []
    while len(wrong) < 2 and walks < 5_000:
        region = chain.walk(20_000, chase.Load(ISA, parts, delay=200_000, block_bytes=65_536))
        most, read, walks = max(most, region.load_bytes), read + region.load_bytes, walks + 1
        if region.threads[1].value:
            wrong.append(read)
    reading.close()
    assert most < half, "no walk comes to the end by itself"
    # Eight blocks of each walk warm up, and are not counted.
    assert len(wrong) == 2 and wrong[1] - wrong[0] < 1.1 * 2 * half, "once each time round"


@pytest.mark.long
def test_a_plain_chase_in_c_ends_at_the_same_places(
    repository: Path, tmp_path: Path, team: Any, pool: pools.FilledPool
) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    program = tmp_path / "plain_chase"
    source = repository / "benchmarks" / "plain_chase.c"
    made = subprocess.run(
        ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", str(source), "-o", str(program)],
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    seed = int.from_bytes(os.urandom(7), "big")
    command = [str(program), str(team.cpus[0]), str(pool.bytes), str(seed)]
    ran = subprocess.run(command, input="12345\n" * 3, capture_output=True, text=True, check=True)
    chain = chase.build_chain(team, 0, (pool.pool, 0, pool.bytes, seed))
    ends = [int(line.split()[1]) for line in ran.stdout.splitlines()[1:]]
    assert ends == [chain.walk(12_345).end for _ in range(3)]
