"""Direct reads with k3gate's loop against fio's best, of the same file, block and depth; and the CPU time they take.

    python benchmarks/storage.py [--pairs 15] [--seconds 1] [--gigabytes 2] [--folder DIR]

fio's best is the engine (io_uring, libaio) and memory with the highest median of a few tries, of each block and depth.
k3gate reads into transparent huge pages, which fio has only where some are reserved; a virtual drive may be much faster
for that alone, so that base pages, which both have, are compared as well.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pairs

from k3gate.probes import _storage
from k3gate.probes.direct_reads import Stream
from k3gate.probes.storage_files import OpenFile, OpenFiles

GOAL = 0.97
CPU_GOAL = 0.10
"""Of a core, for each GB/s."""
SHAPES = ((128 << 10, 32), (1 << 20, 32), (16 << 20, 4))
ENGINES = ("io_uring", "libaio")
TRIES = 3


def fio(path: Path, block: int, depth: int, seconds: float, more: tuple[str, ...]) -> Callable[[], float]:
    """B/s that fio tells of one job."""
    command = [
        "fio",
        "--output-format=json",
        "--readonly",
        "--rw=read",
        "--direct=1",
        "--name=load",
        "--thread",
    ]
    command += [
        f"--filename={path}",
        f"--bs={block}",
        f"--iodepth={depth}",
        "--time_based",
        f"--runtime={seconds}s",
    ]
    command += more

    def read() -> float:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise OSError((done.stderr or done.stdout)[-200:])
        job = json.loads(done.stdout)["jobs"][0]["read"]
        return float(job["io_bytes"]) / (job["runtime"] / 1e3)

    return read


def fastest(sides: dict[str, Callable[[], float]]) -> str | None:
    """Which of fio's settings has the highest median of a few tries, taken in turn; None where none works."""
    taken: dict[str, list[float]] = {}
    for _ in range(TRIES):
        for name, side in sides.items():
            try:
                taken.setdefault(name, []).append(side())
            except OSError:
                taken.setdefault(name, [])
    usable = {name: statistics.median(values) for name, values in taken.items() if len(values) == TRIES}
    return max(usable, key=lambda name: usable[name], default=None)


def lines(files: OpenFiles, block: int, depth: int, count: int, seconds: float) -> list[bool]:
    """The ratio to fio, and the CPU time, of one block and depth; each with whether it holds."""
    path = Path(files.files[0].path)
    settings = {
        f"{engine}{', huge pages' if huge else ''}": (
            f"--ioengine={engine}",
            *(("--iomem=mmaphuge",) if huge else ()),
        )
        for engine in ENGINES
        for huge in (False, True)
    }
    sides = {name: fio(path, block, depth, seconds, more) for name, more in settings.items()}
    name = fastest(sides)
    title = f"Direct read of {block >> 10} KiB, {depth} under way"
    if name is None:
        print(f"{title} / fio: not resolvable here: fio cannot read past the page cache in this folder")
        return []
    held = []
    for pages, huge in (("huge pages", True), ("base pages", False)):
        stream, cpu = Stream([files], block, 1, depth, huge=huge), list[float]()
        ours = reading(stream, seconds, cpu)
        found = pairs.ratio(pairs.measure(ours, sides[name], count, f"{block >> 10} KiB, {pages}"))
        told = pairs.line(f"{title}, {pages} / fio {name}, its fastest", found, GOAL)
        print(told)
        middle = statistics.median(cpu)
        print(
            f"{title}, {pages}: CPU time of the reader {middle:.4f} of a core for each GB/s (at most {max(cpu):.4f}), "
            f"goal under {CPU_GOAL:.2f}: {'held' if middle < CPU_GOAL else 'not held'}"
        )
        held += [not told.endswith("not held"), middle < CPU_GOAL]
    return held


def reading(stream: Stream, seconds: float, cpu: list[float]) -> Callable[[], float]:
    """B/s of our loop; `cpu` collects the CPU seconds a GB."""

    def read() -> float:
        done = stream.read(seconds)
        cpu.append(done.cpu_seconds / done.bytes * 1e9)
        return done.rate

    return read


def main() -> int:
    """Four lines for each block; exit code 1 where one does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one reading")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="of the file")
    parser.add_argument("--folder", help="on the drive that is read; default: that of temporary files")
    arguments = parser.parse_args()
    if shutil.which("fio") is None:
        print("Direct reads / fio: not resolvable here: there is no fio (apt-get install fio)")
        return 0
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "weights"
        size = int(arguments.gigabytes * 1e9) >> 24 << 24
        with path.open("wb") as file:
            refused = _storage.write_random(file.fileno(), 0, size, 1) or os.fdatasync(file.fileno())
        if refused:
            raise SystemExit(f"{path}: {os.strerror(refused)}")
        try:
            direct = os.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError as error:
            print(
                f"Direct reads / fio: not resolvable here: {folder}: {error.strerror}; give --folder DIR on a drive"
            )
            return 0
        with closing(
            OpenFiles(folder, [OpenFile(str(path), size, os.open(path, os.O_RDONLY), direct)], own=False)
        ) as files:
            held = [
                one
                for block, depth in SHAPES
                for one in lines(files, block, depth, arguments.pairs, arguments.seconds)
            ]
    return 0 if all(held) else 1


if __name__ == "__main__":
    raise SystemExit(main())
