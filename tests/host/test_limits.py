"""Control groups, locked memory, usable memory."""

from __future__ import annotations

from typing import Any

import pytest

from k3gate import host
from k3gate.host import text

MakeRoot = Any
GIB = 2**30
V2 = "sys/fs/cgroup"


def unified(path: str = "/") -> dict[str, str]:
    """Files that say: this process is in the group `path` of the unified hierarchy."""
    return {
        "proc/self/cgroup": f"0::{path}\n",
        "proc/self/mountinfo": "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
    }


@pytest.mark.case("STO-09")
def test_sto_09_version_2_limits(make_root: MakeRoot) -> None:
    """STO-09: memory.max 8 GiB and cpu.max of one CPU, shown next to the host's values."""
    files = unified() | {f"{V2}/memory.max": "8589934592\n", f"{V2}/cpu.max": "100000 100000\n"}
    inventory = host.read(make_root(files))
    limits = inventory.limits
    assert (limits.cgroup_version, limits.cgroup_memory_bytes, limits.cgroup_cpus) == (2, 8 * GIB, 1.0)
    assert limits.usable_memory_bytes == 8 * GIB
    assert inventory.memory.total_bytes == 64 * GIB
    assert limits.restricted is True
    observed = {f.code: f.observed for f in inventory.findings}
    assert observed["cgroup_memory_limit"] == "limit 8.00 GiB; the machine has 64.0 GiB"
    assert observed["cgroup_cpu_quota"] == "1.00 CPUs of time on 8 online CPUs"
    page = text.page(inventory)
    assert "memory limit      8.00 GiB (8.59 GB)" in page
    assert "usable by kernel  64.0 GiB (68.7 GB)" in page


@pytest.mark.case("STO-09")
def test_sto_09_version_1_sentinel_is_no_limit(make_root: MakeRoot) -> None:
    """STO-09: 9223372036854771712 and a quota of -1 mean unlimited."""
    files = {
        "proc/self/cgroup": "4:memory:/\n1:cpu,cpuacct:/\n",
        "proc/self/mountinfo": "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "proc/self/status": "Cpus_allowed_list:\t0-7\n",
    }
    inventory = host.read(make_root(files))
    limits = inventory.limits
    assert (limits.cgroup_version, limits.cgroup_memory_bytes, limits.cgroup_cpus) == (1, None, None)
    assert limits.usable_memory_bytes == inventory.memory.available_bytes
    assert limits.restricted is False
    assert "memory limit      no limit" in text.page(inventory)
    assert not {"cgroup_memory_limit", "cgroup_cpu_quota"} & {f.code for f in inventory.findings}


@pytest.mark.case("STO-09")
@pytest.mark.parametrize("with_mountinfo", [True, False])
def test_sto_09_version_1_limits(make_root: MakeRoot, with_mountinfo: bool) -> None:
    """STO-09: the same limits in version 1, with and without a mount table in the capture."""
    files: dict[str, str | None] = {
        "proc/self/cgroup": "4:memory:/job\n1:cpu:/job\n",
        "proc/self/mountinfo": "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{8 * GIB}\n",
        "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "250000\n",
        "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
    }
    if not with_mountinfo:
        del files["proc/self/mountinfo"]
    limits = host.read(make_root(files)).limits
    assert (limits.cgroup_memory_bytes, limits.cgroup_cpus) == (8 * GIB, 2.5)


@pytest.mark.case("STO-09")
def test_sto_09_of_nested_groups_the_smallest_counts(make_root: MakeRoot) -> None:
    """STO-09: the group itself has no limit, its grandparent has; usage counts, cached pages do not."""
    files = unified("/a/b") | {
        f"{V2}/a/b/memory.max": "max\n",
        f"{V2}/a/b/cpu.max": "max 100000\n",
        f"{V2}/a/memory.max": f"{16 * GIB}\n",
        f"{V2}/a/memory.current": f"{6 * GIB}\n",
        f"{V2}/a/memory.stat": f"anon {2 * GIB}\ninactive_file {4 * GIB}\n",
        f"{V2}/a/cpu.max": "400000 100000\n",
    }
    limits = host.read(make_root(files)).limits
    assert limits.cgroup_memory_bytes == 16 * GIB
    assert limits.cgroup_memory_used_bytes == 6 * GIB
    assert limits.usable_memory_bytes == 14 * GIB
    assert limits.cgroup_cpus == 4.0


@pytest.mark.case("STO-09")
def test_sto_09_a_container_sees_its_own_group_as_the_top(make_root: MakeRoot) -> None:
    """STO-09: the mount shows the container's group; its path must not be looked for twice."""
    files = {
        "proc/self/cgroup": "4:memory:/docker/abc\n",
        "proc/self/mountinfo": "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
    }
    assert host.read(make_root(files)).limits.cgroup_memory_bytes == 4 * GIB


