"""Whom `--peer` names, and what is refused before anything is measured."""

from __future__ import annotations

import socket

import pytest

from k3gate.errors import UsageError
from k3gate.harness import network
from k3gate.probes.network_protocol import PORT


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("box-b", "box-b", PORT),
        ("box-b.lan:5000", "box-b.lan", 5000),
        ("10.0.0.2", "10.0.0.2", PORT),
        ("10.0.0.2:5000", "10.0.0.2", 5000),
        ("fd00::2", "fd00::2", PORT),
        ("[fd00::2]:5000", "fd00::2", 5000),
        ("[fe80::2%eth0]", "fe80::2%eth0", PORT),
    ],
)
def test_a_peer_is_a_host_with_or_without_a_port(text: str, host: str, port: int) -> None:
    found = network.named(text)
    assert (found.host, found.port) == (host, port)


@pytest.mark.parametrize("text", ["box-b:0", "box-b:70000", "a:b:c", "box b\n", "[box-b", ":5000", "x:"])
def test_what_names_no_peer_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="names no peer"):
        network.named(text)


def test_a_peer_that_does_not_answer_is_refused_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    with pytest.raises(
        UsageError, match=rf"127\.0\.0\.1, port {port} \(connection refused\): start it there"
    ):
        network.peer(f"127.0.0.1:{port}", None)


def test_a_peer_that_no_probe_would_measure_is_refused() -> None:
    with pytest.raises(UsageError, match="add --probe network"):
        network.peer("box-b", ("memory",))
    assert network.peer(None, ("memory",)) is None
