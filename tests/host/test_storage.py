"""From a path down to the drives, through layers that a container does not name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from k3gate import host
from k3gate.errors import UsageError
from k3gate.host import storage
from k3gate.host.files import Root
from k3gate.host.notes import Notes
from k3gate.records import Storage

MakeRoot = Any
Files = dict[str, str | bytes | None]


class Link(str):
    """The text of a symbolic link."""


def nvme(number: int, *, block: int = 512, node: int = 0, rate: str = "16.0", best: str = "16.0") -> Files:
    """An NVMe drive behind a port of its own."""
    pci = f"sys/devices/pci0000:{number:02x}/0000:{number:02x}:01.0"
    device = f"{pci}/0000:{number + 64:02x}:00.0"
    drive = f"{device}/nvme/nvme{number}/nvme{number}n1"
    return {
        f"{pci}/max_link_speed": f"{best} GT/s PCIe\n",
        f"{pci}/max_link_width": "4\n",
        f"{device}/current_link_speed": f"{rate} GT/s PCIe\n",
        f"{device}/current_link_width": "4\n",
        f"{device}/max_link_speed": "32.0 GT/s PCIe\n",
        f"{device}/max_link_width": "4\n",
        f"{device}/numa_node": f"{node}\n",
        f"{device}/nvme/nvme{number}/model": "Micron_7450_MTFDKCC3T8TFR                \n",
        f"{device}/nvme/nvme{number}/firmware_rev": "E2MU200 \n",
        f"{device}/nvme/nvme{number}/transport": "pcie\n",
        f"{device}/nvme/nvme{number}/state": "live\n",
        f"{device}/nvme/nvme{number}/serial": "SECRET-SERIAL\n",
        f"{drive}/size": "7501476528\n",
        f"{drive}/dev": f"259:{number}\n",
        f"{drive}/ro": "0\n",
        f"{drive}/removable": "0\n",
        f"{drive}/wwid": "eui.SECRET-SERIAL\n",
        f"{drive}/queue/rotational": "0\n",
        f"{drive}/queue/scheduler": "[none] mq-deadline kyber\n",
        f"{drive}/queue/logical_block_size": f"{block}\n",
        f"{drive}/queue/physical_block_size": "4096\n",
        f"{drive}/queue/max_sectors_kb": "128\n",
        f"{drive}/queue/discard_max_bytes": "2199023255040\n",
        f"sys/class/block/nvme{number}n1": Link(f"../../{drive.removeprefix('sys/')}"),
        f"sys/dev/block/259:{number}": Link(f"../../{drive.removeprefix('sys/')}"),
    }


def partition(number: int, part: int) -> Files:
    """A partition of that drive."""
    folder = f"sys/devices/pci0000:{number:02x}/0000:{number:02x}:01.0/0000:{number + 64:02x}:00.0/nvme/nvme{number}"
    folder += f"/nvme{number}n1/nvme{number}n1p{part}"
    return {
        f"{folder}/partition": f"{part}\n",
        f"{folder}/size": "2048\n",
        f"{folder}/dev": f"259:{100 + 10 * number + part}\n",
        f"sys/class/block/nvme{number}n1p{part}": Link(f"../../{folder.removeprefix('sys/')}"),
        f"sys/dev/block/259:{100 + 10 * number + part}": Link(f"../../{folder.removeprefix('sys/')}"),
    }


def mapped(name: str, number: str, uuid: str, on: list[str]) -> Files:
    """A device of the device mapper."""
    folder = f"sys/devices/virtual/block/{name}"
    return {
        f"{folder}/dm/uuid": f"{uuid}\n",
        f"{folder}/dm/name": "vg0-models\n",
        f"{folder}/dev": f"{number}\n",
        f"{folder}/size": "60011812224\n",
        f"{folder}/queue/logical_block_size": "512\n",
        **{f"{folder}/slaves/{slave}/dev": "\n" for slave in on},
        f"sys/class/block/{name}": Link(f"../../{folder.removeprefix('sys/')}"),
        f"sys/dev/block/{number}": Link(f"../../{folder.removeprefix('sys/')}"),
    }


def mountinfo(*lines: str) -> Files:
    return {"proc/self/mountinfo": "".join(f"{line}\n" for line in lines)}


def draw(make_root: MakeRoot, *parts: Files) -> Path:
    files = {name: content for part in parts for name, content in part.items()}
    folder: Path = make_root({n: c for n, c in files.items() if not isinstance(c, Link)}, bare=True)
    for name, content in files.items():
        if isinstance(content, Link):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(content)
    return folder


def look(folder: Path, *paths: str) -> Storage:
    found = storage.read(Root(folder), Notes(), paths)
    assert found is not None
    return found


@pytest.mark.case("NVM-04")
def test_lvm_over_eight_drives_is_found_by_numbers_alone(make_root: MakeRoot) -> None:
    folder = draw(
        make_root,
        *(nvme(number, node=number // 4) for number in range(8)),
        mapped("dm-2", "253:2", "LVM-abcSECRET", [f"nvme{number}n1" for number in range(8)]),
        mountinfo("29 1 253:2 / /models rw,relatime shared:1 - xfs /dev/mapper/vg0-models rw,attr2"),
    )
    assert not (folder / "dev").exists()
    (path,) = look(folder, "/models/kimi-k3").paths
    assert (path.kind, path.mount_point, path.file_system, path.number) == (
        "block",
        "/models",
        "xfs",
        "253:2",
    )
    assert path.drives == tuple(f"nvme{number}n1" for number in range(8))
    assert path.summary == "xfs on LVM over 8 NVMe drives"
    assert [layer.kind for layer in path.layers] == ["lvm"]
    drives = {drive.name: drive for drive in look(folder).drives}
    assert [drives[name].node for name in path.drives] == [0, 0, 0, 0, 1, 1, 1, 1]
    links = [drives[name].link for name in path.drives]
    assert sum(link.bytes_per_s or 0 for link in links if link) == pytest.approx(8 * 16e9 * 4 / 8 * 128 / 130)


@pytest.mark.case("NVM-06")
def test_an_encrypted_volume_says_so_and_names_the_drive_below(make_root: MakeRoot) -> None:
    folder = draw(
        make_root,
        nvme(0),
        partition(0, 2),
        mapped("dm-0", "253:0", "CRYPT-LUKS2-4a6fSECRET-luks", ["nvme0n1p2"]),
        mountinfo("29 1 253:0 / / rw - ext4 /dev/dm-0 rw"),
    )
    (path,) = look(folder, "/srv").paths
    assert path.encrypted and path.drives == ("nvme0n1",)
    assert [(layer.name, layer.kind, layer.on) for layer in path.layers] == [
        ("dm-0", "crypt", ("nvme0n1p2",)),
        ("nvme0n1p2", "partition", ("nvme0n1",)),
    ]
    assert path.summary == "ext4 on encryption over 1 NVMe drive"
    found = host.read(folder, paths=("/srv",))
    assert "storage_encrypted" in {finding.code for finding in found.findings}
    assert "SECRET" not in str(host.document(found))


@pytest.mark.case("NVM-09")
def test_the_largest_block_of_a_stack_is_that_of_direct_reads(make_root: MakeRoot) -> None:
    md = "sys/devices/virtual/block/md0"
    folder = draw(
        make_root,
        nvme(0, block=4096),
        nvme(1, block=512),
        {
            f"{md}/md/level": "raid0\n",
            f"{md}/md/chunk_size": "524288\n",
            f"{md}/md/degraded": "0\n",
            f"{md}/dev": "9:0\n",
            f"{md}/queue/logical_block_size": "512\n",
            f"{md}/slaves/nvme0n1/dev": "",
            f"{md}/slaves/nvme1n1/dev": "",
            "sys/class/block/md0": Link("../../devices/virtual/block/md0"),
            "sys/dev/block/9:0": Link("../../devices/virtual/block/md0"),
        },
        mountinfo("29 1 9:0 / /models rw - xfs /dev/md0 rw"),
    )
    (path,) = look(folder, "/models").paths
    assert path.logical_block_bytes == 4096
    assert (path.summary, path.layers[0].chunk_bytes) == ("xfs on RAID 0 over 2 NVMe drives", 2**19)


@pytest.mark.case("NVM-02")
@pytest.mark.parametrize(
    ("line", "kind", "word"),
    [
        ("29 1 0:40 / /models rw - tmpfs tmpfs rw,size=1g", "memory", "memory"),
        (
            "29 1 0:41 / /models rw - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w",
            "unknown",
            "overlay",
        ),
        ("29 1 0:42 / /models rw - nfs4 server:/models rw", "network", "another machine"),
        ("29 1 0:43 / /models rw - zfs tank/models rw", "pool", "zpool status"),
        ("29 1 254:9 / /models rw - ext4 /dev/gone rw", "unknown", "254:9"),
    ],
)
def test_what_is_no_local_drive_is_named(make_root: MakeRoot, line: str, kind: str, word: str) -> None:
    folder = draw(make_root, nvme(0), mountinfo("1 0 259:0 / / rw - ext4 /dev/nvme0n1 rw", line))
    (path,) = look(folder, "/models/k3").paths
    assert (path.kind, path.drives) == (kind, ())
    assert word in (path.reason or "")
    codes = {finding.code for finding in host.read(folder, paths=("/models/k3",)).findings}
    assert ("storage_is_memory" if kind == "memory" else "storage_unseen") in codes
    # The root of the same machine lies on the drive.
    assert look(folder, "/srv").paths[0].drives == ("nvme0n1",)


def test_btrfs_over_two_drives_and_a_directory_of_many_mounts(make_root: MakeRoot) -> None:
    pool = "sys/fs/btrfs/0b8a72c6-1111-2222-3333-444455556666/devices"
    folder = draw(
        make_root,
        nvme(0),
        nvme(1),
        {f"{pool}/nvme0n1/dev": "259:0\n", f"{pool}/nvme1n1/dev": "259:1\n"},
        mountinfo(
            "1 0 259:9 / / rw - ext4 /dev/sdz rw",
            "2 1 0:33 /@models /models rw - btrfs /dev/nvme1n1 rw",
            "3 1 0:34 / /models\\040old rw - tmpfs tmpfs rw",
        ),
    )
    found = look(folder, "/models/k3", "/models old/k3").paths
    assert found[0].drives == ("nvme0n1", "nvme1n1") and found[0].summary == "btrfs on 2 NVMe drives"
    assert found[1].kind == "memory"


@pytest.mark.case("NVM-10")
def test_a_drive_in_use_names_its_mount_points(make_root: MakeRoot) -> None:
    folder = draw(
        make_root,
        nvme(0),
        nvme(1),
        nvme(2),
        partition(0, 1),
        mapped("dm-0", "253:0", "LVM-x", ["nvme1n1"]),
        mountinfo(
            "1 0 259:101 / / rw - ext4 /dev/nvme0n1p1 rw", "2 1 253:0 / /models rw - xfs /dev/mapper/a-b rw"
        ),
    )
    root = Root(folder)
    assert storage.mounted(root, "259:1") == ("/models",)
    assert storage.mounted(root, "259:0") == storage.mounted(root, "259:101") == ("/",)
    assert storage.mounted(root, "259:2") == ()


@pytest.mark.case("NVM-10")
def test_a_block_device_is_refused_whatever_it_holds(tmp_path: Path) -> None:
    device = next((path for path in sorted(Path("/dev").glob("*")) if path.is_block_device()), None)
    if device is None:
        pytest.skip("no block device is to be seen here")
    link = tmp_path / "link"
    link.symlink_to(device)
    for path in (device, link):
        with pytest.raises(UsageError, match=r"is a block device and .*: give a folder on it"):
            storage.asked([str(path)])


def test_what_is_asked_is_looked_at_first(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").symlink_to("a")
    assert storage.asked([str(tmp_path / "a"), str(tmp_path / "b")]) == (str(tmp_path / "a"),)
    with pytest.raises(UsageError, match="no such file or directory: give a folder"):
        storage.asked([str(tmp_path / "c")])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        storage.asked([str(tmp_path / "pipe")])


def test_a_loop_of_devices_ends(make_root: MakeRoot) -> None:
    folder = draw(
        make_root,
        nvme(0),
        mapped("dm-0", "253:0", "LVM-x", ["dm-1"]),
        mapped("dm-1", "253:1", "LVM-y", ["dm-0"]),
        mountinfo("1 0 253:0 / / rw - ext4 /dev/x rw"),
    )
    (path,) = look(folder, "/").paths
    assert (path.kind, path.drives, len(path.layers)) == ("unknown", (), 2)


def test_two_drives_with_node_and_link_and_a_slow_link_is_a_finding(make_root: MakeRoot) -> None:
    folder = draw(make_root, nvme(0, node=0), nvme(1, node=1, rate="8.0"))
    found = host.read(folder)
    assert found.storage is not None
    first, second = found.storage.drives
    assert (first.kind, first.model, first.firmware) == ("nvme", "Micron_7450_MTFDKCC3T8TFR", "E2MU200")
    assert (first.bytes, first.logical_block_bytes, first.scheduler) == (3840755982336, 512, "none")
    assert (first.largest_io_bytes, first.rotational, first.controller) == (131072, False, "nvme0")
    assert (first.node, second.node) == (0, 1)
    assert first.link is not None and second.link is not None
    # The port above can do less than the drive.
    assert (first.link.best_gt_per_s, first.link.gt_per_s, first.link.width) == (16.0, 16.0, 4)
    assert second.link.bytes_per_s == pytest.approx(0.5 * (second.link.best_bytes_per_s or 0))
    (finding,) = [one for one in found.findings if one.code == "drive_link_below_best"]
    assert finding.observed == "nvme1n1 8 GT/s x4 of 16 GT/s x4"
    assert "SECRET" not in str(host.document(found))
    assert found.provenance["storage.drives.nvme0n1.health"].reason


def test_a_number_that_changes_at_boot_changes_no_id(make_root: MakeRoot, tmp_path: Path) -> None:
    folder = draw(make_root, nvme(3))
    before = look(folder).drives[0]
    other = Path(str(folder) + "2")
    moved = {
        name.replace("nvme3", "nvme7"): Link(c.replace("nvme3", "nvme7")) if isinstance(c, Link) else c
        for name, c in nvme(3).items()
    }
    type(make_root)(other)({n: c for n, c in moved.items() if not isinstance(c, Link)}, bare=True)
    for name, content in moved.items():
        if isinstance(content, Link):
            (other / name).parent.mkdir(parents=True, exist_ok=True)
            (other / name).symlink_to(content)
    after = look(other).drives[0]
    assert (before.name, after.name) == ("nvme3n1", "nvme7n1")
    assert before.id == after.id
