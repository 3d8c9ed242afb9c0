"""Experts of Kimi K3 in random order against the same bytes from one end to the other, in huge pages.

    python benchmarks/expert_reads.py [--pairs 21] [--megabytes 1250]

Both sides load the same bytes with the same kernel and one thread: what is between them is the order alone.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from typing import Any

import pairs

from k3gate.model import k3
from k3gate.probes import _native, experts, pools
from k3gate.probes.sharing import choose_isa
from k3gate.probes.working_sets import HUGE_PAGE

GOAL = 0.95


def reading(team: Any, isa: str, parts: list[pools.Part]) -> Callable[[], float]:
    """B/s of one pass over the parts; a wrong sum ends the program."""
    sums = pools.Checksums([parts])

    def read() -> float:
        region = team.run("read", isa, [parts], 1)
        sums.see(region, 1)
        if sums.proof().ok is not True:
            raise SystemExit(f"no figure is worth anything: {sums.proof().detail}")
        return float(region.threads[0].bytes / region.seconds)

    return read


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--megabytes", type=int, default=1250, help="at least 4 x the last-level caches")
    arguments = parser.parse_args()
    cpus = _native.allowed_cpus()[:1]
    team, isa = _native.Team(cpus), choose_isa(None, "read")
    size = arguments.megabytes * 10**6 // HUGE_PAGE * HUGE_PAGE
    pool = pools.build(size, "transparent", None, cpus, team, lambda note: None)
    try:
        if pools.page_size([pool])[0] != HUGE_PAGE:
            raise SystemExit("the pool is not of huge pages: the comparison would be unfair")
        offsets = experts.order(pool.bytes, random.Random(7))
        [shuffled] = experts.deal(pool, offsets, 1)
        straight = pool.parts(1, 0, len(offsets) * k3.EXPERT_BYTES)
        taken = pairs.measure(
            reading(team, isa, shuffled), reading(team, isa, straight), arguments.pairs, "experts"
        )
        name = "B/s of experts in random order / straight through, 1 thread, huge pages"
        print(pairs.line(name, pairs.ratio(taken), GOAL))
    finally:
        pool.close()


if __name__ == "__main__":
    main()
