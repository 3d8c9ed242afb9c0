"""Reading below a root: nothing outside, nothing too large, nothing that blocks."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k3gate import documents, host
from k3gate.errors import UsageError
from k3gate.host import text
from k3gate.host.files import Root, explain, open_root
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


def test_a_place_that_may_not_be_read_is_told_from_one_that_is_no_machine(make_root) -> None:
    """The folder and what lies in it; root reads everything, so the test steps down."""
    folder = make_root()
    folder.chmod(0)
    own = os.geteuid()
    try:
        os.seteuid(own or 65_534)
        for place in (folder, folder / "proc"):
            with pytest.raises(UsageError, match="may not be read: permission denied; read it as root"):
                host.read(place)
    finally:
        os.seteuid(own)
        folder.chmod(0o755)


@pytest.mark.parametrize("name", ["loop", "loop/sys"])
def test_a_link_that_leads_back_to_itself_is_called_so(name: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match="a symbolic link that leads back to itself"):
        host.read(tmp_path / name)
    with pytest.raises(UsageError, match="no such folder"):
        host.read(tmp_path / "nowhere")


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


@pytest.mark.parametrize("infix", ["", ".reconstructed"])
def test_a_firmware_table_that_lies_by_itself_is_a_machine(tmp_path: Path, infix: str) -> None:
    table = bytes.fromhex("7f04feff0000")
    (tmp_path / f"DMI{infix}.bin").write_bytes(table)
    (tmp_path / f"smbios_entry_point{infix}.bin").write_bytes(b"_SM3_")
    root = open_root(tmp_path)
    assert root.raw("sys/firmware/dmi/tables/DMI") == table
    assert root.raw("sys/firmware/dmi/tables/smbios_entry_point") == b"_SM3_"
    assert root.names("sys") == ()
    inventory = host.read(tmp_path)
    assert inventory.cpu.online is None
    assert inventory.provenance["cpu.model"].reason == "absent"
    assert "unknown" in text.page(inventory)


def test_any_part_of_a_machine_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1048576 kB\n")
    assert host.read(tmp_path).memory.total_bytes == 2**30


def test_answers_of_the_kernel_come_from_the_capture(make_root) -> None:
    answers = {"version": 1, "affinity": "1-2", "memlock": "unlimited", "amx_granted": False}
    inventory = host.read(make_root({"syscalls.json": json.dumps({**answers, "page_bytes": 65536})}))
    assert inventory.cpu.allowed == (1, 2)
    assert inventory.provenance["limits.memlock_bytes"].reason == "no limit"
    assert inventory.cpu.amx.granted is False
    assert inventory.kernel.page_bytes == 65536


@pytest.mark.parametrize(
    "answers",
    [
        b"\xff{",
        b"[" * 100_000,
        b'{"version": 1, "affinity": "9-1", "memlock": -1, "amx_granted": "yes", "reasons": [], "page_bytes": 5}',
        b'{"version": 1, "affinity": [1], "memlock": 1e400, "amx_granted": 1, "page_bytes": true, "container": 5}',
        b'{"version": 1, "affinity": "0-99999999", "memlock": ' + b"9" * 5000 + b"}",
        b'{"version": "1", "affinity": "0"}',
    ],
    ids=range(6),
)
def test_made_up_answers_are_unknown_with_a_reason(make_root, answers: bytes) -> None:
    inventory = host.read(make_root({"syscalls.json": answers, "capture.json": answers}))
    for field in ("limits.memlock_bytes", "cpu.amx.granted", "cpu.allowed", "machine.id"):
        note = inventory.provenance[field]
        assert note.state is not State.OK
        assert note.reason
    assert inventory.cpu.amx.granted is None
    assert inventory.limits.memlock_bytes is None


def test_a_capture_of_a_newer_version_is_refused(make_root) -> None:
    folder = make_root({"capture.json": '{"kind": "k3gate capture", "version": 2}'})
    with pytest.raises(UsageError, match="update k3gate"):
        host.read(folder)


def test_what_the_captured_machine_refused_stays_refused(make_root) -> None:
    told = {"kind": "k3gate capture", "version": 1, "refused": {"proc/meminfo": "EACCES", "x": [], "y": "NO"}}
    inventory = host.read(make_root({"capture.json": json.dumps(told)}))
    assert inventory.provenance["memory.total_bytes"].state is State.NOT_PERMITTED
