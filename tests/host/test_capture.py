"""A capture gives the machine back, and nothing by which the one machine or its people could be known."""

from __future__ import annotations

import errno
import gzip
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3gate import host
from k3gate.errors import UsageError
from k3gate.host import capture, redaction, smbios
from k3gate.host.redaction import Names, clean, without_serials
from k3gate.records import State

MACHINES = Path(__file__).resolve().parent.parent.parent.parent / "shared" / "machines"
TABLES = sorted(MACHINES.glob("*/DMI*.bin"))
ARCHIVES = sorted(MACHINES.glob("*/sysroot.tar.bz2"))
MACHINE_ID = "0123456789abcdef" * 2
MAC = "02:fc:00:4a:00:01"


def everything(path: Path) -> bytes:
    """All bytes of a capture, names and contents."""
    return gzip.decompress(path.read_bytes())


def member(path: Path, name: str) -> str:
    with tarfile.open(path) as made:
        content = made.extractfile(name)
        assert content is not None
        return content.read().decode()


def names_of_this_machine() -> set[str]:
    found = {os.uname().nodename}
    for pattern in (
        "etc/machine-id",
        "sys/class/net/*/address",
        "sys/class/dmi/id/*serial",
        "sys/class/dmi/id/*uuid",
    ):
        for path in Path("/").glob(pattern):
            try:
                found.add(path.read_text().strip())
            except OSError:
                continue
    return {
        name
        for name in found
        if len(name) >= 3 and name.strip("0:- ") and not redaction._NOTHING.fullmatch(name.encode())
    }


def test_the_capture_of_this_machine_gives_this_machine_without_its_names(tmp_path: Path) -> None:
    path = tmp_path / "box.tar.gz"
    done = capture.write(path)
    assert done.differs == ()
    live, captured = host.read(), host.read(path)
    assert host.stable(captured) == host.stable(live)
    assert captured.root == str(path)
    written = everything(path).lower()
    assert [name for name in names_of_this_machine() if name.lower().encode() in written] == []


def test_a_capture_of_a_capture_is_the_same_bytes(make_root, tmp_path: Path) -> None:
    folder = make_root({"etc/machine-id": MACHINE_ID, "syscalls.json": '{"version": 1, "affinity": "0-2"}'})
    for name, place in (("a", folder), ("b", folder), ("c", tmp_path / "a")):
        capture.write(tmp_path / name, place)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()
    assert host.stable(host.read(tmp_path / "c")) == host.stable(host.read(folder))
    assert host.read(tmp_path / "c").cpu.allowed == (0, 1, 2)


def test_the_machine_id_is_kept_salted_alone(make_root, tmp_path: Path) -> None:
    folder = make_root({"etc/machine-id": f"{MACHINE_ID}\n"})
    capture.write(tmp_path / "a", folder)
    assert host.read(tmp_path / "a").machine.id == host.read(folder).machine.id is not None
    assert MACHINE_ID.encode() not in everything(tmp_path / "a")


def test_names_are_taken_out_where_the_kernel_puts_them(make_root, tmp_path: Path) -> None:
    group = "/kubepods/box7.slice/job"
    folder = make_root(
        {
            "proc/sys/kernel/hostname": "box7.example.com\n",
            "proc/version": "Linux version 6.1.0-13-amd64 (me@box7) (gcc 12) #1 SMP box7\n",
            "proc/cmdline": f"root=PARTUUID=1234abcd-02 quiet x=box7 BOOTIF={MAC} v=/home/alice/k box71\n",
            "proc/self/cgroup": f"0::{group}\n",
            "proc/self/mountinfo": "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 8:2 / /home/alice rw - ext4 /dev/sdb rw\n"
            "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 box7 rw\n",
            f"sys/fs/cgroup{group}/memory.max": f"{2**30}\n",
            f"sys/fs/cgroup{group}/memory.current": "4096\n",
            "sys/class/dmi/id/board_name": f"X13 {MAC}\n",
        }
    )
    done = capture.write(tmp_path / "a", folder)
    written = everything(tmp_path / "a")
    assert re.findall(rb"box7\b|alice|example|1234abcd|" + MAC.encode(), written) == []
    assert b"box71" in written
    assert member(tmp_path / "a", "proc/cmdline").startswith("root=PARTUUID=(removed) quiet x=host")
    assert (
        member(tmp_path / "a", "proc/self/mountinfo")
        == "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    )
    captured = host.read(tmp_path / "a")
    assert captured.limits.cgroup_memory_bytes == 2**30
    assert captured.kernel.release == "6.1.0-13-amd64"
    assert "kernel.command_line" in done.differs


@pytest.mark.parametrize("path", ARCHIVES, ids=lambda path: path.parent.name)
def test_captured_machines_are_given_back(path: Path, tmp_path: Path) -> None:
    assert capture.write(tmp_path / "a", path).differs == ()


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.parent.name)
def test_firmware_tables_keep_what_is_read_of_them_and_no_serial_number(path: Path, tmp_path: Path) -> None:
    table = path.read_bytes()
    cleaned = without_serials(table)
    assert len(cleaned) == len(table)
    assert smbios.decode(smbios.structures(cleaned)) == smbios.decode(smbios.structures(table))
    for number, one in enumerate(smbios.structures(cleaned).structures):
        for offset in redaction._SECRET_STRINGS.get(one.type, ()):
            text = (one.text(offset) or "").encode()
            assert redaction._NOTHING.fullmatch(text), (number, text)
        if one.type == 1:
            assert one.formatted[8:24].strip(b"\0") == b""
    assert capture.write(tmp_path / "a", path.parent).differs == ()


