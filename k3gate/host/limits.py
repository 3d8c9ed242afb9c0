"""What this process may use: control groups of version 1 and 2, locked memory, affinity."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from attrs import evolve, frozen

from k3gate.host import cpulist, identities, parsing, restrictions, syscalls
from k3gate.host.files import LARGE, Root
from k3gate.host.memory import MEMINFO, free_bytes
from k3gate.host.notes import Notes
from k3gate.records import Cpu, Limits, Memory, Numa, State

CGROUP = "proc/self/cgroup"
MOUNTS = "proc/self/mountinfo"
_STATUS = "proc/self/status"
# Version 1 writes "no limit" as the largest whole number of pages: 9223372036854771712 with 4 KiB pages.
_UNLIMITED = 2**62
_DEPTH = 64


@frozen
class Group:
    """A control group of this process: the folder of its hierarchy below the root, and its path in there."""

    version: int
    mount: str
    path: tuple[str, ...]

    def upwards(self) -> Iterator[str]:
        """The folder of the group, then of each group around it."""
        for depth in range(len(self.path), -1, -1):
            yield "/".join((self.mount, *self.path[:depth]))


@frozen
class _Room:
    """One limit of memory on the way up, and how much of it is free for this process."""

    limit: int
    used: int | None
    free: int


def read(root: Root, notes: Notes, cpu: Cpu, memory: Memory, numa: Numa) -> Limits:
    """The `Limits` record; of nested groups the tightest limit counts."""
    groups = control_groups(root)
    rooms = [room for group in groups.get("memory", ()) for room in _rooms(root, group)]
    tightest = min(rooms, key=lambda room: room.free, default=None)
    lowest = min(rooms, key=lambda room: room.limit, default=None)
    quotas = [q for group in groups.get("cpu", ()) for q in _quotas(root, group)]
    version = _version(groups)
    for name, controller, value in (
        ("cgroup_memory_bytes", "memory", lowest),
        ("cgroup_memory_used_bytes", "memory", lowest),
        ("cgroup_cpus", "cpu", quotas),
    ):
        _note(notes, name, groups.get(controller), bool(value))
    if version is None:
        notes.absent("limits.cgroup_version", CGROUP)
    else:
        notes.seen("limits.cgroup_version", CGROUP)
    cpus = _set(root, notes, "cpuset_cpus", groups, ("cpuset.cpus.effective",), ("effective_cpus", "cpus"))
    mems = _own_nodes(root, notes)
    if mems is None:
        mems = _set(
            root, notes, "cpuset_mems", groups, ("cpuset.mems.effective",), ("effective_mems", "mems")
        )
    locked, source, reason = syscalls.locked_memory(root)
    if locked is not None or reason == "no limit":
        notes.seen("limits.memlock_bytes", source, reason)
    else:
        notes.absent("limits.memlock_bytes", source, reason or "absent")
    limits = Limits(
        cgroup_version=version,
        cgroup_memory_bytes=lowest.limit if lowest else None,
        cgroup_memory_used_bytes=lowest.used if lowest else None,
        cgroup_cpus=min(quotas, default=None),
        cpuset_cpus=cpus,
        cpuset_mems=mems,
        memlock_bytes=locked,
    )
    return evolve(
        limits,
        usable_memory_bytes=_usable(root, notes, memory, tightest, mems, numa),
        restricted=_restricted(root, notes, limits, cpu, memory, numa, groups),
    )


def control_groups(root: Root) -> dict[str, tuple[Group, ...]]:
    """This process's groups by controller ("memory", "cpu", "cpuset"); several where both versions run."""
    found: dict[str, list[Group]] = {"memory": [], "cpu": [], "cpuset": []}
    own = _own_paths(root)
    mounts = _mounts(root)
    for controller, groups in found.items():
        path = own.get(controller)
        if path is not None:
            for version, mount, outer, controllers in mounts:
                if version == 1 and controller in controllers:
                    groups.append(Group(1, mount, _below(path, outer)))
        unified = own.get("")
        if unified is not None:
            for version, mount, outer, _ in mounts:
                if version == 2:
                    groups.append(Group(2, mount, _below(unified, outer)))
    legacy = root.line("proc/self/cpuset")
    if legacy and not found["cpuset"]:
        found["cpuset"].append(Group(1, "dev/cpuset", _parts(legacy)))
    return {name: tuple(groups) for name, groups in found.items() if groups}


