"""Network adapters and the ports of RDMA devices, from sysfs. No MAC address and no GUID is read."""

from __future__ import annotations

import re
from collections.abc import Iterator

from k3gate.host import interfaces, pci, pcie
from k3gate.host.files import Root
from k3gate.host.interfaces import FOLDER, VERBS
from k3gate.host.notes import Notes
from k3gate.records import NetworkAdapter, Numa

_MOST = 1024
_KINDS = {"1": "ethernet", "32": "infiniband"}
"""ARPHRD_ETHER and ARPHRD_INFINIBAND of if_arp.h."""
_RATE = re.compile(r"(\d{1,4}(?:\.\d)?) Gb/sec.*", re.ASCII)
_STATE = re.compile(r"\d{1,2}: ([A-Z_]{1,20})", re.ASCII)
_DRIVERS_OF_GUESTS = ("virtio_net", "hv_netvsc", "vmxnet3", "xen_netfront", "ena", "gve")


def read(root: Root, notes: Notes, numa: Numa) -> tuple[NetworkAdapter, ...] | None:
    """All that belong to a device, then the ports of RDMA devices; None where no class of either is shown."""
    found = (*_interfaces(root, numa), *_ports(root, numa))
    if not found and not any(root.folder(path) for path in (FOLDER, VERBS)):
        notes.absent("network", FOLDER)
        return None
    notes.seen("network", f"{FOLDER}/*; {VERBS}/*/ports/*")
    return found[:_MOST]


def _interfaces(root: Root, numa: Numa) -> Iterator[NetworkAdapter]:
    verbs = {root.real(f"{VERBS}/{name}/device"): name for name in root.names(VERBS)}
    for name in root.names(FOLDER):
        folder = f"{FOLDER}/{name}"
        device = root.real(f"{folder}/device")
        if device is None or not root.exists(f"{folder}/device"):
            continue
        driver = _driver(root, device)
        kind = _KINDS.get(root.line(f"{folder}/type") or "", "other")
        if root.folder(f"{folder}/wireless") or root.exists(f"{folder}/phy80211"):
            kind = "wireless"
        elif driver in _DRIVERS_OF_GUESTS:
            kind = "virtual"
        yield NetworkAdapter(
            name=name,
            kind=kind,
            address=pcie.address_in(device),
            state=_word(root.line(f"{folder}/operstate")),
            mtu=interfaces.whole(root.line(f"{folder}/mtu")),
            bytes_per_s=interfaces.line_rate(root.line(f"{folder}/speed")),
            driver=driver,
            node=_node(root, device, numa),
            link=pcie.link(root, device),
            verbs=verbs.get(device),
        )


def _ports(root: Root, numa: Numa) -> Iterator[NetworkAdapter]:
    for name in root.names(VERBS):
        folder = f"{VERBS}/{name}"
        device = root.real(f"{folder}/device") if root.exists(f"{folder}/device") else None
        for port in root.names(f"{folder}/ports"):
            own = f"{folder}/ports/{port}"
            rate, state = (
                _RATE.fullmatch(root.line(f"{own}/rate") or ""),
                _STATE.fullmatch(root.line(f"{own}/state") or ""),
            )
            layer = (root.line(f"{own}/link_layer") or "").lower()
            up = state is not None and state[1] == "ACTIVE"
            yield NetworkAdapter(
                name=f"{name}/{port}",
                kind=layer if layer in ("infiniband", "ethernet") else "other",
                address=pcie.address_in(device),
                state=state[1].lower() if state else None,
                # Without a cable the file tells the slowest rate of all.
                bytes_per_s=float(rate[1]) * 1e9 / 8 if rate and up else None,
                driver=_driver(root, device) if device else None,
                node=_node(root, device, numa) if device else None,
                link=pcie.link(root, device) if device else None,
                verbs=name,
            )


def _node(root: Root, device: str, numa: Numa) -> int | None:
    address = pcie.address_in(device)
    folder = device if address is None else device[: device.rindex(address) + len(address)]
    return pci.node_of(root, folder, numa)[0]


def _driver(root: Root, device: str) -> str | None:
    name = (root.real(f"{device}/driver") or "").rpartition("/")[2]
    return _word(name) if root.exists(f"{device}/driver") else None


def _word(text: str | None) -> str | None:
    return text if text and re.fullmatch(r"[\w-]{1,40}", text, re.ASCII) else None
