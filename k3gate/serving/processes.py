"""What a tree of processes is and uses, as /proc tells it: memory, its nodes, CPU time, open files, listening sockets.

Read-only; `root` is where /proc lies. A process that ends while it is read is left out.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from attrs import frozen

from k3gate.documents import decode

_MOST_TEXT = 64 << 20
_MOST_FILES = 100_000
_NODE = re.compile(r"N(\d+)=(\d+)")
_PAGE = re.compile(r"kernelpagesize_kB=(\d+)")
_LISTEN = "0A"
_DELETED = " (deleted)"


@frozen
class Process:
    """One process. `started`: clock ticks since the system's start, which tell it from a later one of the same pid.
    `cpu_s`: in user and kernel mode, of its own."""

    pid: int
    parent: int
    started: int
    cpu_s: float


@frozen
class Memory:
    """Resident bytes of a process: its own, of files, shared; and the most that all were so far."""

    own: int
    files: int
    shared: int
    peak: int


@frozen
class SeenFile:
    """A regular file that a process has open or mapped, by what the kernel knows it by."""

    path: str
    device: int
    inode: int
    bytes: int
    changed_ns: int


def table(root: str = "/") -> dict[int, Process]:
    """All processes by their number."""
    ticks = os.sysconf("SC_CLK_TCK")
    found = {}
    for name in _names(f"{root}/proc"):
        if not name.isdigit():
            continue
        words = _text(f"{root}/proc/{name}/stat", 4096).rpartition(")")[2].split()
        if len(words) > 20 and words[0] not in ("Z", "X"):
            cpu = (int(words[11]) + int(words[12])) / ticks
            found[int(name)] = Process(int(name), int(words[1]), int(words[19]), cpu)
    return found


def tree(pid: int, processes: Mapping[int, Process]) -> tuple[Process, ...]:
    """All processes below one, which is not among them."""
    below: dict[int, list[Process]] = {}
    for one in processes.values():
        below.setdefault(one.parent, []).append(one)
    found, rest = [], [pid]
    while rest:
        children = below.pop(rest.pop(), [])
        found += children
        rest += [one.pid for one in children]
    return tuple(sorted(found, key=lambda one: one.pid))


def memory(pid: int, root: str = "/") -> Memory | None:
    """What /proc/PID/status tells; None where it tells nothing."""
    told = dict(
        line.split(":", 1)
        for line in _text(f"{root}/proc/{pid}/status", 1 << 16).splitlines()
        if line.startswith(("Rss", "VmHWM"))
    )
    try:
        sizes = [int(told[key].split()[0]) * 1024 for key in ("RssAnon", "RssFile", "RssShmem", "VmHWM")]
    except (KeyError, ValueError, IndexError):
        return None
    return Memory(*sizes)


def proportional(pid: int, root: str = "/") -> int | None:
    """Resident bytes, each shared page by its part of those who map it (Pss of smaps_rollup)."""
    for line in _text(f"{root}/proc/{pid}/smaps_rollup", 1 << 16).splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return None


def placement(pid: int, root: str = "/") -> dict[int, int] | None:
    """Bytes by memory node (numa_maps); None where the kernel has no such file, or does not show it."""
    try:
        with open(f"{root}/proc/{pid}/numa_maps", "rb") as file:
            return parse_placement(decode(file.read(_MOST_TEXT)))
    except OSError:
        return None


def parse_placement(text: str) -> dict[int, int]:
    """Bytes by node of a numa_maps: "7f.. default file=... N0=4 N1=2 kernelpagesize_kB=4"."""
    found: Counter[int] = Counter()
    for line in text.splitlines():
        size = _PAGE.search(line)
        for node, pages in _NODE.findall(line) if size else ():
            found[int(node)] += int(pages) * int(size[1]) * 1024 if size else 0
    return dict(found)


def files(pid: int, root: str = "/") -> Iterator[SeenFile]:
    """Regular files that a process has open or mapped. Paths are seen through its own root, as in a container."""
    base = f"{root}/proc/{pid}"
    paths = {f"{base}/fd/{name}": None for name in _names(f"{base}/fd")}
    mapped: dict[str, tuple[int, str | None]] = {}
    for line in _text(f"{base}/maps", _MOST_TEXT).splitlines():
        words = line.split(None, 5)
        if len(words) == 6 and words[5].startswith("/"):
            mapped.setdefault(words[5], (int(words[4]), None))
    for path in list(paths)[:_MOST_FILES]:
        one = _seen(path, _target(path))
        if one is not None:
            yield one
    for name, (inode, _) in list(mapped.items())[:_MOST_FILES]:
        one = _seen(f"{base}/root{name}", name)
        # A file that took the place of the mapped one is another.
        if one is not None and not name.endswith(_DELETED) and one.inode == inode:
            yield one


def listening(pids: Iterable[int], root: str = "/") -> list[tuple[str, int]]:
    """(address, port) of each TCP socket on which one of these processes listens."""
    found: dict[tuple[str, int], None] = {}
    for pid in pids:
        own = set()
        for name in _names(f"{root}/proc/{pid}/fd"):
            target = _target(f"{root}/proc/{pid}/fd/{name}")
            if target.startswith("socket:["):
                own.add(target[8:-1])
        for kind in ("tcp", "tcp6") if own else ():
            for line in _text(f"{root}/proc/{pid}/net/{kind}", 4 << 20).splitlines()[1:]:
                words = line.split()
                if len(words) > 9 and words[3] == _LISTEN and words[9] in own:
                    found[address_of(words[1])] = None
    return list(found)


def address_of(text: str) -> tuple[str, int]:
    """Of a socket as /proc/net/tcp writes it, "0100007F:1F90": ("127.0.0.1", 8080)."""
    import ipaddress

    number, _, port = text.partition(":")
    raw = bytes.fromhex(number)
    words = struct.unpack(f"<{len(raw) // 4}I", raw)
    return str(ipaddress.ip_address(struct.pack(f">{len(words)}I", *words))), int(port, 16)


def _seen(path: str, name: str) -> SeenFile | None:
    try:
        found = os.stat(path)  # noqa: PTH116  # the kernel's own links, which lead to files without a name too
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return SeenFile(name, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _target(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115  # as above
    except OSError:
        return ""


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208  # names alone, many times a second
    except OSError:
        return []


def _text(path: str, most: int) -> str:
    try:
        with Path(path).open("rb") as file:
            return decode(file.read(most))
    except OSError:
        return ""
