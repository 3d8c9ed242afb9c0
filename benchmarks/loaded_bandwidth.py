"""A thread that loads memory without delay beside a pointer chase, against the same thread reading plainly.

    python benchmarks/loaded_bandwidth.py [--pairs 21] [--megabytes 512]

What the curve of latency under load can reach is the load: threads that lose bandwidth to their own bookkeeping
would show the latency of a memory that is half idle.
"""

from __future__ import annotations

import argparse
from typing import Any

import pairs

from k3gate.probes import _native, chase, pools
from k3gate.probes.latency import LOAD_BLOCK_BYTES
from k3gate.probes.sharing import choose_isa

GOAL = 0.90
"""Not 0.97: the chase takes its own share of the memory."""
STEPS = 400_000
CHAIN_BYTES = 256 << 20


def right(region: Any, wanted: int, what: str) -> None:
    """Stop where a thread read a wrong word."""
    if region.threads[-1].value != wanted:
        raise SystemExit(f"no figure is worth anything: {what} read a wrong sum")


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--megabytes", type=int, default=512, help="MiB that are loaded")
    arguments = parser.parse_args()
    name = "B/s of a loader at delay 0 beside a chase / reading plainly, 1 thread"
    cpus = _native.allowed_cpus()[:2]
    if len(cpus) < 2:
        print(f"{name}: not resolvable here: it takes two CPUs")
        return
    both, alone = _native.Team(cpus), _native.Team(cpus[1:])
    isa = choose_isa(None, "read")
    filled = pools.build(arguments.megabytes << 20, "transparent", None, cpus[1:], alone, lambda note: None)
    memory = pools.allocate(CHAIN_BYTES, "transparent", None)
    parts = [filled.parts(1)]
    try:
        chain = chase.build_chain(both, 0, (memory.pool, 0, memory.bytes, memory.seed))

        def loaded() -> float:
            walk = chain.walk(STEPS, chase.Load(isa, [[], *parts], 0, LOAD_BLOCK_BYTES))
            right(walk, 0, "the loader")
            return float(walk.load_bytes / walk.load_seconds)

        def plain() -> float:
            region = alone.run("read", isa, parts, 1)
            right(region, pools.pattern_sum(parts[0][0]), "the plain reader")
            return float(region.threads[0].bytes / region.seconds)

        taken = pairs.measure(loaded, plain, arguments.pairs, "loaded")
        print(pairs.line(name, pairs.ratio(taken), GOAL))
    finally:
        filled.close()
        memory.close()


if __name__ == "__main__":
    main()
