"""The network probe over loopback, with a real server: what it measures; strangers, liars and peers that go away."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
from fakes import FakeContext

from k3gate.errors import NotPresentError, ProbeError, UsageError
from k3gate.probes import network_plan, network_protocol, network_server, network_tools
from k3gate.probes.network import NetworkProbe
from k3gate.probes.network_client import Session
from k3gate.probes.network_protocol import Lines, PeerError
from k3gate.probing import profiles
from k3gate.records import Case, Metric, NetworkPeer, State

HOST = "127.0.0.1"
WAIT_SECONDS = 20


class Serving:
    """A server in threads of this process, and what it told."""

    def __init__(self, once: bool = False) -> None:
        self.told: list[str] = []
        listener = network_server.listen(HOST, 0, [])
        self.port = int(listener.getsockname()[1])
        self.service = network_server.Service(listener, self.told.append, once=once)
        self.thread = threading.Thread(target=self.service.run, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.service.stop()
        self.thread.join(WAIT_SECONDS)


@pytest.fixture
def server() -> Iterator[Serving]:
    serving = Serving()
    yield serving
    serving.close()


def wait_for(what: Callable[[], object]) -> None:
    """Until it holds; a deadline ends the test, no figure depends on it."""
    until = time.monotonic() + WAIT_SECONDS
    while not what():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.01)


def case(name: str, port: int, **changes: object) -> Case:
    profile = profiles.load("smoke", peer=NetworkPeer(HOST, port))
    planned = next(one for one in network_plan.plan("network", profile).cases if one.name == name)
    quick = {"warm_up": 0.01, **({"seconds": 0.05} if "seconds" in planned.parameters else {})}
    return attrs.evolve(planned, parameters={**planned.parameters, **quick, **changes})


def run(make_inventory, *cases: Case) -> list[Metric]:
    context = FakeContext(make_inventory())
    try:
        return [metric for one in cases for metric in NetworkProbe().run(one, context)]
    finally:
        context.close()


def by_name(found: list[Metric], name: str) -> list[Metric]:
    return [metric for metric in found if metric.name == name]


# --- what is measured ---


def test_without_a_peer_nothing_is_measured_and_the_plan_says_what_would(make_inventory) -> None:
    planned = NetworkProbe().cases(make_inventory(), profiles.load("quick"))
    assert planned.cases == ()
    assert [one.case for one in planned.left_out] == ["all"]
    assert "k3gate net serve" in planned.left_out[0].reason and "--peer HOST" in planned.left_out[0].reason


def test_every_case_is_of_one_group_and_has_three_rounds(make_inventory) -> None:
    planned = NetworkProbe().cases(make_inventory(), profiles.load("quick", peer=NetworkPeer("box-b", 1234)))
    assert {one.group for one in planned.cases} == {"peer"}
    assert {one.rounds for one in planned.cases} == {3}
    assert {one.parameters["host"] for one in planned.cases} == {"box-b"}
    assert [one.name for one in planned.cases] == [
        *("line", "path", "to_peer.s8", "from_peer.s8", "latency.7k", "latency.14k"),
        *("to_peer.s1", "from_peer.s1", "both.s8"),
        *("iperf3.to_peer", "iperf3.from_peer", "rdma.write_bw", "rdma.send_lat"),
    ]


@pytest.mark.parametrize(
    ("name", "directions"),
    [
        ("to_peer.s1", {"to_peer"}),
        ("from_peer.s8", {"from_peer"}),
        ("both.s8", {"to_peer", "from_peer"}),
    ],
)
def test_streams_have_a_rate_where_they_arrive_and_their_bytes_are_proven(
    name: str, directions: set[str], server: Serving, make_inventory
) -> None:
    found = run(make_inventory, case(name, server.port))
    rates = by_name(found, "network.bandwidth")
    assert {one.labels["direction"] for one in rates} == directions
    for one in rates:
        assert one.state is State.OK
        assert one.samples[0].value > 0
        proofs = {proof.name: proof for proof in one.proofs}
        assert proofs["checksum"].ok is True and "0 differ" in proofs["checksum"].detail
        assert "from lo (loopback" in proofs["path"].detail
    assert len(by_name(found, "network.resent")) == len(directions)
    spent = {one.labels["end"]: one.samples[0].value for one in by_name(found, "network.cpu_seconds")}
    assert set(spent) == (set() if len(directions) == 2 else {"here", "peer"})
    assert all(seconds > 0 for seconds in spent.values())


@pytest.mark.parametrize("size", [7, 14])
def test_messages_come_back_and_are_timed(size: int, server: Serving, make_inventory) -> None:
    found = run(make_inventory, case(f"latency.{size}k", server.port, seconds=0.2))
    (median,), (tail,) = by_name(found, "network.latency"), by_name(found, "network.latency.p99")
    assert median.labels["message_bytes"] == size * 1024
    assert 0 < median.samples[0].value <= tail.samples[0].value
    assert next(proof for proof in median.proofs if proof.name == "checksum").ok is True


def test_too_few_messages_have_no_99th_percentile(server: Serving, make_inventory, monkeypatch) -> None:
    monkeypatch.setattr("k3gate.probes.network.LEAST_TRIPS", 10**9)
    found = run(make_inventory, case("latency.7k", server.port))
    (tail,) = by_name(found, "network.latency.p99")
    assert tail.state is State.NOT_RUN and tail.samples == ()
    assert by_name(found, "network.latency")[0].state is State.OK


def test_an_interface_without_a_line_rate_has_no_share_of_one(server: Serving, make_inventory) -> None:
    with pytest.raises(NotPresentError, match="interface lo of this machine tells no line rate"):
        run(make_inventory, case("line", server.port))
    assert not by_name(run(make_inventory, case("to_peer.s8", server.port)), "network.link_share")


def test_the_share_is_of_the_slower_end_and_never_above_it(
    server: Serving, make_inventory, monkeypatch
) -> None:
    told = iter([100.0, 1e13, 1e13, 100.0, 1e13, 1e12])

    def place(connection: socket.socket) -> object:
        return attrs.evolve(real(connection), bytes_per_s=next(told))

    from k3gate.probes import network_place

    real = network_place.here
    monkeypatch.setattr(network_place, "here", place)
    for _ in range(2):  # the slower end is once this machine and once the peer
        (share,) = by_name(run(make_inventory, case("to_peer.s8", server.port)), "network.link_share")
        assert share.state is State.FAILED and share.samples == ()
        assert "ceiling" in str(share.reason)
    found = run(make_inventory, case("to_peer.s8", server.port))
    (share,), (rate,) = by_name(found, "network.link_share"), by_name(found, "network.bandwidth")
    assert share.state is State.OK
    assert share.samples[0].value == pytest.approx(rate.samples[0].value / 1e12)


# --- programs beside it ---


def test_iperf3_measures_the_same_path_and_is_ended(server: Serving, make_inventory) -> None:
    if shutil.which("iperf3") is None:
        pytest.skip("iperf3 is not installed: apt-get install iperf3")
    found = run(make_inventory, case("iperf3.from_peer", server.port, seconds=1))
    (rate,) = found
    assert rate.name == "network.iperf3.bandwidth" and rate.samples[0].value > 0
    assert "iperf" in str(rate.labels["version"])


def test_a_program_that_the_server_started_ends_with_the_session(server: Serving) -> None:
    if shutil.which("iperf3") is None:
        pytest.skip("iperf3 is not installed: apt-get install iperf3")
    session = Session(HOST, server.port)
    with pytest.raises(PeerError), session.tool("iperf3") as port:
        assert port in network_tools.listening()
        session._lines.socket.close()  # the client dies without a word
    wait_for(lambda: port not in network_tools.listening())


def test_a_missing_program_is_not_present_with_what_installs_it(
    server: Serving, make_inventory, monkeypatch
) -> None:
    monkeypatch.setattr(network_tools.shutil, "which", lambda tool: None)
    with pytest.raises(NotPresentError, match=r"on this machine: apt-get install iperf3"):
        run(make_inventory, case("iperf3.to_peer", server.port))


def test_without_verbs_perftest_is_not_present(server: Serving, make_inventory) -> None:
    with pytest.raises(NotPresentError, match=r"no RDMA device .* interface lo of this machine"):
        run(make_inventory, case("rdma.write_bw", server.port))


IPERF3 = {
    "start": {"version": "iperf 3.12"},
    "end": {
        "sum_sent": {"seconds": 1.000112, "bits_per_second": 28172707089.324734, "retransmits": 0},
        "sum_received": {"seconds": 1.002387, "bytes": 3522019328, "bits_per_second": 28108687965.882954},
    },
}
"""What matters of what iperf3 3.12 printed with --json on loopback."""

WRITE_BW = """\
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 1048576    5000             196.54             196.52               0.023427
---------------------------------------------------------------------------------------
"""
SEND_LAT = """\
---------------------------------------------------------------------------------------
 #bytes #iterations t_min[usec] t_max[usec] t_typical[usec] t_avg[usec] t_stdev[usec] 99% percentile[usec] 99.9%
 7168   5000        2.91        8.42        3.05            3.07        0.12          3.40                 6.01
