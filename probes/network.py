"""Bandwidth and latency between this machine and a peer that runs `k3gate net serve`.

Cases, in one group, so that a round takes all of them in turn:

    line, path          what lies between: the line rate of the slower end; the largest packet
    to_peer.sN          N streams to the peer; from_peer.sN from it; both.sN half of them each way at once
    latency.7k, .14k    a message there and back, one at a time: median and 99th percentile
    iperf3.*            iperf3 on the same path, where it is installed at both ends
    rdma.*              perftest, where both ends have verbs

Streams carry a pattern that the receiver knows, messages come back compared: a figure whose bytes were wrong is
withheld.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from k3gate import metrics
from k3gate.errors import NotPresentError, ProbeError
from k3gate.probes import network_plan
from k3gate.probing.contract import Applies, Context, Planned, Reason
from k3gate.records import Case, Inventory, Metric, MetricDeclaration, Profile, Proof, Scalar, State

MOST_TRIPS = 200_000
LEAST_TRIPS = 100
"""Fewer have no 99th percentile."""
WARM_UP_SHARE = 0.1
"""Of the trips of a round, the first, in which the connection warms up."""


class NetworkProbe:
    """The network. See the module's text for the cases."""

    name = "network"
    title = "Network: bandwidth and latency to another machine (--peer)"
    metrics: Sequence[MetricDeclaration] = (
        metrics.NETWORK_RATE,
        metrics.NETWORK_SHARE,
        metrics.NETWORK_LINE,
        metrics.NETWORK_MTU,
        metrics.NETWORK_TRIP,
        metrics.NETWORK_TRIP_99,
        metrics.NETWORK_CPU,
        metrics.NETWORK_RESENT,
        metrics.NETWORK_IPERF3,
        metrics.NETWORK_RDMA,
        metrics.NETWORK_RDMA_LATENCY,
    )

    def applies(self, inventory: Inventory) -> Applies | Reason:
        """Everywhere; whether there is a peer stands in the profile."""
        return Applies()

    def cases(self, inventory: Inventory, profile: Profile) -> Planned:
        """None without a peer."""
        return network_plan.plan(self.name, profile)

    def run(self, case: Case, context: Context) -> Iterator[Metric]:
        """One round of a case. A peer that is gone fails it, and the rest of the round at once."""
        from k3gate.probes.network_protocol import PeerError

        line: _Line = context.share("peer", _Line, _Line.close)
        try:
            yield from _MEASURES[case.parameters["kind"]](case, context, line.session(case, context))
        except PeerError as error:
            line.lost = f"the peer {_address(case.parameters)} is gone or no k3gate net serve: {error}"
            raise ProbeError(line.lost) from error


class _Line:
    """The session of a round, opened by its first case. `lost`: why there is none any more."""

    def __init__(self) -> None:
        self.lost: str | None = None
        self._session: Any = None
        self._last = False

    def session(self, case: Case, context: Context) -> Any:
        from k3gate.probes.network_client import Session

        if self.lost is not None:
            raise ProbeError(self.lost)
        if self._session is None:
            context.heartbeat("greeting the peer")
            self._session = Session(str(case.parameters["host"]), int(case.parameters["port"]))
        self._last = self._last or context.round == case.rounds - 1
        return self._session

    def close(self) -> None:
        if self._session is not None:
            self._session.close(last=self._last)


def _address(parameters: Any) -> str:
    return f"{parameters['host']}:{parameters['port']}"


def _line(case: Case, context: Context, session: Any) -> Iterator[Metric]:
    here, there = session.here, session.there
    for end, whose in ((here, "this machine"), (there, "the peer")):
        if end.bytes_per_s is None:
            raise NotPresentError(
                f"interface {end.interface or 'unknown'} of {whose} tells no line rate, as virtual ones do not: "
                "measure over the adapter itself"
            )
    slower = min(here.bytes_per_s, there.bytes_per_s)
    yield context.metric(metrics.NETWORK_LINE, [context.sample(slower, 0.0)], {}, [_ends(session)])


