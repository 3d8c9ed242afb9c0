"""Changing one thing must move a figure the way physics says: each line is a ratio of two settings, in one run.

    python benchmarks/physics.py [--pairs 21] [--megabytes 1250]

Latency in huge pages against pages of 4 KiB, one thread against two, memory inside the caches against outside; and
loads whose order is computed against a chain of pointers in the same memory, which must take as long: were a load
not to wait for the one before, it would be several times faster.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import pairs

from k3gate.probes import _native, chase, pools, scatter
from k3gate.probes.sharing import choose_isa
from k3gate.probes.working_sets import HUGE_PAGE

TURNS = 9
"""Short walks for each reading, whose median is none that lost its CPU."""
STEPS = 40_000
"""Of each."""
SLICE = 32 << 20
"""Bytes that are read at a time: a few milliseconds."""
SLICES = 16
"""Of these, for each reading."""
INSIDE = 256 << 10
"""Bytes that lie in the caches of one core."""
CLOSE = (0.85, 1.1)
"""Within these a computed order counts as fast as a chain: a few cycles a load are its price."""

Reading = Callable[[], float]


def filled(team: Any, cpus: list[int], size: int, kind: str) -> pools.FilledPool:
    """A pool; ends the program where huge pages were asked for and others came."""
    pool = pools.build(size, kind, None, cpus, team, lambda note: None)
    if kind == "transparent" and pools.page_size([pool])[0] != HUGE_PAGE:
        raise SystemExit("the pool is not of huge pages: the comparison would be unfair")
    return pool


def steps(walk: chase.Chain | scatter.Scatter) -> Reading:
    """Loads per second along a chain, or of a walk whose order is computed."""

    def read() -> float:
        return STEPS / statistics.median(float(walk.walk(STEPS).seconds) for _ in range(TURNS))

    return read


def rate(team: Any, pool: pools.FilledPool, size: int) -> Reading:
    """B/s of all threads of a team over the first bytes of a pool; a wrong sum ends the program.

    A large pool is read in slices, one after another and around, so that none is in a cache when its turn comes;
    the fastest counts, since a thread that loses its CPU to others slows all down.
    """
    isa = choose_isa(None, "read")
    length = min(size, SLICE)
    sliced = [
        [[part] for part in pool.parts(len(team.cpus), start, length)]
        for start in range(0, size // length * length, length)
    ]
    sums = [pools.Checksums(parts) for parts in sliced]
    passes = SLICE // length
    turn = 0

    def read() -> float:
        nonlocal turn
        seconds = []
        for _ in range(SLICES):
            at = turn % len(sliced)
            region = team.run("read", isa, sliced[at], passes)
            sums[at].see(region, passes)
            seconds.append(float(region.seconds))
            turn += 1
            if sums[at].proof().ok is not True:
                raise SystemExit(f"no figure is worth anything: {sums[at].proof().detail}")
        return passes * length / min(seconds)

    return read


def compare(name: str, first: Reading, second: Reading, count: int, unit: tuple[str, float]) -> None:
    """The line of one setting against another, which must be slower."""
    found = pairs.ratio(pairs.measure(first, second, count, name, *unit))
    print(pairs.direction(name, found), flush=True)


def main() -> None:
    """Print a line for each thing that is changed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--megabytes", type=int, default=1250, help="at least 4 x the last-level caches")
    arguments = parser.parse_args()
    cpus = _native.allowed_cpus()[:2]
    size = arguments.megabytes * 10**6 // HUGE_PAGE * HUGE_PAGE
    one = _native.Team(cpus[:1])
    loads, bytes_ = ("million loads/s", 1e6), ("GB/s", 1e9)

    huge, small = (filled(one, cpus[:1], size, kind) for kind in ("transparent", "small"))
    words = _first_words(huge)
    computed = scatter.Scatter(one, 0, (huge.pool, 0, huge.bytes, 5), words)
    # Before the chain is laid over the pattern: its proof needs the words, its time does not.
    computed.walk(computed.blocks)
    if computed.proof().ok is not True:
        raise SystemExit(f"no figure is worth anything: {computed.proof().detail}")
    outside = rate(one, huge, huge.bytes)
    compare(
        "read rate, one thread, inside / outside the caches",
        rate(one, huge, INSIDE),
        outside,
        arguments.pairs,
        bytes_,
    )
    if len(cpus) == 2:
        two = _native.Team(cpus)
        compare("read rate, two threads / one", rate(two, huge, huge.bytes), outside, arguments.pairs, bytes_)
    else:
        print("read rate, two threads / one: not resolvable here: one CPU may be used")

    near = filled(one, cpus[:1], HUGE_PAGE, "transparent")
    chains = [
        chase.build_chain(one, 0, (pool.pool, 0, length, pool.seed))
        for pool, length in ((huge, huge.bytes), (small, huge.bytes), (near, INSIDE))
    ]
    far, far_small, close = (steps(chain) for chain in chains)
    compare("loads/s of a chain, huge pages / 4 KiB", far, far_small, arguments.pairs, loads)
    compare("loads/s of a chain, inside / outside the caches", close, far, arguments.pairs, loads)
    name = "loads/s, computed order / chain of pointers, same memory"
    found = pairs.ratio(pairs.measure(steps(computed), far, arguments.pairs, name, *loads))
    held = found.pairs >= pairs.LEAST_PAIRS and CLOSE[0] <= found.low and found.high <= CLOSE[1]
    print(
        f"{name}: {found.ratio:.3f} ({found.low:.3f} to {found.high:.3f}, {found.pairs} pairs), "
        f"wanted {CLOSE[0]} to {CLOSE[1]}: {'held' if held else 'not held'}"
    )


def _first_words(pool: pools.FilledPool) -> int:
    """What the first words of all blocks add up to, by the pattern's definition."""
    blocks, step = pool.bytes // chase.BLOCK, chase.BLOCK // 8
    positions = step * blocks * (blocks - 1) // 2 + blocks
    return (blocks * pool.seed + int(_native.PATTERN_STEP) * positions) % (1 << 64)


if __name__ == "__main__":
    main()
