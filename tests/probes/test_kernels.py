"""The kernels that store: what they leave, what they count, on every instruction set of this CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from k3gate.probes import _native, pools
from k3gate.probes.sharing import choose_isa

MASK = (1 << 64) - 1
SEED = 0x1234567890ABCDEF
COUNTED = {"write": (8, 16), "copy": (16, 24), "triad": (24, 32)}
"""Counted bytes of a step, and those that cached stores put on the bus."""
ARRAYS = {"write": 1, "copy": 2, "triad": 3}
HERE = [
    (row["name"], row["isa"])
    for row in _native.kernels()
    if row["stores"] != "none" and row["isa"] in _native.supported_isas()
]
EXPERT = 17_547_264
"""Bytes of one routed expert: three tensors of values and three of scales."""
TENSORS = (5_505_024, 344_064) * 3


@pytest.fixture(scope="module")
def team() -> Any:
    return _native.Team(_native.allowed_cpus()[:2])


@pytest.fixture(scope="module")
def pool(team: Any) -> Iterator[pools.FilledPool]:
    filled = pools.build(4 << 20, "small", None, team.cpus, team, lambda note: None)
    filled.seed = SEED
    yield filled
    filled.close()


def words_of(pool: pools.FilledPool) -> np.ndarray:
    raw = (ctypes.c_uint64 * (pool.bytes // 8)).from_address(int(pool.pool.address))
    return np.frombuffer(raw, dtype=np.uint64)


def pattern(first: int, words: int) -> np.ndarray:
    index = np.arange(first + 1, first + words + 1, dtype=np.uint64)
    return np.uint64(SEED) + index * np.uint64(_native.PATTERN_STEP)


def on_first(team: Any, part: pools.Part) -> list[list[pools.Part]]:
    return [[part]] + [[] for _ in team.cpus[1:]]


def test_each_kernel_states_traffic_by_the_rule_of_its_stores() -> None:
    for row in _native.kernels():
        if row["stores"] == "none":
            continue
        base = row["name"].removesuffix("_nt")
        counted, bus = COUNTED[base]
        assert row["counted_bytes_per_word"] == counted
        assert row["stores"] == ("cached" if base == row["name"] else "non_temporal")
        assert row["bus_bytes_per_word"] == (bus if row["stores"] == "cached" else counted)
        assert row["flops_per_word"] == (2 if base == "triad" else 0)
        assert ("RFO" in row["counting"]) == (row["stores"] == "cached")


def test_every_instruction_set_here_has_every_kernel_with_cached_stores() -> None:
    for isa in _native.supported_isas():
        for name in COUNTED:
            assert choose_isa(isa, name) == isa
    for name in COUNTED:
        assert choose_isa(None, f"{name}_nt") == _native.supported_isas()[0]


@pytest.mark.parametrize(("name", "isa"), HERE)
def test_a_kernel_leaves_what_its_formula_says_and_touches_nothing_else(
    team: Any, pool: pools.FilledPool, name: str, isa: str
) -> None:
    base, words = name.removesuffix("_nt"), words_of(pool)
    for offset, size in ((0, 64), (8, 4096), (40, 777 * 8), (4096, 100_008), (64, 3_000_000), (16, 1 << 20)):
        team.prepare("read", on_first(team, (pool.pool, 0, pool.bytes, SEED)))
        parts = on_first(team, (pool.pool, offset, size, SEED))
        team.prepare(name, parts)
        before = words.copy()
        region = team.run(name, isa, parts, 2)
        count = region.threads[0].bytes // 16
        lead = -offset % 64
        assert count * ARRAYS[base] * 8 <= size - lead
        # At most a line of each array is left over, or a page of each that is large.
        loss = size - lead - count * ARRAYS[base] * 8
        assert loss < 64 * 3 or (size > 3 * 65536 and loss < 4096 * 3)
        to = (offset + lead) // 8
        got = words[to : to + count]
        if base == "write":
            assert count == (size - lead) // 8
            assert len(set(got.tolist())) == 1 and got[0] == (SEED ^ _native.PATTERN_STEP) | 1
        elif base == "copy":
            assert np.array_equal(got, pattern(to + count, count))
        else:
            b, c = (before[to + k * count : to + (k + 1) * count].view(np.float64) for k in (1, 2))
            assert np.array_equal(got.view(np.float64), b + 3.0 * c)
            assert count == 0 or ((b > 0).all() and (b == np.trunc(b)).all())
        assert np.array_equal(words[:to], before[:to])
        assert np.array_equal(words[to + count :], before[to + count :])
        assert team.count_unwritten(name, parts).threads[0].value == 0
        assert [thread.value for thread in region.threads] == [0] * len(team.cpus)


@pytest.mark.parametrize("name", ["write_nt", "copy", "triad_nt"])
def test_stored_words_are_proven_over_threads_and_a_flipped_bit_is_found(
    team: Any, pool: pools.FilledPool, name: str
) -> None:
    parts = [[part] for part in pool.parts(len(team.cpus))]
    isa = choose_isa(None, name)
    stored = pools.StoredWords(team, name, parts)
    assert stored.proof().ok is None
    row = next(row for row in pools.kernel_table() if (row["name"], row["isa"]) == (name, isa))
    for passes in (1, 3):
        region = team.run(name, isa, parts, passes)
        stored.see(region, passes)
        counted = sum(thread.bytes for thread in region.threads) / 8 * row["counted_bytes_per_word"]
        arrays = ARRAYS[name.removesuffix("_nt")]
        moved = 3 if arrays == 3 else arrays
        assert counted == pytest.approx(passes * pool.bytes / arrays * moved, rel=0.01)
    assert stored.proof().ok is True
    words_of(pool)[5] ^= np.uint64(1)
    proof = stored.proof()
    assert proof.ok is False and "1 of" in proof.detail


def test_what_is_not_stored_is_seen(team: Any, pool: pools.FilledPool) -> None:
    parts = [[part] for part in pool.parts(len(team.cpus))]
    stored = pools.StoredWords(team, "copy", parts)
    region = team.run("copy", "generic", parts, 0)  # no pass at all
    stored.see(region, 0)
    proof = stored.proof()
    assert all(thread.value >= pool.bytes // 2 // 2 // 65536 for thread in region.threads)
    assert proof.ok is False and "1 of 1 timed regions left words unwritten" in proof.detail


def test_the_read_kernel_finds_its_pattern_after_the_pool_is_prepared_for_it(
    team: Any, pool: pools.FilledPool
) -> None:
    parts = [[part] for part in pool.parts(len(team.cpus))]
    team.prepare("triad", parts)
    team.run("triad", "generic", parts, 1)
    assert sum(thread.value for thread in team.verify(parts).threads) > 0
    team.prepare("read", parts)
    assert [thread.value for thread in team.verify(parts).threads] == [0] * len(team.cpus)
    sums = pools.Checksums(parts)
    sums.see(team.run("read", "generic", parts, 2), 2)
    assert sums.proof().ok is True


def test_reading_back_what_no_kernel_stored_is_refused(team: Any, pool: pools.FilledPool) -> None:
    with pytest.raises(ValueError, match="stores nothing"):
        team.count_unwritten("read", [[] for _ in team.cpus])
    with pytest.raises(ValueError, match="no kernel"):
        team.prepare("compress", [[] for _ in team.cpus])
    with pytest.raises(ValueError, match="writes"):
        _native.checksum_at("write", "generic", int(pool.pool.address), 1)


def test_hundreds_of_expert_sized_parts_a_thread_cost_no_more_than_one(team: Any) -> None:
    """The parts are the tensors of experts in random order; the best of some readings, as others work here too."""
    assert sum(TENSORS) == EXPERT
    experts = 12
    filled = pools.build(experts * EXPERT, "transparent", None, team.cpus, team, lambda note: None)
    isa = choose_isa(None, "read")
    dice = np.random.default_rng(5)
    scattered: list[list[pools.Part]] = []
    for _ in team.cpus:
        own: list[pools.Part] = []
        for expert in dice.integers(0, experts, 40).tolist():
            start = expert * EXPERT
            for size in TENSORS:
                own.append((filled.pool, start, size, filled.seed))
                start += size
        scattered.append(own)
    assert len(scattered[0]) == 240
    sums = pools.Checksums(scattered)
    whole = [[(filled.pool, 0, experts * EXPERT, filled.seed)] for _ in team.cpus]
    rates: dict[str, float] = {"many": 0.0, "one": 0.0}
    for _ in range(5):
        region = team.run("read", isa, scattered, 1)
        sums.see(region, 1)
        rates["many"] = max(rates["many"], sum(t.bytes for t in region.threads) / region.seconds)
        region = team.run("read", isa, whole, 3)
        rates["one"] = max(rates["one"], sum(t.bytes for t in region.threads) / region.seconds)
    filled.close()
    assert sums.proof().ok is True
    # Far below what a cost of even 0.2 ms a part would leave, far above what noise takes from the best of five.
    assert rates["many"] > 0.6 * rates["one"], rates
