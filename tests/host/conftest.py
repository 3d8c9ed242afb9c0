"""A small machine drawn as a folder of sysfs and procfs files; every test changes what it is about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

Files = Mapping[str, str | bytes | None]
CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"
FLAGS = "fpu lm pni avx avx2 fma avx512f avx512_vnni avx512_bf16 amx_tile amx_int8 amx_bf16"


def put(root: Path, files: Files) -> None:
    """Write the files below `root`; None removes one."""
    for name, content in files.items():
        path = root / name
        if content is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def cpuinfo(cpus: Sequence[int], flags: str = FLAGS) -> str:
    """proc/cpuinfo of an Intel server."""
    return "\n".join(
        f"processor\t: {cpu}\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n"
        f"model name\t: Intel(R) Xeon(R)   Platinum 8480+\nstepping\t: 8\nmicrocode\t: 0x2b0005c0\n"
        f"flags\t\t: {flags}\n"
        for cpu in cpus
    )


def processors(
    siblings: Sequence[Sequence[int]], package: Callable[[int], int] = lambda cpu: 0, described: bool = True
) -> dict[str, str | bytes | None]:
    """Files of CPUs that are grouped into cores as told; caches private to a core, L3 to a package."""
    files: dict[str, str | bytes | None] = {}
    every = sorted(cpu for group in siblings for cpu in group)
    listed = ",".join(map(str, every))
    for name in ("present", "possible", "online"):
        files[f"{CPU}/{name}"] = f"{listed}\n"
    for group in siblings:
        core = ",".join(map(str, group))
        for cpu in group:
            base = f"{CPU}/cpu{cpu}"
            files[f"{base}/topology/thread_siblings_list"] = f"{core}\n"
            files[f"{base}/topology/physical_package_id"] = f"{package(cpu)}\n"
            if described:
                mates = ",".join(str(c) for c in every if package(c) == package(cpu))
                for index, (level, kind, size, cpus) in enumerate(
                    (
                        (1, "Data", "48K", core),
                        (2, "Unified", "2048K", core),
                        (3, "Unified", "107520K", mates),
                    )
                ):
                    cache = f"{base}/cache/index{index}"
                    files[f"{cache}/level"] = f"{level}\n"
                    files[f"{cache}/type"] = f"{kind}\n"
                    files[f"{cache}/size"] = f"{size}\n"
                    files[f"{cache}/shared_cpu_list"] = f"{cpus}\n"
    files["proc/cpuinfo"] = cpuinfo(every)
    return files


def nodes(
    layout: Mapping[int, tuple[str, int]], distance: Mapping[int, Sequence[int]] | None = None
) -> dict[str, str]:
    """Files of NUMA nodes: id to CPU list and GiB."""
    ids = sorted(layout)
    files = {f"{NODE}/online": ",".join(map(str, ids)) + "\n"}
    for node, (cpus, size) in layout.items():
        kilobytes = size * 2**20
        files[f"{NODE}/node{node}/cpulist"] = f"{cpus}\n"
        files[f"{NODE}/node{node}/meminfo"] = (
            f"Node {node} MemTotal:       {kilobytes} kB\nNode {node} MemFree:        {kilobytes // 2} kB\n"
        )
        row = distance[node] if distance else [10 if other == node else 21 for other in ids]
        files[f"{NODE}/node{node}/distance"] = " ".join(map(str, row)) + "\n"
    return files


def meminfo(total_gib: float) -> dict[str, str]:
    """proc/meminfo with nine tenths available and no swap."""
    kilobytes = int(total_gib * 2**20)
    return {
        "proc/meminfo": f"MemTotal:       {kilobytes} kB\nMemFree:        {kilobytes // 2} kB\n"
        f"MemAvailable:   {kilobytes * 9 // 10} kB\nSwapTotal:      0 kB\nSwapFree:       0 kB\n"
    }


class MakeRoot:
    """`make_root(files, ...)`: a machine of four cores, two nodes and 64 GiB, changed by each mapping.

    With `bare` the folder holds these files alone. The helpers that write the files go along.
    """

    put = staticmethod(put)
    cpuinfo = staticmethod(cpuinfo)
    processors = staticmethod(processors)
    nodes = staticmethod(nodes)
    meminfo = staticmethod(meminfo)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *changes: Files, bare: bool = False) -> Path:
        """The folder that stands for "/"."""
        if not bare:
            put(self.folder, processors([[0, 4], [1, 5], [2, 6], [3, 7]], lambda cpu: cpu % 4 // 2))
            put(self.folder, nodes({0: ("0-1,4-5", 32), 1: ("2-3,6-7", 32)}))
            put(self.folder, meminfo(64))
        for files in changes:
            put(self.folder, files)
        return self.folder


@pytest.fixture
def make_root(tmp_path: Path) -> MakeRoot:
    """Draws a machine below the test's folder."""
    return MakeRoot(tmp_path / "root")
