"""SHA-256 with k3gate: cached files against `openssl speed`, two threads against one, and a disk kept busy as by fio.

python benchmarks/checksums.py [--pairs 15] [--megabytes 512] [--cold-megabytes 2048] [--folder DIR]

Cold means that the files' own pages are dropped from the kernel's cache before each side; a disk's own cache should
be smaller than the files.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pairs

from k3gate.model.checkpoint import checksums
from k3gate.model.checkpoint.readers import Part

GOALS = (0.97, 1.9, 0.95)
OPENSSL_BLOCKS = (16 * 2**10, 256 * 2**10, 2**20, 4 * 2**20)
FIO_SETTINGS = (
    ("--bs=128k", "--iodepth=32"),
    ("--bs=1M", "--iodepth=8"),
    ("--bs=1M", "--iodepth=32"),
    ("--bs=4M", "--iodepth=8"),
)
TRIES = 3


def ours(parts: list[Part], threads: int, cold: bool = False) -> Callable[[], float]:
    """B/s of all files by so many threads."""

    def read() -> float:
        if cold:
            drop(parts)
        begun = time.perf_counter()
        size = sum(one.size for one in checksums.hash_files(parts, threads))
        return size / (time.perf_counter() - begun)

    return read


def drop(parts: list[Part]) -> None:
    """Have the kernel forget these files' pages, and no others."""
    for part in parts:
        descriptor = os.open(part.path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def openssl(block: int) -> Callable[[], float]:
    """B/s that OpenSSL tells of itself, in a second of wall time as ours is, of one block that stays in caches."""
    command = ["openssl", "speed", "-mr", "-elapsed", "-seconds", "1", "-bytes", str(block), "-evp", "sha256"]

    def read() -> float:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = re.search(r"\+F:\d+:sha256:([\d.]+)", done.stdout)
        if found is None:
            raise SystemExit(f"openssl speed told no rate: {done.stdout[-200:]!r}")
        return float(found[1])

    return read


def fio(parts: list[Part], settings: tuple[str, ...]) -> Callable[[], float]:
    """B/s that fio tells of reading all files once past the kernel's cache, a job to each file."""
    command = ["fio", "--output-format=json", "--group_reporting", "--readonly", "--rw=read", "--direct=1"]
    command += ["--ioengine=io_uring", *settings]
    command += [word for part in parts for word in (f"--name={part.name}", f"--filename={part.path}")]

    def read() -> float:
        drop(parts)
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise OSError((done.stderr or done.stdout)[-200:])
        return float(json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"])

    return read


def fastest(sides: dict[str, Callable[[], float]]) -> str:
    """Which of several settings of a peer has the highest median of a few tries, taken in turn."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(TRIES):
        for name, side in sides.items():
            taken[name].append(side())
    return max(taken, key=lambda name: statistics.median(taken[name]))


def write(folder: Path, megabytes: int) -> list[Part]:
    """Two files of random bytes, on the disk."""
    parts = []
    for number in range(2):
        path = folder / f"{megabytes}-{number}.bin"
        with path.open("wb") as file:
            for _ in range(megabytes):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
        parts.append(Part(path.name, path, path.stat().st_size))
    return parts


def cached(parts: list[Part], count: int) -> None:
    """The two lines of cached files."""
    if shutil.which("openssl") is None:
        print("SHA-256, one thread / openssl speed: not resolvable here: there is no openssl")
    else:
        sides = {f"{block // 1024} KiB": openssl(block) for block in OPENSSL_BLOCKS}
        name = fastest(sides)
        taken = pairs.measure(ours(parts[:1], 1), sides[name], count, "openssl")
        title = f"SHA-256, one thread / openssl speed -bytes {name}, its fastest"
        print(pairs.line(title, pairs.ratio(taken), GOALS[0]))
    if len(os.sched_getaffinity(0)) < 2:
        print("SHA-256, two threads / one: not resolvable here: one CPU may be used")
        return
    taken = pairs.measure(ours(parts, 2), ours(parts, 1), count, "threads")
    print(pairs.line("SHA-256, two threads / one", pairs.ratio(taken), GOALS[1]))


def cold(parts: list[Part], count: int) -> None:
    """The line of a disk."""
    title = "SHA-256 of files on disk / fio direct read"
    if shutil.which("fio") is None:
        print(f"{title}: not resolvable here: there is no fio (apt-get install fio)")
        return
    sides = {" ".join(one): fio(parts, one) for one in FIO_SETTINGS}
    try:
        name = fastest(sides)
    except OSError as error:
        print(f"{title}: not resolvable here: fio: {str(error).strip()}; give --folder DIR on a disk")
        return
    threads = min(2, len(os.sched_getaffinity(0)))
    taken = pairs.measure(ours(parts, threads, cold=True), sides[name], count, "fio")
    print(pairs.line(f"{title} {name}, its fastest", pairs.ratio(taken), GOALS[2]))


def main() -> None:
    """Print three lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--megabytes", type=int, default=512, help="of each of two cached files")
    parser.add_argument("--cold-megabytes", type=int, default=2048, help="of each of two files on the disk")
    parser.add_argument("--folder", help="on the disk that is read; default: that of temporary files")
    parser.add_argument("--only", choices=("cached", "cold"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        if arguments.only != "cold":
            cached(write(Path(folder), arguments.megabytes), arguments.pairs)
        if arguments.only != "cached":
            cold(write(Path(folder), arguments.cold_megabytes), arguments.pairs)


if __name__ == "__main__":
    main()
