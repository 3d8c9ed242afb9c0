"""Where a connection leaves this machine: its interface, in words and figures, and the CPUs next to its adapter."""

from __future__ import annotations

import os
import socket
from typing import Any

from attrs import frozen

from k3gate.probes.network_protocol import PeerError, number, short_text, whole
from k3gate.units import quantity


@frozen
class Place:
    """One end of a path. `bytes_per_s`: the line rate of the interface, None where it tells none.

    `node`: NUMA node of the adapter; `pinned`: whether the end's threads are held to that node's CPUs.
    """

    interface: str | None = None
    kind: str | None = None
    state: str | None = None
    driver: str | None = None
    mtu: int | None = None
    bytes_per_s: float | None = None
    node: int | None = None
    pinned: bool = False
    verbs: str | None = None

    def words(self) -> str:
        """For people: eth0 (mlx5_core, up, 12.5 GB/s, MTU 9000, node 0)."""
        rate = "no line rate told" if self.bytes_per_s is None else quantity(self.bytes_per_s, "B/s")
        parts = [self.driver or self.kind, self.state, rate]
        parts += [f"MTU {self.mtu}"] if self.mtu else []
        if self.node is not None:
            parts.append(f"node {self.node}{', its CPUs alone' if self.pinned else ''}")
        return f"{self.interface or 'unknown interface'} ({', '.join(part for part in parts if part)})"


def here(connection: socket.socket) -> Place:
    """This machine's end of a connection. The calling thread, and those that it starts, are held to the CPUs of the
    adapter's node from now on, where it is known and has any that may be used."""
    from k3gate.host import interfaces
    from k3gate.host.files import Root

    root = Root("/")
    name = interfaces.of_address(str(connection.getsockname()[0]))
    found = interfaces.read(root, name) if name is not None else None
    if found is None:
        return Place(interface=name)
    return Place(
        interface=found.name,
        kind=found.kind,
        state=found.state,
        driver=found.driver,
        mtu=found.mtu,
        bytes_per_s=found.bytes_per_s,
        node=found.node,
        pinned=_pinned(root, found.node),
        verbs=found.verbs,
    )


def _pinned(root: Any, node: int | None) -> bool:
    from k3gate.host.cpulist import parse

    if node is None:
        return False
    try:
        own = set(parse(root.line(f"sys/devices/system/node/node{node}/cpulist") or ""))
        os.sched_setaffinity(0, own & os.sched_getaffinity(0))
    except (ValueError, OSError):  # no such node, or none of its CPUs may be used
        return False
    return True


def document(place: Place) -> dict[str, Any]:
    """An end as a server tells of it."""
    return {
        "interface": place.interface,
        "kind": place.kind,
        "state": place.state,
        "driver": place.driver,
        "mtu": place.mtu,
        "bytes_per_s": place.bytes_per_s,
        "node": place.node,
        "pinned": place.pinned,
        "verbs": place.verbs,
    }


def structure(message: Any) -> Place:
    """The end that a server told of; raises `PeerError` for what is none."""
    if not isinstance(message, dict):
        raise PeerError("it does not speak this protocol")
    unknown = {key for key, value in message.items() if value is None}
    return Place(
        interface=short_text(message, "interface"),
        kind=short_text(message, "kind"),
        state=short_text(message, "state"),
        driver=short_text(message, "driver"),
        mtu=None if "mtu" in unknown else whole(message, "mtu", 1, 2**31),
        bytes_per_s=None if "bytes_per_s" in unknown else number(message, "bytes_per_s", 1, 1e14),
        node=None if "node" in unknown else whole(message, "node", 0, 2**16),
        pinned=message.get("pinned") is True,
        verbs=short_text(message, "verbs"),
    )