def structure(kind: int, body: bytes, *strings: bytes) -> bytes:
    return bytes([kind, 4 + len(body), 1, 0]) + body + b"\0".join(strings) + b"\0\0"


def test_serial_numbers_of_a_table_are_blanked_and_their_neighbours_stay() -> None:
    system = structure(
        1, bytes([1, 2, 0, 3]) + b"0123456789abcdef" + b"\6\0\0", b"Maker", b"Product", b"CZ1234567"
    )
    oem = structure(200, b"\x02\xfc\x00\x4a\x00\x01", b"CZ1234567")
    modules = structure(
        17, bytes(16) + bytes([0, 1, 0, 1, 2, 3, 4, 5]) + b"\0", b"Samsung", b"ABC123", b"NO DIMM", b"p"
    )
    cleaned = without_serials(system + oem + modules + structure(127, b"") + b"left over CZ1234567")
    assert b"CZ1234567" not in cleaned
    assert b"0123456789abcdef" not in cleaned
    assert b"\x02\xfc" not in cleaned
    for kept in (b"Maker", b"Product", b"Samsung"):
        assert kept in cleaned


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (1, bytes([0, 0, 0, 1]) + bytes(16) + b"\6\2\0"),
        (2, bytes([0, 0, 0, 1, 2, 0, 3])),
        (3, bytes([0, 3, 0, 1, 2]) + bytes(10) + b"\2\3abcdef\3"),
        (3, bytes([0, 3, 0, 1, 2]) + bytes(10) + b"\0\0\3"),
        (4, bytes(28) + bytes([1, 2, 0])),
        (17, bytes(20) + bytes([1, 2, 0])),
        (22, bytes([0, 0, 0, 1])),
        (39, bytes([0, 0, 0, 0, 1, 2, 0])),
        (11, b"\3"),
    ],
    ids=[
        "system",
        "board",
        "case",
        "empty case",
        "processor",
        "module",
        "battery",
        "power supply",
        "maker's",
    ],
)
def test_each_kind_of_structure_loses_what_names_the_one_piece(kind: int, body: bytes) -> None:
    """Serial number, asset tag and, of system and case, what was ordered; of the board its place in the case."""
    strings = [b"CZ1234567", b"TAG7654321", b"PLACE-OR-SKU", b"what the maker calls it"]
    cleaned = without_serials(structure(kind, body, *strings))
    used = set(body[3:]) | set(range(5) if kind == 11 else ())
    for number, text in enumerate(strings[:3], 1):
        assert (text in cleaned) is (number not in used), text
    assert (strings[3] in cleaned) is (kind != 11)


def test_numbers_of_the_one_piece_become_zeros() -> None:
    """The UUID of the system; the serial number of a battery, but not the day on which it was made."""
    system = without_serials(structure(1, bytes(4) + b"0123456789abcdef" + b"\6\0\0"))
    assert system[8:24] == bytes(16)
    battery = without_serials(structure(22, bytes(12) + b"\x12\x34\x56\x78" + bytes(6)))
    assert battery[16:20] == b"\0\0\x56\x78"


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400))
def test_random_tables_keep_their_length(raw: bytes) -> None:
    assert len(without_serials(raw)) == len(raw)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([*redaction._TEXTS, "proc/cpuinfo", "proc/self/status", "sys/x"]), st.binary(max_size=200)
)
def test_random_files_can_be_cleaned(path: str, raw: bytes) -> None:
    names = Names(["box7.example.com", "0123456789ab"], ["alice"])
    names.learn_mounts(raw.decode("latin-1"))
    cleaned = clean(path, raw, names)
    assert clean(path, cleaned, names) == cleaned
    assert not names.path("sys/fs/cgroup/a/b").startswith("/")


def test_the_name_of_a_container_is_found_in_its_long_id() -> None:
    names = Names(["8eafcf70f523"])
    assert "8eafcf70f523" not in names.apply("/docker/8eafcf70f52371d6efaff01ebef53269")