def _path(case: Case, context: Context, session: Any) -> Iterator[Metric]:
    mtu, _ = session.path()
    if mtu is None:
        raise NotPresentError("the kernel does not tell the largest packet of a connection")
    yield context.metric(metrics.NETWORK_MTU, [context.sample(mtu, 0.0)], {}, [_ends(session)])


def _flow(case: Case, context: Context, session: Any) -> Iterator[Metric]:
    parameters = case.parameters
    to_peer, from_peer = int(parameters["to_peer"]), int(parameters["from_peer"])
    seconds = float(parameters["seconds"])
    beat = _beat(context, "streaming")
    own, peers = session.flow(to_peer, from_peer, float(parameters["warm_up"]), seconds, beat)
    labels: dict[str, Scalar] = {**case.labels, "together": bool(to_peer and from_peer)}
    several = case.labels["streams"] == network_plan.STREAMS and not labels["together"]
    for direction, wanted, receiver, sender in (
        ("to_peer", to_peer, peers, own),
        ("from_peer", from_peer, own, peers),
    ):
        if not wanted:
            continue
        mine = {**labels, "direction": direction}
        if receiver.errors or sender.errors:
            raise ProbeError(f"a stream ended early: {(*receiver.errors, *sender.errors)[0]}")
        proofs = [_checksum(receiver, sender), _ends(session)]
        if not receiver.complete:
            raise ProbeError(
                "a stream ended before the window that is measured: nothing came over it any more"
            )
        state, reason = _state(proofs)
        rate = receiver.window_bytes / seconds
        taken = [context.sample(rate, seconds)] if state is State.OK else []
        yield context.metric(metrics.NETWORK_RATE, taken, mine, proofs, state, reason)
        yield context.metric(metrics.NETWORK_RESENT, [context.sample(sender.retransmitted, 0.0)], mine)
        if several and None not in (session.here.bytes_per_s, session.there.bytes_per_s):
            yield _share(context, session, rate, mine, proofs)
    if not labels["together"]:
        for end, seen in (("here", own), ("peer", peers)):
            moved = (seen.sent_bytes + seen.received_bytes) / 1e9
            if moved:
                sample = context.sample(seen.cpu_seconds / moved, 0.0)
                yield context.metric(metrics.NETWORK_CPU, [sample], {**case.labels, "end": end})


def _share(
    context: Context, session: Any, rate: float, labels: dict[str, Scalar], proofs: Sequence[Proof]
) -> Metric:
    """The rate as a part of the slower end's line rate; a rate above it is a fault of one of the two."""
    share = rate / min(session.here.bytes_per_s, session.there.bytes_per_s)
    own = [*proofs, Proof("ceiling", share <= 1.0, f"{share:.3f} of the line rate that the slower end tells")]
    state, reason = _state(own)
    taken = [context.sample(share, 0.0)] if state is State.OK else []
    return context.metric(metrics.NETWORK_SHARE, taken, labels, own, state, reason)


