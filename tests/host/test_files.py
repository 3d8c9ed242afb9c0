"""Reading below a root: nothing outside, nothing too large, nothing that blocks."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k3gate import documents, host
from k3gate.errors import UsageError
from k3gate.host import text
from k3gate.host.files import Root, explain
from k3gate.records import State

FILES = [
    "proc/cpuinfo",
    "proc/meminfo",
    "proc/loadavg",
    "proc/cmdline",
    "proc/self/status",
    "proc/self/cgroup",
    "proc/self/mountinfo",
    "proc/self/limits",
    "proc/version",
    "etc/machine-id",
    "sys/class/dmi/id/board_name",
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/present",
    "sys/devices/system/cpu/cpu0/topology/thread_siblings_list",
    "sys/devices/system/cpu/cpu0/topology/physical_package_id",
    "sys/devices/system/cpu/cpu0/cache/index0/size",
    "sys/devices/system/cpu/cpu0/cache/index0/level",
    "sys/devices/system/cpu/cpu0/cache/index0/shared_cpu_list",
    "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq",
    "sys/devices/system/node/online",
    "sys/devices/system/node/node0/cpulist",
    "sys/devices/system/node/node0/cpumap",
    "sys/devices/system/node/node0/meminfo",
    "sys/devices/system/node/node0/distance",
    "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages",
    "sys/kernel/mm/transparent_hugepage/enabled",
    "sys/fs/cgroup/memory.max",
    "sys/fs/cgroup/cpu.max",
    "sys/fs/cgroup/cpuset.cpus.effective",
]
KERNEL_LIKE = st.text("0123456789-,: \nkBNodeMemTotalprocessorfags[]/max", max_size=80).map(str.encode)


@pytest.mark.parametrize("target", ["/etc/hostname", "../../../../../../etc/hostname", "/outside"])
def test_no_link_leads_out_of_the_root(tmp_path: Path, target: str) -> None:
    (tmp_path / "outside").write_text("secret")
    root = tmp_path / "root"
    (root / "proc").mkdir(parents=True)
    (root / "proc/cpuinfo").symlink_to(target)
    (root / "proc/folder").symlink_to("/..")
    assert Root(root).read("proc/cpuinfo").state is State.NOT_PRESENT
    assert Root(root).read("proc/folder/outside").text is None


def test_links_within_the_root_are_followed_as_if_it_were_the_top(tmp_path: Path) -> None:
    (tmp_path / "sys/devices/virtual/dmi/id").mkdir(parents=True)
    (tmp_path / "sys/devices/virtual/dmi/id/board_name").write_text("X13DEI\n")
    (tmp_path / "sys/class/dmi").mkdir(parents=True)
    (tmp_path / "sys/class/dmi/id").symlink_to("/sys/devices/virtual/dmi/id")
    (tmp_path / "relative").symlink_to("sys/class/dmi/../dmi/id")
    root = Root(tmp_path)
    assert root.read("sys/class/dmi/id/board_name").text == "X13DEI"
    assert root.read("relative/board_name").text == "X13DEI"


def test_loops_pipes_and_large_files_are_refused_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"1" * 100_000)
    root = Root(tmp_path)
    assert root.read("loop/x").state is State.FAILED
    assert root.read("pipe").reason == "could not be read: Invalid argument"
    assert root.read("large").state is State.FAILED
    assert root.read("large", 1000, head=True).text == "1" * 1000


@pytest.mark.parametrize(
    ("number", "state", "reason"),
    [
        (errno.EACCES, State.NOT_PERMITTED, "not permitted; readable by root"),
        (errno.ENOENT, State.NOT_PRESENT, "absent"),
        (errno.ETIMEDOUT, State.FAILED, "timed out"),
        (errno.EIO, State.FAILED, "could not be read: Input/output error"),
    ],
)
def test_a_refused_reading_says_why(number: int, state: State, reason: str) -> None:
    assert explain(OSError(number, "x")) == (state, reason)


@pytest.mark.parametrize("make", [lambda p: p / "nothing", lambda p: p, lambda p: p / "file"])
def test_what_is_no_machine_is_refused_in_one_line(tmp_path: Path, make: object) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as refused:
        host.read(make(tmp_path))  # type: ignore[operator]
    assert str(tmp_path) in str(refused.value)
    assert "\n" not in str(refused.value)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(FILES), st.one_of(st.binary(max_size=120), KERNEL_LIKE), max_size=14))
def test_random_files_never_break_the_reading(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
) -> None:
    root = tmp_path_factory.mktemp("root")
    (root / "sys/devices/system/cpu").mkdir(parents=True)
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    inventory = host.read(root)
    page = text.page(inventory)
    assert len(documents.canonical(host.document(inventory))) < 1_000_000
    assert all(character.isprintable() or character == "\n" for character in page)


def test_ten_thousand_cpus_that_claim_everything_stay_bounded(tmp_path: Path) -> None:
    """A hostile capture: every list names as many ids as a list may."""
    base = tmp_path / "sys/devices/system/cpu"
    base.mkdir(parents=True)
    (base / "online").write_text("0-16383\n")
    for cpu in range(200):
        folder = base / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text("0-16383\n")
    (base / "cpu200/topology").mkdir(parents=True)
    (base / "cpu200/topology/thread_siblings_list").write_text("0-99999999\n")
    cpu = host.read(tmp_path).cpu
    assert cpu.threads == 16_384
    assert cpu.cores == 1
