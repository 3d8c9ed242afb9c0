"""The kernels with non-temporal stores, one thread, against likwid-bench copy_mem_avx512 and stream_mem_avx512.

    python benchmarks/store_bandwidth.py [--pairs 21] [--megabytes 1250]

Both sides count 16 bytes an element for the copy and 24 for the triad, both have base pages that are fresh for
each reading, and all arrays together have the size that is given. What ours stored is read back and checked.
"""

from __future__ import annotations

import argparse
import mmap
import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pairs

from k3gate.probes import _native, pools
from k3gate.probes.sharing import choose_isa

GOAL = 0.97
PASSES = 4
PEERS = {"copy_nt": "copy_mem_avx512", "triad_nt": "stream_mem_avx512"}


def ours(team: Any, cpu: int, size: int, kernel: str, isa: str) -> Callable[[], float]:
    """B/s of our kernel, counted bytes, over whole passes of a pool that is allocated for each reading."""
    row = pools.traffic(kernel, isa)

    def read() -> float:
        filled = pools.build(size, "small", None, [cpu], team, lambda note: None)
        try:
            if pools.page_size([filled])[0] != mmap.PAGESIZE:
                raise SystemExit("the pool is not of base pages: the comparison would be unfair")
            parts = [filled.parts(1)]
            stored = pools.StoredWords(team, kernel, parts)
            region = team.run(kernel, isa, parts, PASSES)
            stored.see(region, PASSES)
            if not stored.proof().ok:
                raise SystemExit("the kernel stored wrong words: no figure is worth anything")
            counted: float = region.threads[0].bytes / 8 * float(row["counted_bytes_per_word"])
            return counted / float(region.seconds)
        finally:
            filled.close()

    return read


def likwid(test: str, megabytes: int) -> Callable[[], float]:
    """B/s that likwid-bench reports for one pinned thread, over as many passes."""
    command = ["likwid-bench", "-t", test, "-w", f"S0:{megabytes}MB:1", "-i", str(PASSES)]

    def read() -> float:
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        found = re.search(r"^MByte/s:\s+([0-9.]+)", ran.stdout, re.MULTILINE)
        if found is None:
            raise SystemExit(f"likwid-bench said no rate:\n{ran.stdout[-500:]}")
        return float(found[1]) * 1e6

    return read


def main() -> None:
    """Print one line per kernel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--megabytes", type=int, default=1250, help="at least 4 x the last-level caches")
    arguments = parser.parse_args()
    cpu, size = _native.allowed_cpus()[0], arguments.megabytes * 10**6
    team = _native.Team([cpu])
    for kernel, peer in PEERS.items():
        isa = choose_isa(None, kernel)
        name = f"ours {kernel} / likwid-bench {peer}, 1 thread"
        if isa != "avx512":
            print(f"{name}: not resolvable here: this CPU has no AVX-512")
        elif shutil.which("likwid-bench") is None:
            print(f"{name}: not resolvable here: likwid-bench is missing (apt-get install likwid)")
        else:
            mine = ours(team, cpu, size, kernel, isa)
            taken = pairs.measure(mine, likwid(peer, arguments.megabytes), arguments.pairs, kernel)
            print(pairs.line(name, pairs.ratio(taken), GOAL))


if __name__ == "__main__":
    main()
