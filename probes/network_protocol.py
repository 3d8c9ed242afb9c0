"""What client and server of the network probe say to each other: one JSON object a line, short, and in bounded time.

Neither end trusts the other. A line is at most `LINE_BYTES` long; a value that is not what it should be ends the
session; no text that came from the other end is ever run, opened, or used as a name of anything.
"""

from __future__ import annotations

import contextlib
import json
import math
import secrets
import socket
import struct
import time
from typing import Any

from k3gate.documents import printable

VERSION = 1
PORT = 20263
"""Not registered with IANA, and below the ports that systems give to outgoing connections."""
LINE_BYTES = 4096
GREETING_SECONDS = 5.0
"""What an end that has connected may take for its greeting."""
STALL_SECONDS = 5.0
"""For how long nothing may move on a connection that is being measured."""
IDLE_SECONDS = 120.0
"""For how long a client may have nothing to ask."""
MOST_STREAMS = 32
MOST_SECONDS = 60.0
MOST_MESSAGE_BYTES = 1 << 20
TAIL_SECONDS = 0.5
"""For so long a stream goes on after the window that is measured, so that both ends need no common clock."""
TOOLS = ("iperf3", "ib_write_bw", "ib_send_lat")


class PeerError(Exception):
    """The other end said something that it may not say, or nothing. The message says what."""


class Lines:
    """JSON lines over a connected socket. Raises `PeerError` for whatever is none, and where time is up."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._rest = b""

    def send(self, message: dict[str, Any], seconds: float = GREETING_SECONDS) -> None:
        """One line."""
        try:
            self.socket.settimeout(seconds)
            self.socket.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        except OSError as error:
            raise PeerError(told(error)) from error

    def read(self, seconds: float = GREETING_SECONDS) -> dict[str, Any]:
        """The next line, in so many seconds in all, however it trickles in."""
        until = time.monotonic() + seconds
        while b"\n" not in self._rest:
            if len(self._rest) > LINE_BYTES:
                raise PeerError(f"it sent a line of more than {LINE_BYTES} bytes")
            left = until - time.monotonic()
            if left <= 0:
                raise PeerError(f"it said nothing for {seconds:.0f} s")
            try:
                self.socket.settimeout(left)
                some = self.socket.recv(LINE_BYTES)
            except TimeoutError:
                continue
            except OSError as error:
                raise PeerError(told(error)) from error
            if not some:
                raise PeerError("it closed the connection")
            self._rest += some
        line, _, self._rest = self._rest.partition(b"\n")
        if len(line) > LINE_BYTES:
            raise PeerError(f"it sent a line of more than {LINE_BYTES} bytes")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise PeerError("it does not speak this protocol") from error
        if not isinstance(message, dict):
            raise PeerError("it does not speak this protocol")
        return message

    @property
    def drained(self) -> bool:
        """Whether nothing was received beyond the last line."""
        return not self._rest


def told(error: OSError) -> str:
    """A socket's error as the end of a sentence about the other end."""
    if isinstance(error, TimeoutError):
        return "it does not answer"
    return (error.strerror or str(error) or type(error).__name__).lower()


def greeting(want: str, **more: Any) -> dict[str, Any]:
    """The first line of each end: what is spoken, in which version, and the speaker's wish."""
    return {"k3gate": "net", "version": VERSION, "want": want, **more}


def check_greeting(message: dict[str, Any], want: str) -> None:
    """Raise `PeerError` unless this is the greeting of a k3gate of this version that wants this."""
    if message.get("k3gate") != "net":
        raise PeerError("it is no k3gate net serve")
    if message.get("version") != VERSION:
        shown = printable(str(message.get("version")))[:20]
        raise PeerError(
            f"it speaks version {shown} of the protocol, this one {VERSION}: use one k3gate on both"
        )
    if message.get("want") != want:
        raise PeerError("it does not speak this protocol")


def new_token() -> str:
    """A name that nobody guesses: of a client's greeting, or of a session."""
    return secrets.token_hex(16)


def token(message: dict[str, Any], key: str) -> str:
    """A token in a message."""
    value = message.get(key)
    if not isinstance(value, str) or len(value) != 32 or not set(value) <= set("0123456789abcdef"):
        raise PeerError(f"its {key} is no token")
    return value


def number(message: dict[str, Any], key: str, low: float, high: float) -> float:
    """A number in a message, in bounds."""
    value = message.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise PeerError(f"its {key} is no number")
    if not low <= value <= high:
        raise PeerError(f"its {key} is {value:g}, beyond {low:g} to {high:g}")
    return float(value)


def whole(message: dict[str, Any], key: str, low: int, high: int) -> int:
    """A whole number in a message, in bounds."""
    value = message.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise PeerError(f"its {key} is no whole number of {low} to {high}")
    return value


def numbers(message: dict[str, Any], key: str) -> list[int]:
    """A list of streams in a message: whole numbers, each once."""
    value = message.get(key)
    fits = isinstance(value, list) and len(value) <= MOST_STREAMS
    if not fits or any(type(one) is not int or not 0 <= one < 2**31 for one in value or ()):
        raise PeerError(f"its {key} is no list of streams")
    assert isinstance(value, list)
    if len(set(value)) < len(value):
        raise PeerError(f"its {key} names a stream twice")
    return value


def short_text(message: dict[str, Any], key: str) -> str | None:
    """A text in a message, for people to read: printable, at most 200 characters; None where there is none."""
    value = message.get(key)
    return printable(value)[:200].replace("\n", " ") if isinstance(value, str) and value else None


def for_data(connection: socket.socket) -> None:
    """Make a connection ready to be timed: blocking, nothing held back, and no longer silent than allowed."""
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    limit = struct.pack("ll", int(STALL_SECONDS), 0)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, limit)


def close(connection: socket.socket) -> None:
    """Close at once, whatever the other end does."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
