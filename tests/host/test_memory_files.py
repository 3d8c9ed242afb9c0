"""What lies at a path that is to be measured as memory: files, folders, and what is neither."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import attrs
import pytest

from k3gate.errors import UsageError
from k3gate.host import memory_files
from k3gate.records import Case, MemoryFile

PAGE = os.sysconf("SC_PAGE_SIZE")


def test_a_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "weights.gguf"
    file.write_bytes(b"x" * 10_000)
    seen = memory_files.look(str(file))
    assert (seen.path, seen.folder, seen.bytes, seen.data_bytes) == (str(file), False, 10_000, 10_000)
    assert (seen.device, seen.inode) == (file.stat().st_dev, file.stat().st_ino)
    assert seen.page_bytes == PAGE and seen.dax is False
    folder = memory_files.look(str(tmp_path))
    assert folder.folder is True and folder.inode == tmp_path.stat().st_ino
    space = os.statvfs(tmp_path)
    assert folder.bytes == pytest.approx(space.f_bavail * space.f_frsize, rel=0.2)
    assert folder.file_system == seen.file_system and seen.file_system


def test_a_relative_path_and_a_link_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    seen = memory_files.look("link")
    assert seen.path == str(tmp_path / "link")
    assert seen.inode == (tmp_path / "real").stat().st_ino


def test_only_what_lies_before_a_hole_is_data(tmp_path: Path) -> None:
    file = tmp_path / "sparse"
    with file.open("wb") as out:
        out.write(b"x" * 65536)
        out.truncate(100 << 20)
    seen = memory_files.look(str(file))
    assert seen.bytes == 100 << 20
    assert seen.data_bytes == 65536, "this test needs a file system with holes"


@pytest.mark.parametrize("what", ["missing", "empty", "fifo", "socket", "device", "unprintable"])
def test_what_cannot_be_read_as_memory_is_told_in_one_line(tmp_path: Path, what: str) -> None:
    path = tmp_path / what
    told = {
        "missing": "No such file",
        "empty": "is empty",
        "fifo": "is a FIFO",
        "socket": "is a socket",
        "device": "is a character device",
        "unprintable": "cannot be printed",
    }[what]
    if what == "empty":
        path.touch()
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "socket":
        socket.socket(socket.AF_UNIX).bind(str(path))
    elif what == "device":
        path = Path("/dev/null")
    elif what == "unprintable":
        path = tmp_path / "a\nb"
    with pytest.raises(UsageError) as caught:
        memory_files.look(str(path))
    line = str(caught.value)
    assert told in line and "\n" not in line and line.startswith("--memory-file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"x")
    file.chmod(0)
    with pytest.raises(UsageError, match="Permission denied"):
        memory_files.look(str(file))


MOUNTS = """\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 259:0 / /mnt/pmem rw,noatime - xfs /dev/pmem0 rw,dax=always,inode64
31 22 259:1 / /mnt/old rw - ext4 /dev/pmem1 rw,dax
32 22 259:2 / /mnt/never rw - ext4 /dev/pmem2 rw,dax=never
33 22 0:44 / /mnt/with\\040space rw - btrfs /dev/sdb rw
34 22 0:45 / /mnt/huge rw - hugetlbfs none rw,pagesize=2M
"""


@pytest.mark.parametrize(
    ("path", "device", "expected"),
    [
        ("/mnt/pmem/a", os.makedev(259, 0), ("xfs", True)),
        ("/mnt/old/a", os.makedev(259, 1), ("ext4", True)),
        ("/mnt/never/a", os.makedev(259, 2), ("ext4", False)),
        ("/mnt/huge/a", os.makedev(0, 45), ("hugetlbfs", False)),
        # A number that no mount has: the nearest mount above the path.
        ("/mnt/with space/a", os.makedev(0, 99), ("btrfs", False)),
        ("/elsewhere", os.makedev(0, 99), ("ext4", False)),
    ],
)
def test_the_file_system_is_that_of_the_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, device: int, expected: tuple[str, bool]
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS + "half a line\n")
    monkeypatch.setattr(memory_files, "MOUNTS", str(mounts))
    assert memory_files.mounted(path, device) == expected
    monkeypatch.setattr(memory_files, "MOUNTS", str(tmp_path / "none"))
    assert memory_files.mounted(path, device) == (None, False)


@pytest.mark.parametrize(
    ("system", "holds"),
    [
        ("proc", False),
        ("sysfs", False),
        ("cgroup2", False),
        ("tmpfs", True),
        ("fuse.sshfs", True),
        (None, False),
    ],
)
def test_a_folder_that_counts_no_blocks_holds_data_only_where_its_kind_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str | None, holds: bool
) -> None:
    """Root may write to pseudo folders, as far as their modes tell."""
    space = os.statvfs_result((4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(memory_files.os, "statvfs", lambda path: space)
    monkeypatch.setattr(memory_files, "mounted", lambda path, device: (system, False))
    if holds:
        assert memory_files.look(str(tmp_path)).bytes is None
    else:
        with pytest.raises(UsageError, match="holds no data"):
            memory_files.look(str(tmp_path))


def plan(file: MemoryFile) -> list[Case]:
    """Two cases of a stored plan: one of the file, one of none."""
    cases = [Case("memory", "file1.read", "", "file1", {"file": attrs.asdict(file)}, 1.0, 0)]
    return [*cases, Case("memory", "read.machine", "", "machine", {}, 1.0, 0)]


def test_a_file_that_has_changed_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"x" * 100)
    planned = plan(memory_files.look(str(file)))
    memory_files.refuse_changed(planned)
    file.write_bytes(b"x" * 101)
    with pytest.raises(UsageError, match="bytes was 100, is 101: make a new run"):
        memory_files.refuse_changed(planned)
    (tmp_path / "b").write_bytes(b"x" * 100)
    (tmp_path / "b").rename(file)
    with pytest.raises(UsageError, match="inode was"):
        memory_files.refuse_changed(planned)
    folder = plan(memory_files.look(str(tmp_path)))
    (tmp_path / "c").write_bytes(b"x" * 100_000)
    memory_files.refuse_changed(folder)