@pytest.mark.parametrize(
    "group",
    [
        f"/docker/{'8eafcf70' * 8}",
        f"/system.slice/docker-{'8eafcf70' * 8}.scope",
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod8eafcf70_1b2c_4d5e_8f90_0123456789ab.slice"
        f"/cri-containerd-{'8eafcf70' * 8}.scope",
        f"/kubepods/besteffort/pod8eafcf70-1b2c-4d5e-8f90-0123456789ab/{'8eafcf70' * 8}",
        f"/kubepods.slice/kubepods-pod{'8eafcf70' * 4}.slice/crio-{'8eafcf70' * 8}.scope",
        f"/kubepods/burstable/pod{'8eafcf70' * 4}",
        f"/docker/{'8EAFCF70' * 8}",
    ],
    ids=["docker", "systemd", "kubernetes", "kubernetes v1", "static pod", "static pod v1", "upper case"],
)
def test_ids_of_containers_stay_at_home_and_their_limits_are_kept(
    group: str, make_root, tmp_path: Path
) -> None:
    folder = make_root(
        {
            "proc/self/cgroup": f"0::{group}\n",
            "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            f"sys/fs/cgroup{group}/memory.max": f"{2**30}\n",
            f"sys/fs/cgroup{group}/memory.current": "4096\n",
            f"sys/fs/cgroup{group}/cpuset.cpus.effective": "0-1\n",
        }
    )
    read = host.read(folder)
    assert "8eafcf70" not in str(host.document(read)["provenance"]).lower()
    assert capture.write(tmp_path / "a", folder).differs == ()
    captured = host.read(tmp_path / "a")
    assert captured.limits.cgroup_memory_bytes == 2**30
    assert captured.limits.cpuset_cpus == (0, 1)
    assert b"8eafcf70" not in everything(tmp_path / "a").lower()
    assert b"0123456789ab" not in everything(tmp_path / "a")


def test_a_host_name_in_firmware_strings_and_in_the_release_stays_at_home(make_root, tmp_path: Path) -> None:
    system = structure(0, bytes([0, 1]) + bytes(20), b"U30 for node7") + structure(
        1, bytes([1, 2, 0, 0]) + bytes(16) + b"\6\0\3", b"Maker", b"Product node7", b"rack of NODE7"
    )
    module = structure(
        17, bytes(8) + b"\x40\0\x09\0\1\2\x22" + bytes(10), b"P0_node7_Channel0_Dimm0", b"node7"
    )
    table = system + module + structure(127, b"")
    folder = make_root(
        {
            "proc/sys/kernel/hostname": "node7\n",
            "proc/sys/kernel/osrelease": "6.1.0-node7\n",
            "proc/version": "Linux version 6.1.0-node7 (gcc 12)\n",
            "sys/class/dmi/id/product_name": "Product node7\n",
            "sys/class/dmi/id/bios_version": "U30 for node7\n",
            "sys/class/dmi/id/product_family": "rack of NODE7\n",
            "sys/firmware/dmi/tables/DMI": table,
        }
    )
    done = capture.write(tmp_path / "a", folder)
    read = host.read(tmp_path / "a")
    assert read.machine.product == "Product xxxxx"
    assert read.machine.firmware["version"] == "U30 for xxxxx"
    assert read.kernel.release == "6.1.0-host"
    # What the maker of the board has printed is no name of this host.
    locators = [one.locator for one in read.memory.dimms or ()]
    assert locators == [one.locator for one in host.read(folder).memory.dimms or ()] != []
    written = everything(tmp_path / "a").lower()
    assert written.count(b"node7") == table.lower().count(b"node7") - 3 == 2
    told = {"kernel.release", "machine.product", "machine.firmware.version", "machine.fingerprint"}
    assert set(done.differs) == told


@pytest.mark.parametrize("name", ["{}", "{}.example.org", "box7.{}.com", "box-{}-7"])
@pytest.mark.parametrize(
    ("word", "files"),
    [
        ("microsoft", {"proc/version": "Linux version 5.15.1-{name}-standard-WSL2 (me@x) (gcc 12)\n"}),
        ("microsoft", {"proc/version": "Linux version 4.4.0 (Microsoft@{name}) (gcc 5)\n"}),
        (
            "metal",
            {"sys/class/dmi/id/sys_vendor": "Amazon EC2", "sys/class/dmi/id/product_name": "c5.{name}"},
        ),
        ("qemu", {"sys/class/dmi/id/sys_vendor": "{name}"}),
        ("vmware", {"sys/class/dmi/id/product_name": "{name} Virtual Platform"}),
        ("docker", {"proc/1/cgroup": "0::/{name}/job\n"}),
        ("kubepods", {"proc/1/cgroup": "0::/{name}/job\n"}),
        ("libpod", {"proc/1/cgroup": "0::/machine.slice/{name}-1.scope\n"}),
        ("linux", {"proc/version": "{name} version 6.1.0 (me@x) (gcc 12)\n"}),
    ],
)
def test_a_host_called_after_a_mark_is_judged_as_before(
    word: str, files: dict[str, str], name: str, make_root, tmp_path: Path
) -> None:
    own = name.format(word)
    told = {path: text.replace("{name}", own) for path, text in files.items()}
    folder = make_root({"proc/sys/kernel/hostname": f"{own}\n", **told})
    capture.write(tmp_path / "a", folder)
    live, captured = host.read(folder).machine, host.read(tmp_path / "a").machine
    for field in ("virtual", "hypervisor", "container", "wsl"):
        assert getattr(captured, field) == getattr(live, field)
    assert re.findall(rb"(?i)box|example", everything(tmp_path / "a")) == []


