"""Requests to a Hub, bounded in bytes, time and tries: what answers is believed in nothing.

Redirects are followed one by one; httpx2 leaves the token out where one leads to another origin, as the Hub's do
to the store that holds its large files.
"""

from __future__ import annotations

import email.utils
import re
import threading
import time
from collections.abc import Mapping

import httpx2
from attrs import field, frozen

from k3gate import __version__
from k3gate.documents import printable
from k3gate.model.checkpoint.hub.access import Access

CONNECTIONS = 32
CONNECT_SECONDS = 10.0
READ_SECONDS = 15.0
LEAST_RATE = 32 * 1024
"""Bytes per second that an answer must reach after half a minute, or it is cut."""
WAITS = (0.5, 1.0, 2.0)
"""Seconds before each further try where the Hub does not say."""
LONGEST_WAIT = 60.0
PATIENCE = 3
"""Requests in a row that may be given up before others are made once alone."""
MOST_REDIRECTS = 5
_SMALL = 64 * 1024
BUSY = frozenset({408, 429, 500, 502, 503, 504})
_RATE_LIMIT = re.compile(r"\br\s*=\s*0\s*;\s*t\s*=\s*(\d{1,6})")


class NoAnswerError(OSError):
    """The Hub could not be reached, or broke off; the message says why, without an address."""


@frozen
class Answer:
    """What came back. `body` is read of 200 and 206 alone; `more`: there was more of it than was wanted, `cut`:
    it ended too early. `home`: it is the Hub itself that answered, not a store that it led to."""

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    more: bool
    cut: bool
    home: bool


class Transport:
    """Connections to a Hub, for many threads at once."""

    def __init__(self, access: Access) -> None:
        self._client = httpx2.Client(
            headers={"User-Agent": f"k3gate/{__version__}", "Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx2.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS),
        )
        self._token = {} if access.token is None else {"Authorization": f"Bearer {access.token}"}
        self._answered = False
        self._given_up = 0
        self._closed = threading.Event()

    def close(self) -> None:
        """Make an end: what waits or reads in other threads gives up."""
        self._closed.set()

    def get(self, url: str, headers: Mapping[str, str], limit: int, *, partial: bool = False) -> Answer:
        """The answer to a request, of whose body `limit` bytes are read at most.

        Tried again where it is refused for the moment or cut, after the time that the Hub asks for; where that did
        not help several in a row, requests are made once until one succeeds. `partial`: a body that was cut will
        do. `NoAnswerError` where none came.
        """
        if self._closed.is_set():
            raise NoAnswerError("interrupted")
        waits = (*WAITS, None) if self._given_up < PATIENCE else (None,)
        failure = NoAnswerError("interrupted")
        for wait in waits:
            try:
                answer = self._once(url, {**headers, **self._token}, limit)
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                # A Hub that never answered is not there, or there is no network.
                if wait is None or not self._answered:
                    failure = NoAnswerError(_reason(error))
                    break
            else:
                self._answered = True
                if answer.status not in BUSY and not (answer.cut and not (partial and answer.body)):
                    self._given_up = 0
                    return answer
                asked = asked_wait(answer.headers) if answer.status in BUSY else None
                if wait is None or (asked or 0.0) > LONGEST_WAIT:
                    if answer.status in BUSY:
                        self._given_up += 1
                        return answer
                    failure = NoAnswerError("the answer broke off")
                    break
                wait = wait if asked is None else asked
            if self._closed.wait(wait):
                break
        self._given_up += 1
        raise failure

    def _once(self, url: str, headers: Mapping[str, str], limit: int) -> Answer:
        request = self._client.build_request("GET", url, headers=headers)
        home = _origin(request.url)
        for _ in range(MOST_REDIRECTS + 1):
            response = self._client.send(request, stream=True)
            try:
                if not response.has_redirect_location:
                    return self._read(response, limit, _origin(response.url) == home)
                self._body(response, _SMALL)  # so that the connection can be used again
                if response.next_request is None:
                    raise httpx2.RemoteProtocolError("a redirect that leads nowhere")
                request = response.next_request
            finally:
                response.close()
        raise httpx2.TooManyRedirects(f"more than {MOST_REDIRECTS} redirects")

    def _read(self, response: httpx2.Response, limit: int, home: bool) -> Answer:
        good = response.status_code in (200, 206)
        if good and response.headers.get("Content-Encoding", "identity") != "identity":
            raise httpx2.RemoteProtocolError("the answer is compressed, which was not asked for")
        body, more, cut = self._body(response, limit if good else _SMALL)
        return Answer(response.status_code, response.headers, body if good else b"", more, cut and good, home)

    def _body(self, response: httpx2.Response, limit: int) -> tuple[bytes, bool, bool]:
        """At most so many bytes; whether there was more; whether it ended too early."""
        until = time.monotonic() + 30 + limit / LEAST_RATE
        body = bytearray()
        try:
            for chunk in response.iter_raw():
                body += chunk
                if len(body) > limit:
                    return bytes(body[:limit]), True, False
                if time.monotonic() > until or self._closed.is_set():
                    return bytes(body), False, True
        except httpx2.TransportError:
            return bytes(body), False, True
        return bytes(body), False, False


def asked_wait(headers: Mapping[str, str]) -> float | None:
    """Seconds after which the Hub wants to be asked again: of Retry-After, a number or a date, or of its RateLimit."""
    told = headers.get("Retry-After", "").strip()
    if told.isascii() and told.isdigit():
        return float(told[:9])
    if told:
        try:
            return max(0.0, email.utils.parsedate_to_datetime(told).timestamp() - time.time())
        except (ValueError, OverflowError):
            pass
    limit = _RATE_LIMIT.search(headers.get("RateLimit", ""))
    return float(limit[1]) if limit else None


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _reason(error: Exception) -> str:
    if isinstance(error, httpx2.TimeoutException):
        return "it took too long"
    # Not an address: that of a store may hold a signature.
    text = re.sub(r"\S+://\S+", "...", printable(str(error))).replace("\n", " ")
    return text[:200] or type(error).__name__
