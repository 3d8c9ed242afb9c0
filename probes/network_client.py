"""The measuring end: a session with a `k3gate net serve`, and what can be asked of it."""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from attrs import frozen

from k3gate.probes import network_place, network_streams
from k3gate.probes import network_protocol as protocol
from k3gate.probes.network_place import Place
from k3gate.probes.network_protocol import Lines, PeerError
from k3gate.probes.network_streams import Flow

CONNECT_SECONDS = 5.0
BUSY_SECONDS = 10.0
"""How long a server that serves another client is asked again."""


@frozen
class Echoes:
    """Round trips in s, in order. `wrong` came back with other bytes; CPU seconds of both ends."""

    seconds: tuple[float, ...]
    wrong: int
    cpu_seconds: float
    peer_cpu_seconds: float


class Session:
    """A session with the peer at `host`, `port`. Every method raises `PeerError` where the peer is gone or strange."""

    def __init__(self, host: str, port: int, patience: float = BUSY_SECONDS) -> None:
        self.host, self.port = host, port
        self._next_stream = 0
        self._lines, answer = self._greeted(patience)
        self._token = protocol.token(answer, "session")
        self.there = network_place.structure(answer.get("place"))
        self.here: Place = network_place.here(self._lines.socket)
        self.address = str(self._lines.socket.getpeername()[0])

    def _greeted(self, patience: float) -> tuple[Lines, dict[str, Any]]:
        """A connection whose other end has welcomed us; one that is busy is asked again for `patience` seconds."""
        until = time.monotonic() + patience
        while True:
            lines = Lines(self._connected())
            nonce = protocol.new_token()
            try:
                lines.send(protocol.greeting("session", nonce=nonce))
                answer = lines.read()
                want = "refused" if answer.get("want") == "refused" else "welcome"
                protocol.check_greeting(answer, want)
                if protocol.token(answer, "nonce") != nonce:
                    raise PeerError("it answers another greeting")
            except PeerError:
                protocol.close(lines.socket)
                raise
            if want == "welcome":
                return lines, answer
            protocol.close(lines.socket)
            if time.monotonic() > until:
                raise PeerError(protocol.short_text(answer, "reason") or "it refuses")
            time.sleep(0.1)

    def _connected(self) -> socket.socket:
        try:
            return socket.create_connection((self.host, self.port), timeout=CONNECT_SECONDS)
        except OSError as error:
            raise PeerError(protocol.told(error)) from error

    def _stream(self) -> tuple[int, socket.socket]:
        """A stream of this session and its number."""
        number, self._next_stream = self._next_stream, self._next_stream + 1
        lines = Lines(self._connected())
        try:
            lines.send(protocol.greeting("stream", session=self._token, stream=number))
            protocol.check_greeting(lines.read(), "stream")
            protocol.for_data(lines.socket)
        except PeerError:
            protocol.close(lines.socket)
            raise
        return number, lines.socket

    @contextlib.contextmanager
    def _streams(self, number: int) -> Iterator[dict[int, socket.socket]]:
        opened: dict[int, socket.socket] = {}
        try:
            for _ in range(number):
                stream, connection = self._stream()
                opened[stream] = connection
            yield opened
        finally:
            for connection in opened.values():
                protocol.close(connection)

    def _ask(
        self, wish: dict[str, Any], seconds: float, beat: Callable[[], None] | None = None
    ) -> dict[str, Any]:
        if beat is not None:
            beat()
        self._lines.send(wish)
        return self._lines.read(seconds)

    def flow(
        self, to_peer: int, from_peer: int, warm_up: float, seconds: float, beat: Callable[[], None]
    ) -> tuple[Flow, Flow]:
        """(what this end saw, what the peer saw) of so many streams each way, all at once."""
        seed = secrets.randbits(62)
        with self._streams(to_peer + from_peer) as streams:
            given = dict(list(streams.items())[:to_peer])
            taken = dict(list(streams.items())[to_peer:])
            wish = {"do": "flow", "take": list(given), "give": list(taken), "seed": seed}
            ready = self._ask({**wish, "warm_up": warm_up, "seconds": seconds}, protocol.GREETING_SECONDS)
            if ready.get("ready") is not True:
                raise PeerError("it does not speak this protocol")
            own = network_streams.flow(taken, given, seed, warm_up, seconds, beat)
            if own.errors:
                raise PeerError(own.errors[0])
            # What it has not read yet lies in buffers, and a slow path may take a while to bring it.
            answer = self._lines.read(protocol.STALL_SECONDS + 5)
        return own, network_streams.structure(answer)

    def echoes(self, size: int, seconds: float, most: int, beat: Callable[[], None]) -> Echoes:
        """Round trips of messages of so many bytes, for so long, at most `most`."""
        import threading

        from k3gate.probes import _native

        with self._streams(1) as streams:
            ready = self._ask(
                {"do": "echo", "bytes": size, "streams": list(streams)}, protocol.GREETING_SECONDS, beat
            )
            if ready.get("ready") is not True:
                raise PeerError("it does not speak this protocol")
            (descriptor,) = (one.fileno() for one in streams.values())
            found: list[Any] = []

            def ping() -> None:
                found.append(_native.network_ping(descriptor, size, seconds, most, secrets.randbits(62)))

            network_streams.together([threading.Thread(target=ping, daemon=True)], beat)
            trips = found[0]
            if trips.error:
                raise PeerError(network_streams.words_of(trips.error))
            answer = self._lines.read(protocol.STALL_SECONDS + 5)
        cpu = protocol.number(answer, "cpu_seconds", 0, 1e6)
        return Echoes(tuple(trips.seconds), trips.wrong, trips.cpu_seconds, cpu)

    def path(self) -> tuple[int | None, float | None]:
        """(largest packet of the path in bytes, round trip in s that the kernel has seen)."""
        mtu, trip, _ = network_streams.tcp_info(self._lines.socket)
        return mtu, trip

    def congestion(self) -> str | None:
        """The congestion control of this end, which may hold back what is sent at once."""
        try:
            raw = self._lines.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        except OSError:
            return None
        return raw.partition(b"\0")[0].decode("ascii", "replace") or None

    @contextlib.contextmanager
    def tool(self, name: str) -> Iterator[int | str]:
        """The port on which the peer serves this program meanwhile, or why it does not."""
        answer = self._ask({"do": name}, 15.0)
        why = protocol.short_text(answer, "absent")
        if why is not None:
            yield why
            return
        try:
            yield protocol.whole(answer, "port", 1, 65535)
        finally:
            self._ask({"do": "end"}, 15.0)

    def close(self, last: bool = False) -> None:
        """Say that no more comes; `last`: of the whole run."""
        with contextlib.suppress(PeerError):
            self._lines.send({"do": "bye", "last": last})
        protocol.close(self._lines.socket)
