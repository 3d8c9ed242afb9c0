"""The PCIe link of a device, and what it could be at best, from sysfs."""

from __future__ import annotations

import re

from k3gate import links
from k3gate.host import parsing
from k3gate.host.files import Root
from k3gate.host.pci_config import End
from k3gate.records import PcieLink

DEVICES = "sys/bus/pci/devices"
ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_SPEED = re.compile(r"(\d{1,3}(?:\.\d)?) GT/s.*", re.ASCII | re.DOTALL)
_WIDEST = 32


def address_in(path: str | None) -> str | None:
    """The address of the PCI device on whose path below sys/devices this one lies; None where there is none."""
    found = [part for part in (path or "").split("/") if ADDRESS.fullmatch(part)]
    return found[-1] if found else None


def link(root: Root, path: str) -> PcieLink | None:
    """The link of the device whose folder, without links in it, is `path` or lies above it. None: not on PCI."""
    address = address_in(path)
    if address is None:
        return None
    folder = path[: path.rindex(address) + len(address)]
    rate, width = _speed(root, f"{folder}/current_link_speed"), _width(root, f"{folder}/current_link_width")
    above = folder.rpartition("/")[0]
    port = above.rpartition("/")[2] if ADDRESS.fullmatch(above.rpartition("/")[2]) else None
    at_device = _speed(root, f"{folder}/max_link_speed"), _width(root, f"{folder}/max_link_width")
    at_port = (
        (None, None)
        if port is None
        else (_speed(root, f"{above}/max_link_speed"), _width(root, f"{above}/max_link_width"))
    )
    return made(address, (rate, width), at_device, port, at_port)


def made(
    address: str, now: End, device: End, port: str | None = None, at_port: End = (None, None)
) -> PcieLink:
    """The record of a link from what it does now and what both ends can."""
    best_rate = min((rate for rate, _ in (device, at_port) if rate is not None), default=None)
    best_width = min((width for _, width in (device, at_port) if width is not None), default=None)
    return PcieLink(
        address,
        *now,
        best_rate,
        best_width,
        links.bytes_per_s(*now),
        links.bytes_per_s(best_rate, best_width),
        *device,
        port,
        *at_port,
    )


def node(root: Root, path: str) -> int | None:
    """The NUMA node of a device by its folder; None where the firmware does not tell, which the kernel writes -1."""
    address = address_in(path)
    if address is None:
        return number(root, f"{path}/numa_node")
    return number(root, f"{path[: path.rindex(address) + len(address)]}/numa_node")


def number(root: Root, path: str, high: int = 2**53) -> int | None:
    """A whole number from 0 on in a small file; None where there is none."""
    try:
        return parsing.integer(root.line(path) or "", 0, high)
    except ValueError:
        return None


def _speed(root: Root, path: str) -> float | None:
    match = _SPEED.fullmatch(root.line(path) or "")
    return float(match[1]) if match and float(match[1]) > 0 else None


def _width(root: Root, path: str) -> int | None:
    # 0 and 255 stand for a link that is down, or that a guest is not shown.
    found = number(root, path, _WIDEST)
    return found or None