def test_a_path_out_of_the_hierarchy_is_its_top(make_root: MakeRoot) -> None:
    files = unified("/../../secret") | {f"{V2}/memory.max": f"{4 * GIB}\n", "secret/memory.max": "1\n"}
    assert host.read(make_root(files)).limits.cgroup_memory_bytes == 4 * GIB


def test_a_cpuset_restricts(make_root: MakeRoot) -> None:
    files = unified() | {f"{V2}/cpuset.cpus.effective": "0-3\n", f"{V2}/cpuset.mems.effective": "0\n"}
    inventory = host.read(make_root(files))
    assert inventory.limits.cpuset_cpus == (0, 1, 2, 3)
    assert inventory.limits.cpuset_mems == (0,)
    assert inventory.limits.restricted is True
    assert inventory.limits.usable_memory_bytes == 32 * GIB
    assert {"cpuset_cpus", "cpuset_mems"} <= {f.code for f in inventory.findings}


@pytest.mark.parametrize(
    ("line", "value", "shown"),
    [
        (
            "Max locked memory         8388608              8388608              bytes",
            8 * 2**20,
            "8.00 MiB (8.39 MB)",
        ),
        ("Max locked memory         unlimited            unlimited            bytes", None, "no limit"),
        ("Max cpu time              unlimited            unlimited            seconds", None, "unknown"),
    ],
)
def test_locked_memory(make_root: MakeRoot, line: str, value: int | None, shown: str) -> None:
    inventory = host.read(make_root({"proc/self/limits": f"Limit  Soft Limit  Hard Limit  Units\n{line}\n"}))
    assert inventory.limits.memlock_bytes == value
    assert f"locked memory     {shown}" in text.page(inventory)


def test_a_limit_of_groups_that_are_out_of_sight_counts(make_root: MakeRoot) -> None:
    """A container sees its own group alone, which has no limit; its statistics know the tightest around it."""
    files = {
        "proc/self/cgroup": "4:memory:/docker/abc\n",
        "proc/self/mountinfo": "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.stat": f"cache 0\nhierarchical_memory_limit {6 * GIB}\n",
    }
    inventory = host.read(make_root(files))
    assert inventory.limits.cgroup_memory_bytes == inventory.limits.usable_memory_bytes == 6 * GIB
    assert "cgroup_memory_limit" in {f.code for f in inventory.findings}


@pytest.mark.parametrize(("gib", "restricted"), [(63, True), (64, False), (4096, False)])
def test_a_memory_limit_restricts_where_it_is_below_what_the_machine_has(
    make_root: MakeRoot, gib: int, restricted: bool
) -> None:
    files = unified() | {f"{V2}/memory.max": f"{gib * GIB}\n", f"{V2}/cpu.max": "6400000 100000\n"}
    inventory = host.read(make_root(files, {"proc/self/status": "Cpus_allowed_list:\t0-7\n"}))
    assert inventory.limits.restricted is restricted
    assert ("cgroup_memory_limit" in {f.code for f in inventory.findings}) is restricted
    assert f"restricted        {'yes' if restricted else 'no'}" in text.page(inventory)


def test_memory_nodes_that_the_kernel_keeps_from_the_process(make_root: MakeRoot) -> None:
    """The cpuset itself is out of sight: the process's own status tells."""
    status = "Cpus_allowed_list:\t0-7\nMems_allowed_list:\t{}\n"
    root = make_root({"proc/self/status": status.format(0)})
    inventory = host.read(root)
    assert inventory.limits.cpuset_mems == (0,)
    assert inventory.limits.restricted is True
    assert inventory.limits.usable_memory_bytes == 32 * GIB
    found = next(f for f in inventory.findings if f.code == "cpuset_mems")
    assert found.observed == "nodes 0; out of reach: 1"
    make_root.put(root, {"proc/self/status": status.format("0-7")})
    inventory = host.read(root)
    assert inventory.limits.restricted is False
    assert inventory.findings == ()


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"proc/self/cgroup": "0::/\n"}, "affinity"),
        ({"proc/self/cgroup": "0::/a\n", "proc/self/status": "Cpus_allowed_list: 0-7\n"}, "out of sight"),
    ],
)
def test_nothing_seen_is_not_the_same_as_not_restricted(
    make_root: MakeRoot, files: dict[str, str], reason: str
) -> None:
    inventory = host.read(make_root(files))
    assert inventory.limits.restricted is None
    assert reason in (inventory.provenance["limits.restricted"].reason or "")


def test_whether_it_is_restricted_is_unknown_where_nothing_tells(make_root: MakeRoot) -> None:
    inventory = host.read(make_root())
    assert inventory.limits.restricted is None
    assert inventory.cpu.allowed == inventory.cpu.online
    assert inventory.provenance["cpu.allowed"].state == "not_present"
