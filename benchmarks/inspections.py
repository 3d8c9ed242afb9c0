"""How long `k3gate inspect` takes for a whole Kimi K3 without its weights, and with how much memory.

python benchmarks/inspections.py [--times 15] [--folder DIR]

96 sparse files with true headers, in the kernel's cache. The line of time holds when the upper end of the interval of
the median (order statistics, at least 95 %) lies under the limit. Memory is the resident bytes of all processes added
up, looked at every 10 ms in runs of its own; pages that processes share count once for each.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from scipy import stats

ROOT = Path(__file__).resolve().parents[1]
MAKE = """
import pathlib, sys
from tests.model.checkpoint import kimi_k3
kimi_k3.write(pathlib.Path(sys.argv[1]))
"""
SECONDS = 6.0
BYTES = 1e9
CPUS = 2
LEAST_TIMES = 6
"""With fewer, not even the smallest and the largest enclose the median with 95 %."""
MEMORY_RUNS = 3


def command(folder: Path) -> list[str]:
    """One inspection, with a store of its own."""
    store = str(folder.parent / "runs.sqlite")
    return [sys.executable, "-m", "k3gate", "inspect", str(folder), "--store", store]


def seconds(folder: Path) -> float:
    """Wall seconds of one run."""
    begun = time.perf_counter()
    done = subprocess.run(command(folder), capture_output=True, text=True)
    taken = time.perf_counter() - begun
    if done.returncode:
        raise SystemExit(f"k3gate inspect: exit {done.returncode}: {done.stderr}")
    return taken


def peak(folder: Path) -> int:
    """The most bytes that the run's processes together had resident."""
    most = 0
    with subprocess.Popen(command(folder), stdout=subprocess.DEVNULL) as process:
        first = psutil.Process(process.pid)
        while process.poll() is None:
            together = 0
            try:
                for one in (first, *first.children(recursive=True)):
                    together += one.memory_info().rss
            except psutil.NoSuchProcess:
                pass  # one ended meanwhile: the others are seen again next time
            most = max(most, together)
            time.sleep(0.01)
    return most


def interval(taken: list[float]) -> tuple[float, float]:
    """Two of the values that enclose the median with at least 95 %."""
    rank = int(stats.binom.ppf(0.025, len(taken), 0.5))
    ordered = sorted(taken)
    return ordered[rank - 1], ordered[-rank]


def main() -> int:
    """Print two lines; 1 where one did not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--times", type=int, default=15)
    parser.add_argument("--folder", help="where the files are made; default: that of temporary files")
    arguments = parser.parse_args()
    if arguments.times < LEAST_TIMES:
        parser.error(f"--times: at least {LEAST_TIMES}")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CPUS])
    cpus = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        folder = Path(temporary) / "kimi-k3"
        folder.mkdir()
        subprocess.run([sys.executable, "-c", MAKE, str(folder)], cwd=ROOT, check=True)
        seconds(folder)  # warm-up, not counted
        taken = [seconds(folder) for _ in range(arguments.times)]
        most = max(peak(folder) for _ in range(MEMORY_RUNS))
    low, high = interval(taken)
    told = (
        f"median {statistics.median(taken):.2f} s ({low:.2f} to {high:.2f}, {len(taken)} runs, {cpus} CPUs)"
    )
    print(f"k3gate inspect, whole Kimi K3: {told}, limit {SECONDS:g} s: {verdict(high < SECONDS)}")
    told = f"at most {most / 1e6:.0f} MB of {MEMORY_RUNS} runs, all processes together"
    print(f"k3gate inspect, peak memory: {told}, limit {BYTES / 1e6:.0f} MB: {verdict(most < BYTES)}")
    return 0 if high < SECONDS and most < BYTES else 1


def verdict(held: bool) -> str:
    """In a word or two."""
    return "held" if held else "not held"


if __name__ == "__main__":
    sys.exit(main())
