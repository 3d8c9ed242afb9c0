"""What a path lies on: from its file system through partitions, RAID, volumes and encryption down to the drives.

Devices are found by their numbers through sysfs, never by a name below /dev, which a container may lack.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from attrs import evolve

from k3gate import mounts
from k3gate.documents import printable
from k3gate.errors import UsageError
from k3gate.host import drives, pcie
from k3gate.host.files import LARGE, Root
from k3gate.host.notes import Notes
from k3gate.mounts import Mount
from k3gate.records import BlockLayer, Drive, Storage, StoragePath
from k3gate.units import count

OPTION = "--storage"
MOUNTINFO = "proc/self/mountinfo"
_NUMBERS = "sys/dev/block"
_BTRFS = "sys/fs/btrfs"
_MEMORY = frozenset({"tmpfs", "ramfs", "hugetlbfs", "devtmpfs"})
_DEEPEST = 16
_MEMBERS = 4096
_PARTITION = re.compile(
    r"(nvme\d+n\d+|mmcblk\d+|pmem\d+|nbd\d+|loop\d+|md\d+)p\d+|((?:x?v|s)d[a-z]+)\d+", re.ASCII
)
_MAPPED = (
    ("LVM-", "lvm"),
    ("CRYPT-", "crypt"),
    ("mpath-", "multipath"),
    ("part", "partition"),
    ("DMRAID-", "raid"),
)
_NOUNS = {
    "lvm": "LVM",
    "crypt": "encryption",
    "multipath": "multipath",
    "loop": "a loop device",
    "bcache": "bcache",
    "mapped": "a mapped device",
    "raid": "firmware RAID",
    "linear": "a linear array",
}
_DRIVE_NOUNS = {"nvme": "NVMe", "sata": "SATA", "sas": "SAS", "pmem": "persistent memory", "scsi": "SCSI"}


def read(root: Root, notes: Notes, paths: Sequence[str] = ()) -> Storage | None:
    """The drives, the persistent memory, and what `paths` lie on; None where block devices are not told of."""
    found = drives.read(root, notes)
    if found is None:
        return None
    lying = tuple(of_path(root, path, found) for path in paths)
    for place in lying:
        if place.reason:
            notes.absent(f"storage.paths.{place.path}", MOUNTINFO, place.reason)
    return Storage(found, lying, drives.pmem(root))


def asked(paths: Iterable[str]) -> tuple[str, ...]:
    """The paths of `--storage` on this machine, absolute and without links, each once.

    `UsageError` for a block device, which is never opened and whose mounts are named, and for what is not there.
    """
    found: dict[str, None] = {}
    root = Root("/")
    for path in paths:
        if not path.isprintable():
            raise UsageError(
                f"{OPTION}: {path!r} holds characters that cannot be printed: rename it, or link to it"
            )
        real = os.path.realpath(path)
        try:
            mode = Path(real).stat().st_mode
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UsageError(
                f"{OPTION}: {path}: {reason}: give a folder, or a file of the checkpoint"
            ) from error
        if stat.S_ISBLK(mode):
            number = Path(real).stat().st_rdev
            points = mounted(root, f"{os.major(number)}:{os.minor(number)}")
            use = f"it is in use at {', '.join(points[:3])}" if points else "it holds what others wrote"
            raise UsageError(f"{OPTION}: {path} is a block device and {use}: give a folder on it")
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            raise UsageError(f"{OPTION}: {path} is neither a file nor a folder: give one of these")
        found[real] = None
    return tuple(found)


def of_path(root: Root, path: str, known: Sequence[Drive]) -> StoragePath:
    """What the absolute `path` lies on. Never raises: what cannot be told has its reason."""
    table = mounts.parse(root.read(MOUNTINFO, LARGE).text or "")
    mount = mounts.holding(path, table)
    if mount is None:
        reason = f"{MOUNTINFO} tells no mount that holds it"
        return StoragePath(path, "unknown", "unknown", reason=reason)
    place = _on_mount(root, path, mount, known)
    if root.live:
        try:
            room = os.statvfs(path)
        except OSError:
            return place
        place = evolve(
            place, total_bytes=room.f_blocks * room.f_frsize, free_bytes=room.f_bavail * room.f_frsize
        )
    return place


def mounted(root: Root, number: str) -> tuple[str, ...]:
    """Where a block device, or what is made of it, is mounted: "8:0" is in use by the file system on 253:2 above it."""
    stacks: dict[str, bool] = {}
    own = _name_of(root, number)
    points = []
    for mount in mounts.parse(root.read(MOUNTINFO, LARGE).text or ""):
        for lower in _numbers(root, mount):
            if lower not in stacks:
                layers, below, _ = stack(root, lower)
                names = {name for layer in layers for name in (layer.name, *layer.on)} | set(below)
                stacks[lower] = lower == number or own in names
            if stacks[lower]:
                points.append(mount.point)
    return tuple(dict.fromkeys(points))


def stack(root: Root, number: str) -> tuple[tuple[BlockLayer, ...], tuple[str, ...], str | None]:
    """The layers from the block device MAJOR:MINOR down, the names of the drives below, and what could not be told."""
    name = _name_of(root, number)
    if name is None:
        return (), (), f"{_NUMBERS}/{number} is not there"
    layers: dict[str, BlockLayer] = {}
    found: dict[str, None] = {}
    reason: str | None = None
    level = [name]
    for _ in range(_DEEPEST):
        below: list[str] = []
        for name in level[:_MEMBERS]:
            if name in layers or name in found:
                continue
            if drives.is_drive(root, name):
                found[name] = None
                continue
            layer = _layer(root, name)
            layers[name] = layer
            below += layer.on
            if not layer.on:
                reason = f"what lies below {name} is not told"
        level = below
    return tuple(layers.values()), tuple(found), reason


def _on_mount(root: Root, path: str, mount: Mount, known: Sequence[Drive]) -> StoragePath:
    kind, reason = "block", None
    layers: tuple[BlockLayer, ...] = ()
    below: tuple[str, ...] = ()
    numbers = _numbers(root, mount)
    if mount.file_system in _MEMORY:
        kind, reason = "memory", f"{mount.file_system} is memory and no storage"
    elif mounts.is_network(mount.file_system):
        kind, reason = "network", f"{mount.file_system} is served by another machine or by the host"
    elif mount.file_system == "zfs":
        kind, reason = "pool", "ZFS tells its drives to `zpool status` alone"
    elif mount.file_system == "overlay":
        kind, reason = (
            "unknown",
            "an overlay hides what it lies on: give a path on the machine's own file system",
        )
    elif not numbers:
        kind, reason = "unknown", f"the device of {mount.file_system} is not told"
    else:
        stacks = [stack(root, number) for number in numbers]
        layers = tuple({layer.name: layer for one in stacks for layer in one[0]}.values())
        below = tuple(dict.fromkeys(name for one in stacks for name in one[1]))
        reason = next((one[2] for one in stacks if one[2]), None)
        kind = "block" if below else "unknown"
    used = [drive for drive in known if drive.name in below]
    blocks = [layer.logical_block_bytes for layer in layers] + [drive.logical_block_bytes for drive in used]
    return StoragePath(
        path=path,
        kind=kind,
        summary=_summary(mount, layers, used, len(below))
        if kind == "block"
        else f"{mount.file_system} ({kind})",
        mount_point=mount.point,
        file_system=mount.file_system,
        number=mount.number,
        layers=layers,
        drives=below,
        encrypted=any(layer.kind == "crypt" for layer in layers),
        dax=any(option in ("dax", "dax=always") for option in mount.options),
        logical_block_bytes=max(filter(None, blocks), default=None),
        reason=reason,
    )


def _numbers(root: Root, mount: Mount) -> list[str]:
    """The numbers of the block devices of a mount: its own, or those of btrfs, whose own number is of no device."""
    if not mount.number.startswith("0:"):
        return [mount.number]
    name = mount.source.rpartition("/")[2] if mount.source.startswith("/dev/") else ""
    if mount.file_system not in ("btrfs", "bcachefs") or not name:
        return []
    if root.live:
        name = os.path.realpath(mount.source).rpartition("/")[2]
    for pool in root.names(_BTRFS):
        members = root.names(f"{_BTRFS}/{pool}/devices")
        if name in members:
            return [number for member in members if (number := _number_of(root, member))]
    own = _number_of(root, name)
    return [own] if own else []


def _number_of(root: Root, name: str) -> str | None:
    folder = drives.folder_of(root, name)
    return root.line(f"{folder}/dev") if folder else None


def _name_of(root: Root, number: str) -> str | None:
    """The kernel's name of the block device MAJOR:MINOR."""
    real = root.real(f"{_NUMBERS}/{number}") if re.fullmatch(r"\d{1,9}:\d{1,9}", number, re.ASCII) else None
    if real is not None and not real.startswith(_NUMBERS):
        return real.rpartition("/")[2]
    names = sorted({*root.names(drives.CLASS), *root.names("sys/block")})
    return next((name for name in names if _number_of(root, name) == number), number if real else None)


