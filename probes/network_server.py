"""`k3gate net serve`: the end that answers a run of another machine. For a network that is trusted.

It serves one client at a time, and others are told so. All that a client may ask for is a short list: take a stream of
bytes and count them, give one, send messages back, and start iperf3 or perftest with arguments of our own. Sizes,
numbers and times of all of it are bounded, nothing that a client sends is kept or run, and a silent client is dropped.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from k3gate.documents import printable
from k3gate.errors import UsageError
from k3gate.probes import network_place, network_streams
from k3gate.probes import network_protocol as protocol
from k3gate.probes.network_protocol import Lines, PeerError
from k3gate.probes.network_tools import Server as Tool
from k3gate.probes.network_tools import ToolError
from k3gate.units import count

MOST_GREETINGS = 16
"""Connections that may be at their greeting at once; more are closed unheard."""
_STREAM_SECONDS = 10.0
"""What a client may take to open the streams that it asks for."""


def public(addresses: Iterable[str]) -> list[str]:
    """Those addresses that the whole Internet may reach."""
    found = []
    for one in addresses:
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(one.partition("%")[0]).is_global:
                found.append(one)
    return found


def listen(bind: str | None, port: int, addresses: Iterable[str]) -> socket.socket:
    """A socket that listens on `bind`, or where None is given on every address, unless one of this machine's
    `addresses` is public. Raises `UsageError` with what to do."""
    if bind is None and (open_ := public(addresses)):
        raise UsageError(
            f"this machine has a public address ({', '.join(open_[:3])}), and whoever reaches it could use up "
            "its line: name the address of the trusted network with --bind ADDRESS"
        )
    try:
        if bind is None and socket.has_dualstack_ipv6():
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
        family = socket.AF_INET6 if bind is not None and ":" in bind else socket.AF_INET
        return socket.create_server((bind or "", port), family=family)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(
            f"cannot listen on {bind or 'all addresses'}, port {port}: {reason}; name another with --bind or --port"
        ) from error


class Service:
    """Serves clients on a listening socket, one at a time. `tell` is given a line for what a person wants to see."""

    def __init__(self, listener: socket.socket, tell: Callable[[str], None], *, once: bool = False) -> None:
        self._listener, self._tell, self._once = listener, tell, once
        self._busy = threading.Lock()
        self._greetings = threading.BoundedSemaphore(MOST_GREETINGS)
        self._session: _Session | None = None
        self._ended = threading.Event()

    def run(self) -> None:
        """Until a run has ended, with `once`, or for ever. A session that goes on is ended with it."""
        self._listener.settimeout(0.2)
        try:
            while not self._ended.is_set():
                try:
                    connection, address = self._listener.accept()
                except TimeoutError:
                    continue
                except OSError:  # too many open files, a connection that was gone already: others may follow
                    time.sleep(0.05)
                    continue
                self._welcome(connection, str(address[0]))
        finally:
            self._listener.close()
            session = self._session
            if session is not None:
                session.close()

    def stop(self) -> None:
        """End `run`, from another thread."""
        self._ended.set()

    def _welcome(self, connection: socket.socket, who: str) -> None:
        """Hear a greeting in a thread of its own, so that nobody who connects and is silent holds others up."""
        if not self._greetings.acquire(blocking=False):
            protocol.close(connection)
            return

        def hear() -> None:
            lines = Lines(connection)
            try:
                try:
                    greeting = lines.read()
                finally:
                    self._greetings.release()
                if greeting.get("want") == "stream":
                    self._stream(lines, greeting)
                    return
                self._client(lines, greeting, who)
            except PeerError as error:
                self._tell(f"{printable(who)}: dropped, {error}")
            protocol.close(connection)

        threading.Thread(target=hear, daemon=True).start()

    def _stream(self, lines: Lines, greeting: dict[str, Any]) -> None:
        protocol.check_greeting(greeting, "stream")
        session = self._session
        named = protocol.token(greeting, "session")
        number = protocol.whole(greeting, "stream", 0, 2**31)
        if session is None or not hmac.compare_digest(session.token, named) or not lines.drained:
            protocol.close(lines.socket)
            raise PeerError("it names no session of this server")
        session.join(number, lines)

    def _client(self, lines: Lines, greeting: dict[str, Any], who: str) -> None:
        try:
            protocol.check_greeting(greeting, "session")
            nonce = protocol.token(greeting, "nonce")
        except PeerError as error:
            if greeting.get("k3gate") == "net":  # of another version, which our answer tells
                lines.send(protocol.greeting("refused", reason=str(error)))
            raise
        if not self._busy.acquire(blocking=False):
            lines.send(protocol.greeting("refused", nonce=nonce, reason="it serves another client"))
            return
        last = False
        try:
            session = self._session = _Session(lines)
            lines.send(
                protocol.greeting(
                    "welcome",
                    nonce=nonce,
                    session=session.token,
                    place=network_place.document(session.place),
                )
            )
            self._tell(f"{who}: serving")
            last = session.serve()
            self._tell(f"{who}: done, {count(session.served, 'request')}")
        finally:
            if self._session is not None:
                self._session.close()
            self._session = None
            self._busy.release()
            if last and self._once:
                self._ended.set()


class _Session:
    """One client: what it asks for, and the streams that it opened."""

    def __init__(self, lines: Lines) -> None:
        self.token = protocol.new_token()
        self.place = network_place.here(lines.socket)
        self.served = 0
        self._lines = lines
        self._streams: dict[int, socket.socket] = {}
        self._changed = threading.Condition()
        self._tool: Tool | None = None
        self._closed = False

    def join(self, number: int, lines: Lines) -> None:
        """Take in a stream of this session."""
        with self._changed:
            if self._closed or number in self._streams or len(self._streams) >= protocol.MOST_STREAMS:
                protocol.close(lines.socket)
                raise PeerError("it opens a stream that it has, or too many")
            lines.send(protocol.greeting("stream", stream=number))
            protocol.for_data(lines.socket)
            self._streams[number] = lines.socket
            self._changed.notify_all()

    def serve(self) -> bool:
        """Do what is asked until the client is done; whether it said that this was the last of its run."""
        while True:
            message = self._lines.read(protocol.IDLE_SECONDS)
            wish = message.get("do")
            if wish == "bye":
                return message.get("last") is True
            if wish == "flow":
                answer = self._flow(message)
            elif wish == "echo":
                answer = self._echo(message)
            elif wish in protocol.TOOLS:
                answer = self._start(str(wish))
            elif wish == "end":
                self._end()
                answer = {}
            else:
                raise PeerError("it asks for what this server does not do")
            self.served += 1
            self._lines.send({"done": True, **answer})

    def _flow(self, message: dict[str, Any]) -> dict[str, Any]:
        taken = self._opened(protocol.numbers(message, "take"))
        given = self._opened(protocol.numbers(message, "give"))
        seed = protocol.whole(message, "seed", 0, 2**63)
        warm_up = protocol.number(message, "warm_up", 0, protocol.MOST_SECONDS)
        seconds = protocol.number(message, "seconds", 0, protocol.MOST_SECONDS)
        if set(taken) & set(given) or not (taken or given):
            raise PeerError("it asks for a stream both ways, or for none")
        self._lines.send({"ready": True})
        try:
            return network_streams.document(network_streams.flow(taken, given, seed, warm_up, seconds))
        finally:
            self._drop({**taken, **given})

    def _echo(self, message: dict[str, Any]) -> dict[str, Any]:
        from k3gate.probes import _native

        size = protocol.whole(message, "bytes", 8, protocol.MOST_MESSAGE_BYTES)
        streams = self._opened(protocol.numbers(message, "streams"))
        if len(streams) != 1:
            raise PeerError("messages travel on one stream")
        self._lines.send({"ready": True})
        try:
            (connection,) = streams.values()
            done = _native.network_echo(connection.fileno(), size)
        finally:
            self._drop(streams)
        errors = [network_streams.words_of(done.error)] if done.error else []
        return {"messages": done.messages, "cpu_seconds": done.cpu_seconds, "errors": errors}

    def _start(self, tool: str) -> dict[str, Any]:
        self._end()
        address = str(self._lines.socket.getsockname()[0]).removeprefix("::ffff:")
        try:
            self._tool = Tool(tool, address, self.place.verbs)
        except (ToolError, OSError) as error:
            return {"absent": str(error)}
        return {"port": self._tool.port}

    def _end(self) -> None:
        if self._tool is not None:
            self._tool.end()
            self._tool = None

    def _opened(self, wanted: list[int]) -> dict[int, socket.socket]:
        """These streams, once the client has opened them."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._streams.keys() >= set(wanted), _STREAM_SECONDS):
                raise PeerError("it did not open the streams that it asks for")
            return {number: self._streams[number] for number in wanted}

    def _drop(self, streams: dict[int, socket.socket]) -> None:
        with self._changed:
            for number, connection in streams.items():
                protocol.close(connection)
                self._streams.pop(number, None)

    def close(self) -> None:
        """End what was started, close what was opened."""
        with self._changed:
            self._closed = True
            for connection in self._streams.values():
                protocol.close(connection)
            self._streams.clear()
        self._end()
        protocol.close(self._lines.socket)
