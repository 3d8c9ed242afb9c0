"""The PCI tree from sysfs: every function, what it is, where it hangs, its link, and what stands in its slot."""

from __future__ import annotations

import re
from collections.abc import Iterable

from attrs import evolve

from k3gate.host import counters, cpulist, parsing, pci_config, pci_ids, pcie
from k3gate.host.files import Root
from k3gate.host.notes import Notes
from k3gate.records import ExpansionSlot, Numa, PciDevice, PcieLink

_MOST = 8192
_HEX = re.compile(r"0x([0-9a-f]{1,8})", re.ASCII)
_KINDS = (
    ("0300", "display"),
    ("03", "gpu"),
    ("0108", "nvme"),
    ("01", "storage"),
    ("0207", "infiniband"),
    ("02", "network"),
    ("12", "accelerator"),
    ("0b40", "accelerator"),
    ("0604", "bridge"),
    ("0502", "memory"),
)
_NVIDIA, _AMD = 0x10DE, 0x1002
_GPU_DRIVERS = ("nvidia", "amdgpu", "nouveau", "xe")


def read(
    root: Root, notes: Notes, numa: Numa, slots: tuple[ExpansionSlot, ...] | None
) -> tuple[PciDevice, ...] | None:
    """All functions in the order of their addresses; None where the files of a machine do not tell of PCI."""
    addresses = [name for name in root.names(pcie.DEVICES) if pcie.ADDRESS.fullmatch(name)][:_MOST]
    if not addresses and not root.folder(pcie.DEVICES):
        notes.absent(
            "pci", pcie.DEVICES, "absent: the kernel shows no PCI devices, as in WSL or without a PCI bus"
        )
        return None
    found = [_device(root, address, numa) for address in addresses]
    names, named = pci_ids.read(root, ids(found))
    notes.seen("pci", f"{pcie.DEVICES}/*" + ("; pci.ids" if named else ""))
    if not named and found:
        notes.absent(
            "pci.names", pci_ids.PATHS[0], "absent: without pci.ids devices have numbers and no names"
        )
    placed = _slots(found, slots or ())
    return tuple(
        evolve(
            one,
            vendor=names.get((one.vendor_id or 0, None)),
            device=names.get((one.vendor_id or 0, one.device_id)),
            slot=placed.get(one.address),
        )
        for one in found
    )


def ids(devices: Iterable[PciDevice]) -> frozenset[tuple[int, int]]:
    """(vendor, device) of each."""
    return frozenset(
        (one.vendor_id, one.device_id)
        for one in devices
        if one.vendor_id is not None and one.device_id is not None
    )


def node_of(root: Root, folder: str, numa: Numa) -> tuple[int | None, str | None]:
    """The NUMA node of a device, and what told it: its own file, else its CPUs where they are a part of the machine's.

    The firmware of many boards tells no node, which the kernel writes -1. A machine of one node needs none.
    """
    told = pcie.number(root, f"{folder}/numa_node")
    if told is not None:
        return told, "numa_node"
    if len(numa.nodes) == 1:
        return numa.nodes[0].id, "the only node"
    try:
        cpus = set(cpulist.parse(root.line(f"{folder}/local_cpulist") or ""))
    except ValueError:
        return None, None
    near = [node.id for node in numa.nodes if cpus & set(node.cpus)]
    return (near[0], "local_cpulist") if len(near) == 1 else (None, None)