def _folder(root: Root, name: str) -> str:
    return drives.folder_of(root, name) or f"{_NUMBERS}/{name}"


def _layer(root: Root, name: str) -> BlockLayer:
    folder = _folder(root, name)
    on = tuple(root.names(f"{folder}/slaves")[:_MEMBERS])
    kind = _kind(root, name, folder)
    if kind == "partition" and not on:
        above = folder.rpartition("/")[0].rpartition("/")[2]
        match = _PARTITION.fullmatch(name)
        whole = (
            above
            if drives.folder_of(root, above)
            else next(filter(None, match.groups()), "")
            if match
            else ""
        )
        on = (whole,) if whole else ()
    sectors = pcie.number(root, f"{folder}/size")
    return BlockLayer(
        name=name,
        number=root.line(f"{folder}/dev"),
        kind=kind,
        on=on,
        bytes=None if sectors is None else sectors * drives.SECTOR,
        logical_block_bytes=pcie.number(root, f"{folder}/queue/logical_block_size"),
        chunk_bytes=pcie.number(root, f"{folder}/md/chunk_size") or None,
        degraded=pcie.number(root, f"{folder}/md/degraded"),
    )


def _kind(root: Root, name: str, folder: str) -> str:
    if root.exists(f"{folder}/partition") or _PARTITION.fullmatch(name):
        return "partition"
    level = root.line(f"{folder}/md/level")
    if level:
        return level if re.fullmatch(r"raid\d{1,2}|linear|container", level, re.ASCII) else "raid"
    uuid = root.line(f"{folder}/dm/uuid") or ""
    if root.exists(f"{folder}/dm"):
        return next((kind for start, kind in _MAPPED if uuid.startswith(start)), "mapped")
    if root.exists(f"{folder}/loop") or name.startswith("loop"):
        return "loop"
    return "bcache" if name.startswith("bcache") else "mapped"


def _summary(mount: Mount, layers: Sequence[BlockLayer], used: Sequence[Drive], number: int) -> str:
    """ "ext4 on LVM over 8 NVMe drives"."""
    kinds = dict.fromkeys(layer.kind for layer in layers if layer.kind != "partition")
    nouns = [_NOUNS.get(kind) or f"RAID {kind[4:]}" for kind in kinds]
    sorts = sorted({_DRIVE_NOUNS.get(drive.kind, "") for drive in used})
    noun = f"{sorts[0]} drive".strip() if len(sorts) == 1 else "drive"
    below = " over ".join([*nouns, count(number, noun)])
    return f"{printable(mount.file_system)} on {below}"
