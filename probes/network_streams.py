"""Streams and messages over connected sockets, timed by native loops: what both ends of the network probe do.

A rate is taken where the bytes arrive: what came in a window of the receiver's own clock, divided by its length. The
window begins when connections are warm, and senders go on past its end.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen

from k3gate.probes import _native
from k3gate.probes.network_protocol import TAIL_SECONDS, PeerError

_TCP_INFO_BYTES = 104
_PATH_MTU, _ROUND_TRIP_US, _RETRANSMITTED = 60, 68, 100
"""Offsets in struct tcp_info of linux/tcp.h: tcpi_pmtu, tcpi_rtt, tcpi_total_retrans."""


@frozen
class Flow:
    """What one end saw of its streams. `window_bytes`: what arrived in the window; `complete`: no stream ended in it.

    `probes` of the pattern were compared and `wrong` differed; `errors`: of streams that ended early, in words.
    """

    sent_bytes: int = 0
    received_bytes: int = 0
    window_bytes: int = 0
    probes: int = 0
    wrong: int = 0
    complete: bool = True
    cpu_seconds: float = 0.0
    retransmitted: int = 0
    errors: tuple[str, ...] = ()


def flow(
    taken: Mapping[int, socket.socket],
    given: Mapping[int, socket.socket],
    seed: int,
    warm_up: float,
    seconds: float,
    beat: Callable[[], None] = lambda: None,
) -> Flow:
    """Receive on the sockets `taken` and send on `given`, all at once, each stream in a thread of its own.

    `beat` is called twice a second meanwhile.
    """
    received: dict[int, _native.NetworkReceived] = {}
    sent: dict[int, _native.NetworkSent] = {}
    begun = _native.network_now()

    def take(number: int, descriptor: int) -> None:
        received[number] = _native.network_receive(descriptor, seed ^ number, begun, warm_up, seconds)

    def give(number: int, descriptor: int) -> None:
        sent[number] = _native.network_send(descriptor, seed ^ number, warm_up + seconds + TAIL_SECONDS)

    threads = [
        threading.Thread(target=work, args=(number, one.fileno()), daemon=True)
        for work, sockets in ((take, taken), (give, given))
        for number, one in sockets.items()
    ]
    together(threads, beat)
    end = begun + warm_up + seconds
    ends: list[_native.NetworkReceived | _native.NetworkSent] = [*received.values(), *sent.values()]
    failures = [words_of(one.error) for one in ends if one.error]
    return Flow(
        sent_bytes=sum(one.bytes for one in sent.values()),
        received_bytes=sum(one.bytes for one in received.values()),
        window_bytes=sum(one.window_bytes for one in received.values()),
        probes=sum(one.probes for one in received.values()),
        wrong=sum(one.wrong for one in received.values()),
        complete=all(one.last >= end for one in received.values()),
        cpu_seconds=sum(one.cpu_seconds for one in ends),
        retransmitted=sum(tcp_info(one)[2] or 0 for one in given.values()),
        errors=tuple(dict.fromkeys(failures)),
    )


def together(threads: Sequence[threading.Thread], beat: Callable[[], None]) -> None:
    """Start all, and wait for all; the native loops end by themselves where nothing moves."""
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.5)
            beat()


def words_of(number: int) -> str:
    """An errno of a stream, in words."""
    if number in (errno.EAGAIN, errno.ETIMEDOUT):
        return "nothing moved any more"
    return os.strerror(number).lower()


def tcp_info(connection: socket.socket) -> tuple[int | None, float | None, int | None]:
    """(largest packet of the path, smoothed round trip in s, segments sent again), as the kernel has them."""
    try:
        raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return None, None, None
    if len(raw) < _TCP_INFO_BYTES:
        return None, None, None
    mtu, trip, again = (
        struct.unpack_from("=I", raw, at)[0] for at in (_PATH_MTU, _ROUND_TRIP_US, _RETRANSMITTED)
    )
    return mtu or None, trip * 1e-6 or None, again


def document(seen: Flow) -> dict[str, Any]:
    """A flow as the server tells of it."""
    return {
        "sent_bytes": seen.sent_bytes,
        "received_bytes": seen.received_bytes,
        "window_bytes": seen.window_bytes,
        "probes": seen.probes,
        "wrong": seen.wrong,
        "complete": seen.complete,
        "cpu_seconds": seen.cpu_seconds,
        "retransmitted": seen.retransmitted,
        "errors": list(seen.errors)[:4],
    }


def structure(message: dict[str, Any]) -> Flow:
    """The flow that a server told of; raises `PeerError` for what is none."""
    from k3gate.documents import printable
    from k3gate.probes.network_protocol import number, whole

    most = 2**62
    errors = message.get("errors")
    if not isinstance(errors, list) or type(message.get("complete")) is not bool:
        raise PeerError("it does not speak this protocol")
    return Flow(
        **{
            key: whole(message, key, 0, most)
            for key in (
                "sent_bytes",
                "received_bytes",
                "window_bytes",
                "probes",
                "wrong",
                "retransmitted",
            )
        },
        complete=bool(message["complete"]),
        cpu_seconds=number(message, "cpu_seconds", 0, 1e6),
        errors=tuple(printable(str(one))[:100] for one in errors[:4]),
    )
