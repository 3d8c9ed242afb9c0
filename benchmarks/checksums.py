"""SHA-256 of cached files with k3gate against `openssl speed`, and two threads against one.

python benchmarks/checksums.py [--pairs 15] [--megabytes 512]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pairs

from k3gate.model.checkpoint import checksums
from k3gate.model.checkpoint.readers import Part

GOALS = (0.97, 1.9)


def ours(parts: list[Part], threads: int) -> Callable[[], float]:
    """B/s of all files by so many threads."""

    def read() -> float:
        begun = time.perf_counter()
        size = sum(one.size for one in checksums.hash_files(parts, threads))
        return size / (time.perf_counter() - begun)

    return read


def openssl() -> float:
    """B/s that OpenSSL tells of itself, in a second on one core, of blocks as ours are."""
    command = ["openssl", "speed", "-mr", "-seconds", "1", "-bytes", str(checksums.BLOCK), "-evp", "sha256"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"\+F:\d+:sha256:([\d.]+)", done.stdout)
    if found is None:
        raise SystemExit(f"openssl speed told no rate: {done.stdout[-200:]!r}")
    return float(found[1])


def main() -> None:
    """Print two lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--megabytes", type=int, default=512, help="of each of two files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        parts = []
        for number in range(2):
            path = Path(folder) / f"{number}.bin"
            with path.open("wb") as file:
                for _ in range(arguments.megabytes):
                    file.write(os.urandom(1 << 20))
            parts.append(Part(path.name, path, path.stat().st_size))
        if shutil.which("openssl") is None:
            print("SHA-256, one thread / openssl speed: not resolvable here: there is no openssl")
        else:
            taken = pairs.measure(ours(parts[:1], 1), openssl, arguments.pairs, "openssl")
            print(pairs.line("SHA-256, one thread / openssl speed", pairs.ratio(taken), GOALS[0]))
        if len(os.sched_getaffinity(0)) < 2:
            print("SHA-256, two threads / one: not resolvable here: one CPU may be used")
            return
        taken = pairs.measure(ours(parts, 2), ours(parts, 1), arguments.pairs, "threads")
        print(pairs.line("SHA-256, two threads / one", pairs.ratio(taken), GOALS[1]))


if __name__ == "__main__":
    main()
