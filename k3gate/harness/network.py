"""The two ends of a measured network: the peer that a run names, and the service that answers another machine's run."""

from __future__ import annotations

import ipaddress
import re
import threading
from collections.abc import Callable, Sequence

from k3gate.documents import printable
from k3gate.errors import UsageError
from k3gate.probes.network_protocol import PORT
from k3gate.records import NetworkPeer

PROBE = "network"
"""Which measures it."""
_WITH_PORT = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^:\[\]]+))(?::(\d{1,5}))?", re.ASCII)


def peer(text: str | None, probes: Sequence[str] | None) -> NetworkPeer | None:
    """The peer that HOST, HOST:PORT, [ADDRESS]:PORT or a bare IPv6 address names, once it has answered.

    Raises `UsageError` where it does not, or where the probes that are to run measure no network.
    """
    if text is None:
        return None
    if probes and PROBE not in probes:
        raise UsageError(
            f"--peer is measured by the probe {PROBE}, which --probe leaves out: add --probe {PROBE}"
        )
    found = named(text)
    _greet(found)
    return found


def named(text: str) -> NetworkPeer:
    """Host and port of a text. Raises `UsageError`."""
    try:
        bare = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        match = _WITH_PORT.fullmatch(text)
        if match is None or not text.isprintable() or not 0 < int(match[3] or PORT) < 65536:
            shown = printable(text[:80])
            raise UsageError(
                f"--peer '{shown}' names no peer: write HOST, HOST:PORT or [IPV6-ADDRESS]:PORT"
            ) from None
        return NetworkPeer(match[1] or match[2], int(match[3] or PORT))
    return NetworkPeer(str(bare) if "%" not in text else text, PORT)


def _greet(one: NetworkPeer) -> None:
    """Raise `UsageError` unless a k3gate answers there."""
    from k3gate.probes.network_client import Session
    from k3gate.probes.network_protocol import PeerError

    def greet() -> None:
        try:
            # In a thread of its own, which is held to the adapter's CPUs and takes nobody with it.
            Session(one.host, one.port).close()
        except PeerError as error:
            failed.append(str(error))

    failed: list[str] = []
    thread = threading.Thread(target=greet, daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise UsageError(
            f"no k3gate net serve answers at {one.host}, port {one.port} ({failed[0]}): start it there, and let this "
            "port and others through a firewall between the two"
        )


def serve(
    bind: str | None, port: int, *, once: bool, tell: Callable[[str], None], ready: Callable[[str, int], None]
) -> None:
    """Answer runs of other machines until interrupted, or with `once` until one has ended.

    `ready` is given the address and port as soon as it listens. Raises `UsageError` where it cannot.
    """
    import psutil

    from k3gate.probes import network_server

    own = [str(one.address) for some in psutil.net_if_addrs().values() for one in some]
    listener = network_server.listen(bind, port, own)
    address = listener.getsockname()
    ready(bind or "all addresses", int(address[1]))
    network_server.Service(listener, tell, once=once).run()
