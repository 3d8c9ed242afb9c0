"""The cases that read a file which a user names, as memory: pure, from what was seen of the file.

    fileN.read            one thread per physical core of the machine reads it, mapped, straight on
    fileN.read.nodeC      those of node C alone, on machines with several
    fileN.experts         as fileN.read, experts of Kimi K3 in random order
    fileN.latency.nodeC   one core of node C loads blocks in random order, each load waiting for the one before

N counts the options, from 1. A file is read from its beginning, as much of it as the caches call for; in a folder
a file of that size is made.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from k3gate.errors import UsageError
from k3gate.model import k3
from k3gate.probes import working_sets as sets
from k3gate.probes.latency_plan import BLOCK_BYTES
from k3gate.probes.layout import READ_RATE, READ_RATE_MOST, TOUCH_RATE, Layout
from k3gate.records import Case, LeftOut, MemoryFile, Scalar
from k3gate.units import exact_bytes

DRIVE_RATE = 250e6
"""Taken for planning, in B/s: bringing a file from its drive into the page cache, or writing one."""
STEP_SECONDS = 150e-9
"""Taken for planning: a load of a walk, a turn of which is walked for its proof."""
LEAST_TIME_LIMIT = 120.0
SLOWEST_DRIVE = 50e6
HUGE_PAGES, TMPFS, DAX, PAGE_CACHE = "huge pages", "tmpfs", "DAX", "page cache"


def medium(file_system: str | None, dax: bool) -> str:
    """What holds the bytes of a mapped file: which memory a load from it reads."""
    if file_system == "hugetlbfs":
        return HUGE_PAGES
    if file_system in ("tmpfs", "ramfs", "devtmpfs"):
        return TMPFS
    return DAX if dax else PAGE_CACHE


def cases(layout: Layout) -> list[Case]:
    """The cases of all files. Raises `UsageError` for one that is too small, or has no room."""
    return [
        case
        for number, file in enumerate(layout.profile.memory_files, 1)
        for case in _of_file(layout, f"file{number}", file)
    ]


def _of_file(layout: Layout, name: str, file: MemoryFile) -> list[Case]:
    size = _window(layout, file)
    sources = [node for node in layout.inventory.numa.nodes if layout.cpus_of[node.id]]
    found = [_read(layout, f"{name}.read", file, size, layout.cpus, None, "own")]
    if len(sources) > 1:
        found += [
            _read(layout, f"{name}.read.node{node.id}", file, size, layout.cpus_of[node.id], node.id, "own")
            for node in sources
        ]
    if size >= 2 * k3.EXPERT_BYTES:
        found.append(_read(layout, f"{name}.experts", file, size, layout.cpus, None, "experts"))
    else:
        reason = f"{exact_bytes(size)} hold no two experts of {exact_bytes(k3.EXPERT_BYTES)}"
        layout.left_out.append(LeftOut(layout.probe, f"{name}.experts", reason))
    for node in sources:
        found.append(_latency(layout, f"{name}.latency.node{node.id}", file, size, node.id))
    return _with_setup(file, found)


def _window(layout: Layout, file: MemoryFile) -> int:
    """Bytes to read: a working set beyond the caches of all cores in use, whole pages."""
    cpu, cpus = layout.inventory.cpu, layout.cpus
    wanted = sets.round_up(sets.working_set(cpu, cpus, layout.requested), file.page_bytes)
    last = sets.cache_bytes(cpu, cpus)
    caches = (last or 0) + sets.level_2_bytes(cpu, cpus)
    least = sets.CACHE_FACTOR * caches if last else sets.MINIMUM_BYTES
    why = (
        f"{sets.CACHE_FACTOR} x the {sets.megabytes(caches)} of caches of the CPUs in use"
        if last
        else "the least where no cache size is known"
    )
    there = _room(layout, file, wanted) if file.folder else min(file.data_bytes or 0, file.bytes or 0)
    size = min(there, wanted) // file.page_bytes * file.page_bytes
    if size < least:
        needed = f"at least {exact_bytes(least)} are needed ({why}), or it would be read from them"
        if file.folder:
            told, remedy = f"has room for {exact_bytes(there)}", "make room, or give another folder"
        else:
            hole = f", of which the first {exact_bytes(there)} are no hole" if there != file.bytes else ""
            told, remedy = f"has {exact_bytes(file.bytes or 0)}{hole}", "give a larger file"
        raise UsageError(f"--memory-file: {file.path} {told}: {needed}: {remedy}")
    return size


def _room(layout: Layout, file: MemoryFile, wanted: int) -> int:
    """Bytes that a file may have in a folder; of a hugetlbfs, what is free in the pools of its page size."""
    if file.file_system != "hugetlbfs":
        return wanted if file.bytes is None else int(file.bytes * sets.USABLE_SHARE)
    nodes = layout.inventory.numa.nodes
    pools = [pool for node in nodes for pool in node.huge_pages if pool.page_bytes == file.page_bytes]
    reserved = sum(pool.free * pool.page_bytes for pool in pools)
    return reserved if file.bytes is None else min(reserved, file.bytes)


def _read(
    layout: Layout, name: str, file: MemoryFile, size: int, cpus: Sequence[int], node: int | None, how: str
) -> Case:
    who = "all cores" if node is None else f"the cores of node {node}"
    what = "experts in random order from" if how == "experts" else ""
    many = "1 thread" if len(cpus) == 1 else f"{len(cpus)} threads"
    title = f"Mapped file: {who} read {what} {_told(file, size)}, {many}".replace("  ", " ")
    parameters: dict[str, object] = {"kernel": "read", "layout": how, "readers": [list(cpus)]}
    return _case(layout, name, title, file, size, size, cpus, node, parameters)


def _latency(layout: Layout, name: str, file: MemoryFile, size: int, node: int) -> Case:
    cpu = layout.cpus_of[node][0]
    # Beyond the caches of the one core that walks; less than for all of them, so that a turn is walked sooner.
    walked = min(size, sets.working_set(layout.inventory.cpu, [cpu], layout.requested))
    title = f"Latency of a mapped file: CPU {cpu} loads blocks in random order from {_told(file, walked)}"
    parameters: dict[str, object] = {"kernel": "scatter", "cpu": cpu, "walked_bytes": walked}
    return _case(layout, name, title, file, size, walked, [cpu], node, parameters)


def _told(file: MemoryFile, size: int) -> str:
    if file.folder:
        return f"{sets.megabytes(size)} of a file made in {file.path}"
    whole = "all" if size == file.bytes else f"the first {sets.megabytes(size)}"
    return f"{whole} of {file.path}"


def _case(
    layout: Layout,
    name: str,
    title: str,
    file: MemoryFile,
    size: int,
    measured: int,
    cpus: Sequence[int],
    node: int | None,
    parameters: dict[str, object],
) -> Case:
    kind = medium(file.file_system, file.dax)
    labels: dict[str, Scalar] = {
        "scope": "file",
        "file": file.path,
        "file_system": file.file_system,
        "made": file.folder,
        "file_bytes": None if file.folder else file.bytes,
        "cpu_node": node,
        "threads": len(cpus),
        "pool_bytes": measured,
        "cache_bytes": sets.cache_bytes(layout.inventory.cpu, cpus),
        "kernel": str(parameters["kernel"]),
    }
    if parameters["kernel"] == "scatter":
        labels["block_bytes"] = BLOCK_BYTES
    parameters = {
        **parameters,
        "isa": layout.isa,
        "file": attrs.asdict(file),
        "window": size,
        "cpus": list(layout.cpus),
        "level_2_bytes": sets.level_2_bytes(layout.inventory.cpu, cpus),
    }
    # Memory of the machine that others could use: what lies in a tmpfs or in huge pages already is none.
    held = size if kind == PAGE_CACHE or (kind == TMPFS and file.folder) else 0
    group = name.split(".", 1)[0]
    return Case(layout.probe, name, title, group, parameters, 0.0, held, labels=labels)


def _with_setup(file: MemoryFile, found: Sequence[Case]) -> list[Case]:
    """The cases of a file with what is not timed in a round of each.

    Whichever comes first maps, and makes or warms, the file: what that takes is shared out, since any of them may be
    left out.
    """
    kind = medium(file.file_system, file.dax)
    timed = []
    for case in found:
        size, threads = case.parameters["window"], len(case.parameters["cpus"])
        rate = DRIVE_RATE if kind == PAGE_CACHE else min(threads * TOUCH_RATE, READ_RATE_MOST)
        seconds = size / rate / len(found)
        if case.parameters["kernel"] == "scatter":
            seconds += case.parameters["walked_bytes"] / BLOCK_BYTES * STEP_SECONDS
        else:
            seconds += size / min(int(case.labels["threads"] or 1) * READ_RATE, READ_RATE_MOST)
        timed.append(attrs.evolve(case, setup_seconds=seconds))
    return timed


def time_limit(case: Case, seconds: float) -> float:
    """A slow drive must not end a round."""
    return max(LEAST_TIME_LIMIT, 10 * seconds) + float(case.parameters["window"]) / SLOWEST_DRIVE
