"""How long the commands take that a person waits for, and what the harness needs beside its buffers.

Each command runs 15 times in a fresh process; the line holds when the upper end of the 95 % interval of the
median (order statistics) lies under the limit. `python benchmarks/command_times.py [--quick]`; the last part
measures a real smoke run (and with `--quick` a quick one) and prints where its wall time went.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TIMES = 15
MEGABYTE = 1e6


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["K3GATE_STORE"] = str(Path(folder) / "runs.sqlite")
        held = [command_line("k3gate --help", ["--help"], 0.2)]
        profiles = ["smoke", "quick"] if "--quick" in sys.argv else ["smoke"]
        held += [run_line(profile, {"smoke": 20.0, "quick": 180.0}[profile]) for profile in profiles]
        held.append(command_line("k3gate gate (a stored run)", ["gate"], 0.5, codes=(0, 1, 3)))
        report = ["report", "-o", str(Path(folder) / "r.html")]
        held.append(command_line("k3gate report", report, 1.0))
        held.append(command_line("k3gate host", ["host"], 0.3))
        system = Path(__file__).resolve().parents[1] / "examples" / "systems" / "sp3-24x64.toml"
        held.append(command_line("k3gate plan", ["plan", str(system)], 0.5))
    return 0 if all(held) else 1


def command_line(title: str, arguments: list[str], limit: float, codes: tuple[int, ...] = (0,)) -> bool:
    """Time one command and print its line; the first call, which fills the page cache, is not counted."""
    seconds = []
    for _ in range(TIMES + 1):
        begun = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "k3gate", *arguments], capture_output=True, text=True)
        seconds.append(time.perf_counter() - begun)
        if done.returncode not in codes:
            raise SystemExit(f"{title}: exit {done.returncode}: {done.stderr}")
    ordered = sorted(seconds[1:])
    # Ranks 4 and 12 of 15 enclose the median with 96 % (binomial).
    low, median, high = ordered[3], statistics.median(ordered), ordered[11]
    return verdict(
        title, f"{median * 1e3:.0f} ms ({low * 1e3:.0f} to {high * 1e3:.0f})", high < limit, f"{limit} s"
    )


def run_line(profile: str, limit: float) -> bool:
    """One real run: its wall, the split of it, and the harness's own memory."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "k3gate", "run", "--profile", profile, "--json", "-q"], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    document = json.loads(process.stdout.read())
    _, status, _ = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - begun
    split = document["run"]["split"]
    timed, setup = split["timed"] / wall, split["setup_in_workers"] / wall
    ok = verdict(f"k3gate run --profile {profile}", f"{wall:.1f} s", wall < limit, f"{limit:.0f} s")
    ok &= verdict("  timed regions", f"{timed:.0%} of the wall", timed >= 0.5, "at least 50 %")
    rest = 1 - timed - setup
    ok &= verdict("  neither timed nor set-up in workers", f"{rest:.1%}", rest <= 0.1, "at most 10 %")
    # Workers hold the buffers, so the parent process alone is asked.
    peak = harness_peak(profile)
    return verdict("  harness beside its buffers", f"{peak / MEGABYTE:.0f} MB", peak < 150e6, "150 MB") and ok


def harness_peak(profile: str) -> float:
    """Peak resident bytes of the parent process alone, as it says of itself at exit."""
    code = (
        "import resource, sys; from k3gate.cli import invoke; "
        f"invoke(['run', '--probe', 'selftest', '--profile', {profile!r}, '-q', '--json']); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stderr.split()[-1]) * 1024


def verdict(title: str, value: str, held: bool, limit: str) -> bool:
    """One line: what, value, limit, held or not."""
    print(f"{title:<42} {value:<28} limit {limit:<16} {'held' if held else 'NOT HELD'}")
    return held


if __name__ == "__main__":
    sys.exit(main())