def _trips(case: Case, context: Context, session: Any) -> Iterator[Metric]:
    size, seconds = int(case.parameters["bytes"]), float(case.parameters["seconds"])
    found = session.echoes(size, seconds, MOST_TRIPS, _beat(context, "sending messages"))
    trips = sorted(found.seconds[int(WARM_UP_SHARE * len(found.seconds)) :])
    if not trips:
        raise ProbeError(f"no message came back within {seconds:g} s")
    detail = f"{len(found.seconds)} messages came back, {found.wrong} of them other than they were sent"
    proofs = [Proof("checksum", not found.wrong, detail), _ends(session)]
    state, reason = _state(proofs)
    labels: dict[str, Scalar] = dict(case.labels)
    whole = sum(trips)
    sound = state is State.OK
    taken = [context.sample(trips[len(trips) // 2], whole)] if sound else []
    yield context.metric(metrics.NETWORK_TRIP, taken, labels, proofs, state, reason)
    if len(trips) < LEAST_TRIPS:
        reason = f"{len(trips)} messages have no 99th percentile: a longer profile sends more"
        yield context.metric(metrics.NETWORK_TRIP_99, [], labels, proofs, State.NOT_RUN, reason)
        return
    taken = [context.sample(trips[int(0.99 * len(trips))], 0.0)] if sound else []
    yield context.metric(metrics.NETWORK_TRIP_99, taken, labels, proofs, state, reason)


def _iperf3(case: Case, context: Context, session: Any) -> Iterator[Metric]:
    from k3gate.probes import network_tools as tools

    parameters = case.parameters
    reason = tools.absent("iperf3", "on this machine")
    if reason is not None:
        raise NotPresentError(reason)
    streams, seconds = int(parameters["streams"]), int(parameters["seconds"])
    beat = _beat(context, "iperf3 measures")
    with session.tool("iperf3") as port:
        if isinstance(port, str):
            raise NotPresentError(port)
        reverse = parameters["direction"] == "from_peer"
        line = tools.iperf3(session.address, port, streams, seconds, 1, reverse)
        try:
            found = tools.read_iperf3(tools.run(line, seconds + 20.0, beat))
        except tools.ToolError as error:
            raise ProbeError(f"iperf3: {error}") from error
    labels: dict[str, Scalar] = {**case.labels, "version": found.version}
    yield context.metric(
        metrics.NETWORK_IPERF3, [context.sample(found.bytes_per_s, found.seconds)], labels, [_ends(session)]
    )


def _rdma(case: Case, context: Context, session: Any) -> Iterator[Metric]:
    from k3gate.probes import network_tools as tools

    tool = str(case.parameters["tool"])
    here, there = session.here, session.there
    reason = (
        tools.verbs_absent(here.verbs, here.interface, "of this machine")
        or tools.verbs_absent(there.verbs, there.interface, "of the peer")
        or tools.absent(tool, "on this machine")
    )
    if reason is not None:
        raise NotPresentError(reason)
    with session.tool(tool) as port:
        if isinstance(port, str):
            raise NotPresentError(port)
        line = tools.perftest(tool, here.verbs, session.address, port)
        try:
            text = tools.run(line, 30.0, _beat(context, f"{tool} measures"))
            if tool == "ib_write_bw":
                value, declaration = tools.read_write_bw(text), metrics.NETWORK_RDMA
            else:
                value, declaration = tools.read_send_lat(text)[0], metrics.NETWORK_RDMA_LATENCY
        except tools.ToolError as error:
            raise ProbeError(f"{tool}: {error}") from error
    yield context.metric(declaration, [context.sample(value, 0.0)], dict(case.labels), [_ends(session)])


_MEASURES: dict[str, Callable[[Case, Context, Any], Iterator[Metric]]] = {
    "line": _line,
    "path": _path,
    "flow": _flow,
    "trips": _trips,
    "iperf3": _iperf3,
    "rdma": _rdma,
}


def _beat(context: Context, note: str) -> Callable[[], None]:
    return lambda: context.heartbeat(note)


def _checksum(receiver: Any, sender: Any) -> Proof:
    """That what arrived is what was sent: parts of the pattern compared, and all bytes counted at both ends."""
    told = f"{receiver.probes} places of the known pattern compared, {receiver.wrong} differ"
    if receiver.received_bytes != sender.sent_bytes:
        told += f"; {sender.sent_bytes} bytes were sent and {receiver.received_bytes} arrived"
        return Proof("checksum", False, told)
    return Proof("checksum", not receiver.wrong and receiver.probes > 0, told)


def _ends(session: Any) -> Proof:
    """Both ends of the path, in words; seen, and nothing that can be wrong."""
    mtu, trip = session.path()
    tail = f"; largest packet {mtu} bytes" if mtu else ""
    control = session.congestion()
    tail += f", congestion control {control}" if control else ""
    tail += f", round trip {trip * 1e6:.0f} us by the kernel" if trip else ""
    return Proof("path", True, f"from {session.here.words()} to {session.there.words()}{tail}")


def _state(proofs: Sequence[Proof]) -> tuple[State, str | None]:
    wrong = next((proof for proof in proofs if proof.ok is False), None)
    return (State.OK, None) if wrong is None else (State.FAILED, f"withheld: {wrong.name}: {wrong.detail}")
