"""The read kernel, one thread, against likwid-bench load_avx512 and numpy's sum, page size alike on both sides.

    python benchmarks/read_bandwidth.py [--pairs 21] [--megabytes 1250]

likwid-bench has base pages, so our side has them too; numpy sums a buffer of ours that was advised to
transparent huge pages, and AnonHugePages of it is checked. Eight streams of a thread are compared with one: which is
faster differs between makers of CPUs, and the read kernel takes what was faster where it was measured. All threads are
printed beside it, without a goal: on shared machines such readings scatter too much to be held to one.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pairs

from k3gate.probes import _native, pools
from k3gate.probes.sharing import choose_isa

GOAL = 0.97
PASSES = 4


def reader(team: Any, filled: pools.FilledPool, isa: str, kernel: str = "read") -> Callable[[], float]:
    """B/s of our kernel over whole passes of a pool, its sum checked."""
    parts = [[part] for part in filled.parts(len(team.cpus))]

    def read() -> float:
        sums = pools.Checksums(parts)
        region = team.run(kernel, isa, parts, PASSES)
        sums.see(region, PASSES)
        if not sums.proof().ok:
            raise SystemExit("the kernel read a wrong sum: no figure is worth anything")
        return PASSES * filled.bytes / float(region.seconds)

    return read


def fresh_reader(team: Any, cpus: list[int], size: int, isa: str) -> Callable[[], float]:
    """As `reader`, over base pages allocated and touched for each reading, as likwid-bench does it.

    Where the pages lie moves a rate by a tenth; one lucky or unlucky pool must not stand for the kernel.
    """

    def read() -> float:
        filled = pools.build(size, "small", None, cpus, team, lambda note: None)
        try:
            if pools.page_size([filled])[0] != mmap.PAGESIZE:
                raise SystemExit("the pool is not of base pages: the comparison would be unfair")
            return reader(team, filled, isa)()
        finally:
            filled.close()

    return read


def likwid(cpu_count: int, megabytes: int) -> Callable[[], float]:
    """B/s that likwid-bench load_avx512 reports for one pinned thread, over as many passes."""
    command = ["likwid-bench", "-t", "load_avx512", "-w", f"S0:{megabytes}MB:{cpu_count}", "-i", str(PASSES)]

    def read() -> float:
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        found = re.search(r"^MByte/s:\s+([0-9.]+)", ran.stdout, re.MULTILINE)
        if found is None:
            raise SystemExit(f"likwid-bench said no rate:\n{ran.stdout[-500:]}")
        return float(found[1]) * 1e6

    return read


def numpy_sum(filled: pools.FilledPool, cpu: int) -> Callable[[], float]:
    """B/s of numpy's sum of float64 over the same memory, holding ones, by this thread pinned to one CPU."""
    import os

    import numpy as np

    words = (ctypes.c_double * (filled.bytes // 8)).from_address(int(filled.pool.address))
    array = np.frombuffer(words, dtype=np.float64)
    array[:] = 1.0

    def read() -> float:
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {cpu})
        try:
            start = time.monotonic()
            for _ in range(PASSES):
                if float(array.sum()) != filled.bytes // 8:
                    raise SystemExit("numpy read a wrong sum")
            return PASSES * filled.bytes / (time.monotonic() - start)
        finally:
            os.sched_setaffinity(0, allowed)

    return read


def main() -> None:
    """Print one line per peer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--megabytes", type=int, default=1250, help="at least 4 x the last-level caches")
    arguments = parser.parse_args()
    cpus = _native.allowed_cpus()
    cpu, size = cpus[0], arguments.megabytes * 10**6
    isa = choose_isa(None, "read")
    one, everyone = _native.Team([cpu]), _native.Team(cpus)
    print(f"read kernel {isa}, {size / 1e6:.0f} MB, {PASSES} passes a reading, CPU {cpu}")

    if isa != "avx512":
        print("likwid-bench load_avx512: not resolvable here: this CPU has no AVX-512")
    elif shutil.which("likwid-bench") is None:
        print(
            "likwid-bench load_avx512: not resolvable here: likwid-bench is missing (apt-get install likwid)"
        )
    else:
        mine = fresh_reader(one, [cpu], size, isa)
        taken = pairs.measure(mine, likwid(1, arguments.megabytes), arguments.pairs, "likwid")
        print(pairs.line("ours / likwid-bench load_avx512, 1 thread", pairs.ratio(taken), GOAL))
        if len(cpus) > 1:
            peer = likwid(len(cpus), arguments.megabytes)
            mine = fresh_reader(everyone, cpus, size, isa)
            taken = pairs.measure(mine, peer, arguments.pairs, "all threads")
            found = pairs.ratio(taken)
            print(
                f"ours / likwid-bench, {len(cpus)} threads: {found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})"
            )

    ours = pools.build(size, "transparent", None, cpus, everyone, lambda note: None)
    theirs = pools.build(size, "transparent", None, cpus, everyone, lambda note: None)
    proofs = [pools.page_size([one_pool])[1] for one_pool in (ours, theirs)]
    print("huge pages, ours and numpy's:", "; ".join(proof.detail for proof in proofs))
    taken = pairs.measure(reader(one, ours, isa), numpy_sum(theirs, cpu), arguments.pairs, "numpy")
    print(pairs.line("ours / numpy sum of float64, 1 thread", pairs.ratio(taken), GOAL))
    if isa in {row["isa"] for row in _native.kernels() if row["name"] == "read_streams"}:
        one_stream = reader(one, ours, isa, "read_one")
        taken = pairs.measure(reader(one, ours, isa, "read_streams"), one_stream, arguments.pairs, "streams")
        found = pairs.ratio(taken)
        print(
            f"eight streams / one, 1 thread, huge pages: {found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})"
        )
    rates = [reader(everyone, ours, isa)() / 1e9 for _ in range(9)]
    print(
        f"all {len(cpus)} threads, huge pages: median {statistics.median(rates):.1f} GB/s "
        f"({min(rates):.1f} to {max(rates):.1f}, 9 readings)"
    )


if __name__ == "__main__":
    main()
