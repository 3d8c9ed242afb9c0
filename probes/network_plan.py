"""The cases of the network probe: pure, from the profile alone.

What a decode over several machines sends is small and often (a token's row of the trunk, 7,168 numbers, after each
layer), what a load or a prefill sends is large; so that both are measured, and what both directions take from each
other.
"""

from __future__ import annotations

from attrs import frozen

from k3gate.probing.contract import Planned
from k3gate.records import Case, LeftOut, NetworkPeer, Profile, Scalar

STREAMS = 8
"""One stream reaches what a core can move, some tens of Gbit/s; eight fill 400 Gbit/s."""
ROW_BYTES = (7 << 10, 14 << 10)
"""A token's row of 7,168 numbers in 8 and in 16 bits."""
GROUP = "peer"
WITHOUT = "no peer was named: run `k3gate net serve` on the other machine and `k3gate run --peer HOST` here"
_SECONDS = ((60.0, 0.2, 0.4), (600.0, 0.3, 0.7), (float("inf"), 1.0, 4.0))
"""Profiles up to so many seconds: what warms a connection up, and what is then timed."""
_ENDS = 1.0
"""Opening streams, what goes on past the window, and closing."""
_MOST_WAIT = 45.0


@frozen
class _Kind:
    name: str
    title: str
    parameters: dict[str, Scalar]
    labels: dict[str, Scalar]
    seconds: float


def plan(probe: str, profile: Profile) -> Planned:
    """The cases, most important first; without a peer none, and why."""
    if profile.peer is None:
        return Planned((), (LeftOut(probe, "all", WITHOUT),))
    warm_up, timed = next((warm, timed) for most, warm, timed in _SECONDS if profile.seconds <= most)
    return Planned(
        tuple(_case(probe, profile.peer, kind, warm_up) for kind in _kinds(warm_up, timed)),
    )


def _case(probe: str, peer: NetworkPeer, kind: _Kind, warm_up: float) -> Case:
    return Case(
        probe=probe,
        name=kind.name,
        title=kind.title,
        group=GROUP,
        parameters={"host": peer.host, "port": peer.port, "warm_up": warm_up, **kind.parameters},
        seconds=kind.seconds,
        bytes=64 << 20,
        setup_seconds=min(kind.seconds, warm_up + _ENDS) / 2,
        time_limit_s=max(_MOST_WAIT, 4 * kind.seconds),
        labels=kind.labels,
    )


def _kinds(warm_up: float, timed: float) -> list[_Kind]:
    whole = warm_up + timed + _ENDS
    found = [_Kind("line", "the line rate of the slower of both ends", {"kind": "line"}, {}, 0.1)]
    found.append(_Kind("path", "the largest packet of the path to the peer", {"kind": "path"}, {}, 0.1))
    found += [_flow("to_peer", STREAMS, 0, whole, timed), _flow("from_peer", 0, STREAMS, whole, timed)]
    found += [_trips(ROW_BYTES[0], whole, timed), _trips(ROW_BYTES[1], whole, timed)]
    found += [_flow("to_peer", 1, 0, whole, timed), _flow("from_peer", 0, 1, whole, timed)]
    found.append(_flow("both", STREAMS // 2, STREAMS // 2, whole, timed))
    # iperf3 counts in whole seconds.
    seconds = max(1, round(timed))
    for direction in ("to_peer", "from_peer"):
        found.append(
            _Kind(
                f"iperf3.{direction}",
                f"iperf3, {STREAMS} streams {_WORDS[direction]}",
                {"kind": "iperf3", "direction": direction, "streams": STREAMS, "seconds": seconds},
                {"direction": direction, "streams": STREAMS},
                seconds + 2.0,
            )
        )
    for tool, what in (("ib_write_bw", "RDMA writes to the peer"), ("ib_send_lat", "RDMA messages of 7 KiB")):
        found.append(_Kind(f"rdma.{tool[3:]}", f"perftest: {what}", {"kind": "rdma", "tool": tool}, {}, 2.0))
    return found


_WORDS = {"to_peer": "to the peer", "from_peer": "from the peer", "both": "both ways at once"}


def _flow(direction: str, to_peer: int, from_peer: int, whole: float, timed: float) -> _Kind:
    streams = to_peer + from_peer
    many = "one stream" if streams == 1 else f"{streams} streams"
    return _Kind(
        f"{direction}.s{streams}",
        f"{many} {_WORDS[direction]}",
        {"kind": "flow", "to_peer": to_peer, "from_peer": from_peer, "seconds": timed},
        {"streams": streams},
        whole,
    )


def _trips(size: int, whole: float, timed: float) -> _Kind:
    return _Kind(
        f"latency.{size >> 10}k",
        f"messages of {size >> 10} KiB to the peer and back, one at a time",
        {"kind": "trips", "bytes": size, "seconds": timed},
        {"message_bytes": size},
        whole,
    )
