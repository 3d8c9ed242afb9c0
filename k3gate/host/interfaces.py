"""A network interface as sysfs tells of it: what a path to another machine goes through. No MAC address is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from attrs import frozen

from k3gate.host import pcie
from k3gate.host.files import Root
from k3gate.host.parsing import integer
from k3gate.records import PcieLink

FOLDER = "sys/class/net"
VERBS = "sys/class/infiniband"
_LOOPBACK = "772"
"""ARPHRD_LOOPBACK of if_arp.h."""


@frozen
class Interface:
    """An interface. `kind`: device, loopback, virtual, or made of others (bond, bridge, vlan), which `on` names.

    `bytes_per_s`: its line rate in one direction; None: it tells none, as virtual ones do. `node`: of the adapter, or
    that of all below it where they agree. `verbs`: the RDMA device of the same adapter.
    """

    name: str
    kind: str
    state: str | None = None
    mtu: int | None = None
    bytes_per_s: float | None = None
    driver: str | None = None
    node: int | None = None
    link: PcieLink | None = None
    on: tuple[str, ...] = ()
    verbs: str | None = None


def read(root: Root, name: str) -> Interface | None:
    """The interface of this name; None where there is none."""
    folder = f"{FOLDER}/{name}"
    if "/" in name or not root.exists(folder):
        return None
    on = tuple(one.removeprefix("lower_") for one in root.names(folder) if one.startswith("lower_"))
    below = [_adapter(root, one) for one in (on or (name,))]
    nodes = {node for _, node, _ in below}
    drivers = {driver for driver, _, _ in below if driver}
    return Interface(
        name,
        kind=_kind(root, folder, bool(on)),
        state=_state(root.line(f"{folder}/operstate")),
        mtu=whole(root.line(f"{folder}/mtu")),
        bytes_per_s=line_rate(root.line(f"{folder}/speed")),
        driver=", ".join(sorted(drivers)) or None,
        node=nodes.pop() if len(nodes) == 1 else None,
        link=below[0][2] if len(below) == 1 else None,
        on=on,
        verbs=_verbs(root, on or (name,)),
    )


def of_address(address: str, addresses: Mapping[str, Iterable[Any]] | None = None) -> str | None:
    """The name of the interface that has this address. `addresses`: as psutil.net_if_addrs() gives them."""
    if addresses is None:
        import psutil

        addresses = psutil.net_if_addrs()
    wanted = plain(address)
    for name, own in addresses.items():
        if any(plain(str(one.address)) == wanted for one in own):
            return name
    return None


def plain(address: str) -> str:
    """An address without its zone and without the prefix by which IPv6 writes one of IPv4."""
    return address.partition("%")[0].lower().removeprefix("::ffff:")


def _adapter(root: Root, name: str) -> tuple[str | None, int | None, PcieLink | None]:
    """Driver, node and link of the device behind an interface."""
    folder = root.real(f"{FOLDER}/{name}/device")
    if folder is None or not root.exists(folder):
        return None, None, None
    driver = root.real(f"{folder}/driver")
    return (driver or "").rpartition("/")[2] or None, pcie.node(root, folder), pcie.link(root, folder)


def _kind(root: Root, folder: str, made_of_others: bool) -> str:
    if root.line(f"{folder}/type") == _LOOPBACK:
        return "loopback"
    for kind, sign in (("bond", "bonding"), ("bridge", "bridge")):
        if root.exists(f"{folder}/{sign}"):
            return kind
    if made_of_others:
        return "vlan"
    return "device" if root.exists(f"{folder}/device") else "virtual"


def whole(text: str | None) -> int | None:
    """A number above 0; None where the file has none."""
    try:
        return integer(text or "", 1, 2**31)
    except ValueError:
        return None


def _state(text: str | None) -> str | None:
    return text if text and text != "unknown" else None


def line_rate(text: str | None) -> float | None:
    """B/s of a file in Mbit/s, which says -1, or 2^32 - 1, where nothing is known."""
    found = whole(text)
    return found * 1e6 / 8 if found is not None and found < 10_000_000 else None


def _verbs(root: Root, names: Iterable[str]) -> str | None:
    """The RDMA device whose PCI device is that of one of these interfaces."""
    own = {root.real(f"{FOLDER}/{name}/device") for name in names} - {None}
    for verbs in root.names(VERBS):
        device = root.real(f"{VERBS}/{verbs}/device")
        if device in own and device is not None and root.exists(device):
            return verbs
    return None
