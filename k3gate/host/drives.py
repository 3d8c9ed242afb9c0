"""The drives of a machine from sysfs: what each is, how it hangs on the machine, and what the kernel allows it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from k3gate.host import parsing, pcie, smart
from k3gate.host.files import Root, explain
from k3gate.host.notes import Notes
from k3gate.records import Drive, DriveHealth, PmemNamespace, State

CLASS = "sys/class/block"
_OLD_CLASS = "sys/block"
_NVME = "sys/class/nvme"
_ND = "sys/bus/nd/devices"
SECTOR = 512
_DRIVES = 4096
_LONGEST = 80
# Devices that are made of others, or of memory, and those without a medium of their own.
_NO_DRIVE = re.compile(r"(?:loop|ram|zram|dm-|md|bcache|zd|fd|sr|cdrom|mtdblock|ublkb)\w*", re.ASCII)
_NAMESPACE = re.compile(r"(nvme\d{1,5})n(\d{1,5})", re.ASCII)
_HIDDEN_PATH = re.compile(r"nvme\d{1,5}c\d{1,5}n\d{1,5}", re.ASCII)
_CONTROLLER = re.compile(r"nvme\d{1,5}", re.ASCII)
_PMEM_NAMESPACE = re.compile(r"namespace\d{1,5}\.\d{1,5}", re.ASCII)
_CHOSEN = re.compile(r"\[([a-z0-9_-]{1,30})\]", re.ASCII)
_KINDS = (
    (re.compile(r"pmem\d"), "pmem"),
    (re.compile(r"vd[a-z]"), "virtio"),
    (re.compile(r"xvd[a-z]"), "xen"),
    (re.compile(r"mmcblk\d"), "mmc"),
    (re.compile(r"(?:nbd|rbd|drbd)\d"), "network"),
)


def read(root: Root, notes: Notes) -> tuple[Drive, ...] | None:
    """All drives, in the order of their names; None where the files of a machine do not tell of block devices."""
    found = tuple(_all(root, notes))
    if not found and not any(root.exists(path) for path in (CLASS, _OLD_CLASS, _NVME)):
        notes.absent("storage.drives", CLASS)
        return None
    notes.seen("storage.drives", f"{CLASS}/*")
    return found


def folder_of(root: Root, name: str) -> str | None:
    """The folder of a block device, without links in it; None where there is no such device."""
    if "/" in name or not name or name.startswith("."):
        return None
    places = [f"{CLASS}/{name}", f"{_OLD_CLASS}/{name}"]
    namespace = _NAMESPACE.fullmatch(name)
    if namespace:
        places.append(f"{_NVME}/{namespace[1]}/{name}")
    return next((root.real(place) for place in places if root.folder(place)), None)


def is_drive(root: Root, name: str) -> bool:
    """Whether a block device is a drive: no partition, not made of others, with a medium."""
    if _NO_DRIVE.fullmatch(name) or _HIDDEN_PATH.fullmatch(name):
        return False
    folder = folder_of(root, name)
    if folder is None or root.exists(f"{folder}/partition") or root.line(f"{folder}/hidden") == "1":
        return False
    return not root.names(f"{folder}/slaves")


def _all(root: Root, notes: Notes) -> Iterator[Drive]:
    names = {*root.names(CLASS), *root.names(_OLD_CLASS)}
    for controller in root.names(_NVME):
        names |= {name for name in root.names(f"{_NVME}/{controller}") if _NAMESPACE.fullmatch(name)}
    count = 0
    for name in sorted(names, key=_natural):
        if count < _DRIVES and is_drive(root, name):
            drive = _drive(root, notes, name)
            if drive is not None:
                count += 1
                yield drive


def _natural(name: str) -> tuple[str, int, str]:
    match = re.match(r"(\D*)(\d{0,9})(.*)", name, re.DOTALL)
    assert match is not None
    return match[1], int(match[2] or 0), match[3]


def _drive(root: Root, notes: Notes, name: str) -> Drive | None:
    folder = folder_of(root, name)
    assert folder is not None
    sectors = pcie.number(root, f"{folder}/size")
    removable = _flag(root, f"{folder}/removable")
    if not sectors and (removable or sectors == 0):
        return None
    namespace = _NAMESPACE.fullmatch(name)
    hangs_on = _controller(root, folder) if namespace else None
    device = hangs_on or root.real(f"{folder}/device") or folder
    address = pcie.address_in(device)
    vendor = None if namespace else _words(root, f"{device}/vendor")
    kind = "nvme" if namespace else "sata" if vendor == "ATA" else _kind(name, device)
    controller = device.rpartition("/")[2] if hangs_on else None
    queue = f"{folder}/queue"
    kilobytes = pcie.number(root, f"{queue}/max_sectors_kb")
    at = address or (root.line(f"{device}/address") or "" if kind == "pmem" else "")
    within = (
        f"namespace {namespace[2]}" if namespace else name if kind != "sata" else device.rpartition("/")[2]
    )
    return Drive(
        id=f"{at} {within}".strip(),
        name=name,
        number=_number(root.line(f"{folder}/dev")),
        kind=kind,
        controller=controller,
        transport=_words(root, f"{device}/transport") if namespace else None,
        vendor=None if kind == "virtio" else vendor,
        model=_words(root, f"{device}/model"),
        firmware=_words(root, f"{device}/firmware_rev") if namespace else _words(root, f"{device}/rev"),
        bytes=None if sectors is None else sectors * SECTOR,
        node=pcie.node(root, device),
        link=pcie.link(root, device) if kind == "nvme" else None,
        rotational=_flag(root, f"{queue}/rotational"),
        removable=removable,
        read_only=_flag(root, f"{folder}/ro"),
        state=_words(root, f"{device}/state"),
        scheduler=_scheduler(root.line(f"{queue}/scheduler")),
        logical_block_bytes=pcie.number(root, f"{queue}/logical_block_size") or None,
        physical_block_bytes=pcie.number(root, f"{queue}/physical_block_size") or None,
        optimal_io_bytes=pcie.number(root, f"{queue}/optimal_io_size") or None,
        largest_io_bytes=None if kilobytes is None else kilobytes * 1024,
        discard_bytes=pcie.number(root, f"{queue}/discard_max_bytes"),
        requests=pcie.number(root, f"{queue}/nr_requests"),
        queues=len(root.names(f"{folder}/mq")) or None,
        write_cache=_words(root, f"{queue}/write_cache"),
        health=_health(root, notes, name, controller),
    )


def _controller(root: Root, folder: str) -> str | None:
    """The folder of the controller that serves a namespace; with native multipath, of the first live path."""
    above = folder.rpartition("/")[0]
    if _CONTROLLER.fullmatch(above.rpartition("/")[2]):
        return above
    names = [name for name in root.names(above) if _CONTROLLER.fullmatch(name)]
    paths = [real for name in names if (real := root.real(f"{above}/{name}"))]
    if not paths:
        # Before 3.19 the namespace lies below the PCI device itself.
        return root.real(f"{folder}/device")
    live = [path for path in paths if root.line(f"{path}/state") in ("live", None)]
    return (live or paths)[0]


def _kind(name: str, device: str) -> str:
    for pattern, kind in _KINDS:
        if pattern.match(name):
            return kind
    if not name.startswith("sd"):
        return "other"
    for part, kind in (
        (r"/usb\d", "usb"),
        (r"/ata\d", "sata"),
        (r"/end_device-", "sas"),
        (r"/virtio\d", "virtio"),
    ):
        if re.search(part, device):
            return kind
    return "scsi"


def _health(root: Root, notes: Notes, name: str, controller: str | None) -> DriveHealth | None:
    if controller is None or not _CONTROLLER.fullmatch(controller):
        return None
    field, source = f"storage.drives.{name}.health", f"SMART log of {controller}"
    try:
        found = smart.parse(root.smart_log(controller))
    except (OSError, ValueError) as error:
        state, reason = explain(error)
        if state is State.NOT_PERMITTED:
            reason = "not permitted; run as root to read the throttle counters and the wear of the drive"
        elif state is State.NOT_PRESENT:
            reason = "absent: the drive could not be asked"
        notes.unknown(field, state, source, reason)
        return None
    notes.seen(field, source)
    return found


def pmem(root: Root) -> tuple[PmemNamespace, ...]:
    """The namespaces of persistent memory that hold any bytes."""
    found = []
    for name in root.names(_ND):
        size = pcie.number(root, f"{_ND}/{name}/size") if _PMEM_NAMESPACE.fullmatch(name) else None
        if not size:
            continue
        base = f"{_ND}/{name}"
        real = root.real(base) or base
        device = next(iter(root.names(f"{base}/block")), None) or root.line(f"{base}/holder")
        found.append(
            PmemNamespace(
                id=name,
                mode=_words(root, f"{base}/mode"),
                bytes=size,
                node=pcie.number(root, f"{base}/numa_node"),
                device=device or None,
                region=next((part for part in real.split("/")[::-1] if part.startswith("region")), None),
            )
        )
    return tuple(found)


def _scheduler(text: str | None) -> str | None:
    match = _CHOSEN.search(text or "")
    return match[1] if match else parsing.words(text)


def _number(text: str | None) -> str | None:
    return text if text and re.fullmatch(r"\d{1,9}:\d{1,9}", text, re.ASCII) else None


def _flag(root: Root, path: str) -> bool | None:
    return {"0": False, "1": True}.get(root.line(path) or "")


def _words(root: Root, path: str) -> str | None:
    text = parsing.words(root.line(path))
    return text[:_LONGEST] if text else None