---------------------------------------------------------------------------------------
"""
"""Made in the layout of perftest 4.5 with figures of ours: no adapter with verbs was at hand."""


def test_what_the_programs_print_is_understood() -> None:
    found = network_tools.read_iperf3(json.dumps(IPERF3))
    assert found.bytes_per_s == pytest.approx(28108687965.882954 / 8)
    assert network_tools.read_write_bw(WRITE_BW) == pytest.approx(196.52e9 / 8)
    assert network_tools.read_send_lat(SEND_LAT) == pytest.approx((3.05e-6, 3.40e-6))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"error": "unable to connect"}', '{"end": {"sum_received": {"seconds": 0}}}', "null"],
)
def test_what_a_program_prints_otherwise_is_no_figure(text: str) -> None:
    for read in (network_tools.read_iperf3, network_tools.read_write_bw, network_tools.read_send_lat):
        with pytest.raises(network_tools.ToolError):
            read(text)
    with pytest.raises(network_tools.ToolError):  # of another unit
        network_tools.read_write_bw(WRITE_BW.replace("Gb/sec", "MiB/sec"))


# --- strangers, liars, and peers that go away ---


def test_strangers_are_dropped_and_the_server_goes_on(server: Serving, make_inventory) -> None:
    for said in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01" * 9000,
        b"[" * 5000 + b"\n",
        b"7\n",
        b"\xff\n",
        b"",
    ):
        with socket.create_connection((HOST, server.port)) as stranger:
            stranger.settimeout(WAIT_SECONDS)
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(100) == b""
    assert run(make_inventory, case("latency.7k", server.port))
    wait_for(lambda: sum("dropped" in line for line in server.told) >= 6)


def test_one_that_connects_and_is_silent_holds_nobody_up(server: Serving, make_inventory) -> None:
    with socket.create_connection((HOST, server.port)), socket.create_connection((HOST, server.port)):
        assert run(make_inventory, case("latency.7k", server.port))


def test_a_second_client_is_told_that_the_server_is_busy(server: Serving) -> None:
    first = Session(HOST, server.port)
    with pytest.raises(PeerError, match="it serves another client"):
        Session(HOST, server.port, patience=0.0)
    first.close()
    Session(HOST, server.port).close()


def test_another_version_is_named_at_both_ends(server: Serving, monkeypatch) -> None:
    monkeypatch.setattr(network_protocol, "VERSION", 2)
    greeting = network_protocol.greeting("session", nonce=network_protocol.new_token())
    monkeypatch.undo()
    lines = Lines(socket.create_connection((HOST, server.port)))
    lines.send(greeting)
    assert "speaks version 2 of the protocol, this one 1" in lines.read()["reason"]


def test_a_stream_of_no_session_is_refused(server: Serving) -> None:
    session = Session(HOST, server.port)
    session._token = network_protocol.new_token()
    with pytest.raises(PeerError), session._streams(1):
        pass
    session.close()


@pytest.mark.parametrize(
    "wish",
    [
        {"do": "echo", "bytes": 2**40, "streams": [0]},
        {"do": "echo", "bytes": 7168, "streams": "all"},
        {"do": "flow", "take": [0] * 40, "give": [], "seed": 1, "warm_up": 0, "seconds": 1},
        {"do": "flow", "take": [0], "give": [], "seed": 1, "warm_up": 0, "seconds": 1e9},
        {"do": "flow", "take": [], "give": [], "seed": 1, "warm_up": 0, "seconds": 1},
        {"do": "sh", "line": "id"},
        {"do": ["iperf3"]},
        {},
    ],
)
def test_what_is_beyond_bounds_ends_the_session_and_not_the_server(wish: dict, server: Serving) -> None:
    session = Session(HOST, server.port)
    with session._streams(1), pytest.raises(PeerError, match=r"closed the connection|reset"):
        session._lines.send(wish)
        session._lines.read()
    Session(HOST, server.port).close()


class BendingProxy:
    """Stands between client and server, and bends what large reads carry: a liar, or a broken network."""

    def __init__(self, port: int, bend: Callable[[bytes], bytes]) -> None:
        self._to, self._bend = port, bend
        self._listener = socket.create_server((HOST, 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection((HOST, self._to))
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while some := one.recv(1 << 16):
                other.sendall(self._bend(some) if len(some) > 5000 else some)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            one.close()
            other.close()

    def close(self) -> None:
        self._listener.close()


@pytest.mark.parametrize(
    ("name", "metric"), [("to_peer.s1", "network.bandwidth"), ("latency.7k", "network.latency")]
)
def test_a_figure_whose_bytes_were_wrong_is_withheld(
    name: str, metric: str, server: Serving, make_inventory
) -> None:
    proxy = BendingProxy(server.port, lambda some: some[:-1] + bytes([(some[-1] + 1) % 256]))
    try:
        found = run(make_inventory, case(name, proxy.port))
    finally:
        proxy.close()
    (figure,) = by_name(found, metric)
    assert figure.state is State.FAILED and figure.samples == ()
    assert str(figure.reason).startswith("withheld: checksum: ")


def test_a_peer_that_lies_about_what_it_got_gives_no_figure(server: Serving, make_inventory) -> None:
    def double(some: bytes) -> bytes:
        return some + some

    proxy = BendingProxy(server.port, double)
    try:
        found = run(make_inventory, case("to_peer.s1", proxy.port))
    finally:
        proxy.close()
    (figure,) = by_name(found, "network.bandwidth")
    assert figure.state is State.FAILED and "were sent and" in str(figure.reason)


def test_a_peer_that_is_gone_fails_the_case_and_the_rest_of_the_round_at_once(make_inventory) -> None:
    serving = Serving()
    context = FakeContext(make_inventory())
    assert list(NetworkProbe().run(case("latency.7k", serving.port), context))
    serving.close()
    for name in ("to_peer.s1", "from_peer.s1"):
        with pytest.raises(ProbeError, match=f"the peer {HOST}:{serving.port} is gone"):
            list(NetworkProbe().run(case(name, serving.port), context))
    context.close()


def test_where_no_k3gate_serves_the_reason_says_so(make_inventory) -> None:
    def answer() -> None:
        connection, _ = other.accept()
        connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
        connection.recv(1000)
        connection.close()

    with socket.create_server((HOST, 0)) as other:
        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(ProbeError, match="does not speak this protocol"):
            run(make_inventory, case("path", int(other.getsockname()[1])))


def test_once_ends_with_the_last_round_of_a_run(make_inventory) -> None:
    serving = Serving(once=True)
    for number in range(3):
        context = FakeContext(make_inventory())
        context.round = number
        assert serving.thread.is_alive()
        list(NetworkProbe().run(case("path", serving.port), context))
        context.close()
    serving.thread.join(WAIT_SECONDS)
    assert not serving.thread.is_alive()


# --- where it listens ---


def test_on_a_public_address_it_listens_only_when_asked() -> None:
    with pytest.raises(UsageError, match=r"public address \(8\.8\.8\.8\).*--bind ADDRESS"):
        network_server.listen(None, 0, ["127.0.0.1", "10.1.2.3", "8.8.8.8"])
    with pytest.raises(UsageError, match="public address"):
        network_server.listen(None, 0, ["fe80::1%eth0", "2001:4860:4860::8888"])
    assert network_server.public(["127.0.0.1", "192.168.0.7", "fe80::1%eth0", "fd00::1", "::1", "x"]) == []
    network_server.listen(HOST, 0, ["8.8.8.8"]).close()


def test_an_address_or_port_that_cannot_be_had_is_a_line() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = int(taken.getsockname()[1])
        with pytest.raises(UsageError, match=rf"port {port}: .*name another with --bind or --port"):
            network_server.listen(HOST, port, [])
    with pytest.raises(UsageError, match=r"cannot listen on 192\.0\.2\.1"):
        network_server.listen("192.0.2.1", 0, [])
    with pytest.raises(UsageError, match=r"cannot listen on nowhere\.invalid"):
        network_server.listen("nowhere.invalid", 0, [])


def test_listening_ports_are_read_from_the_kernels_table(tmp_path: Path) -> None:
    head = "  sl  local_address rem_address   st\n"
    rows = "   0: 0100007F:4F27 00000000:0000 0A 0\n   1: 0100007F:4F28 0100007F:1234 01 0\n"
    (tmp_path / "tcp").write_text(head + rows)
    assert network_tools.listening(str(tmp_path)) == {0x4F27}