def _device(root: Root, address: str, numa: Numa) -> PciDevice:
    folder = root.real(f"{pcie.DEVICES}/{address}") or f"{pcie.DEVICES}/{address}"
    code, vendor = _number(root, f"{folder}/class"), _number(root, f"{folder}/vendor")
    driver = (root.real(f"{folder}/driver") or "").rpartition("/")[2]
    driver = driver if root.exists(f"{folder}/driver") and re.fullmatch(r"[\w-]{1,40}", driver) else ""
    kind = _kind(code, vendor, driver)
    above = tuple(part for part in folder.split("/")[:-1] if pcie.ADDRESS.fullmatch(part))
    config = _config(root, folder)
    node, source = node_of(root, folder, numa)
    physical = (root.real(f"{folder}/physfn") or "").rpartition("/")[2]
    return PciDevice(
        address=address,
        kind=kind,
        class_code=code,
        vendor_id=vendor,
        device_id=_number(root, f"{folder}/device"),
        driver=driver or None,
        node=node,
        node_source=source,
        link=_link(root, folder, address, config),
        above=above,
        port=config.port,
        virtual_of=physical if pcie.ADDRESS.fullmatch(physical) and root.exists(f"{folder}/physfn") else None,
        redirects=config.redirects if kind == "bridge" else None,
        iommu=_group_type(root, folder),
        bar_bytes=_largest_bar(root, folder) if kind in ("gpu", "display", "accelerator") else None,
        corrected=_errors(root, folder, "aer_dev_correctable"),
        uncorrected=_sum(_errors(root, folder, "aer_dev_nonfatal"), _errors(root, folder, "aer_dev_fatal")),
    )


def _group_type(root: Root, folder: str) -> str | None:
    """How the IOMMU treats the addresses of a device; None where there is none, or it is not told."""
    text = root.line(f"{folder}/iommu_group/type") or ""
    return text if text in ("identity", "DMA", "DMA-FQ") else None


def _kind(code: int | None, vendor: int | None, driver: str) -> str:
    if code is None:
        return "other"
    text = f"{code:06x}"
    kind = next((kind for start, kind in _KINDS if text.startswith(start)), "other")
    # A VGA controller is a GPU where its driver or its maker says so, and else a server's console.
    if kind == "display" and (driver in _GPU_DRIVERS or vendor in (None, _NVIDIA, _AMD)):
        return "gpu"
    if kind == "accelerator" and driver in _GPU_DRIVERS:
        return "gpu"
    return kind


def _link(root: Root, folder: str, address: str, config: pci_config.Config) -> PcieLink | None:
    """By the kernel's files, else by the configuration space, which old kernels do not interpret."""
    found = pcie.link(root, folder)
    if found is not None and (found.gt_per_s or found.width or found.best_width):
        return found
    if config.best == (None, None):
        return None
    port = above if pcie.ADDRESS.fullmatch(above := folder.split("/")[-2]) else None
    at_port = _config(root, folder.rpartition("/")[0]).best if port else (None, None)
    return pcie.made(address, config.link, config.best, port, at_port)


def _config(root: Root, folder: str) -> pci_config.Config:
    try:
        return pci_config.parse(root.raw(f"{folder}/config", pci_config.BYTES, head=True))
    except (OSError, ValueError):
        return pci_config.Config()


def _number(root: Root, path: str) -> int | None:
    match = _HEX.fullmatch(root.line(path) or "")
    return int(match[1], 16) if match else None


def _largest_bar(root: Root, folder: str) -> int | None:
    """The largest window of the device's memory in the machine's addresses; None where none is told."""
    sizes = []
    for line in (root.line(f"{folder}/resource") or "").splitlines()[:6]:
        ends = [match[1] for word in line.split()[:2] if (match := re.fullmatch(r"0x([0-9a-f]{1,16})", word))]
        if len(ends) == 2 and int(ends[1], 16) > int(ends[0], 16):
            sizes.append(int(ends[1], 16) - int(ends[0], 16) + 1)
    return max(sizes, default=None)


def _errors(root: Root, folder: str, name: str) -> int | None:
    return counters.total(root.line(f"{folder}/{name}"), counters.AER_TOTALS[name])


def _sum(*values: int | None) -> int | None:
    return None if None in values else sum(value for value in values if value is not None)


def _slots(devices: Iterable[PciDevice], slots: Iterable[ExpansionSlot]) -> dict[str, str]:
    """The name of the slot of each device: the table tells the address of what is in it, or of the port above."""
    named = {
        slot.address.lower().rpartition(".")[0]: name
        for slot in slots
        if slot.address and slot.in_use is not False and (name := parsing.words(slot.designation))
    }
    found = {}
    for one in devices:
        places = [one.address, *one.above[-1:]] if one.kind != "bridge" else [one.address]
        name = next((named[at] for place in places if (at := place.rpartition(".")[0]) in named), None)
        if name is not None:
            found[one.address] = name
    return found