def _own_paths(root: Root) -> dict[str, str]:
    """Controller to path of proc/self/cgroup; "" is the unified hierarchy."""
    own: dict[str, str] = {}
    for line in (root.read(CGROUP).text or "").splitlines()[:100]:
        fields = line.split(":", 2)
        if len(fields) == 3 and fields[2].startswith("/") and len(fields[2]) < 4096:
            for controller in fields[1].split(","):
                own.setdefault(controller, fields[2])
    return own


def _mounts(root: Root) -> list[tuple[int, str, str, frozenset[str]]]:
    """(version, folder, path of the group that is mounted there, controllers) of each hierarchy."""
    found: list[tuple[int, str, str, frozenset[str]]] = []
    for line in (root.read(MOUNTS, LARGE, head=True).text or "").splitlines()[:20_000]:
        before, dash, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if dash and len(fields) >= 5 and len(kinds) >= 1 and kinds[0] in ("cgroup", "cgroup2"):
            options = frozenset(kinds[-1].split(",")) if len(kinds) >= 3 else frozenset()
            version = 2 if kinds[0] == "cgroup2" else 1
            found.append((version, fields[4].strip("/"), fields[3], options))
    if found:
        return found
    base = "sys/fs/cgroup"
    # Captures often lack mountinfo: the usual places.
    for name in root.names(base)[:100]:
        if root.exists(f"{base}/{name}/cgroup.procs") or name in ("memory", "cpu", "cpuset", "cpu,cpuacct"):
            found.append((1, f"{base}/{name}", "/", frozenset(name.split(","))))
    for mount in (base, f"{base}/unified"):
        if root.exists(mount):
            found.append((2, mount, "/", frozenset()))
    return found


def _parts(path: str) -> tuple[str, ...]:
    """Parts of a group's path; a path that leads out of the hierarchy we see ("/../..") is its top."""
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    return () if ".." in parts else parts[:_DEPTH]


def _below(path: str, mounted: str) -> tuple[str, ...]:
    """The part of `path` below the group that is mounted; in a container the two are often the same."""
    if mounted not in ("", "/") and (path == mounted or path.startswith(mounted + "/")):
        return _parts(path[len(mounted) :])
    return _parts(path)


def _number(text: str | None) -> int | None:
    try:
        value = parsing.integer(text or "", 0)
    except ValueError:
        return None
    return None if value >= _UNLIMITED else value


def _rooms(root: Root, group: Group) -> Iterator[_Room]:
    for folder in group.upwards():
        if group.version == 2:
            limits = [_number(root.line(f"{folder}/memory.{name}")) for name in ("max", "high")]
            usage = f"{folder}/memory.current"
        else:
            limits = [_number(root.line(f"{folder}/memory.limit_in_bytes"))]
            usage = f"{folder}/memory.usage_in_bytes"
        wanted = group.version == 1 or any(limit is not None for limit in limits)
        statistics = _statistics(root.line(f"{folder}/memory.stat")) if wanted else {}
        limits.append(statistics.get("hierarchical_memory_limit"))
        known = [limit for limit in limits if limit is not None and limit < _UNLIMITED]
        if not known:
            continue
        limit = min(known)
        used = _number(root.line(usage))
        # Cached file pages are given back under pressure; only the rest stands in the way.
        cached = statistics.get("total_inactive_file", statistics.get("inactive_file", 0))
        yield _Room(limit, used, max(0, limit - max(0, (used or 0) - cached)))


def _statistics(text: str | None) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in (text or "").splitlines()[:200]:
        match = re.fullmatch(r"(\w{1,60}) (\d{1,20})", line.strip(), re.ASCII)
        if match:
            found[match[1]] = int(match[2])
    return found


def _quotas(root: Root, group: Group) -> Iterator[float]:
    """CPUs worth of time that each group on the way up grants."""
    for folder in group.upwards():
        if group.version == 2:
            words = (root.line(f"{folder}/cpu.max") or "").split()
        else:
            words = [root.line(f"{folder}/cpu.{name}") or "" for name in ("cfs_quota_us", "cfs_period_us")]
        if len(words) != 2:
            continue
        try:
            quota, period = parsing.integer(words[0], 1), parsing.integer(words[1], 1)
        except ValueError:  # "max", -1 or nothing: no limit
            continue
        yield quota / period


