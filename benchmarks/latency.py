"""The pointer chase, one thread, huge pages, against a plain chase in C (plain_chase.c, gcc -O2).

    python benchmarks/latency.py [--pairs 21] [--megabytes 1024] [--steps 20000]

Twice. Along one cycle in the same memory: ours and the plain loop go on by turns where the other has stopped, and
must close the cycle together. And by a process with memory of its own, which builds the same cycle from the same
seed and must end where ours ends. On a shared machine the place of memory moves a latency by more than the code
does, so only the first is held to a goal.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pairs

from k3gate.probes import _native, chase, pools
from k3gate.probes.working_sets import HUGE_PAGE

GOAL = 0.97
WALKS = 101
"""Short walks that take turns: drift falls on both sides alike, and their median is none that lost its CPU."""


class OwnMemory:
    """The C program, building and walking the cycle of a seed."""

    def __init__(self, program: Path, cpu: int, size: int, seed: int) -> None:
        command = [str(program), str(cpu), str(size), str(seed)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if int(self._answer()) < pools.HUGE_SHARE * size:
            raise SystemExit("the C program got no huge pages: the comparison would be unfair")

    def walk(self, steps: int) -> tuple[float, int]:
        """Seconds, and the place where it ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        seconds, end = self._answer().split()
        return float(seconds), int(end)

    def close(self) -> None:
        """End it."""
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


Rates = tuple[float, float]
"""Steps per second, ours and plain."""


def rates(ours: list[float], plain: list[float], steps: int) -> Rates:
    """Of the seconds of walks, the first of which is to warm up."""
    return steps / statistics.median(ours[1:]), steps / statistics.median(plain[1:])


def in_same_memory(chain: chase.Chain, library: Path, cpu: int, steps: int) -> Rates:
    """The plain loop runs in this thread, pinned to the CPU of the team's thread, which sleeps meanwhile."""
    plain_walk = ctypes.CDLL(str(library)).plain_walk
    plain_walk.restype, plain_walk.argtypes = ctypes.c_double, [ctypes.c_void_p, ctypes.c_uint64]
    start = int(chain.part[0].address) + chain.part[1]
    ours, plain = [], []
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        for _ in range(WALKS + 1):
            ours.append(float(chain.walk(steps).seconds))
            at = ctypes.c_void_p(start + chain.position)
            plain.append(float(plain_walk(ctypes.byref(at), steps)))
            chain.position, chain.walked = (at.value or 0) - start, chain.walked + steps
    finally:
        os.sched_setaffinity(0, allowed)
    chain.walk(chain.missing or chain.blocks)
    proof = chain.proof()
    if not proof.ok:
        raise SystemExit(f"no figure is worth anything: {proof.detail}")
    return rates(ours, plain, steps)


def in_own_memory(chain: chase.Chain, program: Path, cpu: int, steps: int) -> Rates:
    """Both from the start of the cycle."""
    process = OwnMemory(program, cpu, chain.part[2], chain.part[3])
    ours, plain = [], []
    try:
        for _ in range(WALKS + 1):
            ours.append(float(chain.walk(steps).seconds))
            seconds, end = process.walk(steps)
            plain.append(seconds)
            if end != chain.position:
                raise SystemExit(f"the chases ended at {chain.position} and {end}: one of them is wrong")
    finally:
        process.close()
    return rates(ours, plain, steps)


def pair(team: Any, cpu: int, size: int, steps: int, folder: Path) -> tuple[Rates, Rates]:
    """In the same memory, and in memory of their own; with fresh memory and a new cycle for each pair."""
    filled = pools.build(size, "transparent", None, [cpu], team, lambda note: None)
    try:
        if pools.page_size([filled])[0] != HUGE_PAGE:
            raise SystemExit("the pool is not of huge pages: the comparison would be unfair")
        chain = chase.build_chain(team, 0, (filled.pool, 0, size, secrets.randbits(63)))
        same = in_same_memory(chain, folder / "plain_chase.so", cpu, steps)
        return same, in_own_memory(chain, folder / "plain_chase", cpu, steps)
    finally:
        filled.close()


def compile_into(folder: Path) -> None:
    """The C program, and the same as a library."""
    source = Path(__file__).with_name("plain_chase.c")
    for name, flags in (("plain_chase", []), ("plain_chase.so", ["-shared", "-fPIC"])):
        subprocess.run(["gcc", "-O2", *flags, str(source), "-o", str(folder / name)], check=True)


def main() -> None:
    """Print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=21)
    parser.add_argument("--megabytes", type=int, default=1024, help="MiB of the chain")
    parser.add_argument("--steps", type=int, default=20_000, help=f"of each of {WALKS} walks a reading")
    arguments = parser.parse_args()
    cpu, size = _native.allowed_cpus()[0], arguments.megabytes << 20
    name = f"steps/s, ours / plain chase in C, {arguments.megabytes} MiB, huge pages"
    if shutil.which("gcc") is None:
        print(f"{name}: not resolvable here: gcc is missing (apt-get install gcc)")
        return
    team = _native.Team([cpu])
    same: list[Rates] = []
    own: list[Rates] = []
    with tempfile.TemporaryDirectory() as folder:
        compile_into(Path(folder))
        for number in range(arguments.pairs):
            for kept, one in zip(
                (same, own), pair(team, cpu, size, arguments.steps, Path(folder)), strict=True
            ):
                kept.append(one)
            texts = [f"{1e9 / kept[-1][0]:.1f} against {1e9 / kept[-1][1]:.1f} ns" for kept in (same, own)]
            print(f"  pair {number + 1}/{arguments.pairs}: {', own memory '.join(texts)}", file=sys.stderr)
    print(pairs.line(f"{name}, same memory", pairs.ratio(same), GOAL))
    print(f"  ours: {spread([a for a, _ in same])}; plain: {spread([b for _, b in same])}")
    found = pairs.ratio(own)
    print(f"{name}, own memory: {found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})")


def spread(found: list[float]) -> str:
    """Rates as latencies."""
    times = [1e9 / rate for rate in found]
    return f"median {statistics.median(times):.1f} ns ({min(times):.1f} to {max(times):.1f})"


if __name__ == "__main__":
    main()