def test_who_runs_it_through_sudo_is_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's own name tells nothing; that of the person before sudo does."""
    for name in ("SUDO_USER", "DOAS_USER", "LOGNAME"):
        monkeypatch.setenv(name, "alice")
        names = capture._names(capture.Recorder(host.files.Root("/")))
        assert names.apply("/user.slice/alice.slice") == "/user.slice/user.slice"
        monkeypatch.delenv(name)
    monkeypatch.setattr("pwd.getpwuid", lambda number: type("Entry", (), {"pw_name": f"number{number}"}))
    monkeypatch.setenv("SUDO_UID", "4711")
    assert capture._names(capture.Recorder(host.files.Root("/"))).apply("number4711") == "user"


def test_plain_names_are_no_names() -> None:
    assert Names(["localhost", "vm"], ["root"]).apply("vm localhost root") == "vm localhost root"


def test_what_the_machine_refuses_is_refused_by_the_capture(
    make_root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_root({"sys/firmware/dmi/tables/DMI": b"secret", "proc/loadavg": "0 0 0 1/1 1\n"})
    whole = host.files.Root.raw

    def raw(self, relative: str, limit: int = 0, *, head: bool = False) -> bytes:
        if relative.endswith("/DMI") and type(self) is host.files.Root:
            raise PermissionError(errno.EACCES, "no")
        return whole(self, relative, limit, head=head)

    monkeypatch.setattr(host.files.Root, "raw", raw)
    assert capture.write(tmp_path / "a", folder).differs == ()
    assert b"secret" not in everything(tmp_path / "a")
    slots = host.read(tmp_path / "a").provenance["memory.slots"]
    assert slots.state is State.NOT_PERMITTED


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_nothing_is_left_where_a_capture_is_cut_short(
    make_root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fails(_: int) -> None:
        raise error

    folder = make_root()
    target = tmp_path / "out" / "a"
    target.parent.mkdir()
    target.write_bytes(b"earlier")
    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(type(error)):
        capture.write(target, folder)
    assert [path.name for path in target.parent.iterdir()] == ["a"]
    assert target.read_bytes() == b"earlier"


def test_only_captures_are_taken_for_captures(make_root, tmp_path: Path) -> None:
    capture.write(tmp_path / "a", make_root())
    assert capture.is_capture(tmp_path / "a")
    (tmp_path / "b").write_bytes(gzip.compress(b"hello"))
    (tmp_path / "c").write_bytes((tmp_path / "a").read_bytes()[:40])
    with tarfile.open(tmp_path / "d", "w:gz") as made:
        made.addfile(tarfile.TarInfo("capture.json"))
    for name in "bcd":
        assert not capture.is_capture(tmp_path / name)
    assert not capture.is_capture(tmp_path / "none")


def k3gate(*arguments: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "k3gate", *arguments],
        cwd=folder,
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )


def test_the_command_replaces_captures_alone_and_writes_to_pipes(make_root, tmp_path: Path) -> None:
    make_root()
    (tmp_path / "notes").write_text("mine")
    for _ in range(2):
        done = k3gate("capture", "--root", "root", "-o", "a", folder=tmp_path)
        assert done.returncode == 0, done.stderr
    piped = k3gate("capture", "--root", "a", "-o", "/dev/stdout", folder=tmp_path)
    assert piped.stdout == (tmp_path / "a").read_bytes()
    for output, said in (
        ("notes", b"is no capture"),
        (".", b"a directory"),
        ("no/x", b"no directory"),
        ("", b"empty"),
    ):
        done = k3gate("capture", "--root", "root", "-o", output, folder=tmp_path)
        assert done.returncode == 2
        assert said in done.stderr
        assert done.stderr.count(b"\n") == 1
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_capture_that_would_be_too_large_is_refused(
    make_root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture.archive, "KEPT_BYTES", 1000)
    with pytest.raises(UsageError, match="MiB of files"):
        capture.write(tmp_path / "a", make_root())