def _set(
    root: Root,
    notes: Notes,
    name: str,
    groups: dict[str, tuple[Group, ...]],
    unified: tuple[str, ...],
    legacy: tuple[str, ...],
) -> tuple[int, ...] | None:
    """CPUs or memory nodes of the nearest group that names any."""
    for group in groups.get("cpuset", ()):
        files = unified if group.version == 2 else tuple(f"{p}{n}" for n in legacy for p in ("cpuset.", ""))
        for folder in group.upwards():
            for file in files:
                text = root.line(f"{folder}/{file}")
                if not text:
                    continue
                try:
                    found = cpulist.parse(text)
                except ValueError as error:
                    notes.implausible(f"limits.{name}", identities.of_group(f"{folder}/{file}"), str(error))
                    return None
                notes.seen(f"limits.{name}", identities.of_group(f"{folder}/{file}"))
                return found
    notes.absent(f"limits.{name}", CGROUP, "no cpuset is visible")
    return None


def _own_nodes(root: Root, notes: Notes) -> tuple[int, ...] | None:
    """Memory nodes on which the kernel lets this process allocate, also where its cpuset is out of sight."""
    for line in (root.read(_STATUS).text or "").splitlines():
        name, _, value = line.partition(":")
        if name == "Mems_allowed_list":
            try:
                found = cpulist.parse(value)
            except ValueError:
                return None
            if found:
                notes.seen("limits.cpuset_mems", _STATUS)
            return found or None
    return None


def _version(groups: dict[str, tuple[Group, ...]]) -> int | None:
    versions = [group.version for group in groups.get("memory", ())]
    return versions[0] if versions else None


def _note(notes: Notes, name: str, groups: tuple[Group, ...] | None, limited: bool) -> None:
    if not groups:
        notes.absent(f"limits.{name}", CGROUP, "no control group is visible")
        return
    source = identities.of_group("; ".join(next(group.upwards()) for group in groups))[:300]
    notes.seen(f"limits.{name}", source, None if limited else "no limit")


def _usable(
    root: Root, notes: Notes, memory: Memory, room: _Room | None, mems: tuple[int, ...] | None, numa: Numa
) -> int | None:
    """The least of what the machine has available, what the groups leave and what the allowed nodes hold."""
    bounds: list[tuple[int, str]] = []
    available = memory.available_bytes
    if available is not None:
        bounds.append((available, "MemAvailable"))
    elif (free := free_bytes(root)) is not None:
        bounds.append((free, "MemFree (no MemAvailable)"))
    elif memory.total_bytes is not None and room is not None:
        bounds.append((memory.total_bytes, "MemTotal (no MemAvailable)"))
    if room is not None:
        bounds.append((room.free, "the control group's limit less its use"))
    holders = {node.id: node.memory_bytes for node in numa.nodes if node.memory_bytes}
    if numa.available and mems is not None and holders and not set(holders) <= set(mems):
        bounds.append((sum(holders.get(node, 0) for node in mems), "memory of the allowed nodes"))
    if not bounds:
        notes.absent("limits.usable_memory_bytes", MEMINFO, "neither available memory nor a limit is known")
        return None
    value, reason = min(bounds)
    notes.seen("limits.usable_memory_bytes", f"{MEMINFO}; {CGROUP}", f"bounded by {reason}")
    return value


def _restricted(
    root: Root,
    notes: Notes,
    limits: Limits,
    cpu: Cpu,
    memory: Memory,
    numa: Numa,
    groups: Mapping[str, object],
) -> bool | None:
    """False only where affinity and control groups were seen, and keep nothing back."""
    source = "cpu.allowed; control groups"
    if restrictions.of_process(cpu, memory, limits, numa):
        notes.seen("limits.restricted", source)
        return True
    own = root.read(CGROUP)
    if not cpu.online:
        notes.absent("limits.restricted", "cpu.online", "online CPUs are not known")
    elif notes.entries["cpu.allowed"].state is not State.OK:
        notes.absent("limits.restricted", "cpu.allowed", "the affinity of the process is not known")
    elif own.text is None and own.state is not State.NOT_PRESENT:
        notes.unknown("limits.restricted", own.state, CGROUP, own.reason or "unreadable")
    elif own.text and not groups:
        notes.absent("limits.restricted", CGROUP, "the control groups of the process are out of sight")
    else:
        notes.seen("limits.restricted", source)
        return False
    return None
